"""Intervals of a level: of a sample (Wilson, bootstrap), and of a finite population from a review.

The ranges of a population hold for finite samples: only the random draw of the reviewed samples is used.  A population
consists of one or two strata.  In each stratum, a number of samples is drawn at random without replacement.  Scores may define
the strata, so that better scores make the range narrower; the range is valid for any scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.core.errors import InputError
from fnlkit.kernels.streams import stream

CONFIDENCE = 0.95


# A share with a wider interval is printed as its interval alone: few reviews can state 37 % where 73 % is right.
WIDEST = 0.3


def is_uncertain(low: float, high: float) -> bool:
    """Whether an interval is so wide that a number inside it would mislead."""
    return bool(high - low > WIDEST)


def wilson(count: np.ndarray | int, total: np.ndarray | int, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Bound shares count / total by Wilson's score interval (low, high).

    The interval stays inside [0, 1]. Its width is positive even if no sample or every sample was counted.

    Parameters
    ----------
    count, total : (...,) numbers, 0 <= count <= total
        If total is 0, the interval is (0, 1).
    confidence : float in (0, 1)

    Notes
    -----
    Source: Wilson 1927; Brown, Cai, DasGupta 2001 recommend it for small samples.

    Examples
    --------
    >>> low, high = wilson(3, 10)
    >>> round(float(low), 3), round(float(high), 3)
    (0.108, 0.603)
    """
    count, total = np.asarray(count, np.float64), np.asarray(total, np.float64)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    known = np.maximum(total, 1)
    share = count / known
    center = share + z**2 / (2 * known)
    half = z * np.sqrt(share * (1 - share) / known + z**2 / (4 * known**2))
    low, high = (center - half) / (1 + z**2 / known), (center + half) / (1 + z**2 / known)
    # Exactly 0 and 1 at the ends, because rounding gives 1e-17.
    low, high = np.where(count <= 0, 0.0, low), np.where(count >= total, 1.0, high)
    return np.where(total > 0, low, 0.0), np.where(total > 0, high, 1.0)


