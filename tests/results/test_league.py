"""Tables of league 2, and statements of a page that are checked against them."""

import json
from pathlib import Path

import pytest

from benchmarks.league import CELLS, League, check, printed, quantity, world_of
from fnlkit.reproduce import stored


def cell(regime, method, *scores):
    values = dict(enumerate(scores))
    facts = {"measures": "accuracy", "published": None, "client_rounds": 9, "seconds": 1.0, "global_memorized": None}
    return {"regime": regime, "method": method, **facts, "local_memorized": None} | dict.fromkeys(
        ("best", "last", "late", "kept"), values
    )


@pytest.fixture
def league():
    better, equal = (61.0, 62.0, 63.0), (50.1, 51.2, 51.9)
    cells = []
    for regime in "abcdefgh":
        cells += [cell(f"{regime}: x", "fedavg", 50.0, 51.0, 52.0), cell(f"{regime}: x", "good", *better)]
        cells += [cell(f"{regime}: x", "same", *equal), cell(f"{regime}: x", "oracle", 90.0, 91.0, 92.0)]
    return League(cells)


def test_references_are_outside_the_ranking_and_the_tests(league):
    assert league.methods == ["fedavg", "good", "same"] and league.ranking["mean_rank"]["good"] == 1
    assert league.rows["a: x", "oracle"]["kept_holm"] is None or "oracle" not in league.methods
    assert league.best("a: x") == ("good", [])


def test_the_signed_rank_test_knows_practical_equivalence(league):
    better, equal, worse = league.signed_rank("good")
    assert better > 0.95 and worse < 0.05
    assert league.signed_rank("same")[1] > 0.95 and sum(league.signed_rank("same")) == pytest.approx(1)


def test_statements_that_the_tables_contradict_are_found(league):
    right = ["ahead | good | a: x | > 10", "rank | good | | <= 1", "equal | same | | > 0.9", "best | good | b: x | > 0"]
    wrong = ["ahead | same | a: x | > 5", "ahead | nobody | a: x | > 0", "holm | same | a: x | < 0.05", "odd | same | | > 0"]
    page = "\n".join(f"Text. <!-- check: {claim} -->" for claim in right + wrong)
    found, count = check(page, league)
    assert count == 8 and set(found) == set(wrong)


def test_an_outdated_table_of_a_page_is_found(league):
    text = "<!-- table: best -->\n" + "\n".join(printed(league)["best"])
    assert check(text, league)[0] == [] and check(text.replace("51", "49"), league)[0]


def test_the_statements_of_the_page_agree_with_the_stored_cells():
    root = Path(__file__).parents[2]
    found = League(stored.read(str(root / CELLS))[1])
    wrong, count = check((root / "docs/league2.md").read_text(encoding="utf-8"), found)
    assert not wrong and count
    assert quantity(found, "ahead", "fedavg", found.regimes[0]) == 0
    assert all(world_of(regime) and json.dumps(regime) for regime in found.regimes)
