"""Dawid and Skene's model on sparse votes: by hand, against the formulas, and in any order of votes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fnlkit.kernels.annotator import fit_annotator
from fnlkit.kernels.dawid_skene import dawid_skene
from tests import naive
from tests.commands import refuse_call


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
