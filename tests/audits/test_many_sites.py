"""Findings of many sites are computed at once, and equal those of one pair of sites after the other."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency, hypergeom

from fnlkit.audits.server import statistics
from fnlkit.estimators import likelihood


def naive_shares_differ(counts):
    """Return `statistics.shares_differ` (N,) with a test for each pair of sites."""
    out = np.zeros(len(counts), bool)
    for k in range(len(counts)):
        differing = 0
        for j in range(len(counts)):
            pair = counts[[k, j]]
            pair = pair[:, pair.sum(0) > 0]
            if j == k or pair.shape[1] < 2 or (pair.sum(1) == 0).any() or chi2_contingency(pair).pvalue > statistics.RARE:
                continue
            mine, other = pair / pair.sum(1, keepdims=True)
            n, m = pair.sum(1)
            single = np.array([chi2_contingency([[a, n - a], [b, m - b]]).pvalue < statistics.RARE for a, b in pair.T])
            ratio = np.maximum(mine, other) / np.maximum(np.minimum(mine, other), 1e-9)
            differing += np.abs(mine - other).sum() / 2 > statistics.SHARES or (single & (ratio > statistics.RATIO)).any()
        out[k] = differing >= max(1, (len(counts) - 1) / 2)
    return out


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_shares_of_classes_are_those_of_pairs(classes):
    rng, found = np.random.default_rng(classes), []
    for _ in range(15):
        shares = rng.dirichlet(np.full(classes, rng.choice([0.3, 30.0])), 6)
        counts = np.stack([rng.multinomial(rng.choice([0, 1, 3, 80, 400]), share) for share in shares])
        found.append(statistics.shares_differ(counts))
        assert np.array_equal(found[-1], naive_shares_differ(counts))
    assert np.any(found) and not np.all(found)


def test_p_values_are_those_of_scipy():
    rng = np.random.default_rng(0)
    for classes in (2, 4):
        mine, others = rng.integers(1, 60, classes), rng.integers(1, 60, (20, classes))
        expected = [chi2_contingency([mine, other]).pvalue for other in others]
        assert np.allclose(statistics.chi_square(mine, others), expected, rtol=1e-9)
    assert statistics.chi_square([3, 0], [[4, 0]]).tolist() == [1.0]


@pytest.mark.parametrize("sites", [1, 2, 3, 7])
def test_classes_that_the_other_sites_have(sites):
    counts = np.random.default_rng(sites).integers(0, 6, (sites, 4))
    for k in range(sites):
        others = np.sort(np.delete(counts, k, 0), 0)
        expected = others[: max(1, len(others) - 1)].sum(0) >= 5
        assert np.array_equal(statistics.seen_elsewhere(counts)[k], expected)


def test_samples_drawn_without_replacement_have_the_probability_of_scipy():
    count, size, marked, drawn = np.random.default_rng(0).integers([[0], [60], [0], [0]], [[9], [90], [40], [50]], (4, 50))
    expected = hypergeom.sf(count - 1, size, marked, drawn)
    assert np.allclose(statistics._at_least(count, size, marked, drawn), expected, atol=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 4, 30])
def test_the_bootstrap_of_few_samples_is_that_of_all_draws(samples, monkeypatch):
    rng = np.random.default_rng(samples)
    logits, labels = rng.standard_normal((samples, 3)) * 3, rng.integers(0, 3, samples)
    calls, fitted = [], likelihood._maximize
    monkeypatch.setattr(likelihood, "_maximize", lambda *given: calls.append(1) or fitted(*given))
    found = likelihood.fit(logits, labels, 1.0, rng=np.random.default_rng(7))
    draws, p, one_hot = np.random.default_rng(7), likelihood.softmax(logits), np.eye(3)[labels]
    T = fitted(p, labels, one_hot, np.ones(samples), likelihood._start(3), 1.0, 300)
    for i in range(0, likelihood.DRAWS, 7):
        weights = (
            np.random.default_rng(7).multinomial(samples, np.ones(samples) / samples, likelihood.DRAWS)[i].astype(np.float64)
        )
        again = likelihood.posterior_of(p, labels, fitted(p, labels, one_hot, weights, T, 1.0, 15))
        assert found["draws"][i] == pytest.approx(1 - weights @ (again * one_hot).sum(1) / samples, abs=1e-14)
    assert len(calls) == 1 + len(np.unique(draws.multinomial(samples, np.ones(samples) / samples, likelihood.DRAWS), axis=0))
