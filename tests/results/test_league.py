"""The league: regrets, leads and submitted rows by hand; parts of README.md and docs/ that are computed from stored results."""

import json
import re
from argparse import Namespace
from functools import partial

import pytest

from benchmarks import estimators, league, pages, worlds
from benchmarks.league import SCORES, League, split_complete, world_of
from fnlkit.recipes import recipe
from tests.commands import fnlkit, refuse_call


# ---- the league: regrets, leads and recommendations by hand, and submitted rows and further runs for its stored runs
def cell(regime, method, *scores):
    values = dict(enumerate(scores))
    about = {"regime": regime, "method": method, "measures": "accuracy", "client_rounds": 1, "seconds": 1.0}
    about |= dict.fromkeys(("published", "global_memorized", "local_memorized"))
    return about | dict.fromkeys(SCORES, values)


def league_of(scores):
    """Return a League of {regime: {method: scores by seed}}."""
    return League([cell(regime, name, *values) for regime, each in scores.items() for name, values in each.items()])


@pytest.fixture
def scores():
    """Two regimes of one world of the first part, one of the second, and one of the fourth."""
    names = ("fedavg", "auto", "fedem", "rofl", "oracle")
    return {
        regime: dict(zip(names, each, strict=True))
        for regime, each in {
            "heart: none": ((70, 72), (74, 76), (71, 73), (70, 72), (80, 82)),
            "heart: symmetric 0.3": ((60, 60), (62, 62), (66, 66), (60, 60), (70, 70)),
            "wine: per client": ((50, 52), (45, 47), (60, 62), (58, 60), (70, 72)),
            "jira: per client": ((50, 52), (70, 72), (60, 62), (69, 71), (80, 82)),
        }.items()
    }


# ---- tables


def test_leads_are_paired_by_seed_and_methods_with_one_seed_are_marked(scores):
    """New has seed 0: it leads fedavg's 50 by 6 and 4 points, not its mean 51; auto leads by 20 and 5, and loses 0 and 5."""
    both = {name: scores["jira: per client"] for name in ("jira: per client", "glass: per client")}
    both["glass: per client"] = both["jira: per client"] | {"auto": (55, 57), "rofl": (60, 62)}
    reference = league_of(both)
    fourth = league_of({r: each | {"new": (56 if r.startswith("jira") else 54,)} for r, each in both.items()})
    rows = {line.split(" | ")[0]: line for line in league.method_table(fourth, reference)}
    assert rows["| `new`¹"] == "| `new`¹ | +5.0 ± 1.0 | 2/0 | +4.0 |  |  |"
    assert rows["| `auto`"] == "| `auto` | +12.5 ± 7.5 | 2/0 | +5.0 | 2.5 | 2.5 |"
    assert rows["| `fedavg`"] == "| `fedavg` |  |  |  | 15.0 | 15.0 |"


def test_the_signed_rank_test_has_a_region_of_practical_equivalence():
    found = league_of({f"{world}: x": {"fedavg": (50,), "good": (61,), "same": (50.5,)} for world in "abcdefgh"})
    better, _, worse = found.signed_rank("good")
    assert better > 0.95 and worse < 0.05
    assert found.signed_rank("same")[1] > 0.95 and sum(found.signed_rank("same")) == pytest.approx(1)


def test_methods_are_compared_over_common_seeds_if_they_have_scores_in_all_regimes():
    """`new` has no score in wine; a and fedavg have seed 1 in common in heart: 90 and 85."""
    cells = [cell("heart: none", "a", 10, 90), cell("wine: none", "a", 9), cell("wine: none", "fedavg", 8)]
    further = cell("heart: none", "fedavg", 85, 85)
    for name in SCORES:
        further[name] = {1: 85}
    found = league.common_league([*cells, further, cell("heart: none", "new", 99)])
    assert found.methods == ["a", "fedavg"] and [found.mean(name, "heart: none") for name in found.methods] == [90, 85]
    complete, other = split_complete([*cells, further])
    assert complete == cells[:2] and other == [cells[2], further]


