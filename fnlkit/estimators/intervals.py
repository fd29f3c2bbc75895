"""Sampling intervals of a level: Wilson for a share of samples, a bootstrap for other statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from fnlkit.kernels.streams import stream

CONFIDENCE = 0.95


# A share with a wider interval is printed as its interval alone: few reviews can state 37 % where 73 % is right.
WIDEST = 0.3


def is_uncertain(low: float, high: float) -> bool:
    """Whether an interval is so wide that a number inside it would mislead."""
    return bool(high - low > WIDEST)


def wilson(count: np.ndarray | int, total: np.ndarray | int, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Compute the interval (low, high) of shares count / total by Wilson's score method.

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
    z = ndtri((1 + confidence) / 2)
    known = np.maximum(total, 1)
    share = count / known
    center = share + z**2 / (2 * known)
    half = z * np.sqrt(share * (1 - share) / known + z**2 / (4 * known**2))
    low, high = (center - half) / (1 + z**2 / known), (center + half) / (1 + z**2 / known)
    # Exactly 0 and 1 at the ends, because rounding gives 1e-17.
    low, high = np.where(count <= 0, 0.0, low), np.where(count >= total, 1.0, high)
    return np.where(total > 0, low, 0.0), np.where(total > 0, high, 1.0)


def clopper_pearson(count: ArrayLike, total: ArrayLike, confidence: float = CONFIDENCE) -> tuple[np.ndarray, np.ndarray]:
    """Compute the exact interval (low, high) of shares count / total.

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
