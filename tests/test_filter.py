"""The filter and the ranks against cleanlab: recorded results, and the library itself where it is installed."""

from pathlib import Path

import numpy as np
import pytest

from fnlkit.cleanlab import count
from fnlkit.cleanlab.filter import _FILTERS, PRUNING, find_label_issues
from fnlkit.cleanlab.rank import METHODS, get_label_quality_scores
from fnlkit.core.errors import InputError
from tests.commands import refuse_call

RECORD = np.load(Path(__file__).parent / "golden/cleanlab_filter.npz", allow_pickle=False)
CASES = "ABCDE"  # C lacks two labels, E has a label with one sample
ADJUSTABLE = ("self_confidence", "normalized_margin")
few_labels = pytest.mark.filterwarnings("ignore:no issues in classes", "ignore:classes without labels")


def case(name):
    return [RECORD[f"{name}_{part}"] for part in ("labels", "pred_probs", "sites")]


def made(n, classes, seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    scores = rng.standard_normal((n, classes)) * 1.5
    scores[np.arange(n), np.where(rng.random(n) < 0.3, rng.integers(0, classes, n), labels)] += 2
    probs = np.exp(scores)
    return labels, probs / probs.sum(1, keepdims=True), rng.integers(0, 4, n)


@few_labels
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("filter_by", _FILTERS)
def test_filters_equal_recorded_results(name, filter_by):
    labels, probs, sites = case(name)
    expected = RECORD[f"{name}_{filter_by}"]
    found = find_label_issues(labels, probs, filter_by=filter_by)
    np.testing.assert_array_equal(found, expected)
    by_site = find_label_issues(labels.tolist(), probs, sites=sites, filter_by=filter_by)
    np.testing.assert_array_equal(by_site, RECORD[f"{name}_{filter_by}_by_site"])
    if filter_by in PRUNING:
        fewer = find_label_issues(labels, probs, filter_by=filter_by, frac_noise=0.5, min_examples_per_class=5)
        np.testing.assert_array_equal(fewer, RECORD[f"{name}_{filter_by}_half"])


@few_labels
@pytest.mark.parametrize("name", CASES)
def test_scores_and_rankings_equal_recorded_results(name):
    labels, probs, sites = case(name)
    for method in METHODS:
        scores = get_label_quality_scores(labels, probs, method=method)
        np.testing.assert_allclose(scores, RECORD[f"{name}_score_{method}"], rtol=0, atol=1e-9)
        ranked = find_label_issues(labels, probs, return_indices_ranked_by=method)
        np.testing.assert_array_equal(ranked, RECORD[f"{name}_ranked_{method}"])
    for method in ADJUSTABLE:
        for key, options in {"": {}, "_by_site": {"sites": sites}}.items():
            scores = get_label_quality_scores(labels, probs, method=method, adjust_pred_probs=True, **options)
            np.testing.assert_allclose(scores, RECORD[f"{name}_adjusted_{method}{key}"], rtol=0, atol=1e-9)
    removed = np.arange(probs.shape[1]) % 3 + 1
    found = find_label_issues(labels, probs, filter_by="prune_by_class", num_to_remove_per_class=removed)
    np.testing.assert_array_equal(found, RECORD[f"{name}_removed"])


@pytest.mark.parametrize("filter_by", _FILTERS)
def test_sites_are_judged_separately_and_names_do_not_matter(filter_by):
    labels, probs, sites = made(400, 4, 0)
    named = np.array(["Ulm", "Bonn", "Cork", "Delft"])[sites]
    found = find_label_issues(labels, probs, sites=named, filter_by=filter_by)
    for site in range(4):
        own = sites == site
        np.testing.assert_array_equal(found[own], find_label_issues(labels[own], probs[own], filter_by=filter_by))
    assert 0 < found.sum() < 200


def test_ranking_by_adjusted_scores_uses_thresholds_of_the_sites():
    labels, probs, sites = made(300, 3, 1)
    mask = find_label_issues(labels, probs, sites=sites)
    scores = get_label_quality_scores(labels, probs, adjust_pred_probs=True, sites=sites)
    how = {"return_indices_ranked_by": "self_confidence", "rank_by_kwargs": {"adjust_pred_probs": True}}
    ranked = find_label_issues(labels, probs, sites=sites, **how)
    assert set(ranked) == set(np.flatnonzero(mask)) and (np.diff(scores[ranked]) >= 0).all()


@few_labels
@pytest.mark.parametrize("filter_by", _FILTERS)
def test_degenerate_input(filter_by):
    # A sample with probability 1 for its label, and two with ties: none is an issue, and a single label at a site is allowed.
    labels, probs = np.array([0, 0, 1]), np.array([[1.0, 0.0], [0.5, 0.5], [0.5, 0.5]])
    assert not find_label_issues(labels, probs, filter_by=filter_by).any()
    assert not find_label_issues(labels, probs, sites=["a", "a", "b"], filter_by=filter_by).any()
    assert not find_label_issues([0], [[1.0, 0.0]], filter_by=filter_by).any()


def test_of_equal_scores_the_first_samples_are_issues():
    # Four samples with label 0 and equal margins; the joint moves two of them to class 1.
    probs = [[0.25, 0.75]] * 4 + [[0.2, 0.8]] * 2
    joint = [[2, 2], [0, 2]]
    for filter_by in PRUNING:
        found = find_label_issues([0, 0, 0, 0, 1, 1], probs, filter_by=filter_by, confident_joint=joint)
        assert found.tolist() == [True, True, False, False, False, False]


def test_certain_labels_have_cleanlabs_score():
    # The entropy is 0, so r = 0 and log(r + 1) / max(r, 1e-6) = 0; for p = (1/2, 1/2), r = 1 / (1/2) = 2.
    scores = get_label_quality_scores([0, 1], [[1.0, 0.0], [0.5, 0.5]], method="confidence_weighted_entropy")
    np.testing.assert_allclose(scores, [0, np.log(3) / 2])


def test_a_given_joint_replaces_the_counts():
    labels, probs, _ = case("A")
    joint = np.diag(np.bincount(labels))
    assert not find_label_issues(labels, probs, confident_joint=joint).any()
    joint[0, 0], joint[0, 1] = joint[0, 0] - 2, 2  # two samples with label 0 belong to class 1
    found = np.flatnonzero(find_label_issues(labels, probs, confident_joint=joint))
    zeros = np.flatnonzero(labels == 0)
    margin = probs[zeros, 1] - probs[zeros, 0]
    assert set(found) == set(zeros[np.argsort(-margin)[:2]])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"filter_by": "prune_by_classes"}, "did you mean 'prune_by_class'"),
        ({"frac_noise": 2}, "`frac_noise` must lie in 0..1"),
        ({"num_to_remove_per_class": 1, "filter_by": "confident_learning"}, "is not supported for `filter_by` 'confident_"),
        ({"num_to_remove_per_class": [1], "filter_by": "prune_by_class"}, "must be a number or have shape"),
        ({"num_to_remove_per_class": 1.5}, "with whole numbers"),
        ({"confident_joint": np.eye(3), "sites": np.zeros(120)}, "cannot be combined with `sites`"),
        ({"confident_joint": np.eye(2)}, r"must have shape \(3, 3\)"),
        ({"confident_joint": np.diag([1, np.nan, 1])}, r"must be finite, found nan at \(1, 1\)"),
        ({"confident_joint": -np.eye(3)}, "counts of at least 0"),
        ({"frac_noise": "all"}, "`frac_noise` must lie in 0..1"),
        ({"min_examples_per_class": 1.5}, "`min_examples_per_class` must be an integer of at least 0"),
        ({"n_jobs": 0}, "`n_jobs` must be an integer of at least 1"),
        ({"rank_by_kwargs": {"x": 1}}, "the key 'x'"),
        ({"return_indices_ranked_by": "margin"}, "`method` must be"),
        ({"sites": [1, 2]}, "`sites` must have shape"),
        ({"sites": [None, *range(119)]}, "of one type"),
    ],
)
def test_options_that_do_not_apply_are_refused(options, message):
    labels, probs, _ = case("A")
    refuse_call(message, find_label_issues, labels, probs, **options)


