"""Ranks of methods over regimes against tables worked by hand."""

import pytest

from fnlkit.results.ranking import ranking


def rows(table, published=None):
    """Rows of {regime: {method: late}}."""
    return [
        {"regime": regime, "method": method, "late_mean": late, "published": (published or {}).get(regime, {}).get(method)}
        for regime, found in table.items()
        for method, late in found.items()
    ]


def test_mean_ranks_share_ties_and_leave_out_regimes_that_not_all_ran():
    found = ranking(
        rows(
            {
                "first": {"a": 90.0, "b": 80.0, "c": 70.0},
                "second": {"a": 50.0, "b": 60.0, "c": 50.0},
                "half": {"c": 99.0, "a": 1.0},
            }
        )
    )
    assert found["regimes"] == ["first", "second"]
    assert found["best"] == {"first": "a", "second": "b", "half": "c"}
    assert found["mean_rank"] == {"b": 1.5, "a": 1.75, "c": 2.75}
    assert list(found["mean_rank"]) == ["b", "a", "c"]
    assert found["ranks"]["c"] == {"first": 3.0, "second": 2.5}
    assert found["published"] == {}


def test_the_critical_difference_of_the_textbook():
    # Demsar 2006, section 3.2.3: four methods over 14 data sets, q = 2.569, CD = 1.25.
    table = {str(i): {method: float(i + j) for j, method in enumerate("abcd")} for i in range(14)}
    assert ranking(rows(table))["apart"] == pytest.approx(1.25, abs=0.005)


def test_ranks_require_two_regimes_and_two_methods():
    assert ranking(rows({"only": {"a": 1.0, "b": 2.0}}))["apart"] is None
    assert ranking(rows({"x": {"a": 1.0}, "y": {"a": 2.0}}))["apart"] is None
    assert ranking([]) == {"regimes": [], "best": {}, "mean_rank": {}, "ranks": {}, "apart": None, "published": {}}


def test_rank_correlation_with_the_published_order():
    late = {"x": {"a": 3.0, "b": 2.0, "c": 1.0}, "y": {"a": 1.0, "b": 1.0, "c": 1.0}}
    said = {"x": {"a": [60.0, 1.0], "b": [50.0], "c": [70.0]}, "y": {"a": [1.0], "b": [2.0]}}
    assert ranking(rows(late, said))["published"] == {"x": pytest.approx(-0.5)}


def test_equal_scores_have_no_rank_correlation():
    late = {"x": {"a": 3.0, "b": 3.0, "c": 3.0}, "y": {"a": 3.0, "b": 2.0, "c": 1.0}}
    said = {"x": {"a": [60.0], "b": [50.0], "c": [70.0]}, "y": {"a": [5.0], "b": [5.0], "c": [5.0]}}
    assert ranking(rows(late, said))["published"] == {}
