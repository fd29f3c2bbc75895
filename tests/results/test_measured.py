"""Agreement, estimated accuracy and accuracy are three things: names, numbers, and how far an estimate can be believed."""

import numpy as np
import pytest

from fnlkit.estimators.intervals import clopper_pearson
from fnlkit.results.corrected import corrected, figures, scaled


def test_figures_by_hand():
    # rows true: 3 of 4 and 1 of 2; columns 4 and 2.  F1: 2*3/(4+4) = 0.75, 2*1/(2+2) = 0.5.
    found = figures(np.array([[3.0, 1, 0], [1, 1, 0], [0, 0, 0]]))
    assert found["share"] == pytest.approx(4 / 6) and found["macro_f1"] == pytest.approx(0.625)
    assert found["balanced"] == pytest.approx(0.625) and np.isnan(found["per_class"][2])


def test_exact_interval_holds_its_promise():
    """By summing the binomial distribution: at any share, the interval misses at most 5 times of 100."""
    from scipy.stats import binom

    low, high = clopper_pearson(np.arange(21), 20)
    for share in np.linspace(0.01, 0.99, 25):
        assert binom.pmf(np.arange(21), 20, share)[(low <= share) & (share <= high)].sum() >= 0.95
    assert low[0] == 0 and high[-1] == 1


def matrix(level, classes):
    return (1 - level) * np.eye(classes) + level / (classes - 1) * (1 - np.eye(classes))


def test_without_noise_in_numbers_the_correction_is_exact():
    """Expected counts T' Q give Q back, to the last digit that counts."""
    T, Q = matrix(0.3, 3), np.array([[50.0, 5, 0], [2, 30, 8], [0, 1, 4]])
    counts = np.round(1e6 * T.T @ Q)
    found = corrected(counts[None], T[None], [0.3], [0.3], [0.3])
    assert found["share"][0] == pytest.approx(0.84, abs=1e-6) and found["per_class"][1][0] == pytest.approx(0.75, abs=1e-5)
    assert found["sites"][0][0] == pytest.approx(0.84, abs=1e-6)


def simulated(rng, share, level, accuracy, sites=5, samples=60, classes=10):
    """Return counts, T and levels as estimated from 240 other samples, and the model's accuracy on these very samples.

    `share` of the samples with a wrong label are predicted as that label: what instance-dependent noise does.
    """
    counts, T, levels, low, high, right = np.zeros((sites, classes, classes)), [], [], [], [], 0
    for k in range(sites):
        true = rng.integers(0, classes, samples)
        given, predicted = true.copy(), true.copy()
        wrong, errs = rng.random(samples) < level * (k % 2), rng.random(samples) > accuracy
        given[wrong] = (true[wrong] + rng.integers(1, classes, wrong.sum())) % classes
        predicted[errs] = (true[errs] + rng.integers(1, classes, errs.sum())) % classes
        copied = wrong & (rng.random(samples) < share)
        predicted[copied] = given[copied]
        np.add.at(counts[k], (given, predicted), 1)
        right += (predicted == true).sum()
        seen = rng.binomial(240, level * (k % 2)) / 240
        half = 1.96 * np.sqrt(max(seen * (1 - seen), 1e-4) / 240)
        for values, value in ((levels, seen), (low, max(0, seen - half)), (high, seen + half), (T, matrix(seen, classes))):
            values.append(value)
    return (counts, np.array(T), levels, low, high), right / (sites * samples)


@pytest.mark.parametrize(
    ("share", "level", "accuracy", "least", "most"),
    [(0, 0.1, 0.95, 22, 25), (0, 0.4, 0.7, 22, 25), (0.5, 0.4, 0.7, 0, 3)],
    ids=["few wrong labels", "many", "the model makes the labels' mistakes"],
)
def test_where_the_interval_covers_and_where_not(share, level, accuracy, least, most):
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(25):
        evidence, truth = simulated(rng, share, level, accuracy)
        _, low, high = corrected(*evidence)["share"]
        covered += low <= truth <= high
    assert least <= covered <= most


def test_too_wrong_to_say():
    assert corrected(np.ones((1, 2, 2)), np.array([[[0.1, 0.9], [0, 1]]]), [0.4], [0.3], [0.5]) is None
    assert corrected(np.zeros((1, 2, 2)), np.eye(2)[None], [0.0], [0.0], [0.0]) is None


def test_noise_is_scaled_within_bounds():
    found = scaled(matrix(0.2, 4), 0.2, np.array([0.0, 0.1, 5.0]))
    assert np.allclose(found[0], np.eye(4)) and np.allclose(np.diag(found[1]), 0.9) and np.diag(found[2]).min() > 0.19
    assert np.allclose(scaled(np.eye(4), 0.0, np.array([0.3])), matrix(0.3, 4))
