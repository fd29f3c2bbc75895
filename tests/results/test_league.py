"""Tables of the leagues, with worlds as units, and their stored cells."""

import pytest

from benchmarks import again
from benchmarks.league import (
    CHANGED,
    KINDS,
    NEWER,
    development_table,
    first_league,
    recommendations,
    settings_of_fedem,
    statements,
    stored_league,
    world_table,
)
from benchmarks.league_cells import DEVELOPED, League, world_of


def cell(regime, method, *scores):
    values = dict(enumerate(scores))
    facts = {"measures": "accuracy", "published": None, "client_rounds": 9, "seconds": 1.0, "global_memorized": None}
    return {"regime": regime, "method": method, **facts, "local_memorized": None} | dict.fromkeys(
        ("best", "last", "late", "kept"), values
    )


def league_of(regimes, search=(), **scores):
    """Return a League in which each method has the same scores of three seeds in all regimes, unless a dict has others."""
    given = lambda values, regime: values[regime] if isinstance(values, dict) else values  # noqa: E731
    return League([cell(regime, name, *given(values, regime)) for regime in regimes for name, values in scores.items()], search)


@pytest.fixture(scope="module")
def league():
    regimes = [f"{world}: {name}" for world in "abcdefgh" for name in "xy"]
    return league_of(
        regimes, fedavg=(50.0, 51.0, 52.0), good=(61.0, 62.0, 63.0), same=(50.1, 51.2, 51.9), oracle=(90.0, 91.0, 92.0)
    )


@pytest.fixture(scope="module")
def measured():
    return stored_league()


def test_worlds_are_the_units_and_references_are_outside(league):
    assert league.methods == ["fedavg", "good", "same"] and len(league.regimes) == 16 and len(league.worlds) == 8
    assert league.ranking["regimes"] == list("abcdefgh") and league.ranking["mean_rank"]["good"] == 1
    # Nemenyi (Demsar 2006, table 5): q = 2.343 for 3 methods, N = 8 worlds: 2.343 sqrt(3 * 4 / (6 * 8)) = 1.17
    assert league.ranking["apart"] == pytest.approx(1.17, abs=0.005)


def test_more_regimes_of_a_world_are_no_more_evidence():
    """Ahead by 3 points in seven regimes of one world, behind by 2 in two other worlds."""
    one, others = [f"a: {i}" for i in range(7)], ["b: x", "c: x"]
    base = dict.fromkeys([*one, *others], (50.0, 51.0, 52.0))
    mine = dict.fromkeys(one, (53.0, 54.0, 55.0)) | dict.fromkeys(others, (48.0, 49.0, 50.0))
    found = league_of([*one, *others], fedavg=base, mine=mine)
    assert found.differences("mine") == [3.0, -2.0, -2.0]
    assert found.ranking["mean_rank"]["mine"] == pytest.approx(5 / 3)  # first in one of three worlds
    assert found.signed_rank("mine")[0] < 0.5


def test_a_world_averages_the_regimes_of_each_seed():
    """Seed by seed the two regimes differ by +1 and +3, +2 and +4, +3 and +5: 2, 3, 4, with s = 1 and t(2) = 4.303."""
    base = (50.0, 50.0, 50.0)
    mine = {"a: x": (51.0, 52.0, 53.0), "a: y": (53.0, 54.0, 55.0)}
    found = league_of(["a: x", "a: y"], fedavg=base, mine=mine).ahead("mine", "a")
    assert found["mean"] == pytest.approx(3) and found["half"] == pytest.approx(4.303 / 3**0.5, abs=1e-3)


def test_the_signed_rank_test_has_a_region_of_practical_equivalence(league):
    better, _, worse = league.signed_rank("good")
    assert better > 0.95 and worse < 0.05
    assert league.signed_rank("same")[1] > 0.95 and sum(league.signed_rank("same")) == pytest.approx(1)


