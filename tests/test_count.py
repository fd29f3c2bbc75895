"""`fnlkit.cleanlab.count`: joints and latent matrices, by hand, by site and beside cleanlab."""

import numpy as np
import pytest

from fnlkit.cleanlab import count
from fnlkit.core.errors import InputError
from tests.test_filter import lists, made

# Classes 0 and 1 have thresholds 0.6 and 0.8; sample 2 is confident in class 1.
LABELS, PROBS = np.array([0, 0, 0, 1, 1]), np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.2, 0.8]])
JOINT = np.array([[2, 1], [0, 2]])


def test_joint_by_hand():
    np.testing.assert_allclose(count.get_confident_thresholds(LABELS, PROBS), [0.6, 0.8])
    joint, off = count.compute_confident_joint(LABELS, PROBS, return_indices_of_off_diagonals=True)
    assert joint.tolist() == JOINT.tolist() and off.tolist() == [2]
    np.testing.assert_allclose(count.estimate_joint(LABELS, PROBS), JOINT / 5)
    # 3 samples with label 0 at 2:1, and 2 with label 1.
    assert count.calibrate_confident_joint([[8, 4], [0, 7]], LABELS).tolist() == JOINT.tolist()
    higher = count.compute_confident_joint(LABELS, PROBS, thresholds=[0.85, 0.85], calibrate=False)
    assert higher.tolist() == [[1, 1], [0, 1]]  # 1 is the least count on the diagonal
    assert count.num_label_issues(LABELS, PROBS) == 1
    assert count.num_label_issues(LABELS, PROBS, estimation_method="off_diagonal_calibrated") == 1
    custom = count.num_label_issues(LABELS, PROBS, estimation_method="off_diagonal_custom", confident_joint=np.eye(2))
    assert custom == 0


@pytest.mark.parametrize("converge", [False, True])
@pytest.mark.parametrize("method", ["cnt", "eqn", "marginal", "marginal_ps"])
def test_latent_matrices_of_a_consistent_joint(method, converge):
    """For the joint / 5: P(true) = (0.4, 0.6), P(label | true) = columns (1, 0) and (1/3, 2/3)."""
    py, noise, inverse, joint = count.estimate_py_and_noise_matrices_from_probabilities(
        LABELS, PROBS, py_method=method, converge_latent_estimates=converge
    )
    np.testing.assert_allclose(py, [0.4, 0.6], atol=1e-5)
    np.testing.assert_allclose(noise, [[1, 1 / 3], [0, 2 / 3]], atol=1e-5)
    np.testing.assert_allclose(inverse, [[2 / 3, 0], [1 / 3, 1]], atol=1e-5)
    assert joint.tolist() == JOINT.tolist()


@pytest.mark.filterwarnings("ignore:classes without labels")
def test_sites_are_counted_alone():
    labels, probs, sites = made(400, 4, 0)
    labels[sites == 2] %= 2  # a site with two of four classes
    labels[sites == 3] = 1  # and a site with one
    options = {"sites": sites}
    calls = {
        "thresholds": lambda y, p, **o: count.get_confident_thresholds(y, p, **o),
        "joint": lambda y, p, **o: count.compute_confident_joint(y, p, **o),
        "indices": lambda y, p, **o: [len(i) for i in off_diagonals(y, p, **o)],
        "estimate": lambda y, p, **o: count.estimate_joint(y, p, **o),
        "issues": lambda y, p, **o: count.num_label_issues(y, p, **o),
        "py": lambda y, p, **o: count.estimate_py_and_noise_matrices_from_probabilities(y, p, **o)[0],
        "inverse": lambda y, p, **o: count.estimate_py_and_noise_matrices_from_probabilities(y, p, **o)[2],
    }
    for name, call in calls.items():
        together = call(labels, probs, **options)
        for site in range(4):
            here = sites == site
            alone = call(labels[here], probs[here])
            np.testing.assert_allclose(together[site], alone if name != "indices" else alone[0], err_msg=name)
    assert count.num_label_issues(labels, probs, **options)[3] == 0


def off_diagonals(labels, probs, **options):
    found = count.compute_confident_joint(labels, probs, return_indices_of_off_diagonals=True, **options)[1]
    return found if options else [found]


@pytest.mark.filterwarnings("ignore:cleanlab will remove", "ignore:classes without labels")
def test_lists_of_classes_are_counted_one_class_after_another():
    labels, has, probs, sites = lists(200, 3, 0)
    joint = count.compute_confident_joint(labels, probs, multi_label=True)
    by_site = count.compute_confident_joint(labels, probs, multi_label=True, sites=sites)
    assert joint.shape == (3, 2, 2) and by_site.shape == (3, 3, 2, 2)
    for c in range(3):
        pairs = np.column_stack([1 - probs[:, c], probs[:, c]])
        assert joint[c].tolist() == count.compute_confident_joint(has[:, c].astype(int), pairs).tolist()
        assert by_site[:, c].tolist() == count.compute_confident_joint(has[:, c].astype(int), pairs, sites=sites).tolist()
    assert count.calibrate_confident_joint(joint, labels, multi_label=True).tolist() == joint.tolist()
    np.testing.assert_allclose(count.estimate_joint(labels, probs, multi_label=True), joint / 200)
    assert count.num_label_issues(labels, probs, multi_label=True, sites=sites).sum() > 0


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: count.num_label_issues(LABELS, PROBS, estimation_method="diagonal"), "not a valid estimation method"),
        (lambda: count.num_label_issues(LABELS, PROBS, estimation_method="off_diagonal_custom"), "`confident_joint`"),
        (lambda: count.calibrate_confident_joint(np.eye(3), LABELS, sites=LABELS), r"must have shape \(2, 3, 3\)"),
        (lambda: count.calibrate_confident_joint(np.eye(1), LABELS), r"must lie in 0\.\.0"),
        (lambda: count.estimate_py_and_noise_matrices_from_probabilities(LABELS, PROBS, py_method="x"), "must be cnt"),
    ],
)
def test_input_that_does_not_fit_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_an_ignored_joint_is_named():
    with pytest.warns(UserWarning, match="`confident_joint` is ignored"):
        assert count.num_label_issues(LABELS, PROBS, confident_joint=np.ones((2, 2))) == 1


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(4))
def test_results_are_cleanlabs(seed):
    theirs = pytest.importorskip("cleanlab", reason="needs cleanlab: pip install fnlkit[bench]")
    labels, probs, _ = made(300, 4, seed)
    for name in ("get_confident_thresholds", "estimate_joint", "num_label_issues"):
        expected = getattr(theirs.count, name)(labels, probs)
        np.testing.assert_allclose(getattr(count, name)(labels, probs), expected, rtol=0, atol=1e-9)
    name = "estimate_py_and_noise_matrices_from_probabilities"
    for method in ("cnt", "eqn", "marginal", "marginal_ps"):
        found = getattr(count, name)(labels, probs, py_method=method)
        for one, expected in zip(found, getattr(theirs.count, name)(labels, probs, py_method=method), strict=True):
            np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)
