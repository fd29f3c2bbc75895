"""Further seeds and methods of stored cells: merged, compared with stored scores, and refused if these differ."""

import pytest

from benchmarks.extend import FIRST, add_regimes, drop, extend
from benchmarks.league_cells import SCORES
from fnlkit.errors import InputError


def cell(method, **scores):
    return {"regime": "a: b", "method": method, "seconds": 1.0} | dict.fromkeys(SCORES, scores)


def test_seeds_and_methods_are_added_and_equal_scores_are_recorded():
    old, new = [cell("m", **{"0": 50.0, "1": 51.0})], [cell("m", **{"1": 51.0, "10": 53.0, "2": 52.0}), cell("n", **{"0": 1.0})]
    first, second = extend(old, new, "abc")
    assert all(list(first[name].items()) == [("0", 50.0), ("1", 51.0), ("2", 52.0), ("10", 53.0)] for name in SCORES)
    assert first["codes"] == {FIRST: [0, 1], "abc": [2, 10]} and first["again"] == [1]
    assert second["method"] == "n" and second["codes"] == {"abc": [0]} and second["again"] == []
    assert extend([first, second], new, "abc") == [first, second | {"seconds": 1.0}]


@pytest.mark.parametrize("score", SCORES)
def test_a_stored_score_that_differs_is_refused(score):
    new = cell("m", **{"0": 50.0, "1": 51.0})
    new[score] = {"0": 50.1, "1": 51.0}
    with pytest.raises(InputError, match="m, 'a: b', seed 0: .* run all its regimes and seeds again and add --replace"):
        extend([cell("m", **{"0": 50.0})], [new], "abc")


def test_a_method_with_new_code_replaces_all_its_stored_scores():
    old = [cell("m", **{"0": 50.0, "1": 51.0}), cell("n", **{"0": 1.0})]
    new = [cell("m", **{"0": 60.0, "1": 61.0, "2": 62.0})]
    assert drop(old, new, ["m"]) == old[1:] and drop(old, new, [""]) == old
    kept, replaced = extend(drop(old, new, ["m"]), new, "abc")
    assert kept["method"] == "n" and replaced["kept"] == new[0]["kept"] and replaced["codes"] == {"abc": [0, 1, 2]}


@pytest.mark.parametrize(("new", "seed"), [([], 0), ([cell("m", **{"0": 60.0})], 1)])
def test_a_method_is_not_replaced_in_a_part_of_its_regimes_and_seeds(new, seed):
    with pytest.raises(InputError, match=f"--replace m.: no new run in 'a: b' of seed {seed}"):
        drop([cell("m", **{"0": 50.0, "1": 51.0})], new, ["m"])


def test_a_regime_with_its_first_runs_is_added_to_the_header():
    """Regime b has runs, c has none; the stored a is not changed."""
    header = {"kind": "k", "regimes": {"a": "1"}, "datasets": {"a": "x"}}
    added = add_regimes(header, {"a": "9", "b": "2", "c": "3"}, {"a": "z", "b": "y"})
    assert added == {"kind": "k", "regimes": {"a": "1", "b": "2"}, "datasets": {"a": "x", "b": "y"}}
    assert header["regimes"] == {"a": "1"}
