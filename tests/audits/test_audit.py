"""An audit names the noisy sites and what they confuse, with nobody knowing the truth, and says what left each site."""

import json
from dataclasses import replace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.audits import report
from fnlkit.audits.audit import audit
from fnlkit.audits.messages import SENDS
from fnlkit.audits.records import Confusion
from fnlkit.audits.server.results import confusions_of_mistakes, find_confusions, mark_supported
from fnlkit.audits.server.statistics import noisier_than_others
from fnlkit.audits.server.verdict import AGREES, Assessment
from fnlkit.datasets.local import from_arrays
from fnlkit.estimators import likelihood
from fnlkit.estimators.intervals import wilson
from fnlkit.estimators.judgment import add_judgment
from fnlkit.simulate import partitioning
from tests.commands import refuse_call


@pytest.fixture(scope="module")
def doubtful():
    """Digits at five sites: site 1 swaps half of its twos and threes, a quarter of site 3's labels are random."""
    data, rng = datasets.load("digits"), np.random.default_rng(0)
    federation = partitioning.federation(data, clients=5, labels="observed", seed=3)
    given, true = federation.given, data.y_train
    one, three = federation.clients[1], federation.clients[3]
    swapped = one[np.isin(true[one], [2, 3]) & (rng.random(len(one)) < 0.5)]
    given[swapped] = 5 - true[swapped]
    random = three[rng.random(len(three)) < 0.25]
    given[random] = (true[random] + rng.integers(1, 10, len(random))) % 10
    federation.meta["client_names"] = ["Aix", "Bonn", "Cork", "Delft", "Essen <b>"]
    return federation, data


@pytest.fixture(scope="module")
def found(doubtful):
    return audit(*doubtful)


def test_noisy_sites_and_swapped_classes_are_named(doubtful, found):
    federation, data = doubtful
    assert {row.site for row in found.sites if row.noisier} == {"Bonn", "Delft"}
    assert [row.finding for row in found.sites if not row.noisier] == [AGREES] * 3
    assert not any(row.inputs.differ or row.shares_differ or row.only_here for row in found.sites)
    rows = {row.site: row for row in found.sites}
    assert {(c.true, c.given) for c in rows["Bonn"].confused[:2]} == {("2", "3"), ("3", "2")}
    for k, name in ((1, "Bonn"), (3, "Delft")):
        held = federation.clients[k]
        level = (federation.given[held] != data.y_train[held]).mean()
        assert rows[name].low <= level <= rows[name].high
    assert all(rows[name].low < 0.01 for name in ("Aix", "Cork", "Essen <b>"))
    mistakes = [Confusion("3", "8", samples=5.0, share=0.14, low=0.06, high=0.29)]  # of an older version
    assert report.describe_confusions(replace(rows["Aix"], confused=mistakes)) == "-"
    assert report.describe_confusions(rows["Bonn"]) != "-"
    assert "Bonn" in report.answer(found.sites) and "Aix" not in report.answer(found.sites)


def test_confusions_that_mistakes_of_the_models_explain_are_marked_and_not_shown(found):
    rows = {row.site: row for row in found.sites}
    marks = {name: {(c.true, c.given): c.supported for c in row.confused} for name, row in rows.items()}
    assert marks["Bonn"]["2", "3"] and marks["Bonn"]["3", "2"]
    assert not any(mark for name in ("Aix", "Cork", "Essen <b>") for mark in marks[name].values())
    for row in rows.values():
        words = report.describe_confusions(row)
        for c in row.confused:
            assert (f"{c.true} given as {c.given} " in words) == c.supported
        assert words == "-" or row.low > 0 or row.classes