@pytest.mark.parametrize("option", [{"frac_noise": 0.5}, {"confident_joint": np.eye(3)}, {"min_examples_per_class": 5}])
def test_options_that_a_filter_ignores_are_named(option):
    labels, probs, _ = case("A")
    with pytest.warns(UserWarning, match=f"`{next(iter(option))}` is ignored for `filter_by` 'confident_learning'"):
        found = find_label_issues(labels, probs, filter_by="confident_learning", **option)
    np.testing.assert_array_equal(found, find_label_issues(labels, probs, filter_by="confident_learning"))


def test_classes_without_labels_are_named_once_with_their_sites():
    labels, probs, _ = made(200, 4, 3)
    sites = np.where(labels < 2, "Bonn", "Cork")
    with pytest.warns(UserWarning) as record:
        find_label_issues(labels, probs, sites=sites, filter_by="confident_learning")
    assert [str(one.message) for one in record] == ["classes without labels: Bonn: 2, 3; Cork: 0, 1"]
    labels[:] = 0  # a site with one class has scores and no issues
    for filter_by in set(_FILTERS) - {"predicted_neq_given"}:
        with pytest.warns(UserWarning) as record:
            assert not find_label_issues(labels, probs, filter_by=filter_by).any()
        assert len(record) == 1 and str(record[0].message).endswith(": 1, 2, 3")
    assert np.ptp(get_label_quality_scores(labels, probs)) > 0.5


