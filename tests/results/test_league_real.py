"""Tables of league-real: parts, regrets and recommendations, from stored cells and by hand."""

import pytest

from benchmarks import league_real
from benchmarks.league_cells import League, world_of
from fnlkit.reproduce import recipe


def cell(regime, method, *scores):
    values = dict(enumerate(scores))
    about = {"regime": regime, "method": method, "measures": "accuracy", "client_rounds": 1, "seconds": 1.0}
    about |= dict.fromkeys(("published", "global_memorized", "local_memorized"))
    return about | dict.fromkeys(("best", "last", "late", "kept"), values)


@pytest.fixture
def small():
    """Two regimes of one world of the first part, one of the second: scores of fedavg, auto, fedem and oracle."""
    scores = {
        "heart: none": ((70, 72), (74, 76), (71, 73), (80, 82)),
        "heart: symmetric 0.3": ((60, 60), (62, 62), (66, 66), (70, 70)),
        "wine: per client": ((50, 52), (45, 47), (60, 62), (70, 72)),
    }
    names = ("fedavg", "auto", "fedem", "oracle")
    return League(
        [cell(regime, name, *values) for regime, each in scores.items() for name, values in zip(names, each, strict=True)]
    )


def test_regrets_are_averaged_over_the_regimes_of_a_world_and_then_over_worlds(small):
    """In heart, auto is 0 and 4 points behind the best method: 2 on average; in wine it is 15 points behind."""
    assert league_real.mean_regret(small, "auto", second=False) == pytest.approx(2)
    assert league_real.mean_regret(small, "auto", second=True) == pytest.approx(15)
    rows = list(league_real.regret_table(small, second=True))
    assert (
        rows[2].startswith("| `fedem` | 0.0 | 0.0 |") and "| `auto` | 15.0 | 15.0 | wine: per client | 1 of 1 | -5.0 |" in rows
    )


def test_the_share_of_the_gap_is_that_of_means_over_a_world(small):
    """Heart: auto gains 4 and 2 points of gaps of 10 and 10, so 30 %; wine: -5 of 20."""
    row = next(line for line in league_real.gap_table(small) if line.startswith("| `auto`"))
    assert "wine -25 % | 30 % | -25 %" in row


def test_the_constant_method_is_chosen_on_the_other_part(small):
    assert list(league_real.left_out_table(small))[-1] == "| second part | `fedem` | 0.0 | 15.0 | ahead in 0 of 1 |"
    text = " ".join(league_real.statements(small))
    assert "`auto` is not better than always `fedem`" in text and "not reached" in text and "`auto` 1" in text


def test_every_regime_of_the_recipe_is_stored_and_has_a_kind():
    league, listed = league_real.stored_league(), recipe.load_recipe("league-real")["regime"]
    assert league.regimes == [regime["name"] for regime in listed]
    assert {world_of(name) for name in league.regimes} >= set(league_real.SECOND)
    ends = tuple(f" {end}" for each in league_real.KINDS.values() for end in each)
    assert all(name.endswith(ends) for name in league.regimes)
    assert all((regime, name) in league.rows for regime in league.regimes for name in (*league.methods, "oracle"))