@pytest.mark.parametrize(
    ("wrong", "accused", "low", "cell", "supported"),
    [(4, True, 0.05, False, False), (20, True, 0.05, False, True), (20, True, 0.0, False, False),
     (20, False, 0.0, False, False),
     (4, True, 0.0, True, True)],
)  # fmt: skip
def test_a_confusion_is_compared_with_the_mistakes_at_the_cleanest_site(wrong, accused, low, cell, supported):
    """By hand, Wilson at 95 %: 3 of 30 elsewhere is at most 25.6 %; 4 of 30 is at least 5.3 %, 20 of 30 at least 48.8 %."""
    expected = np.array([[[30 - n, n], [0, 30]] for n in (wrong, 3, 5)], float)
    mistakes = confusions_of_mistakes(expected)
    assert abs(mistakes[0, 1] - 0.256) < 1e-3 and confusions_of_mistakes(expected[:0]).tolist() == [[1, 1], [1, 1]]
    one = Assessment(np.array([[False, cell], [False, False]]), noisier=accused, low=low)
    (marked,) = mark_supported(find_confusions(expected[0], ["a", "b"]), ["a", "b"], one, mistakes)
    assert marked.supported == supported and abs(marked.low - {4: 0.053, 20: 0.488}[wrong]) < 1e-3


def test_only_declared_arrays_leave_a_site(doubtful, found):
    federation, _ = doubtful
    assert set(found.traffic.sent) == set(SENDS) - {"known", "total", "squares"}  # images have no scale
    sides = {"columns": 1, "changes": 18, "features": 34, "summed": 64}  # 287 samples allow 64 of 192 features
    for name, what in SENDS.items():
        if name in found.traffic.sent:
            shape = [sides.get(side, side) for side in what.sides(classes=10)]
            item = 1 if name == "withheld" else 8
            expected = 0 if name == "class_columns" else int(np.prod(shape, dtype=int)) * item
            assert found.traffic.sent[name] == 5 * expected, name


def test_page_and_facts(doubtful, found):
    facts = report.facts(found, *doubtful)
    json.dumps(facts)
    text = report.page(facts)
    assert "2 of 5 sites have more wrong labels" in facts["words"]
    assert text.index("2 of 5 sites have more") < text.index("review export") < text.index("<table")
    sites = report.sites_of(facts)
    assert sites == found.sites
    assert report.following(sites, "my file.npz")[0].split()[:4] == ["fnlkit", "review", "export", "'my"]
    assert report.following([replace(row, noisier=False) for row in sites], "j.npz") == ["fnlkit train j.npz -o run.pt"]
    assert facts["basis"] in text and {row["basis"] for row in facts["sites"]} == {"assumptions"}
    federation, data = doubtful
    named = replace(federation, dataset='folder(path="/data/hospital sites", label=2)')
    assert "<title>Audit of hospital sites</title>" in report.page(report.facts(found, named, data))
    assert "Essen &lt;b&gt;" in text and "<b>" not in text.replace('<b style="left', "") and "http" not in text


def test_which_samples_are_copies_stays_with_the_samples(doubtful):
    """A copy at a site is written beside the site's samples, held-out ones among them; nothing about it leaves."""
    data = datasets.load("digits")
    x = data.x_train.copy()
    split = {"clients": 3, "labels": "observed", "holdout": 0.2, "seed": 3}
    federation = partitioning.federation(data, **split)
    a, b = federation.clients[1][4], federation.held_out[1][2]
    x[b] = x[a]
    near = federation.clients[2][:2]
    x[near[1]] = np.clip(x[near[0]].astype(int) + (x[near[0]] > 100), 0, 255)
    planted = replace(data, samples=lambda: (x, data.x_test))
    federation = partitioning.federation(planted, **split)
    said = audit(federation, planted)
    of = said.arrays(federation)["estimate_copy_of"]
    assert {(min(j, of[j]), max(j, of[j])) for j in np.flatnonzero(of >= 0)} == {tuple(sorted((a, b))), tuple(sorted(near))}
    assert {row.client: (row.copies, row.near_copies) for row in said.sites} == {0: (0, 0), 1: (1, 0), 2: (0, 1)}
    assert add_judgment(federation, said.arrays(federation)).extra["estimate_far"].sum() == sum(row.far for row in said.sites)
    assert not {"copy_of", "far", "copies"} & set(said.traffic.sent)


