"""Decisions survive class names that look like decisions, files of other programs, and spreadsheets that run formulas."""

from dataclasses import replace

import numpy as np
import pytest

from fnlkit import datasets
from fnlkit.artifacts.sheets import Sheet, guard, unguard
from fnlkit.audits import decisions
from fnlkit.audits.suspects import choose
from fnlkit.simulate import partitioning
from tests.commands import refuse_call
from tests.tables import format_csv, parse_csv

NAMES = ["keep", "drop", "Unsure", "=1+1", "-5", "a b", "6", "7", "8", "9"]


@pytest.fixture(scope="module")
def world():
    """Digits over 3 clients whose classes are called as decisions and formulas are."""
    data = replace(datasets.load("digits"), class_names=NAMES)
    federation = partitioning.federation(data, clients=3, labels="observed")
    n = len(federation.given)
    arrays = {"issue_score": np.linspace(0, 1, n), "flagged": np.ones(n, bool), "suggested_label": (federation.given + 1) % 10}
    return replace(federation, extra={f"estimate_{name}": values for name, values in arrays.items()}), data


def rows_of(world, budget=12):
    federation, data = world
    text = decisions.decision_template(federation, data, 1, choose(federation, 1, budget=budget, at_random=0.5))
    return parse_csv(text)


def test_classes_called_keep_and_drop_are_kept_changed_and_left_out(world):
    federation, data = world
    rows = rows_of(world)
    wanted = [("keep", ""), ("drop", ""), ("relabel", "keep"), ("relabel", "drop"), ("relabel", "=1+1"), ("Unsure", "")]
    for row, (decision, label) in zip(rows, wanted, strict=False):
        row["decision"], row["label"] = decision, label
    rows[6]["label"] = "unsure"  # a class without a decision is a relabel, in any case of letters
    rows[7]["decision"] = "a b"  # a class that is no decision
    found = decisions.read_decisions(format_csv(rows), federation, data)
    p, given = [int(row["position"]) for row in rows], federation.given
    assert dict(zip(found.positions.tolist(), found.label.tolist(), strict=True)) == {
        p[0]: given[p[0]], p[1]: -1, p[2]: 0, p[3]: 1, p[4]: 3, p[6]: 2, p[7]: 5,
    }  # fmt: skip
    assert found.unsure.tolist() == [p[5]]


def test_the_earlier_form_is_read_where_it_has_one_meaning(world):
    federation, data = world
    plain = replace(data, class_names=[*"abcdefghij"])
    for used, decision, label in ((plain, "drop", -1), (plain, "c", 2), (data, "6", 6), (data, "drop", None)):
        rows = rows_of((federation, used))
        for row in rows:
            del row["label"]
        rows[0]["decision"] = decision
        if label is None:
            refuse_call("row 2: decision 'drop' is also a class", decisions.read_decisions, format_csv(rows), federation, used)
        else:
            assert decisions.read_decisions(format_csv(rows), federation, used).label.tolist() == [label]
    twice = replace(data, class_names=[*"abcdefghaj"])
    rows = [row | {"decision": "relabel", "label": "a"} for row in rows_of((federation, twice))]
    refuse_call("label 'a' names two classes; rename one", decisions.read_decisions, format_csv(rows), federation, twice)


def test_unsure_samples_stay_open_and_widen_the_interval(world):
    federation, data = world
    rows = [row | {"decision": "keep"} for row in rows_of(world)]
    sure = decisions.read_decisions(format_csv(rows), federation, data)
    next(row for row in rows if row["part"] == "random")["decision"] = "unsure"
    found = decisions.read_decisions(format_csv(rows), federation, data)
    assert len(found.unsure) == 1 and not found.rows_suspect[np.isin(found.rows, found.unsure)].any()
    a, b = (decisions.level(federation, one) for one in (sure, found))
    assert a.level == 0 and b.level is None and b.high > a.high and b.low == a.low == 0
    out = decisions.decide(federation, found, when="today")
    assert not out.extra["reviewed"][found.unsure].any() and out.meta["reviews"][0]["unsure"] == found.unsure.tolist()
    assert (out.given == federation.given).all()


def test_the_rest_of_a_table_is_imported_later(world):
    federation, data = world
    rows = rows_of(world)
    other, later = (NAMES[(NAMES.index(rows[i]["given"]) + 1) % 10] for i in (2, 5))
    for row, (decision, label) in zip(rows, [("keep", ""), ("drop", ""), ("relabel", other), ("drop", "")], strict=False):
        row["decision"], row["label"] = decision, label
    first = decisions.decide(federation, decisions.read_decisions(format_csv(rows), federation, data), when="today")
    rows[4]["decision"], rows[5]["label"] = "keep", later
    found = decisions.read_decisions(format_csv(rows), first, data)
    p = [int(row["position"]) for row in rows]
    assert found.positions.tolist() == p[4:6] and found.rows.tolist() == p[4:]
    second = decisions.decide(first, found, when="tomorrow")
    assert np.flatnonzero(second.extra["reviewed"]).tolist() == sorted(p[:6])
    assert second.given[p[2]] == NAMES.index(other) and second.given[p[5]] == NAMES.index(later)
    assert not np.isin([p[1], p[3]], np.concatenate(second.clients)).any()
    assert not len(decisions.read_decisions(format_csv(rows), second, data).positions)
    for i, change in ((0, "drop"), (1, "keep"), (2, "keep")):
        changed = [dict(row) for row in rows]
        changed[i]["decision"], changed[i]["label"] = change, ""
        refuse_call(f"row {i + 2}: an earlier import decided", decisions.read_decisions, format_csv(changed), second, data)


@pytest.mark.parametrize("text", ["=1+1", "+a", "-a", "@x", "\tx", "'=x", "''-x", "-5", "+1e3", "'a", "", "a=b", "3.5", "-"])
def test_cells_that_look_like_formulas_are_escaped_and_restored(text):
    cell = guard(text)
    assert unguard(cell) == text
    assert cell[:1] not in ("=", "@", "\t") and (cell[:1] not in ("+", "-") or float(cell))


def test_a_sheet_guards_every_text(tmp_path):
    sheet = Sheet(["=a", "b"], [["=cmd()", -1.5], [None, True]])
    sheet.write(tmp_path / "s.csv")
    assert (tmp_path / "s.csv").read_text() == "'=a,b\n'=cmd(),-1.500000\n,yes\n"
    assert sheet.to_pandas()["=a"][0] == "=cmd()"


def test_formulas_in_names_are_text_in_the_exported_table(world):
    federation, data = world
    some = replace(federation, extra={**federation.extra, "sample_id": np.array(["=HYPERLINK(1)"] * len(federation.given))})
    rows = rows_of((some, data))
    assert all(cell[:1] not in ("=", "+", "@") for row in rows for cell in row.values())
    assert {row["sample"] for row in rows} == {"'=HYPERLINK(1)"}
    for row in rows:
        row["decision"] = "keep"
    assert len(decisions.read_decisions(format_csv(rows), some, data).positions) == len(rows)