def test_numbers_to_remove():
    labels, probs, sites = made(400, 3, 5)
    found = find_label_issues(labels, probs, filter_by="prune_by_class", num_to_remove_per_class=4)
    assert np.bincount(labels[found]).tolist() == [4, 4, 4]
    for site in range(4):
        here = find_label_issues(labels, probs, sites=sites, filter_by="prune_by_class", num_to_remove_per_class=[1, 2, 3])
        assert np.bincount(labels[here & (sites == site)]).tolist() == [1, 2, 3]
    # Counts of true class 1 under labels 0 and 2: 30 and 10. Divided by the sums of classes 0 and 2 (60 and 40): 0.5 and 0.25,
    # so of 6 samples, 4 have the label 0 and 2 the label 2.
    joint = np.array([[60, 30, 0], [0, 100, 0], [0, 10, 40]])
    pairs = {(0, 1): 0.5, (2, 1): 0.4, (1, 1): -0.5, (0, 0): -0.9, (2, 2): -0.9}
    labels = np.array([given for given, _ in pairs for _ in range(20)])
    probs = np.array([_row(given, true, margin) for (given, true), margin in pairs.items() for _ in range(20)])
    found = find_label_issues(labels, probs, confident_joint=joint, num_to_remove_per_class=[0, 6, 0])
    assert np.bincount(labels[found], minlength=3).tolist() == [4, 0, 2]


def _row(given, true, margin):
    """Return probabilities of three classes, of which `true` has `margin` more than `given`."""
    row = np.zeros(3)
    row[given] = (1 - margin) / 2 if given != true else 1.0
    row[true] += (1 + margin) / 2 if given != true else 0.0
    return row / row.sum()


def lists(n, classes, seed):
    rng = np.random.default_rng(seed)
    probs = rng.random((n, classes))
    has = (rng.random((n, classes)) < 0.2) != (probs > 0.5)
    return [np.flatnonzero(row).tolist() for row in has], has, probs, rng.integers(0, 3, n)


@pytest.mark.filterwarnings("ignore:cleanlab will remove")
@pytest.mark.parametrize("filter_by", _FILTERS)
def test_several_classes_are_judged_one_after_another(filter_by):
    labels, has, probs, sites = lists(300, 4, 0)
    low = filter_by.startswith("low")
    for groups in (None, sites):
        found = find_label_issues(labels, probs, sites=groups, filter_by=filter_by, multi_label=True)
        any_class, scores = np.zeros(300, bool), []
        for c in range(4):
            pairs = np.column_stack([1 - probs[:, c], probs[:, c]])
            one = "confident_learning" if low else filter_by
            any_class |= find_label_issues(has[:, c].astype(int), pairs, sites=groups, filter_by=one)
            scores.append(np.where(has[:, c], probs[:, c], 1 - probs[:, c]))
        if low:
            quality = [_weighted(row) for row in np.transpose(scores)]
            expected = np.zeros(300, bool)
            for site in range(3) if groups is not None else [slice(None)]:
                here = np.arange(300) if groups is None else np.flatnonzero(sites == site)
                expected[here[np.argsort(np.array(quality)[here])[: any_class[here].sum()]]] = True
        else:
            expected = any_class
        np.testing.assert_array_equal(found, expected)
        assert 20 < found.sum() < 280
    ranked = find_label_issues(
        labels, probs, filter_by=filter_by, multi_label=True, return_indices_ranked_by="self_confidence"
    )  # fmt: skip
    quality = np.array([_weighted(row) for row in np.transpose(scores)])
    mask = find_label_issues(labels, probs, filter_by=filter_by, multi_label=True)
    assert ranked.tolist() == sorted(np.flatnonzero(mask), key=lambda i: quality[i])


