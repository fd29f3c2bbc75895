"""Ranges contain the share with at least the stated probability, computed from all outcomes of small draws."""

import numpy as np
import pytest
from scipy.stats import hypergeom

from fnlkit.core.errors import InputError
from fnlkit.estimators.ranges import share_range


def coverage(wrong, drawn, sizes, confidence):
    """Return the exact probability that the range contains the share."""
    total, out = sum(wrong) / sum(sizes), 0.0
    outcomes = [(x,) for x in range(drawn[0] + 1)]
    if len(sizes) == 2:
        outcomes = [(x, y) for (x,) in outcomes for y in range(drawn[1] + 1)]
    for hits in outcomes:
        chance = np.prod([hypergeom.pmf(x, size, w, n) for x, w, n, size in zip(hits, wrong, drawn, sizes, strict=True)])
        if chance > 0:
            found = share_range(hits, drawn, sizes, confidence=confidence)
            out += chance * (found.low - 1e-12 <= total <= found.high + 1e-12)
    return out


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_coverage_of_one_and_two_strata(confidence):
    for wrong in range(0, 13, 3):
        assert coverage([wrong], [5], [12], confidence) >= confidence - 1e-9
    for first in range(0, 6, 2):
        for second in range(0, 9, 3):
            assert coverage([first, second], [3, 3], [5, 8], confidence) >= confidence - 1e-9


def test_one_stratum_matches_the_binomial_interval_if_it_is_large():
    """Clopper-Pearson for 13 of 100: 7.1 to 21.2 %."""
    found = share_range([13], [100], [10**6])
    assert (round(found.low, 3), round(found.high, 3), found.share) == (0.071, 0.212, 0.13)


def test_good_scores_make_the_range_narrower():
    plain, split = share_range([13], [100], [2000]), share_range([27, 0], [30, 70], [260, 1740])
    assert split.high - split.low < 0.65 * (plain.high - plain.low) and split.low < split.share < split.high


def test_certain_numbers_and_empty_strata():
    assert share_range([3], [10], [10]) == share_range([3, 0], [10, 0], [10, 0]) and share_range([3], [10], [10]).low == 0.3
    unknown = share_range([2, 0], [4, 0], [4, 6])
    assert (unknown.share, unknown.low, unknown.high) == (None, 0.2, 0.8)
    certain = share_range([5, 0], [5, 20], [5, 95])  # five reviewed samples, and 20 drawn from 95
    assert certain.low == 0.05 and 0.1 < certain.high < 0.22
    assert share_range([0], [0], [0]).high == 1.0


def test_a_coarse_grid_stays_valid(monkeypatch):
    from fnlkit.estimators import ranges

    fine = share_range([10, 2], [30, 70], [260, 1740])
    monkeypatch.setattr(ranges, "GRID", 12)
    coarse = share_range([10, 2], [30, 70], [260, 1740])
    assert coarse.low <= fine.low and fine.high <= coarse.high <= fine.high + 0.05


def test_contradictions_are_refused():
    for hits, drawn, sizes in (([3], [2], [9]), ([1], [5], [4]), ([1, 1, 1], [2, 2, 2], [3, 3, 3]), ([1], [2, 2], [3, 3])):
        with pytest.raises(InputError, match="strata|stratum"):
            share_range(hits, drawn, sizes)
