"""Suggested labels: as many as the estimated level of a site supports, none for decided labels, each with a confidence."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fnlkit
from benchmarks.audit import simulated
from fnlkit import datasets
from fnlkit.audits import decisions, page
from fnlkit.audits.audit import audit, supported_share
from fnlkit.audits.server.verdict import AGREES, UNKNOWN, WITHIN, WRONG
from fnlkit.audits.suspects import choose
from fnlkit.cli.audit import results
from fnlkit.estimators import likelihood
from tests.commands import refuse_call
from tests.tables import parse_csv


@pytest.fixture(scope="module")
def noisy():
    """Return (federation, data set): five sites of digits, of which the second and fourth have 25 % wrong labels."""
    data, rng = datasets.load("digits"), np.random.default_rng(3)
    parts, given = np.array_split(rng.permutation(len(data.y_train)), 5), np.array(data.y_train)
    for part in parts[1::2]:
        chosen = part[rng.random(len(part)) < 0.25]
        given[chosen] = (given[chosen] + rng.integers(1, 10, len(chosen))) % 10
    return simulated(np.asarray(data.x_train), np.array(data.y_train), given, parts)


@pytest.fixture(scope="module")
def audited(noisy):
    return audit(*noisy)


def test_clean_sites_get_no_suggestions_and_most_suggestions_at_noisy_sites_are_right(noisy, audited):
    (federation, data), found = noisy, audited.judgment
    true = data.y_train[federation.client_indices]
    for client in range(5):
        here = slice(*federation.client_offsets[client : client + 2])
        flagged, guess, right = (values[here] for values in (found.flagged, found.guess, true))
        if client % 2:
            assert flagged.sum() >= 40 and (guess == right)[flagged].mean() >= 0.9
        else:
            assert not flagged.any()


def test_the_models_mistakes_at_a_site_with_other_inputs_are_no_suggestions(few_trees):
    """Classes overlap, so that a right model contradicts 16 % of right labels, and the sites' columns differ."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    x = (rng.normal(size=(600, 6)) + np.outer(2 * y - 1, [1, 0, 0, 0, 0, 0])).astype(np.float32)
    parts = np.array_split(np.arange(600), 3)
    for k, part in enumerate(parts):
        x[part] = x[part] * rng.uniform(0.5, 2, 6) + 3 * k * rng.normal(size=6)
    found = audit(*simulated(x, y, y.copy(), parts))
    assert {row.finding for row in found.sites} <= {UNKNOWN, WITHIN, AGREES} and not found.judgment.flagged.any()


def test_supported_share_by_finding(audited):
    row = replace(audited.sites[0], high=0.3, level=0.2, contradicted=False)
    assert row.judge == "others"
    cases = {WRONG: 0.3, UNKNOWN: 0.3, WITHIN: 0.0, AGREES: pytest.approx(0.15)}  # of AGREES: 0.2 - 0.05
    assert {finding: supported_share(replace(row, finding=finding), 0.05) for finding in cases} == cases
    assert supported_share(replace(row, finding=AGREES, level=None), 0.05) == 0
    for judge in ("own", None):
        assert supported_share(replace(row, finding=UNKNOWN, judge=judge), 0.05) == 0
    assert supported_share(replace(row, finding=UNKNOWN, contradicted=True), 0.05) == 0


def test_reviewed_labels_count_as_right(noisy, audited):
    (federation, data), before = noisy, audited
    decided = federation.client_indices[np.flatnonzero(before.judgment.flagged)[::2]]
    given, reviewed = np.array(federation.given), np.zeros(len(federation.given), bool)
    given[decided], reviewed[decided] = data.y_train[decided], True
    corrected = replace(federation, given=given, extra={**federation.extra, "reviewed": reviewed})
    after = audit(corrected, data)
    held = reviewed[federation.client_indices]
    assert not after.judgment.flagged[held].any() and not after.judgment.issue[held].any()
    assert after.judgment.flagged.sum() <= before.judgment.flagged.sum() - len(decided)
    assert all(np.array(after.judgment.level) <= np.array(before.judgment.level) + 0.02)