def _weighted(row):
    """Return a_n for a_1 = the largest score and a_t = 0.8 s_t + 0.2 a_(t-1)."""
    first, *others = sorted(row, reverse=True)
    for score in others:
        first = 0.8 * score + 0.2 * first
    return first


@pytest.mark.filterwarnings("ignore:cleanlab will remove")
def test_lists_of_classes_that_do_not_fit_are_refused():
    probs = np.full((2, 3), 0.5)
    for labels, more, message in [
        ([0, 1], {}, "a list of classes per sample"),
        ([[0]], {}, "has 1 lists, but `pred_probs` has 2 rows"),
        ([[0], [3]], {}, r"must lie in 0\.\.2, found 3"),
        ([[0], ["1"]], {}, "must hold integers"),
        ([[1, 0, 1], [0, 0, 1]], {}, "sample 0 has a class twice"),
        ([[0], []], {"confident_joint": np.eye(2)}, r"must have shape \(3, 2, 2\)"),
        ([[0], []], {"num_to_remove_per_class": 2}, r"must have shape \(3,\)"),
    ]:
        refuse_call(message, find_label_issues, labels, probs, multi_label=True, **more)
    refuse_call(r"must lie in 0\.\.1", find_label_issues, [[0], []], probs * 3, multi_label=True)
    with pytest.warns(UserWarning, match="is ignored with `multi_label`"):
        find_label_issues([[0], [1, 2]], probs, multi_label=True, confident_joint=np.eye(3))


def test_verbose_prints_the_number_of_issues(capsys):
    labels, probs, _ = case("A")
    found = find_label_issues(labels, probs, verbose=True)
    assert capsys.readouterr().out.split()[2] == str(found.sum())


def test_input_that_does_not_fit_is_refused():
    labels, probs, _ = case("A")
    bad = probs.copy()
    bad[-1] = np.nan  # not among the rows that are checked first
    for arguments, message in [
        ((labels, bad), "must be finite"),
        ((labels + 1, probs), r"must lie in 0\.\.2"),
        ((labels[1:], probs), "`labels` must have shape"),
        ((labels, np.log(probs)), "must sum to 1"),
        (([], np.empty((0, 3))), "is empty"),
    ]:
        for function in (find_label_issues, get_label_quality_scores):
            refuse_call(message, function, *arguments)
    refuse_call("compares classes", get_label_quality_scores, [0], [[1.0]], method="normalized_margin")
    with pytest.raises(InputError, match="`adjust_pred_probs` cannot"):
        get_label_quality_scores(labels, probs, method="confidence_weighted_entropy", adjust_pred_probs=True)


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("filter_by", _FILTERS)
def test_results_for_lists_of_classes_are_cleanlabs(filter_by):
    theirs = pytest.importorskip("cleanlab.filter", reason="needs cleanlab: pip install fnlkit[bench]")
    labels, _, probs, _ = lists(200, 3, 1)
    options = {"filter_by": filter_by, "multi_label": True, "n_jobs": 1}
    methods = [None, *METHODS] if not filter_by.startswith("low") else [None]  # cleanlab 2.9 does not sort these
    for method in methods:
        expected = theirs.find_label_issues(labels, probs, return_indices_ranked_by=method, **options)
        found = find_label_issues(labels, probs, return_indices_ranked_by=method, **options)
        np.testing.assert_array_equal(found, expected)


# ---- `fnlkit
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
        (lambda: count.calibrate_confident_joint(3, LABELS), r"must have shape \(..., C, C\), found \(\)"),
        (lambda: count.calibrate_confident_joint([[-3, 1], [0, 2]], LABELS), "counts of at least 0, found -3"),
        (lambda: count.calibrate_confident_joint([["a", "b"]] * 2, LABELS), "hold numbers"),
        (lambda: count.calibrate_confident_joint(np.eye(2), [[0], []], multi_label=True), r"C, 2, 2\)"),
        (lambda: count.estimate_joint([], PROBS[:0], confident_joint=np.eye(2)), "`labels` is empty"),
        (lambda: count.compute_confident_joint([[0]], [0.5], multi_label=True), r"must have shape \(n, C\)"),
        (lambda: count.compute_confident_joint([[0]], [[0.5, 0.5]], thresholds=[[0.5, 0.5]], multi_label=True), r"\(2, 2\)"),
        (lambda: count.estimate_py_and_noise_matrices_from_probabilities(LABELS, PROBS, py_method="x"), "must be cnt"),
    ],
)
def test_input_that_cannot_be_counted_is_refused(call, message):
    refuse_call(message, call)


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