def test_one_site_cannot_be_compared():
    data = datasets.load("digits")
    refuse_call("at least 2 classes, found 1", audit, replace(partitioning.federation(data, clients=3), classes=1), data)
    refuse_call("at least 2 sites", audit, partitioning.federation(data, clients=1), data)


def test_noisier_needs_more_than_chance():
    p = noisier_than_others([0.02, 0.02, 0.03, 0.2], [0.01] * 4)
    assert p[3] < 1e-6 and (p[:3] > 0.3).all() and (noisier_than_others([0.1] * 5, [0.02] * 5) == 1).all()


def test_confusions_are_ordered_and_small_ones_left_out():
    counts = np.array([[90.0, 10, 0], [1, 99, 0], [30, 0, 70]])
    rows = find_confusions(counts, ["a", "b", "c"])
    assert [(r.true, r.given) for r in rows] == [("c", "a"), ("a", "b")]
    assert rows[0].share == 0.3 and rows[0].low < 0.3 < rows[0].high


def simulated(n=1500, classes=4, sharpness=3.0):
    """Return (scores, true, rng): a calibrated classifier's log-probabilities, and classes drawn from them."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, classes)) * sharpness
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return np.log(p), (rng.random((n, 1)) > np.cumsum(p, 1)).sum(1), rng


def test_em_finds_the_transition_and_its_temper():
    scores, true, rng = simulated()
    T = np.array([[0.7, 0.3, 0, 0], [0, 1, 0, 0], [0, 0, 0.9, 0.1], [0, 0, 0, 1]])
    given = (rng.random((len(true), 1)) > np.cumsum(T[true], 1)).sum(1)
    for factor in (0.5, 1.0, 2.0):  # a classifier that is too timid, right, too sure
        temper = likelihood.best_temper(factor * scores, given)
        assert temper * factor == pytest.approx(1, rel=0.45)
    found = likelihood.fit(scores, given, 1.0, rng=rng)
    level = (given != true).mean()
    assert found["low"] <= level <= found["high"] and abs(found["level"] - level) < 0.03
    np.testing.assert_allclose(found["counts"] / found["counts"].sum(1, keepdims=True), T, atol=0.06)
    assert found["counts"].sum() == pytest.approx(len(true)) and found["posterior"].sum(1) == pytest.approx(1)


def test_an_audit_counts_a_group_as_one_observation(few_trees):
    """Six copies of 60 samples at each site: a clean site has 60 observations without an error, not 360."""
    rng, sites, patients, copies = np.random.default_rng(0), 5, 60, 6
    true = rng.integers(0, 2, sites * patients)
    given = np.where(np.arange(len(true)) < 4, 1 - true, true)
    x = np.stack([8 * true + rng.normal(size=len(true)), rng.normal(size=len(true))], 1)
    x = np.repeat(x, copies, 0) + 0.05 * rng.normal(size=(len(x) * copies, 2))
    y, groups = np.repeat(given, copies), np.repeat(np.arange(len(true)), copies)
    p = 1 / (1 + np.exp(-3 * (x[:, 0] - 4)))
    data = from_arrays("toy", {"x_train": x.astype(np.float32), "y_train": y})
    plain = Federation("toy", 2, np.arange(sites + 1) * patients * copies, np.arange(len(y)), y,
                       meta={"dataset_checksum": data.checksum})  # fmt: skip
    p = np.stack([1 - p, p], 1)
    found = [audit(replace(plain, extra=extra), data, probabilities=p) for extra in ({}, {"group": groups})]
    rows = [{row.client: row for row in each.sites} for each in found]
    for k in (2, 4):
        assert 0 <= rows[0][k].high - float(wilson(0, 360)[1]) <= 5 / 360  # ends are multiples of 5
        assert 0 <= rows[1][k].high - float(wilson(0, 60)[1]) <= 5 / 360
    assert rows[0][0].p < 1e-4 < 0.05 < rows[1][0].p
    assert rows[0][0].level == rows[1][0].level and rows[1][0].high > rows[0][0].high
    assert any("60 of 360 samples" in note for note in found[1].notes) and not any("group" in note for note in found[0].notes)