def test_every_regime_of_the_recipe_is_stored_and_has_a_kind():
    listed, full = recipe.load_recipe("league"), league.complete_league()
    names = [regime["name"] for regime in listed["regime"]]
    assert full.regimes == names and {world_of(name) for name in names} >= set(league.FOURTH)
    ends = tuple(f" {end}" for each in league.KINDS.values() for end in each)
    assert all(name.endswith(ends) for name in names)
    labels = [entry.label for entry in recipe.entries(listed["regime"][0])]
    stored_rows, fourth = league.stored_league(), league.fourth_league()
    assert set(full.methods) < set(stored_rows.methods) <= set(fourth.methods) <= {*labels}
    for regime in full.regimes:
        assert {tuple(full.rows[regime, name]["kept"]) for name in (*full.methods, "oracle")} == {tuple(listed["seeds"])}
    solved = {"fedsums", "lda", "ridge"}  # five seeds in the worlds whose data are at hand
    seeds = {name: {*listed["seeds"]} if name in {*stored_rows.methods, "oracle"} | solved else {0} for _, name in fourth.rows}
    assert all({*row["kept"]} == seeds[name] for (_, name), row in fourth.rows.items())
    for name in {*fourth.methods} - {*stored_rows.methods}:
        away = {"cifar10n", "jira", "vowel", *(["crowdtruth"] if name in solved else [])}
        assert {*fourth.worlds} - {*fourth.leads(name)} <= away, name


def test_every_method_of_fnlkit_has_a_row_or_a_reason():
    from fnlkit.core import registry

    labels = {entry.label for entry in recipe.entries(recipe.load_recipe("league")["regime"][0])}
    assert labels | {league.PUBLIC, league.FINE_TUNING} == set(registry.METHODS)


# ---- a submitted row
def rows_of(method, *scores, regime="a: b"):
    return [
        {"regime": regime, "method": method, "seed": str(seed), "repeated": "0", "data": "0"}
        | dict.fromkeys(SCORES, str(score))
        for seed, score in enumerate(scores)
    ]


def test_a_submitted_method_has_the_scores_of_the_same_runs_in_the_league():
    stored = league.read_rows()
    mine = [row | {"method": "mine.py:m"} for row in stored if row["method"] == "slr"]
    league.check(mine, stored)
    cells = [
        cell for cell in split_complete(league.stored_cells())[0] if cell["method"] in ("slr", "fedavg", *league.REFERENCES)
    ]
    joined = League([*cells, *league.cells_of(mine)])
    lines = [league.score_line(joined, name) for name in ("mine.py:m", "slr")]
    # The probabilities are drawn anew for each name.
    here, known = (re.findall(r": (\S+ points)|(regret .*)", text) for text in lines)
    assert here == known and len(here) == 2


def test_a_method_that_cannot_be_compared_is_refused_with_the_reason():
    stored = league.read_rows()
    mine = [row | {"method": "mine.py:m"} for row in stored if row["method"] == "slr"]
    refuse_call(f"1 of {len(mine)} runs are missing, the first is seed 0 of 'breast-cancer", league.check, mine[1:], stored)
    refuse_call("'breast-cancer: .*measured with other samples", league.check, [mine[0] | {"data": "f"}, *mine[1:]], stored)


def test_a_method_of_ones_own_runs_in_a_regime_and_is_checked(tmp_path, monkeypatch, capsys):
    """One regime and seed: the run belongs to the league, and the others are missing."""
    name = "wine-sites4-rows30-noise1.npz"
    make = partial(worlds.arrays_bytes, partial(worlds.draw_small_table, name))
    (tmp_path / "mine").mkdir()
    worlds.write(tmp_path / "mine" / name, name, Namespace(data=tmp_path, output=tmp_path / "mine"), make)
    one = "fnlkit reproduce league --only 'wine: 4 sites, clients*' --seeds 1 --jobs 1 -o mine"
    done = fnlkit(f"{one} --method 'slr(strength=3)'", tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr("sys.argv", ["league", "--check", "slr(strength=3)", "-o", str(tmp_path / "mine")])
    with pytest.raises(SystemExit) as ended:
        league.main()
    count = 5 * len(league.complete_league().regimes)
    assert ended.value.code == 2 and f"league: {count - 1} of {count} runs are missing" in capsys.readouterr().err


# ---- further runs
def test_further_runs_are_added_and_equal_scores_are_recorded():
    old = rows_of("m", 50.0, 51.0)
    new = [old[1], *rows_of("m", 50.0, 51.0, 52.0)[2:], *rows_of("n", 1.0)]
    added = league.add(new, old)
    assert [row["repeated"] for row in added] == ["0", "1", "0", "0"] and [row["method"] for row in added] == [*"mmmn"]
    assert league.add(new, added) == [row | {"repeated": "1"} if i else row for i, row in enumerate(added)]


@pytest.mark.parametrize("kind", SCORES)
def test_a_stored_score_that_differs_is_refused_unless_it_is_replaced(kind):
    old = rows_of("m", 50.0)
    new = [old[0] | {kind: "50.1"}]
    refuse_call("a: b, m, 0: .* stored 50.0; .* --replace", league.add, new, old)
    assert league.add(new, old, replace=True) == new


# ---- parts of README.md and docs/ that are computed from stored results
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
