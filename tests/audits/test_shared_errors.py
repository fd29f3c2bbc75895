"""Many sites: errors that most share are not called right, and findings of all sites equal those of one pair after another."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2_contingency, hypergeom

from fnlkit import datasets
from fnlkit.audits import report
from fnlkit.audits.audit import audit
from fnlkit.audits.server import statistics, verdict, wording
from fnlkit.audits.server.heads import LEAST_VARIANCE, make_heads
from fnlkit.audits.site import summaries
from fnlkit.audits.site.samples import Samples
from fnlkit.cli.audit import results
from fnlkit.estimators import likelihood
from fnlkit.estimators.likelihood import RIGHT, WRONG, wrong_probabilities
from fnlkit.simulate import partitioning

# ---- errors that most sites share cannot be seen by an audit, and it does not report that such labels are right
CLASSES = 6


@pytest.fixture(scope="module")
def digits():
    """The digits 0 to 5."""
    data = datasets.load("digits")
    kept = data.y_train < CLASSES
    x, y, test = data.x_train[kept], data.y_train[kept], data.y_test < CLASSES
    samples = x, data.x_test[test]
    return replace(data, samples=lambda: samples, y_train=y, y_test=data.y_test[test], class_names=data.class_names[:CLASSES])


def audited(data, change=lambda given, true, held, rng: None, clients=4, held=None):
    """Return (rows by client, facts) of an audit after `change` has written wrong labels.

    held : list of arrays, optional
        Samples of each client, which can be the same.
    """
    rng = np.random.default_rng(0)
    federation = partitioning.federation(data, clients=clients, labels="observed", seed=3)
    change(federation.given, data.y_train, held or federation.clients, rng)
    if held is not None:
        index = np.concatenate(held)
        samples, given = (data.x_train[index], data.x_test), federation.given[index]
        data = replace(data, samples=lambda: samples, y_train=data.y_train[index])
        federation = partitioning.federation(data, clients=clients, labels="observed", seed=3)
        federation.given[:] = given
        offsets = np.cumsum([0, *map(len, held)])
        federation = replace(federation, client_offsets=offsets, client_indices=np.arange(len(index)))
    found = audit(federation, data, detectors=())
    facts = report.facts(found, federation, data)
    return {row.client: row for row in found.sites}, facts


def symmetric(given, true, held, rng):
    wrong = rng.random(len(true)) < 0.3
    given[wrong] = (true[wrong] + rng.integers(1, CLASSES, wrong.sum())) % CLASSES


def exchanged(given, true, held, rng):
    given[:] = np.array([0, 1, 3, 2, 5, 4])[true]


def default(given, true, held, rng):
    given[rng.random(len(true)) < 0.97] = 0


def two_sites(given, true, held, rng):
    for part in held[:2]:
        given[part] = (true[part] + 1) % CLASSES


def printed(facts):
    """Return the texts that the terminal and the page show."""
    return "\n".join(map(str, results(facts, everything=True))) + report.page(facts)


@pytest.mark.parametrize("change", [symmetric, default])
def test_many_wrong_labels_at_all_sites_cannot_be_judged(digits, change):
    """30 % random labels, and 97 % of one class."""
    rows, facts = audited(digits, change)
    for row in rows.values():
        # A site can have more wrong labels than the others by chance, and is then named.
        assert row.finding in (verdict.UNKNOWN, verdict.WRONG) and row.level is None and row.high > 0.25
    unknown = [row.words[0] for row in rows.values() if row.finding == verdict.UNKNOWN]
    reason = "of the labels are 0" if change is default else "mistakes of the models cannot be told from wrong labels"
    assert len(unknown) >= 2 and all(text.startswith("Labels cannot be judged: ") and reason in text for text in unknown)
    assert "agree" not in facts["words"] and f"{len(unknown)} of 4" in facts["words"] and "cannot be judged" in facts["words"]


def test_classes_exchanged_at_all_sites_agree_and_the_assumption_comes_first(digits):
    """No method can see this; every result begins with the assumption."""
    rows, facts = audited(digits, exchanged)
    assert {row.finding for row in rows.values()} == {verdict.AGREES}
    assert all(row.words[0].startswith("Compared with the other sites, ") for row in rows.values())
    assert facts["compared"] == wording.COMPARED == next(iter(facts.values()))
    assert facts["words"].startswith(wording.COMPARED)
    assert "errors that most sites share cannot be seen" in wording.COMPARED
    page = report.page(facts)
    assert page.index(wording.COMPARED) < page.index("<table")
    assert "look right" not in printed(facts)


def test_two_wrong_sites_of_three_are_no_reference(digits):
    rows, facts = audited(digits, two_sites, clients=3)
    assert not any(row.noisier or row.finding == verdict.AGREES for row in rows.values())
    unknown = "Labels cannot be judged", "errors that follow a rule"
    assert all(any(words in row.words[0] for words in unknown) for row in rows.values())
    assert "look right" not in printed(facts)


def test_a_site_of_one_sample_is_not_judged(digits):
    parts = partitioning.federation(digits, clients=4, labels="observed", seed=3).clients
    rows, _ = audited(digits, lambda given, true, held, rng: given.__setitem__(held[3], (true[held[3]] + 1) % CLASSES),
                      held=[*parts[:3], parts[3][:1]])  # fmt: skip
    assert rows[3].finding == verdict.UNKNOWN and rows[3].p is None and "fewer than 5 samples" in rows[3].words[0]
    assert report.ends(rows[3]) == "-" and {rows[k].finding for k in range(3)} == {verdict.AGREES}


def assessed(predicted, level, deviation):
    """Return verdict.assess of sites that the models of the others judge."""
    sites = len(predicted)
    counts = predicted.astype(float)
    ends = {"level": np.array(level), "low": np.array(level) / 2, "high": np.array(level) * 1.5 + 0.02}
    estimates = {**ends, "deviation": np.array(deviation), "counts": counts}
    held = predicted.sum(1)
    none, own = np.zeros(sites, bool), (predicted, np.zeros_like(predicted), np.zeros(sites, int), np.zeros((sites, 2), int))
    found = verdict.Predictions(np.zeros(sites, int), np.ones(held.shape, bool), none, predicted, *own)
    return verdict.assess(["others"] * sites, estimates, held, found)


def test_a_site_that_is_named_for_a_confusion_has_its_p_value():
    """One of many classes is wrong at the last site, so that its level is that of the others."""
    usual, other = np.diag([1000, 1000, 40]), np.diag([1000, 1000, 20])
    usual[0, 1] = usual[1, 0] = 20
    other[2, 0], other[0, 1], other[1, 0] = 20, 10, 10
    rows = assessed(np.stack([usual] * 4 + [other]), [0.02] * 5, [0.005] * 5)
    assert [row.noisier for row in rows] == [False] * 4 + [True]
    assert rows[4].p < statistics.SIGNIFICANT_CLASS and rows[0].p == 1


def test_few_contradicted_samples_have_no_p_value_of_zero():
    """All 6 samples are contradicted, and their bootstrap has no spread."""
    usual, few = np.diag([100, 100]), np.array([[0, 3], [3, 0]])
    rows = assessed(np.stack([usual] * 4 + [few]), [0.0] * 4 + [1.0], [0.001] * 4 + [0.0])
    assert 0 < rows[4].p < 0.01


@pytest.mark.parametrize(("positives", "missed", "named"), [(3, 3, False), (40, 20, True)])
def test_few_missed_positives_are_not_named(positives, missed, named):
    """All samples but the missed positives are predicted as labeled; the other sites miss none."""
    usual = np.array([[960, 0], [0, positives]])
    table = np.array([[960, 0], [missed, positives - missed]])
    # predicted positive, given negative: the true class is the positive one
    expected = np.stack([usual] * 4 + [np.array([[960, 0], [missed, positives - missed]])]).astype(float)
    cells, p = statistics.confuses_beyond_chance(np.stack([usual] * 4 + [table]), expected)
    assert cells[4, 1, 0] == named and not cells[:4].any() and (p[4] < statistics.SIGNIFICANT_CLASS) == named


@pytest.mark.parametrize(("clients", "named"), [(5, True), (2, False)])
def test_the_same_samples_at_two_sites_do_not_confirm_each_other(digits, clients, named):
    """31 % of the labels of sites 0 and 1, which have the same samples, are wrong."""
    parts = partitioning.federation(digits, clients=4, labels="observed", seed=3).clients

    def wrong(given, true, held, rng):
        chosen = held[0][rng.random(len(held[0])) < 0.31]
        given[chosen] = (true[chosen] + rng.integers(1, CLASSES, len(chosen))) % CLASSES

    rows, _ = audited(digits, wrong, held=[parts[0], *parts][:clients], clients=clients)
    for k in (0, 1):
        assert rows[k].noisier == named and rows[k].finding == (verdict.WRONG if named else verdict.UNKNOWN)
        assert rows[k].low <= 0.31 <= rows[k].high
    assert all(rows[k].finding == verdict.AGREES for k in range(2, clients))


# ---- findings of many sites are computed at once, and equal those of one pair of sites after the other
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


def maximize_naively(p, labels, weights, T, most, prior):
    """Fit the transition matrix of one draw: sample by sample, with `prior` right labels of each class in addition."""
    for _ in range(most):
        counts = prior * np.eye(len(T))
        for row, label, weight in zip(p, labels, weights, strict=True):
            counts[:, label] += weight * row * T[:, label] / (row @ T[:, label])
        before, T = T, counts / counts.sum(1, keepdims=True)
        if np.abs(T - before).max() < 1e-5:
            break
    return T


@pytest.mark.parametrize(("samples", "grouped", "at_once"), [(1, False, 1), (4, False, 100), (30, False, 1e6), (30, True, 100)])
def test_the_bootstrap_is_that_of_a_loop_over_draws_and_samples(samples, grouped, at_once, monkeypatch):
    monkeypatch.setattr(likelihood, "AT_ONCE", int(at_once))
    monkeypatch.setattr(likelihood, "DRAWS", 9)
    rng, prior = np.random.default_rng(samples), 0.5 if samples == 4 else 1.0
    logits, labels = rng.standard_normal((samples, 3)) * 3, rng.integers(0, 2, samples)  # no label is of the third class
    groups = rng.integers(0, 5, samples) if grouped else np.arange(samples)
    found = likelihood.fit(logits, labels, 1.0, prior=prior, rng=np.random.default_rng(7), groups=groups if grouped else None)
    p, start = likelihood.softmax(logits), np.full((3, 3), 0.05) + 0.85 * np.eye(3)
    T = maximize_naively(p, labels, np.ones(samples), start, 300, prior)
    assert found["posterior"] == pytest.approx(likelihood.posterior_of(p, labels, T))
    count = groups.max() + 1
    for i, drawn in enumerate(np.random.default_rng(7).multinomial(count, np.ones(count) / count, 9)):
        weights = drawn[groups]
        again = maximize_naively(p, labels, weights, T, 15, prior)
        right = likelihood.posterior_of(p, labels, again)[np.arange(samples), labels]
        assert found["draws"][i] == pytest.approx(1 - weights @ right / weights.sum(), abs=1e-12)
    size = likelihood.effective_size(groups)
    low, high = likelihood.wilson(np.array(found["level"] * size), np.array(size))
    assert not grouped or (found["low"] <= low and found["high"] >= high)
    for factor, value in zip(likelihood.TEMPERS, likelihood.log_likelihoods(logits, labels, prior=prior), strict=True):
        p = likelihood.softmax(factor * logits)
        T = maximize_naively(p, labels, np.ones(samples), start, 40, prior)
        assert value == pytest.approx(np.log((p * T.T[labels]).sum(1)).sum())


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


def test_the_only_site_with_sums_has_no_classifier_of_others():
    """Sites of 3 and 8 samples of two columns send no sums: the message to the third site failed."""
    rng, scale = np.random.default_rng(0), (np.zeros(2), np.ones(2))
    sites = [Samples(rng.normal(size=(n, 2)).astype(np.float32), np.arange(n) % 3, 3) for n in (3, 8, 40)]
    heads = make_heads([summaries.summarize(site, scale) for site in sites], scale)
    assert heads["sizes"].tolist() == [8, 8, 0] and not heads["coefficients"][2].any()
