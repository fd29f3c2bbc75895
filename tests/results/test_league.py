"""The league: regrets, leads and recommendations by hand, and submitted rows and further runs for its stored cells."""

import json
import re

import pytest

from benchmarks import league
from benchmarks.league_cells import (
    CELLS,
    FIRST,
    SCORES,
    League,
    check,
    drop,
    extend,
    split_complete,
    world_of,
)
from fnlkit.errors import InputError
from fnlkit.recipes import cells as stored_cells
from fnlkit.recipes import recipe
from tests.commands import fnlkit

REGIMES = league.complete_league().regimes


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
    assert all({*row["kept"]} == ({*listed["seeds"]} if name in (*stored_rows.methods, "oracle") else {0})
               for (_, name), row in fourth.rows.items())  # fmt: skip
    for name in {*fourth.methods} - {*stored_rows.methods}:
        assert {*fourth.worlds} - {*fourth.leads(name)} <= {"cifar10n"}, name


def test_every_method_of_fnlkit_has_a_row_or_a_reason():
    from fnlkit.components import registry

    labels = {entry.label for entry in recipe.entries(recipe.load_recipe("league")["regime"][0])}
    assert labels | {*league.PUBLIC} == set(registry.METHODS)


# ---- a submitted row
def submission(tmp_path, change=None):
    """Return the path of a file with the rows of `slr` under another name; `change(header, cells)` may alter it."""
    header, *cells = map(json.loads, CELLS.read_text(encoding="utf-8").splitlines())
    cells = [each | {"method": "mine.py:m"} for each in cells if each["method"] == "slr"]
    if change:
        change(header, cells)
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *cells)), encoding="utf-8")
    return str(path)


def test_the_scores_of_a_submitted_row_are_those_of_the_same_row_in_the_league(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["league", "--check", submission(tmp_path)])
    league.main()
    first, line = capsys.readouterr().out.splitlines()
    rows = league.complete_league()
    version = stored_cells.version_of("league")
    assert first.endswith(f"fits league@{version}, {len(rows.regimes)} regimes of {len(rows.worlds)} worlds")
    assert line.startswith("mine.py:m: ")
    # The probabilities are drawn anew for each name.
    here, known = (re.findall(r": (\S+ points)|(regret .*)", text) for text in (line, league.score_line(rows, "slr")))
    assert here == known and len(here) == 2


OTHER = "0" * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, cells: cells.pop(), re.escape(f"lacks 1 of {len(REGIMES)} regimes, the first is {REGIMES[-1]!r}")),
        (lambda header, cells: [cells[0][name].pop("0") for name in SCORES], "has seeds .* the league has"),
        (
            lambda header, cells: header["regimes"].update({cells[0]["regime"]: OTHER}),
            "other steps or options of regime 'breast-",
        ),
        (lambda header, cells: header["datasets"].update({cells[0]["regime"]: OTHER}), "other samples of regime"),
        (lambda header, cells: [cell.update(method="slr") for cell in cells], "has the method 'slr' already"),
        (lambda header, cells: header.update(regimes={"unknown": OTHER}), "are not those of the league"),
    ],
)
def test_a_row_that_cannot_be_compared_is_refused_with_the_reason(tmp_path, monkeypatch, capsys, change, message):
    path = submission(tmp_path, change)
    monkeypatch.setattr("sys.argv", ["league", "--check", path])
    with pytest.raises(SystemExit) as ended:
        league.main()
    assert ended.value.code == 2 and re.match(f"league: {path}: .*{message}", capsys.readouterr().err)


def test_the_last_version_has_the_checksum_of_the_cells():
    for name in stored_cells.list_included():
        known = stored_cells.versions()[name][stored_cells.version_of(name)]
        assert known == stored_cells.checksum_of(name), f"cells of {name}: add a version to data/cells/versions.toml"


def test_an_added_method_is_compared_with_a_version_and_its_export_is_checked(tmp_path):
    """One regime and seed: the file is of the league, and lacks the other regimes."""
    one = "fnlkit reproduce league --only 'wine: 4 sites, clients*' --seeds 1 --jobs 1 -o mine"
    done = fnlkit(f"{one} --add 'slr(strength=3)' --export mine.jsonl", tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"compared with league@{stored_cells.version_of('league')}" in done.stdout
    with pytest.raises(InputError, match=rf"slr\(strength=3\) lacks {len(REGIMES) - 1} of {len(REGIMES)} regimes"):
        check(str(tmp_path / "mine.jsonl"))


# ---- further runs
def runs(method, **scores):
    return {"regime": "a: b", "method": method, "seconds": 1.0} | dict.fromkeys(SCORES, scores)


def test_seeds_and_methods_are_added_and_equal_scores_are_recorded():
    old, new = [runs("m", **{"0": 50.0, "1": 51.0})], [runs("m", **{"1": 51.0, "10": 53.0, "2": 52.0}), runs("n", **{"0": 1.0})]
    first, second = extend(old, new, "abc")
    assert all(list(first[name].items()) == [("0", 50.0), ("1", 51.0), ("2", 52.0), ("10", 53.0)] for name in SCORES)
    assert first["codes"] == {FIRST: [0, 1], "abc": [2, 10]} and first["again"] == [1]
    assert second["method"] == "n" and second["codes"] == {"abc": [0]} and second["again"] == []
    assert extend([first, second], new, "abc") == [first, second | {"seconds": 1.0}]


@pytest.mark.parametrize("score", SCORES)
def test_a_stored_score_that_differs_is_refused(score):
    new = runs("m", **{"0": 50.0, "1": 51.0})
    new[score] = {"0": 50.1, "1": 51.0}
    with pytest.raises(InputError, match="m, 'a: b', seed 0: .* run all its regimes and seeds again and add --replace"):
        extend([runs("m", **{"0": 50.0})], [new], "abc")


def test_a_method_with_new_code_replaces_all_its_stored_scores():
    old = [runs("m", **{"0": 50.0, "1": 51.0}), runs("n", **{"0": 1.0})]
    new = [runs("m", **{"0": 60.0, "1": 61.0, "2": 62.0})]
    assert drop(old, new, ["m"]) == old[1:] and drop(old, new, [""]) == old
    kept, replaced = extend(drop(old, new, ["m"]), new, "abc")
    assert kept["method"] == "n" and replaced["kept"] == new[0]["kept"] and replaced["codes"] == {"abc": [0, 1, 2]}


@pytest.mark.parametrize(("new", "seed"), [([], 0), ([runs("m", **{"0": 60.0})], 1)])
def test_a_method_is_not_replaced_in_a_part_of_its_regimes_and_seeds(new, seed):
    with pytest.raises(InputError, match=f"--replace m.: no new run in 'a: b' of seed {seed}"):
        drop([runs("m", **{"0": 50.0, "1": 51.0})], new, ["m"])
