"""The report of a partition: right counts, at most 15 lines, and the same facts as JSON."""

import json

import fnlkit as package
from fnlkit.datasets.partition_report import MOST_LINES, report_lines
from tests.commands import fnlkit


def write(folder):
    """Write 60 rows of two sites: 20 patients, a column of numbers with empty cells at one site, 6 rows without a label."""
    lines = ["exam_no,crp,ward,label,site,patient_id"]
    for i in range(60):
        crp = "" if i in (1, 3, 5) else f"{i / 7:.3f}"
        label = "" if i >= 54 else "ill" if i % 3 else "well"
        lines.append(
            f"{100000 + i},{crp},{'' if i == 4 else 'ab'[i % 2]},{label},{'Aix' if i % 2 else 'Bonn'},p{i // 6:02d}{i % 2}"
        )
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_counts_of_a_table(tmp_path):
    facts = {}
    federation = package.partition(str(write(tmp_path)), "sites", holdout=0, report=facts.update, say=None)
    assert facts["samples"] == {
        "training": 54, "held_out": 0, "verified": 0, "left_out": 0, "test": 0, "unlabeled": 6}  # fmt: skip
    assert facts["clients"] == {"count": 2, "smallest": 27, "largest": 27} and facts["sites"] == {"Aix": 27, "Bonn": 27}
    assert facts["groups"] == 18 and facts["classes"] == {"ill": 36, "well": 18}  # 3 rows of each patient
    assert facts["missing"] == {"crp": {"Aix": 3}, "ward": {"Bonn": 1}, "label": {"Aix": 3, "Bonn": 3}}
    assert facts["left_out"] == {"exam_no": "row numbers"} and facts["true_labels"] is False
    assert facts["columns"] == {
        "label": ["label"], "site": ["site"], "group": ["patient_id"], "number": ["crp"], "one-hot": ["ward"]}  # fmt: skip
    assert facts["samples"]["training"] == sum(map(len, federation.clients))


def test_lines_and_json_agree(tmp_path):
    write(tmp_path)
    line = "fnlkit partition --dataset table.csv --scheme sites -o fed.npz"
    text, made = fnlkit(line, tmp_path), fnlkit(f"{line} --json", tmp_path)
    assert text.returncode == made.returncode == 0, made.stderr
    facts = json.loads(made.stdout)
    lines = text.stderr.splitlines()
    assert (
        lines[:-1] == report_lines(facts, facts["notes"])
        and lines[-1].startswith("next: fnlkit ")
        and len(lines) <= MOST_LINES
        and text.stdout == ""
    )
    assert sum(facts["samples"][use] for use in ("training", "held_out")) == 54 and (tmp_path / "fed.npz").exists()
    assert any("Aix 3" in each and "crp" in each for each in lines) and any("ill 36" in each for each in lines)
    pipe = fnlkit("fnlkit partition --dataset table.csv --json", tmp_path)
    assert pipe.returncode == 2 and "-o" in pipe.stderr and pipe.stdout == ""


def test_many_notes_fit_into_the_lines():
    facts = {
        "dataset": "x",
        "samples": {"training": 2, "held_out": 0, "verified": 1, "left_out": 0},
        "clients": {"count": 1, "smallest": 2, "largest": 2},
        "sites": None, "classes": {str(i): 1 for i in range(8)}, "missing": {"a": {"": 3}}, "true_labels": True}  # fmt: skip
    notes = [f"note {i}" for i in range(40)]
    lines = report_lines(facts, notes)
    assert len(lines) == MOST_LINES and lines[1:11] == notes[:10] and lines[11].startswith("30 more notes")
    assert lines[12] == "classes: 0 1, 1 1, 2 1, 3 1, 4 1 and 3 more" and lines[13] == "missing cells: a (3)"
    assert lines[0] == "x: 2 samples over 1 clients, 2 to 2 each, 1 verified"
    assert report_lines(facts, notes[:11])[1:12] == notes[:11]
