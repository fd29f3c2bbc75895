"""Suggested labels: only as many as the estimated level of a site supports, and none for labels that a person decided."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.audit import simulated
from fnlkit import datasets
from fnlkit.audits.audit import audit, supported_share
from fnlkit.audits.server.verdict import AGREES, UNKNOWN, WITHIN, WRONG


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


def of_site(federation, values, client):
    start, end = federation.client_offsets[client : client + 2]
    return values[start:end]


def test_clean_sites_get_no_suggestions_and_most_suggestions_at_noisy_sites_are_right(noisy, audited):
    (federation, data), found = noisy, audited.judgment
    true = data.y_train[federation.client_indices]
    for client in range(5):
        flagged, guess, right = (of_site(federation, v, client) for v in (found.flagged, found.guess, true))
        if client % 2:
            assert flagged.sum() >= 40 and (guess == right)[flagged].mean() >= 0.9
        else:
            assert not flagged.any()


def test_the_models_mistakes_at_a_site_with_other_inputs_are_no_suggestions():
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
    from fnlkit.core.errors import InputError
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
        with pytest.raises(InputError, match="could not judge"):
            draw(none)
