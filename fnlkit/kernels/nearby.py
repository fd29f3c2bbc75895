"""Nearest other samples of a site, in time that does not grow with the square of its size."""

from typing import Any

import numpy as np

from fnlkit.kernels.threads import get_threads

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
    """Find distances (n, k) and positions (n, k) of the k nearest other samples, nearest first, and exact rows (m,).

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

    neighbors = nearest_in_lists(points, k, threads=get_threads())
    away = _distances(points, np.arange(len(points)), neighbors)
    away[neighbors < 0] = np.inf
    away[rows], neighbors[rows] = exact(points, rows, k)
    return away, neighbors, rows


def sample_positions(points: np.ndarray) -> np.ndarray:
    """Choose positions whose neighbors are searched for exactly: all of a small site, else every n / `SAMPLED`-th."""
    small = len(points) <= EXACT or points.shape[1] <= COLUMNS
    return np.arange(len(points)) if small else np.linspace(0, len(points) - 1, SAMPLED).astype(np.int64)


def exact(points: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Find distances (m, k) and positions (m, k) of the exact k nearest other samples of some rows (m,)."""
    most = min(k + SPARE, len(points) - 1)
    if len(points) <= DIRECT:
        near = _by_products(points, rows, most)
    elif points.shape[1] > COLUMNS:
        from fnlkit.kernels.neighbors import nearest as by_faiss

        near = by_faiss(points, most, rows=rows, threads=get_threads())
    else:
        from sklearn.neighbors import NearestNeighbors

        near = NearestNeighbors(n_neighbors=most + 1).fit(points).kneighbors(points[rows], return_distance=False)
        others = near != rows[:, None]
        others[others.all(1), -1] = False  # copies displaced the sample from its own list
        near = near[others].reshape(-1, most)
    near = np.sort(near, 1)
    away = _distances(points, rows, near)
    order = np.argsort(away, 1, kind="stable")[:, :k]
    return np.take_along_axis(away, order, 1), np.take_along_axis(near, order, 1)


def _by_products(points, rows, most):
    """Find the positions (m, most) of near samples by inner products in float64."""
    centered = np.asarray(points, np.float64) - np.mean(points, 0, dtype=np.float64)
    squares = (centered**2).sum(1)
    distances = squares[rows, None] + squares - 2 * centered[rows] @ centered.T
    distances[np.arange(len(rows)), rows] = np.inf
    return np.argpartition(distances, most - 1, axis=1)[:, :most]


def _distances(points, rows, near):
    """Compute the distances (m, k) float64 of samples `rows` (m,) to samples `near` (m, k)."""
    away = np.empty(near.shape)
    size = max(1, 2_000_000 // (near.shape[1] * points.shape[1]))  # rows whose differences fit into the cache
    for start in range(0, len(rows), size):
        block = slice(start, start + size)
        step = np.subtract(points[rows[block], None], points[near[block]], dtype=np.float64)
        away[block] = np.sqrt(np.einsum("rkd,rkd->rk", step, step))
    return away


def near_and_typical(away: np.ndarray, samples: int | None = None, among: int | None = None) -> tuple[float, float]:
    """Distance below which a sample and its nearest neighbor are near copies, and the typical one; 0 if unknown.

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
    """Whether the k-th neighbor of each point (n,) is far out: Tukey's third quartile plus three interquartile ranges.

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
    mask = np.zeros(len(points), bool)
    if len(far):
        mask[far] = exact(points, far, k)[0][:, -1] > limit
    return mask
