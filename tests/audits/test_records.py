"""Results of audits are records: files of earlier versions are read and written with the same bytes, damaged ones are named."""

import copy
import json
from pathlib import Path

import pytest

from fnlkit.artifacts.records import from_json, to_json
from fnlkit.audits import report
from fnlkit.audits.records import SiteAudit
from fnlkit.audits.reviews import Review
from tests.commands import refuse_call

RECORDED = Path(__file__).parent / "recorded"  # printed by `fnlkit audit --json` and `fnlkit sites audit` before the records


def recorded(name):
    return json.loads((RECORDED / f"{name}.json").read_text())


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
    facts = copy.deepcopy(recorded("audit"))
    place = facts["sites"][0]
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    refuse_call(named, report.sites_of, facts)


def test_reviews_are_read_and_written_with_the_same_bytes():
    reviews = json.loads((RECORDED / "reviews.json").read_text())
    records = from_json(list[Review], reviews, "reviews")
    del reviews[1]["guarantee"]["groups"]  # written by earlier versions
    assert json.dumps(to_json(records)) == json.dumps(reviews)
    assert [one.guarantee is None for one in records] == [True, False]  # an entry that only the second one has
