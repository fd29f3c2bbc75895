"""Errors that most sites share cannot be seen by an audit, and it does not report that such labels are right."""

from dataclasses import replace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.audits import report
from fnlkit.audits.audit import audit
from fnlkit.audits.server import statistics, verdict, wording
from fnlkit.cli.audit import results
from fnlkit.simulate import partitioning

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