def clopper_pearson(count: ArrayLike, total: ArrayLike, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Bound shares count / total by the exact interval (low, high).

    The interval contains the true share with at least probability `confidence`, for every sample size.

    Parameters
    ----------
    count, total : (...,) numbers, 0 <= count <= total
        If total is 0, the interval is (0, 1).
    confidence : float in (0, 1)

    Notes
    -----
    Source: Clopper, Pearson 1934.

    Examples
    --------
    >>> low, high = clopper_pearson(3, 10)
    >>> round(float(low), 4), round(float(high), 4)
    (0.0667, 0.6525)
    """
    from scipy.special import betaincinv

    count, total = np.asarray(count, np.float64), np.asarray(total, np.float64)
    tail = (1 - confidence) / 2
    low = np.where(count > 0, betaincinv(np.maximum(count, 1), total - count + 1, tail), 0.0)
    high = np.where(count < total, betaincinv(count + 1, np.maximum(total - count, 1), 1 - tail), 1.0)
    return low, high


def bootstrap(
    cells: np.ndarray,
    statistic: Callable[..., Any],
    *,
    seed: int,
    draws: int = 1000,
    confidence: float = CONFIDENCE,
    independence: ArrayLike = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap percentile intervals (low (N,), high (N,)) of a statistic of each client's counts.

    The bootstrap draws a client's samples again with replacement. The statistic depends only on the counts of samples in
    m cells, so a draw is a multinomial draw of the cells.

    Parameters
    ----------
    cells : int (N, m)
        Samples of each client in each cell.
    statistic : (..., m) counts -> (...)
    seed : int
        Each client k draws from a separate stream.
    draws : int
    confidence : float in (0, 1)
    independence : float or (N,), above 0 to 1
        Independent observations per sample (fnlkit.kernels.scores.effective_size); this share of the samples is drawn.

    Notes
    -----
    Source: Efron 1979; the percentile interval is Efron 1981.  A client without samples gets (0, 1).  See also `widen`.
    """
    cells = np.asarray(cells)
    low, high = np.zeros(len(cells)), np.ones(len(cells))
    tail, share = 100 * (1 - confidence) / 2, np.broadcast_to(independence, len(cells))
    for k, counts in enumerate(cells):
        total = int(counts.sum())
        if total:
            size = max(1, round(total * share[k]))
            again = stream(seed, "bootstrap", client=k).multinomial(size, counts / total, draws)
            ends = np.percentile(statistic(again), [tail, 100 - tail])
            low[k], high[k] = widen(ends[0], ends[1], statistic(counts), size)
    return low, high


def widen(low: ArrayLike, high: ArrayLike, level: ArrayLike, size: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Extend intervals (...,) that are at most one sample wide to Wilson's interval of the level among `size` samples.

    A bootstrap of samples without a wrong label has no spread, but three right labels do not exclude wrong labels.
    """
    narrow = np.subtract(high, low) <= 1 / np.maximum(size, 1)
    ends = wilson(np.multiply(level, size), np.asarray(size))
    return np.where(narrow, np.minimum(low, ends[0]), low), np.where(narrow, np.maximum(high, ends[1]), high)


# Share of the error that bounds each stratum on its own (Berger, Boos 1994), and most numbers tried per stratum.
BOX, GRID = 0.1, 240


@dataclass(frozen=True)
class Range:
    """Share with a range.

    Attributes
    ----------
    share : float or None
        Estimate; None if a stratum has no drawn sample.
    low, high : float
    assumes : str
        Assumption of the range; empty if it needs only random reviews.
    """

    share: float | None
    low: float
    high: float
    assumes: str = ""


def share_range(hits: ArrayLike, drawn: ArrayLike, sizes: ArrayLike, *, confidence: float = 0.95) -> Range:
    """Bound the share of samples with a property, such as a wrong label, among all samples of the strata.

    Parameters
    ----------
    hits, drawn, sizes : int (S,), S = 1 or 2
        Drawn samples with the property, drawn samples, and all samples of each stratum.
    confidence : float in (0, 1)
        Least probability, over the random draw, that the range contains the share.

    Raises
    ------
    InputError
        If the numbers contradict each other, or there are more than two strata.

    Notes
    -----
    One stratum: exact hypergeometric tests.  Two strata: the statistic is the usual estimate of the total.  A pair of numbers,
    one per stratum, is accepted if neither tail of the exact distribution of this estimate is below half of the error, and the
    range spans the totals of the accepted pairs.  A tenth of the error first excludes numbers that contradict a single stratum.

    Examples
    --------
    >>> from fnlkit.estimators.intervals import share_range
    >>> found = share_range([0], [100], [2000])
    >>> found.low, round(found.high, 3)
    (0.0, 0.035)
    """
    hits, drawn, sizes = (np.atleast_1d(np.asarray(values, np.int64)) for values in (hits, drawn, sizes))
    if len(sizes) > 2 or not (len(hits) == len(drawn) == len(sizes)):
        raise InputError("a range needs `hits`, `drawn` and `sizes` of one or two strata")
    if (hits < 0).any() or (hits > drawn).any() or (drawn > sizes).any():
        raise InputError("`hits` must be at most `drawn`, and `drawn` at most `sizes`, in each stratum")
    total, error = int(sizes.sum()), 1 - confidence
    if not total:
        return Range(None, 0.0, 1.0)
    known = drawn[sizes > 0].all()
    middle = float((sizes * hits / np.maximum(drawn, 1)).sum() / total) if known else None
    open_ones = drawn < sizes
    certain, (hits, drawn, sizes) = int(hits[~open_ones].sum()), (values[open_ones] for values in (hits, drawn, sizes))
    if len(sizes) == 2:
        low, high = _ends_of_two(hits, drawn, sizes, error)
    else:
        low, high = _ends(int(hits[0]), int(drawn[0]), int(sizes[0]), error) if len(sizes) else (0, 0)
    return Range(middle, (certain + low) / total, (certain + high) / total)


def _ends(hits, drawn, size, error):
    """Find the smallest and largest number in one stratum that neither tail of the hypergeometric distribution rejects."""
    from scipy.stats import hypergeom

    low, high = hits, size - drawn + hits
    a, b = low, high  # the smallest number with P(X >= hits) > error / 2
    while a < b:
        middle = (a + b) // 2
        a, b = (a, middle) if hypergeom.sf(hits - 1, size, middle, drawn) > error / 2 else (middle + 1, b)
    first, b = a, high  # the largest number with P(X <= hits) > error / 2
    while a < b:
        middle = (a + b + 1) // 2
        a, b = (middle, b) if hypergeom.cdf(hits, size, middle, drawn) > error / 2 else (a, middle - 1)
    return first, a


def _ends_of_two(hits, drawn, sizes, error):
    if not drawn.all():  # a stratum without a drawn sample can contain any number
        parts = [_ends(int(x), int(n), int(size), error) if n else (0, int(size)) for x, n, size in
                 zip(hits, drawn, sizes, strict=True)]  # fmt: skip
        return sum(part[0] for part in parts), sum(part[1] for part in parts)
    each = BOX * error / 2
    grids, tables = [], []
    for x, n, size in zip(hits.tolist(), drawn.tolist(), sizes.tolist(), strict=True):
        low, high = _ends(x, n, size, each)
        grid = np.unique(np.linspace(low, high, min(GRID, high - low + 1)).round().astype(np.int64))
        grids.append(grid)
        tables.append(_probabilities(np.arange(n + 1), n, grid, size))
    weights = sizes / drawn
    seen, rest = float(weights @ hits), error * (1 - BOX) / 2
    first = np.arange(drawn[0] + 1) * weights[0]
    second = np.arange(drawn[1] + 1) * weights[1]
    slack = 1e-9 * max(1.0, seen)
    at_most = first[:, None] + second <= seen + slack  # outcomes with an estimate of at most the observed one
    at_least = first[:, None] + second >= seen - slack
    lower, upper = (tables[0] @ outcomes @ tables[1].T for outcomes in (at_most.astype(float), at_least.astype(float)))
    # Numbers between two points of a grid are covered by the neighbors: a tail is monotonic in both numbers.
    totals_high = np.append(grids[0][1:] - 1, grids[0][-1])[:, None] + np.append(grids[1][1:] - 1, grids[1][-1])
    totals_low = np.insert(grids[0][:-1] + 1, 0, grids[0][0])[:, None] + np.insert(grids[1][:-1] + 1, 0, grids[1][0])
    return int(totals_low[upper > rest].min()), int(totals_high[lower > rest].max())


def _probabilities(outcomes, drawn, grid, size):
    """Compute the hypergeometric probabilities (grid, outcomes)."""
    from scipy.special import gammaln

    wrong, x = grid[:, None], outcomes[None]

    def log_choose(n: np.ndarray | int, k: np.ndarray | int) -> np.ndarray:
        inner = np.clip(k, 0, n)
        return np.where(inner == k, gammaln(n + 1) - gammaln(inner + 1) - gammaln(n - inner + 1), -np.inf)

    return np.exp(log_choose(wrong, x) + log_choose(size - wrong, drawn - x) - log_choose(size, drawn))
