"""Further seeds and methods of stored cells: merged, compared with stored scores, and refused if these differ."""

import pytest

from benchmarks.extend import FIRST, extend
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
    with pytest.raises(InputError, match="m, 'a: b', seed 0: .* run all seeds of a method with the same code"):
        extend([cell("m", **{"0": 50.0})], [new], "abc")