def test_levels_that_an_audit_withholds_are_printed_nowhere(noisy, audited, tmp_path):
    from fnlkit.cli.tables import estimate_facts, estimate_line
    from fnlkit.results.plots import clients, labels

    federation, _ = noisy
    rows = sorted(audited.sites, key=lambda row: row.client)
    some = replace(audited, sites=[replace(row, level=None) if row.client < 3 else row for row in rows])
    judged = replace(federation, extra=some.arrays(federation))
    facts = estimate_facts(judged)
    assert [row["level"] is None for row in facts["by_client"]] == [True] * 3 + [False] * 2
    assert facts["level_lowest"] == min(audited.judgment.level[3:]) and facts["judged"] == 2
    assert judged.to_pandas()["estimated_level"].isna().tolist() == [True] * 3 + [False] * 2
    none = replace(federation, extra=replace(audited, sites=[replace(row, level=None) for row in rows]).arrays(federation))
    assert "0." not in estimate_line(none)
    for draw in (clients.estimates, labels.transition):
        refuse_call("could not judge", draw, none)


# ---- the confidence of a suggested label, in every table and page
@pytest.fixture(scope="module")
def judged():
    clean = fnlkit.partition("digits", clients=3, labels="observed", say=None)
    fed = fnlkit.inject_noise(clean, "symmetric(eta=0.3)", seed=1)
    return fnlkit.audit(fed, detectors=(), say=None), np.asarray(clean.given)


@pytest.fixture(scope="module")
def confident(judged):
    return judged[0].federation, judged[1]


def test_confidence_is_the_tempered_posterior_of_the_suggestion():
    posterior = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0], [0.5, 0.5]])
    odds = np.array([9, 4, 999, 1]) ** (1 / likelihood.TOO_CERTAIN)
    assert np.allclose(likelihood.confidence_of(posterior), odds / (1 + odds))


def test_more_confident_suggestions_are_more_often_right(confident):
    federation, true = confident
    sure, flagged = federation.extra["estimate_confidence"], federation.extra["estimate_flagged"]
    right = (federation.extra["estimate_suggested_label"] == true)[flagged]
    order = np.argsort(-sure[flagged], kind="stable")
    half = len(order) // 2
    assert right[order[:half]].mean() > right[order[half:]].mean() + 0.05
    assert ((sure >= 0) & (sure <= 1)).all() and len(np.unique(sure[flagged])) > 20


def test_a_file_with_another_number_of_confidences_is_refused(confident, tmp_path):
    federation, _ = confident
    extra = federation.extra | {"estimate_confidence": np.zeros(3)}
    with pytest.raises(fnlkit.InputError, match="estimate_confidence"):
        replace(federation, extra=extra).write(tmp_path / "f.npz")
        fnlkit.load(tmp_path / "f.npz")


def test_the_audit_counts_confident_suggestions(judged):
    extra, facts = judged[0].federation.extra, judged[0].facts
    flagged, sure = extra["estimate_flagged"], extra["estimate_confidence"]
    assert facts["suggestions"] == {"all": int(flagged.sum()), "confident": int((flagged & (sure >= 0.8)).sum())}
    assert any(str(part).startswith(f"{flagged.sum():,} labels have a suggestion") for part in results(facts))


def test_the_confidence_is_in_tables_and_on_the_page(confident):
    federation, _ = confident
    data, sure = datasets.load("digits"), federation.extra["estimate_confidence"]
    rows = parse_csv(fnlkit.suspects(federation).csv())
    assert all(np.isclose(float(row["confidence"]), sure[int(row["sample"])]) for row in rows) and rows
    chosen = choose(federation, 0, budget=12)
    near = [np.zeros(0, np.int64)] * 12
    table = parse_csv(decisions.decision_template(federation, data, 0, chosen, near))
    assert [row["confidence"] for row in table] == [f"{sure[int(row['position'])]:.4f}" for row in table]
    text = page.page(federation, data, 0, chosen, near, "site")
    body = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert [item["confidence"] for item in body["items"]] == [round(float(sure[i]), 4) for i in chosen.positions]
