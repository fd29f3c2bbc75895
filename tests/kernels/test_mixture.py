"""The compiled mixture of two Gaussians equals that of scikit-learn; Dawid and Skene's model by hand and in any order."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from fnlkit import kernels
from fnlkit.kernels.annotator import fit_annotator
from fnlkit.kernels.dawid_skene import dawid_skene
from fnlkit.kernels.learning import learn_matrix
from fnlkit.kernels.mixture import gaussians, higher_group, lower_probability, two_components
from fnlkit.kernels.neighbors import nearest, nearest_in_lists
from tests import naive
from tests.commands import refuse_call
from tests.naive import golden

# ---- the compiled mixture of two Gaussians equals that of scikit-learn
SETTINGS = {"default": {}, "dividemix": {"steps": 10, "tolerance": 1e-2, "ridge": 5e-4}, "one step": {"steps": 1}}


def reference(points, seed, steps=100, tolerance=1e-3, ridge=1e-6):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture = GaussianMixture(2, max_iter=steps, tol=tolerance, reg_covar=ridge, random_state=seed).fit(points)
    return mixture.predict_proba(points), mixture.means_, mixture.covariances_, mixture.weights_


def cloud(kind, n, dims, rng):
    if kind == "two groups":
        return rng.normal(size=(n, dims)) + 4 * (rng.random((n, 1)) < 0.4)
    if kind == "repeated":  # values at irrational distances: no draw and no assignment is a tie
        return np.sqrt([2.0, 3.0, 11.0])[rng.integers(0, 3, n)][:, None] * np.sqrt(np.arange(1.0, dims + 1))
    if kind == "far away":
        return 1e6 + rng.exponential(size=(n, dims))
    return rng.exponential(size=(n, dims))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", ["one group", "two groups", "repeated", "far away"])
@pytest.mark.parametrize(("n", "dims"), [(2, 1), (50, 1), (40, 2), (30, 10)])
def test_gaussians_equal_scikit_learn(n, dims, kind, settings):
    for seed in range(2):
        points = cloud(kind, n, dims, np.random.default_rng(seed))
        if len(np.unique(points[:, 0])) < 2:
            continue
        tolerance = 1e-4 if kind == "far away" else 1e-7
        for found, expected in zip(gaussians(points, seed=seed, **settings), reference(points, seed, **settings), strict=True):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("high", "scale", "sets"), [(11, 0.1, 100), (3, 1.0, 60)])
def test_tied_values_are_split_as_by_scikit_learn(high, scale, sets):
    """Shares and counts of few clients: a value can lie in the middle of two centers."""
    assert two_components([0.4, 0, 0.4, 0.4, 0.2]).upper.tolist() == [True, False, True, True, False]
    for seed in range(sets):
        rng = np.random.default_rng(seed)
        values = rng.integers(0, high, rng.integers(3, 12)) * scale
        if np.ptp(values):
            share, means, *_ = reference(values[:, None], 0)
            assert np.array_equal(two_components(values).upper, share.argmax(1) == means[:, 0].argmax()), values


def test_groups_of_values_and_rows():
    rng = np.random.default_rng(0)
    values, right = np.concatenate([rng.normal(1, 0.1, 60), rng.normal(3, 0.3, 40)]), np.arange(100) < 60
    found = two_components(values[::-1])
    assert np.array_equal(found.upper[::-1], ~right) and found.means[0] < found.means[1]
    np.testing.assert_allclose(found.shares, [0.6, 0.4], atol=1e-3)
    assert ((lower_probability(values, steps=100) > 0.5) == right).all()
    assert np.array_equal(higher_group(np.c_[values, values[::-1] * 0 + 1, values**2]), ~right)
    assert not two_components(np.full(4, 2.5)).upper.any() and not two_components([]).upper.any()


# ---- the search in inverted lists finds near copies; how often it misses the nearest of other rows
def test_near_copies_are_found_and_other_nearest_rows_often_missed():
    rng = np.random.default_rng(16)
    rows = rng.normal(size=(11_000, 16)).astype(np.float32)
    exact = nearest(rows, 1)[:, 0]
    assert abs((nearest_in_lists(rows, 1)[:, 0] != exact).mean() - 0.25) < 0.03
    rows[5_500:] = rows[:5_500] + 0.01 * rng.normal(size=(5_500, 16)).astype(np.float32)
    assert np.array_equal(nearest_in_lists(rows, 1)[:, 0], (np.arange(11_000) + 5_500) % 11_000)


# ---- the matrix that the compiled function learns equals that of torch
def data(n, classes, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(classes, 0.4), n), rng.integers(0, max(1, classes - 1), n)  # the last class has no label


def learn_by_torch(values, p, labels, *, rate, steps, base, factor=None, floor=1e-12):
    p, labels, values = torch.from_numpy(p), torch.from_numpy(labels), torch.tensor(values, requires_grad=True)
    optimizer = torch.optim.Adam([values], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        matrix = (torch.from_numpy(base) + values).clamp_min(0)
        matrix = matrix / matrix.sum(1, keepdim=True).clamp_min(1e-12)
        through = (p @ matrix).gather(1, labels[:, None])[:, 0] + floor
        loss = -through.log().mean() if factor is None else (torch.from_numpy(factor) / through).mean()
        loss.backward()
        optimizer.step()
    return values.detach().numpy()


@pytest.mark.parametrize(("n", "classes"), [(1, 3), (5, 4), (60, 7)])
@pytest.mark.parametrize("weighted", [False, True])
def test_learned_matrices_equal_torch(weighted, n, classes):
    p, labels = data(n, classes)
    # Negative entries of the sum are cut off, and a row without positive entries has a sum of 0.
    base = np.random.default_rng(1).dirichlet(np.ones(classes), classes)
    start, options = np.random.default_rng(2).normal(0, 0.1, (classes, classes)), {"rate": 0.05, "steps": 80, "base": base}
    start[0] = -base[0] - 0.1
    if weighted:
        own = p[np.arange(n), labels]
        options |= {"factor": -own * np.log(own), "floor": 1e-3}
    found, before = learn_matrix(start, p, labels, **options), start.copy()
    np.testing.assert_allclose(found, learn_by_torch(start, p, labels, **options), rtol=0, atol=1e-9)
    assert np.array_equal(start, before) and np.abs(found - start).max() > 1e-3


def test_no_samples_and_no_steps_change_nothing():
    (p, labels), options = data(4, 3), {"rate": 0.1, "base": np.eye(3)}
    assert np.array_equal(learn_matrix(np.eye(3), p[:0], labels[:0], steps=5, **options), np.eye(3))
    assert np.array_equal(learn_matrix(np.eye(3), p, labels, steps=0, **options), np.eye(3))


@pytest.mark.parametrize("change", [
    {"values": np.eye(2)}, {"labels": np.array([0, 1])}, {"labels": np.full(4, 3)}, {"labels": np.array([0.0, 0.7, 1.0, 2.0])},
    {"factor": np.ones(3)},
], ids=str)  # fmt: skip
def test_arguments_that_do_not_fit(change):
    p, labels = data(4, 3)
    given = {"values": np.eye(3), "probabilities": p, "labels": labels, "base": np.eye(3)} | change
    refuse_call("", learn_matrix, **given, rate=0.1, steps=1)


# ---- class thresholds and count matrices check every row
@pytest.mark.parametrize("classes", [2, 10, 17])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "check", [kernels.class_thresholds, kernels.count_matrix, partial(kernels.count_matrix, rule="largest")]
)
def test_every_row_must_be_a_distribution(check, dtype, classes):
    rng = np.random.default_rng(0)
    probs, labels = rng.dirichlet(np.ones(classes), 400).astype(dtype), rng.integers(0, classes, 400)
    offsets = np.array([0, 5, 37, 37, 400])
    check(probs, labels)
    check(probs, labels, client_offsets=offsets)
    for row in (0, 1, 4, 5, 36, 250, 383, 384, 398, 399):
        for change, words in (
            (lambda p: p * dtype(1.02), "must sum to 1"),
            (lambda p: np.log(p), "apply softmax to logits first"),
            (lambda p: p + np.array([2, -2] + [0] * (classes - 2), dtype), "must hold probabilities"),
            (lambda p: p * dtype(np.nan), "NaN, found one at row"),
            (lambda p: p * dtype(np.inf), "`probs`"),
        ):
            wrong = probs.copy()
            wrong[row] = change(wrong[row])
            for more in ({}, {"client_offsets": offsets}):
                refuse_call(words, check, wrong, labels, **more)


# ---- the kernels against recorded results of the authors' own functions (tests/golden)


@pytest.mark.parametrize("case", ["a_k20", "a_k5", "c_k20", "d_k20", "e_k20", "f_k2", "g_k3"])
def test_lid_is_fedcorrs(case):
    # Case b has another reference set than the client's own points, which FedCorr never uses.
    record, (name, k) = golden("lid_fedcorr"), case.split("_k")
    got = kernels.lid(record[f"{name}_X"], k=int(k), variant="fedcorr")
    np.testing.assert_allclose(got, record[case], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", "ABCDEF")
def test_counts_are_cleanlabs_and_fedefcs(case):
    record = golden("count_matrix_cleanlab_fedefc")
    probs, labels = record[f"{case}_pred_probs"], record[f"{case}_labels"]
    np.testing.assert_allclose(kernels.class_thresholds(probs, labels), record[f"{case}_thresholds"], rtol=1e-12)
    np.testing.assert_array_equal(kernels.count_matrix(probs, labels).T, record[f"{case}_cj"])
    np.testing.assert_array_equal(kernels.count_matrix(probs, labels).T, record[f"{case}_fedefc_count"])
    calibrated = kernels.count_matrix(probs, labels, calibrate=True)
    for expected in (record[f"{case}_cj_calibrated"], record[f"{case}_fedefc_count_calibrated"]):
        # Equal counts of a row have equal remainders; which is rounded up hung on an unstable sort there (case F).
        np.testing.assert_array_equal(np.sort(calibrated.T, 1), np.sort(expected, 1))
        assert (calibrated.T != expected).sum() <= (4 if case == "F" else 0)


def test_votes_of_ties_and_of_missing_classes():
    record = golden("fedln")
    votes, _ = kernels.knn_vote(record["tie_features"], record["tie_labels"], k=2, include_self=True, ties="lowest")
    np.testing.assert_array_equal(votes, record["tie_k2_pred"])
    # There the class list was overwritten: {0, 2, 4} came out as {0, 1, 2}.
    labels = record["missing_labels"]
    votes, _ = kernels.knn_vote(record["missing_features"], labels, k=10, include_self=True, ties="lowest")
    assert set(votes) <= set(labels)
    np.testing.assert_array_equal(np.searchsorted(np.unique(labels), votes), record["missing_k10_pred_official"])


# ---- Dawid and Skene's model on sparse votes: by hand, against the formulas, and in any order of votes
def of_matrix(votes, classes, **options):
    sample, annotator = np.nonzero(votes >= 0)
    sizes = {"size": len(votes), "people": votes.shape[1], "classes": classes}
    return dawid_skene(sample, annotator, votes[sample, annotator], **sizes, **options)


def random_votes(seed, m=30, people=5, classes=3, share=0.5):
    rng = np.random.default_rng(seed)
    true = rng.integers(0, classes, m)
    right = rng.random((m, people)) < rng.uniform(0.3, 1, people)
    votes = np.where(right, true[:, None], rng.integers(0, classes, (m, people)))
    votes[rng.random((m, people)) > share] = -1
    alone = (votes < 0).all(1)
    votes[alone, rng.integers(0, people, alone.sum())] = true[alone]
    return votes


def test_one_step_by_hand():
    """Samples (0, 0, 1) and (1, 1, 1): shares start at (2/3, 1/3) and (0, 1), so class shares are (1/3, 2/3).

    The first two annotators: of class 0 always 0; of class 1, weights 1/3 say 0 and 1 says 1: (1/4, 3/4).  The third always
    says 1.  First sample: 1/3 * 1 * 1 * 1 against 2/3 * 1/4 * 1/4 * 1 = 1/24, which is 8 : 1.  Second: class 1 for sure.
    """
    found = of_matrix(np.array([[0, 0, 1], [1, 1, 1]]), 2, rounds=1, prior=0, strength=0)
    np.testing.assert_allclose(found.posterior, [[8 / 9, 1 / 9], [0, 1]], atol=1e-8)
    np.testing.assert_allclose(found.error[0], [[1, 0], [1 / 4, 3 / 4]], atol=1e-8)
    np.testing.assert_allclose(found.error[2], [[0, 1], [0, 1]], atol=1e-8)
    np.testing.assert_allclose(found.share, [1 / 3, 2 / 3], atol=1e-8)


@pytest.mark.parametrize(("seed", "prior", "strength", "rounds"), [(0, 0.1, 3.0, 1), (1, 1.0, 0.0, 2), (3, 0.5, 20.0, 8)])
def test_it_follows_the_formulas(seed, prior, strength, rounds):
    votes = random_votes(seed, classes=2 + seed)
    found = of_matrix(votes, 2 + seed, rounds=rounds, prior=prior, strength=strength)
    posterior, error, share = naive.dawid_skene(votes, 2 + seed, rounds, prior, strength)
    np.testing.assert_allclose(found.posterior, posterior, atol=1e-6)
    np.testing.assert_allclose(found.error, error, atol=1e-6)
    np.testing.assert_allclose(found.share, share, atol=1e-7)
    np.testing.assert_allclose(found.posterior.sum(1), 1, atol=1e-8)


@pytest.mark.parametrize(
    "votes",
    [[[0, 0], [0, 0]], [[1, -1], [-1, 0]], [[0]], [[0, 1], [1, 0]], [[2, -1, -1], [2, 2, -1], [0, 1, 2]]],
)
def test_one_class_one_annotator_and_ties(votes):
    votes = np.array(votes)
    found = of_matrix(votes, 3)
    assert np.isfinite(found.posterior).all() and np.isfinite(found.error).all()
    np.testing.assert_allclose(found.error.sum(2), 1)
    if votes.tolist() == [[0, 1], [1, 0]]:  # two annotators who always disagree: nothing decides between classes 0 and 1
        assert (found.posterior[:, 0] == found.posterior[:, 1]).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(2, 6), st.integers(2, 5))
def test_no_order_changes_a_bit(seed, m, people, classes):
    rng = np.random.default_rng(seed)
    votes = random_votes(seed, m, people, classes, share=rng.random())
    found = of_matrix(votes, classes)
    rows, columns = rng.permutation(m), rng.permutation(people)
    other = of_matrix(votes[rows][:, columns], classes)
    assert np.array_equal(other.posterior, found.posterior[rows]) and np.array_equal(other.error, found.error[columns])
    sample, annotator = np.nonzero(votes >= 0)
    mixed = rng.permutation(len(sample))
    sizes = {"size": m, "people": people, "classes": classes}
    third = dawid_skene(sample[mixed], annotator[mixed], votes[sample, annotator][mixed], **sizes)
    assert np.array_equal(third.posterior, found.posterior) and third.rounds == found.rounds


@pytest.mark.parametrize(("votes", "message"), [
    (([0, 2], [0, 0], [0, 1]), "`samples`: 1 of 3 samples have no vote"),
    (([0, 3], [0, 0], [0, 1]), "`samples`"),
    (([0, 1], [0, 2], [0, 1]), "`annotators`"),
    (([0, 1], [0, 0], [0, -1]), "`labels`"),
    (([0, 1], [0], [0, 1]), "`annotators`"),
    (([], [], []), "no vote"),
    (([0.5, 1], [0, 0], [0, 1]), "`samples`"),
])  # fmt: skip
def test_votes_that_do_not_fit_are_refused(votes, message):
    refuse_call(message, dawid_skene, *votes, size=3, people=2, classes=2)


# ---- expectation maximization of one annotator, compared with a reference in numpy


@pytest.mark.parametrize(("n", "classes", "steps"), [(0, 3, 2), (1, 2, 0), (40, 4, 5), (300, 11, 3)])
def test_equals_the_reference(n, classes, steps):
    rng = np.random.default_rng(n)
    p, labels = rng.dirichlet(np.full(classes, 0.5), n), rng.integers(0, classes, n)
    common, counts = rng.dirichlet(np.ones(classes), classes), rng.random((classes, classes))
    settings = {"strength": 2.5, "steps": steps, "counts": counts.copy()}
    found = fit_annotator(p, labels, common, **settings)
    for ours, wanted in zip(found, naive.annotator(p, labels, common, **settings), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-15)
    assert np.array_equal(counts, settings["counts"])


def test_impossible_labels_give_no_nan():
    found = fit_annotator(np.array([[1.0, 0.0]]), [1], np.eye(2), strength=1.0, steps=2)
    assert np.isfinite(found.inferred).all() and found.counts.sum() == 0


@pytest.mark.parametrize("change", [{"labels": [0, 2]}, {"labels": [0]}, {"common": np.eye(3)}, {"counts": np.eye(3)},
                                    {"probabilities": np.ones(2)}])  # fmt: skip
def test_arguments_that_do_not_fit_are_refused(change):
    given = {"probabilities": np.eye(2), "labels": [0, 1], "common": np.eye(2)} | change
    refuse_call("must", fit_annotator, **given, strength=1.0, steps=1)