def test_comparisons_count_worse_methods_too():
    base, regimes = (50.0, 51.0, 52.0), ["a: x", "b: x"]
    found = league_of(
        regimes, fedavg=base, up=(55.0, 56.1, 57.0), down=(45.0, 46.1, 47.0), same=(50.0, 51.1, 51.9)
    ).comparisons()
    assert (found["all"], found["kept_p", "better"], found["kept_p", "worse"]) == (6, 2, 2)
    assert (found["kept_holm", "better"], found["kept_holm", "worse"]) == (2, 2)


def test_validity_of_the_criterion():
    """Accuracy a < b < c < oracle; the criterion has the oracle third of four: ranks 1 2 3 4 against 1 3 4 2, rho = 0.4."""
    scores = {"fedavg": (50.0,) * 3, "b": (60.0,) * 3, "c": (70.0,) * 3, "oracle": (80.0,) * 3}
    criterion = {"fedavg": 0.1, "b": 0.3, "c": 0.4, "oracle": 0.2}
    search = [{"regime": "a: x", "method": name, "score": value, "chosen": {}} for name, value in criterion.items()]
    found = league_of(["a: x"], search, **scores).validity("a: x")
    assert found == {"rho": pytest.approx(0.4), "count": 4, "rank": 3, "loss": 0.0}
    search[2]["score"] = 0.0  # the criterion now prefers b, which is 10 points behind c
    assert league_of(["a: x"], search, **scores).validity("a: x")["loss"] == 10


def test_methods_are_recommended_if_they_are_ahead_in_all_regimes_of_both_leagues():
    one, two = KINDS["random labels at all clients"]
    base, ahead = (50.0, 51.0, 52.0), (55.0, 56.1, 57.0)
    found = league_of(two, fedavg=base, both=ahead, second=ahead, absent=ahead)
    first = {(one[0], name): {"late_ahead": value, "late_half": 1.0} for name, value in (("both", 3.0), ("second", -3.0))}
    elsewhere = {f"{world}: symmetric 0.3": {"a": base, "b": ahead} for world in "xy"}
    real = league_of(elsewhere, fedavg=base, both={r: (v["b"] if r[0] == "x" else (40.0,) * 3) for r, v in elsewhere.items()})
    row = next(line for line in recommendations(found, first, real) if line.startswith("| random labels"))
    assert "`both` +3.0" in row and "`second`" not in row and "`absent`" not in row
    assert row.endswith("| 1 | `both` 1 / 1 of 2 |")


def test_regimes_of_the_kinds_are_those_of_the_leagues(measured):
    regimes = {regime for regime, _ in first_league()}
    assert sorted(r for one, _ in KINDS.values() for r in one) == sorted(regimes)
    assert sorted(r for _, two in KINDS.values() for r in two) == sorted(measured.regimes)


def test_worlds_of_the_development_are_marked_and_left_out(measured):
    assert settings_of_fedem() == 22 and measured.others("fedem") == ["heart", "speech", "images"]
    rows = {line.split("|")[1].strip(" `‡"): line for line in world_table(measured)}
    assert {name: row.count("†") for name, row in rows.items() if "†" in row} == {k: len(v) for k, v in DEVELOPED.items()}
    assert any("`fedem` | 22 |" in line for line in development_table(measured))


def test_statements_name_the_units(measured):
    text = "\n".join(statements(measured))
    assert "7 worlds (13 regimes)" in text and all(world_of(regime) in measured.worlds for regime in measured.regimes)


def test_cells_that_are_run_again_replace_the_old_ones(measured):
    old = [
        {"regime": "a", "method": "x", "v": 1},
        {"regime": "a", "method": "y", "v": 1},
        {"regime": "a", "method": "y", "v": 2},
    ]
    new = [{"regime": "a", "method": "y", "v": 3}, {"regime": "b", "method": "x", "v": 4}]
    assert [line["v"] for line in again.merged(old, new)] == [1, 3, 4]
    assert measured.changed <= {*CHANGED, *NEWER} <= set(measured.methods)
