"""Numbers of the audits of league-real, by hand."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import league_audit
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.verdict import WRONG


def test_scores_of_an_audit_by_hand(monkeypatch):
    """Three sites of four samples with 0, 1 and 2 wrong labels; the first two samples to review are one right, one wrong."""
    monkeypatch.setattr(league_audit, "FIRST", 2)
    true = np.zeros(12, int)
    given = true.copy()
    given[[4, 8, 9]] = 1
    federation = Federation("made", 2, np.array([0, 4, 8, 12]), np.arange(12), given)
    issue = np.zeros(12)
    issue[[9, 0]] = 1.0
    rows = [
        SimpleNamespace(client=2, low=0.4, high=0.6, finding=WRONG),
        SimpleNamespace(client=0, low=0.0, high=0.2, finding="nothing"),
        SimpleNamespace(client=1, low=0.5, high=0.9, finding="nothing"),  # the share is 0.25
    ]
    found = league_audit.score(federation, true, SimpleNamespace(sites=rows, judgment=SimpleNamespace(issue=issue)))
    assert found["base"] == 0.25 and found["precision"] == 0.5
    assert found["covered"] == [1, 0, 1] and found["accused"] == [0] and found["named"] == [0, 1]


def test_held_out_samples_are_judged_too(monkeypatch):
    """Each site holds out its second sample.  The audit's order is that of all samples of a site."""
    monkeypatch.setattr(league_audit, "FIRST", 1)
    owner = np.array([-1, 0, -1, 1], np.int64)
    federation = Federation(
        "made", 2, np.array([0, 1, 2]), np.array([0, 2]), np.array([0, 1, 0, 0]), extra={"holdout_client": owner}
    )
    rows = [SimpleNamespace(client=k, low=share, high=share, finding="nothing") for k, share in enumerate((0.5, 0.0))]
    audit = SimpleNamespace(sites=rows, judgment=SimpleNamespace(issue=np.array([0.0, 1.0, 0.0, 0.0])))
    found = league_audit.score(federation, np.zeros(4, int), audit)
    assert (found["base"], found["precision"], found["covered"]) == (0.25, 1.0, [1, 1])


def test_worlds_have_the_same_weight_and_refused_federations_are_counted():
    one = {"base": 0.2, "precision": 0.5, "covered": [1.0, 0.0], "accused": [], "named": [1.0]}
    two = one | {"precision": 1.0, "covered": [1.0] * 8}
    lines = list(league_audit.table([("a: x", one), ("a: y", two), ("a: z", None), ("b: x", one)]))
    assert lines[2] == "| a | 2 of 3 | 20.0 % | 75.0 % | 90.0 % |  | 100.0 % |"
    assert lines[-1] == "| mean of worlds | | 20.0 % | 62.5 % | 70.0 % |  | 100.0 % |"


def test_regimes_can_be_rows():
    one = {"base": 0.2, "precision": 0.5, "covered": [1.0], "accused": [], "named": []}
    lines = list(league_audit.table([("a, x", one), ("a, y", None)], group=str))
    assert [line.partition(" | ")[0] for line in lines[2:]] == ["| a, x", "| a, y"]


def test_a_folder_without_runs_has_no_audits(tmp_path):
    assert list(league_audit.audits(tmp_path, 1)) == []


@pytest.mark.parametrize("value", [None, 0.123])
def test_absent_values_are_empty(value):
    assert league_audit._percent(value) == ("" if value is None else "12.3 %")
