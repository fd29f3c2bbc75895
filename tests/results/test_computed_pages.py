"""Parts of README.md and docs/ that are computed from stored results."""

import json
import re

from benchmarks import estimators, pages


def test_all_computed_parts_are_those_of_the_stored_results():
    found = {page: page.read_text(encoding="utf-8") for page in pages.pages()}
    outdated = [page.name for page, text in found.items() if pages.filled(text) != text]
    assert not outdated, "run python -m benchmarks.pages"
    marks = [(text.count("<!-- computed: "), text.count("<!-- end -->")) for text in found.values()]
    assert all(begin == end for begin, end in marks) and sum(begin for begin, _ in marks) > 10


def test_the_table_of_requests_follows_the_gate(monkeypatch):
    from fnlkit.sites.site import steps

    text = (pages.ROOT / "docs/deployment-protection.md").read_text(encoding="utf-8")
    assert all(row in text for row in pages.gate_table()) and "<!-- computed: gate -->" in text
    monkeypatch.setattr(steps, "RUNS", 21)
    assert not all(row in text for row in pages.gate_table())


def test_numbers_of_all_other_tables_are_in_the_stored_results():
    texts = {page: page.read_text(encoding="utf-8") for page in pages.pages()}
    assert {page.name: rows for page, text in texts.items() if (rows := pages.unsupported(text))} == {}
    assert sum(text.count("<!-- numbers: ") for text in texts.values()) > 8


def test_a_number_without_a_stored_result_is_found(tmp_path):
    (tmp_path / "out.txt").write_text("fedavg 78.84 ± 1.2, precision 0.973 and 12", encoding="utf-8")
    mark = f"<!-- numbers: {tmp_path / 'out.txt'} -->\n"
    table = "| a | b |\n|---|---|\n| 78.8 | 1.2 |\n| 97.3 % | 12.0 |\n"
    assert pages.unsupported(mark + table) == []
    assert pages.unsupported(mark + table.replace("97.3", "97.4")) == ["| 97.4 % | 12.0 |"]
    assert pages.unsupported(table) == ["| 78.8 | 1.2 |", "| 97.3 % | 12.0 |"]


def test_a_changed_number_is_found():
    page = "Text.\n<!-- computed: bytes -->\n" + "\n".join(pages.parts()["bytes"]) + "\n<!-- end -->\nMore."
    other = re.sub(r"\d\.\d\d", "9.99", page, count=1)
    assert pages.filled(page) == page != other and pages.filled(other) == page


def test_estimators_repeat_their_stored_errors():
    """One of the rows: the estimator without a training, with the seed 0."""
    stored = [json.loads(line) for line in (pages.RESULTS / "estimators.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(stored) == len(estimators.SPECS) * len(estimators.SEEDS)
    row = next(line for line in stored if (line["estimator"], line["seed"]) == ("knn", 0))
    assert estimators.measure("knn", 0) == {name: row[name] for name in estimators.FACTS}
