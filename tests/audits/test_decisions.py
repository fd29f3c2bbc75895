"""Decisions and results of audits: class names that look like decisions, other programs' files, files of earlier versions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts.records import from_json, to_json
from fnlkit.artifacts.sheets import Sheet, guard, unguard
from fnlkit.audits import decisions, report
from fnlkit.audits.annotation_exports import read_annotations
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.reviews import Review
from fnlkit.audits.suspects import choose
from fnlkit.simulate import partitioning
from tests import commands
from tests.commands import refuse_call
from tests.tables import format_csv, parse_csv

# ---- decisions survive class names that look like decisions, files of other programs, and spreadsheets that run formulas
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


# ---- decisions that were made in Label Studio or CVAT come back by the ids and paths of samples
@pytest.fixture(scope="module")
def judged():
    """Three sites of digits with paths as ids; the names of files are unique, apart from those of samples 0 and 1."""
    data = datasets.load("digits")
    federation = partitioning.federation(data, clients=3, labels="observed", seed=3)
    n = len(federation.given)
    arrays = {"issue_score": np.linspace(0, 1, n), "flagged": np.ones(n, bool), "suggested_label": (federation.given + 1) % 10}
    ids = np.array([f"site/{i % 7}/{i if i > 1 else 'same'} a.png" for i in range(n)])
    extra = {f"estimate_{name}": values for name, values in arrays.items()} | {"sample_id": ids}
    return replace(federation, extra=federation.extra | extra), data


def task(data, *choices, **more):
    result = [{"type": "choices", "from_name": "c", "to_name": "i", "value": {"choices": [c]}} for c in choices]
    return {"id": 1, "data": data, "annotations": [{"completed_by": {"email": "ada@x"}, "result": result, **more}]}


def image(name, *labels):
    tags = "".join(f'<tag label="{label}" source="manual"/>' for label in labels)
    return f'<image id="0" name="{name}">{tags}</image>'


def written(kind, found):
    """Return the text of an export with the pairs (name, label), and a sample without a decision."""
    if kind == "json":
        canceled = task({"image": "nobody.png"}, "x", was_cancelled=True)
        return json.dumps([*(task({"image": name}, label) for name, label in found), canceled])
    images = "".join(image(name, label) for name, label in found) + image("nobody.png")
    return f"<annotations><meta><task><assignee>ada@x</assignee></task></meta>{images}</annotations>"


@pytest.mark.parametrize("kind", ["json", "xml"])
def test_labels_of_several_sites_are_taken_over(judged, kind, tmp_path):
    federation, _ = judged
    chosen = [int(held[j]) for held in federation.clients[:2] for j in (3, 4)]
    ids = federation.ids_of(chosen)
    forms = [ids[0], f"/data/local-files/?d=there/{ids[1].replace(' ', '%20')}" if kind == "json" else f"there/{ids[1]}",
             f"https://x.org/upload/0a1b2c3d-{ids[2].rsplit('/', 1)[1]}" if kind == "json" else ids[2], ids[3]]  # fmt: skip
    labels = [federation.given[chosen[0]], *((federation.given[chosen[1:]] + 3) % 10)]
    (tmp_path / f"export.{kind}").write_text(written(kind, [(f, str(v)) for f, v in zip(forms, labels, strict=True)]))
    out = fnlkit.import_review(federation, tmp_path / f"export.{kind}", when="2026-01-02")
    expected = federation.given.copy()
    expected[chosen] = labels
    assert np.array_equal(out.given, expected) and np.flatnonzero(out.extra["reviewed"]).tolist() == sorted(chosen)
    records = out.meta["reviews"]
    assert [record["client"] for record in records] == [0, 1] and [len(record["changed"]) for record in records] == [1, 2]
    assert all(record["who"] == ["ada@x"] and record["level"]["level"] is None for record in records)
    federation.write(tmp_path / "judged.npz")
    commands.succeed(f"fnlkit review import judged.npz export.{kind} -o out.npz --csv cleaned.csv", tmp_path)
    assert np.array_equal(fnlkit.load(tmp_path / "out.npz").given, expected)


@pytest.mark.parametrize("column", ["sample_id", "sample_path"])
def test_an_id_or_path_of_several_samples_is_refused(judged, column, tmp_path):
    """Two rows of a table can name the same image; the first one is not the one that was meant."""
    federation, _ = judged
    names = np.array([f"scans/{i // 2}.png" for i in range(len(federation.given))])
    twice = replace(federation, extra=federation.extra | {column: names})
    (tmp_path / "export.json").write_text(json.dumps([task({"image": "scans/4.png"}, "1")]))
    refuse_call("export.json.*scans/4.png.*several samples", fnlkit.import_review, twice, tmp_path / "export.json")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{", "Label Studio"),
        ("a.json", '{"a": 1}', "Label Studio"),
        ("a.json", json.dumps([task({"image": "site/5/5 a.png"}, "cat")]), "'cat' .*is not a class"),
        ("a.json", json.dumps([task({"image": "other.png"}, "1")]), "no sample 'other.png'"),
        ("a.json", json.dumps([task({"image": "x/same a.png"}, "1")]), "no sample 'x/same a.png'"),
        ("a.json", json.dumps([task({"image": "site/5/5 a.png"}, "1", "2")]), "several choices"),
        ("a.json", json.dumps([task({"image": "site/5/5 a.png"})]), "no row is decided"),
        ("a.xml", "<annotations>", "is not XML"),
        ("a.xml", "<html></html>", "CVAT for images"),
        ("a.xml", "<!DOCTYPE a [<!ENTITY b 'c'>]><annotations/>", "document type"),
        ("a.xml", f"<annotations>{image('site/5/5 a.png', 'cat')}</annotations>", "'cat' .*is not a class"),
    ],
)
def test_exports_that_do_not_fit(judged, name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    refuse_call(message, fnlkit.import_review, judged[0], tmp_path / name)


def test_a_named_entry_decides_and_numbers_of_other_columns_are_no_ids(judged):
    """Sample 45 has the age 7; an export of its row must not relabel sample 7."""
    federation, data = judged
    federation = replace(federation, extra={name: v for name, v in federation.extra.items() if name != "sample_id"})
    for row in ({"age": 7, "sample_id": 45}, {"id": "45", "age": "7"}):
        (found,) = read_annotations(json.dumps([task(row, "3")]), federation, "a.json")
        assert found.positions.tolist() == [45]
    refuse_call("no column names", read_annotations, json.dumps([task({"age": 7, "height": "45"}, "3")]), federation, "a.json")


@pytest.mark.parametrize(
    "text", ["[" * 100_000, json.dumps([task({"image": "http://["}, "1")]), json.dumps([task({"image": "a/" * 120_000}, "1")])]
)
def test_hostile_exports_end_with_a_message(judged, text):
    refuse_call("^a.json", read_annotations, text, judged[0], "a.json")


def test_reviewed_samples_are_not_counted_twice(judged):
    federation, data = judged
    position = int(federation.clients[0][0])
    text = json.dumps([task({"image": federation.ids_of([position])[0]}, str(federation.given[position]))])
    (once,) = read_annotations(text, federation, "a.json")
    size = len(federation.whole().clients[0])
    assert [len(part) for part in once.strata] == [1, size - 1]
    seen = replace(federation, extra=federation.extra | {"reviewed": np.arange(len(federation.given)) == position})
    (again,) = read_annotations(text, seen, "a.json")
    assert [len(part) for part in again.strata] == [1, size - 1]


def job(images, assignee="", meta=None):
    """Return an export of a job of CVAT 2 (cvat/apps/dataset_manager/bindings.py, JobData); an assignee has name and email."""
    person = f"<username>{assignee}</username><email>{assignee}@x.org</email>" if assignee else ""
    about = "<id>7</id><size>3</size><mode>annotation</mode><owner><username>boss</username><email/></owner>"
    meta = meta or f"<job>{about}<assignee>{person}</assignee><labels/></job><dumped>2026-11-01 10:00:00+00:00</dumped>"
    inside = f"<version>1.1</version><meta>{meta}</meta>{images}"
    return f'<?xml version="1.0" encoding="utf-8"?>\n<annotations>{inside}</annotations>'


def tagged(name, label, **attributes):
    inside = "".join(f'<attribute name="{key}">{value}</attribute>' for key, value in attributes.items())
    return f'<image id="0" name="{name}" width="8" height="8"><tag label="{label}" source="manual">{inside}</tag></image>'


def test_attributes_and_further_labels_of_a_job_are_other_questions(judged):
    federation, _ = judged
    positions = [int(p) for p in federation.clients[0][3:6]]
    names = federation.ids_of(positions)
    text = job("".join(tagged(name, "digit", value=str(c), certainty="sure") for c, name in enumerate(names)))
    (found,) = read_annotations(text, federation, "a.xml")
    assert dict(zip(found.positions.tolist(), found.label.tolist(), strict=True)) == dict(zip(positions, range(3), strict=True))
    beside = "".join(image(name, str(c), "sure") for c, name in enumerate(names))
    (found,) = read_annotations(job(beside), federation, "a.xml")
    assert dict(zip(found.positions.tolist(), found.label.tolist(), strict=True)) == dict(zip(positions, range(3), strict=True))
    both = job("".join(tagged(name, "1", value=str(c)) for c, name in enumerate(names)))
    refuse_call("'label', 'value' have only classes; choose one by `control=NAME`", read_annotations, both, federation, "a.xml")
    (found,) = read_annotations(both, federation, "a.xml", control="value")
    assert sorted(found.label.tolist()) == [0, 1, 2]
    refuse_call("several choices", read_annotations, job(image(names[0], "1", "2")), federation, "a.xml")


def test_the_reviewer_is_the_assignee_and_tags_of_models_are_no_labels(judged):
    """In a project, an image has its task; CVAT renames the second of two images with one name."""
    federation, _ = judged
    position, other = (int(p) for p in federation.clients[0][3:5])
    name, second = federation.ids_of([position, other])
    of_job = tagged(name, "4") + tagged(second, "5").replace("manual", "auto")
    (found,) = read_annotations(job(of_job, "ada"), federation, "a.xml")
    assert found.who == ["ada"] and found.positions.tolist() == [position] and found.label.tolist() == [4]
    (found,) = read_annotations(job(of_job.replace('"auto"', '"semi-auto"')), federation, "a.xml")
    assert found.who == [] and found.label.tolist() == [4, 5]
    tasks = "".join(f"<task><id>{i}</id><assignee><username>{who}</username></assignee></task>" for i, who in enumerate("ab"))
    meta = f"<project><id>1</id><tasks>{tasks}</tasks><assignee><username>boss</username></assignee></project>"
    of_task = tagged(name, "4").replace(" width", ' subset="default" task_id="1" width')
    (found,) = read_annotations(job(of_task, meta=meta), federation, "a.xml")
    assert found.who == ["b"]
    renamed = tagged(name.replace(".png", "_1.png"), "5").replace(" width", ' subset="default" task_id="0" width')
    refuse_call("CVAT renames images", read_annotations, job(of_task + renamed, meta=meta), federation, "a.xml")


def test_decisions_of_another_order_of_the_samples_are_refused(judged, tmp_path):
    federation, _ = judged
    fnlkit.export_review(federation, 0, tmp_path / "review", budget=5)
    text = (tmp_path / "review/decisions.csv").read_text()
    ids = federation.extra["sample_id"]
    moved = replace(federation, extra=federation.extra | {"sample_id": ids[np.r_[1 : len(ids), 0]]})
    (tmp_path / "decisions.csv").write_text(text)
    refuse_call("row 2: sample is .* at position", fnlkit.import_review, moved, tmp_path / "decisions.csv")


# ---- results of audits are records: files of earlier versions are read and written with the same bytes, damaged ones are named
RECORDED = Path(__file__).parent / "recorded.json"  # of `fnlkit audit --json` and `fnlkit sites audit` before the records


def recorded(name):
    return json.loads(RECORDED.read_text())[name]


@pytest.mark.parametrize("name", ["audit", "quick", "noise"])
def test_results_are_read_and_written_with_the_same_bytes_and_their_page_is_written(name):
    facts = recorded(name)
    page = report.page(facts)
    for row in facts["sites"]:
        assert row["words"][0][:30] in page
        for entry in ("basis", "shared", "near_shared", "review"):  # written by earlier versions
            row.pop(entry, None)
        assert json.dumps(to_json(from_json(SiteAudit, row, "site"))) == json.dumps(row)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (["level"], "much", "site 0: level is 'much'; expected a number"),
        (["samples"], True, "site 0: samples is True; expected a whole number"),
        (["low"], float("nan"), "site 0: low is nan; expected a number"),
        (["skill", "others"], None, "site 0: skill: others is None; expected an object"),
        (["skill", "others", "kappa"], None, "site 0: skill: others: kappa is None; expected a number"),
        (["inputs"], {}, "site 0: inputs: differ is missing"),
        (["words"], ["a", 3], r"site 0: words\[1\] is 3; expected a text"),
    ],
)
def test_damaged_results_are_named(path, value, named):
    facts = recorded("audit")
    place = facts["sites"][0]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    refuse_call(named, report.sites_of, facts)


def test_reviews_are_read_and_written_with_the_same_bytes():
    reviews = recorded("reviews")
    records = from_json(list[Review], reviews, "reviews")
    del reviews[1]["guarantee"]["groups"]  # written by earlier versions
    assert json.dumps(to_json(records)) == json.dumps(reviews)
    assert [one.guarantee is None for one in records] == [True, False]  # an entry that only the second one has
