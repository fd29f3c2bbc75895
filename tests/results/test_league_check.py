"""Submitted rows of a league: accepted with the same steps, data and seeds, and refused with a reason otherwise."""

import json
import re

import pytest

from benchmarks import league, league_check
from benchmarks.league_cells import ROOT
from benchmarks.league_real import CELLS, stored_league
from fnlkit.cli import group
from fnlkit.errors import InputError
from fnlkit.recipes import stored
from tests.commands import fnlkit

REGIMES = stored_league().regimes


def submission(tmp_path, change=None):
    """Return the path of a file with the rows of `slr` under another name; `change(header, cells)` may alter it."""
    header, *cells = map(json.loads, CELLS.read_text(encoding="utf-8").splitlines())
    cells = [cell | {"method": "mine.py:m"} for cell in cells if cell["method"] == "slr"]
    if change:
        change(header, cells)
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *cells)), encoding="utf-8")
    return str(path)


def test_the_scores_of_a_submitted_row_are_those_of_the_same_row_in_the_league(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["league", "--check", submission(tmp_path)])
    league.main()
    first, line = capsys.readouterr().out.splitlines()
    league_rows = stored_league()
    counts = f"{len(league_rows.regimes)} regimes of {len(league_rows.worlds)} worlds"
    assert first.endswith(f"fits league-real@{stored.version_of('league-real')}, {counts}")
    assert line.startswith("mine.py:m: ")
    # The probabilities are drawn anew for each name.
    here, known = (
        re.findall(r": (\S+ points)|(regret .*)", text) for text in (line, league_check.score_line(league_rows, "slr"))
    )
    assert here == known and len(here) == 2


def drop(header, cells):
    cells.pop()


def fewer_seeds(header, cells):
    for name in ("best", "last", "late", "kept"):
        cells[0][name].pop("0")


def other_steps(header, cells):
    header["regimes"][cells[0]["regime"]] = "0" * 64


def other_samples(header, cells):
    header["datasets"][cells[0]["regime"]] = "0" * 64


def searched(header, cells):
    header["search"] = "0" * 64


def same_name(header, cells):
    for one in cells:
        one["method"] = "slr"


def other_league(header, cells):
    header["regimes"] = {"unknown": "0" * 64}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, re.escape(f"lacks 1 of {len(REGIMES)} regimes, the first is {REGIMES[-1]!r}")),
        (fewer_seeds, "has seeds .* the league has"),
        (other_steps, "other steps or options of regime 'breast-cancer: 5 sites"),
        (other_samples, "other samples of regime"),
        (searched, "another search than the league"),
        (same_name, "has the method 'slr' already"),
        (other_league, "are those of no league"),
    ],
)
def test_a_row_that_cannot_be_compared_is_refused_with_the_reason(tmp_path, monkeypatch, capsys, change, message):
    path = submission(tmp_path, change)
    with pytest.raises(InputError, match=message):
        list(league_check.check(path))
    monkeypatch.setattr("sys.argv", ["league", "--check", path])
    with pytest.raises(SystemExit) as ended:
        league.main()
    assert ended.value.code == 2 and capsys.readouterr().err.startswith(f"league: {path}: ")


def test_the_last_version_of_each_league_has_the_checksum_of_its_cells():
    for name in stored.list_included():
        assert stored.versions()[name][stored.version_of(name)] == stored.checksum_of(name), (
            f"the cells of {name} have changed: add a version to data/cells/versions.toml"
        )


def test_an_added_method_is_compared_with_a_version_and_its_export_is_checked(tmp_path):
    """One regime and seed: the file is of the league, and lacks the other regimes."""
    one = "fnlkit reproduce league-real --only 'wine: 4 sites, clients*' --seeds 1 --jobs 1 -o mine"
    done = fnlkit(f"{one} --add 'slr(strength=3)' --export mine.jsonl", tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"compared with league-real@{stored.version_of('league-real')}" in done.stdout
    with pytest.raises(InputError, match=rf"slr\(strength=3\) lacks {len(REGIMES) - 1} of {len(REGIMES)} regimes"):
        list(league_check.check(str(tmp_path / "mine.jsonl")))


def test_help_and_page_name_the_recipes_with_stored_results():
    shown = next(p.help for p in group.get_command(None, "reproduce").params if "--stored" in p.opts)
    page = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
    for name in stored.list_included():
        assert name in shown and f"`{name}`" in page.split("Stored results are included for", 1)[1].split("\n")[0]
