"""Nearest other samples of a site, in time that does not grow with the square of its size."""

from typing import Any

import numpy as np

# Larger sites with more columns are searched by FAISS's inverted lists; in few columns, a tree is exact and fast.
EXACT, COLUMNS = 10_000, 15
# Number of samples of a larger site whose neighbors are searched for exactly, to estimate quantiles.
SAMPLED = 2_000
# Sites up to this size are searched by a product of the samples with themselves: importing scikit-learn takes longer.
DIRECT = 2_000
# Further candidates of a search by products, whose rounding can change the order of almost equal distances.
SPARE = 8
# Probability that the nearest two samples of a data set without near copies are called near copies.
CHANCE = 0.05


def nearest(points: np.ndarray, k: int) -> tuple[Any, ...]:
    """Return distances (n, k) and positions (n, k) of the k nearest other samples, nearest first, and exact rows (m,).

    Up to `EXACT` samples or `COLUMNS` columns, all rows are exact.  Otherwise every n / `SAMPLED`-th row is exact, and other
    rows can miss a neighbor: they contain true distances, but of samples that are not always the nearest.

    Parameters
    ----------
    points : float (n, D)
    k : int
        From 1 to n - 1.
    """
    rows = sample_positions(points)
    if len(rows) == len(points):
        return *exact(points, rows, k), rows
    from fnlkit.kernels.neighbors import nearest_in_lists

    neighbors = nearest_in_lists(points, k)
    away = np.empty(neighbors.shape)
    for start in range(0, len(points), 1024):
        here = slice(start, start + 1024)
        step = points[here, None] - points[neighbors[here]]
        away[here] = np.sqrt((step * step).sum(2, dtype=np.float64))
    away[neighbors < 0] = np.inf
    away[rows], neighbors[rows] = exact(points, rows, k)
    return away, neighbors, rows


def sample_positions(points: np.ndarray) -> np.ndarray:
    """Return the positions whose neighbors are searched for exactly: all of a small site, else every n / `SAMPLED`-th."""
    small = len(points) <= EXACT or points.shape[1] <= COLUMNS
    return np.arange(len(points)) if small else np.linspace(0, len(points) - 1, SAMPLED).astype(np.int64)


def exact(points: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return distances (m, k) and positions (m, k) of the exact k nearest other samples of some rows (m,)."""
    if len(points) <= DIRECT:
        return _by_products(points, rows, k)
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=min(k + 1, len(points))).fit(points)
    if len(rows) == len(points):
        return index.kneighbors(n_neighbors=k)
    away, found = index.kneighbors(points[rows])
    others = found != rows[:, None]
    others[others.all(1), -1] = False  # copies displaced the sample from its own list
    return away[others].reshape(-1, k), found[others].reshape(-1, k)


def _by_products(points, rows, k):
    """Return `exact` by inner products; the distances of the nearest candidates are computed from their differences."""
    centered = np.asarray(points, np.float64) - np.mean(points, 0, dtype=np.float64)
    squares = (centered**2).sum(1)
    distances = squares[rows, None] + squares - 2 * centered[rows] @ centered.T
    distances[np.arange(len(rows)), rows] = np.inf
    most = min(k + SPARE, len(points) - 1)
    near = np.sort(np.argpartition(distances, most - 1, axis=1)[:, :most], 1)
    away = (
        np.sqrt(((centered[rows, None] - centered[near]) ** 2).sum(2))
        if most * centered.shape[1] * len(rows) < 5e7
        else (np.stack([np.sqrt(((centered[i] - centered[j]) ** 2).sum(1)) for i, j in zip(rows, near, strict=True)]))
    )
    order = np.argsort(away, 1, kind="stable")[:, :k]
    return np.take_along_axis(away, order, 1), np.take_along_axis(near, order, 1)


def near_and_typical(away: np.ndarray, samples: int | None = None, among: int | None = None) -> tuple[float, float]:
    """Return the distance below which a sample and its nearest neighbor are near copies, and the typical one; 0 if unknown.

    In d dimensions, the distance to the nearest neighbor exceeds r with probability 2^-(r / median)^d. d follows from
    the quartiles of the logarithm. The threshold is the distance at which such a pair occurs by chance with probability
    `CHANCE` among all samples.

    Parameters
    ----------
    away : (n,)
        Distance of n distinct samples to the nearest other sample.
    samples : int, optional
        Number of distinct samples, of which the n are a part. Default: n.
    among : int, optional
        Number of samples of all sites. The distances then refer to the union of the sites, in which samples are denser.
    """
    samples = samples or len(away)
    among = among or samples
    if len(away) < 8:
        return 0.0, 0.0
    low, median, high = np.percentile(away, [25, 50, 75])
    if not 0 < low < high:
        return 0.0, 0.0
    dimension = np.log(np.log(4) / np.log(4 / 3)) / np.log(high / low)
    typical = median * (samples / among) ** (1 / dimension)
    return float(typical * (CHANCE / among / np.log(2)) ** (1 / dimension)), float(typical)


def far_out(points: np.ndarray, away: np.ndarray, rows: np.ndarray, k: int) -> np.ndarray:
    """Return whether the k-th neighbor of each point (n,) is far out: Tukey's third quartile plus three interquartile ranges.

    Parameters
    ----------
    points : float (n, D)
    away : (n, k)
        Distances of `nearest`, exact in the rows `rows`.
    rows : int (m,)
    k : int
    """
    low, high = np.percentile(away[rows, -1], [25, 75])
    limit = high + 3 * (high - low)
    far = np.flatnonzero(away[:, -1] > limit)
    out = np.zeros(len(points), bool)
    if len(far):
        out[far] = exact(points, far, k)[0][:, -1] > limit
    return out
