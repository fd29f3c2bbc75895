"""Findings of many sites are computed at once, and equal those of one pair of sites after the other."""

import numpy as np
import pytest
from scipy.stats import chi2_contingency, hypergeom

from fnlkit.audits.server import statistics
from fnlkit.audits.server.heads import LEAST_VARIANCE, make_heads
from fnlkit.audits.site import summaries
from fnlkit.audits.site.samples import Samples
from fnlkit.estimators import likelihood
from fnlkit.estimators.likelihood import RIGHT, WRONG, wrong_probabilities


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
        drawn = np.random.default_rng(7).multinomial(samples, np.ones(samples) / samples, likelihood.DRAWS)
        weights = drawn[i].astype(np.float64)
        again = likelihood.posterior_of(p, labels, fitted(p, labels, one_hot, weights, T, 1.0, 15))
        assert found["draws"][i] == pytest.approx(1 - weights @ (again * one_hot).sum(1) / samples, abs=1e-14)
    assert len(calls) == 1 + len(np.unique(draws.multinomial(samples, np.ones(samples) / samples, likelihood.DRAWS), axis=0))


# ---- scores of labels, and classifiers of small sites
def test_labels_without_evidence_are_wrong_with_the_expected_share():
    # p(label) = p(other class), so that each label is wrong with probability s, and s = (n s + WRONG) / (n + WRONG + RIGHT).
    out = wrong_probabilities(np.full((50, 2), 0.5), np.zeros(50, int))
    np.testing.assert_allclose(out, WRONG / (WRONG + RIGHT))


def test_scores_keep_the_order_and_rise_with_the_share_of_wrong_labels():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(3, 0.3), 300)
    clean = p.argmax(1)
    noisy = np.where(rng.random(300) < 0.3, (clean + 1) % 3, clean)
    out = wrong_probabilities(p, noisy)
    order = np.argsort(out)
    assert (np.diff(p[np.arange(300), noisy][order]) <= 1e-12).all()
    same = noisy == clean
    assert (out[same] > wrong_probabilities(p, clean)[same]).all()


def test_small_sites_of_wide_tables_are_judged_by_all_columns():
    rng, sites = np.random.default_rng(1), []
    for k in range(3):
        y = np.arange(40) % 2
        sites.append(Samples((0.4 * rng.normal(size=(40, 20)) + 0.5 * y[:, None]).astype(np.float32), y, 2, number=k))
    scale = np.full(20, 0.1), np.full(20, 1.5)
    firsts = [summaries.summarize(site, scale) for site in sites]
    assert firsts[0]["sums"].shape[1] == 8
    heads = make_heads(firsts, scale)
    z = [(site.x.astype(np.float64) - scale[0]) / scale[1] for site in sites]
    rows, labels = np.concatenate(z[1:]), np.concatenate([site.y for site in sites[1:]])
    means = np.stack([rows[labels == c].mean(0) for c in range(2)])
    variance = ((rows - means[labels]) ** 2).mean(0) + LEAST_VARIANCE
    expected = -0.5 * ((z[0][:, None] - means) ** 2 / variance).sum(2)
    logits = summaries.features(sites[0], scale) @ heads["coefficients"][0].T + heads["offsets"][0]
    assert heads["sizes"][0] == 20
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], expected[:, 1] - expected[:, 0], rtol=1e-6)
