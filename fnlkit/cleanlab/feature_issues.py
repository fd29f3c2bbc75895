"""Outliers, near copies, dependence on the order and missing values of the samples of one site, from their features."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.errors import InputError
from fnlkit.kernels import checks
from fnlkit.kernels.nearby import far_out, near_and_typical, nearest

# Number of neighbors: cleanlab's.
NEIGHBORS = 10
# Smallest p-value of samples that do not depend on their order.
LEVEL = 0.05


@dataclass(frozen=True)
class Issue:
    """Issues of one kind.

    Attributes
    ----------
    flags : bool (n,)
    scores : float (n,)
        In 0..1, lower is worse; NaN for samples that cannot be judged.
    score : float
        Of the whole site, in 0..1.
    columns : dict of str to (n,) array
        Further columns of the table of this kind.
    """

    flags: NDArray[np.bool_]
    scores: NDArray[np.float64]
    score: float
    columns: dict[str, np.ndarray] = field(default_factory=dict)


def read_features(features: ArrayLike, n: int) -> np.ndarray:
    """Return features (n, D) float32 or float64, with NaN for missing values."""
    points = checks.real(features, "features", 2, "(n, D)")
    if len(points) != n or not points.shape[1]:
        raise InputError(f"`features` must have shape ({n:,}, D), found {points.shape}")
    if np.isinf(points).any():
        raise InputError("`features` must be finite or NaN, found infinity")
    return points


def neighbors_of(points: np.ndarray, k: int = NEIGHBORS) -> tuple[np.ndarray, ...] | None:
    """Return distances and positions (n, k) of nearest other samples, and exact rows; None for a single sample."""
    k = min(k, len(points) - 1)
    if k < 1:
        return None
    away, other, rows = nearest(points, k)
    return away, other, rows


def null_issues(points: np.ndarray) -> Issue:
    """Return samples without any feature; the score is the share of features that are not missing."""
    present = 1 - np.isnan(points).mean(1)
    return Issue(present == 0, present, float(present.mean()) if len(present) else 1.0)


def outlier_issues(points: np.ndarray, neighbors: tuple[np.ndarray, ...]) -> Issue:
    """Return samples far from all others (`far_out`); the score is a / (a + d).

    d is the distance to the k-th neighbor, and a the largest distance of a sample that is not flagged.
    """
    away, _, rows = neighbors
    flags = far_out(points, away, rows, away.shape[1])
    d = away[:, -1].astype(np.float64)
    limit = float(d[~flags].max()) if (~flags).any() else 0.0
    scores = np.divide(limit, limit + d, out=np.ones(len(d)), where=np.isfinite(d) & (d > 0))
    scores[np.isinf(d)] = 0
    return Issue(flags, scores, float(scores.mean()))


def copy_issues(neighbors: tuple[np.ndarray, ...]) -> Issue:
    """Return samples with a copy or near copy (`near_and_typical` of distinct samples); the score is d / (d + limit)."""
    away, other, rows = neighbors
    d = away[:, 0].astype(np.float64)
    distinct = d[rows][d[rows] > 0]
    limit = near_and_typical(distinct, len(d))[0]
    flags = (d == 0) | (d < limit)
    scores = np.divide(d, d + limit, out=np.zeros(len(d)), where=d > 0)
    scores[np.isinf(d)] = 1
    columns = {"distance_to_nearest_neighbor": d, "nearest_neighbor": other[:, 0]}
    return Issue(flags, scores, float(scores.mean()), columns)


def order_issues(neighbors: tuple[np.ndarray, ...]) -> Issue:
    """Return the sample that depends most on its position, if samples near in order are near in features (p < 0.05).

    For samples in random order, the distance |i - j| / n of a sample and its nearest neighbor has mean 1 / 3 and variance
    1 / 18. Pairs that are neighbors of each other are counted as one. The p-value is that of the normal distribution,
    two-sided; the score of a sample is the distance of its position to those of its neighbors, relative to the mean for random
    order.
    """
    _, other, _ = neighbors
    n = len(other)
    steps = np.where(other < 0, np.nan, np.abs(other - np.arange(n)[:, None])) / n
    pairs = np.unique(np.sort(np.column_stack([np.arange(n), other[:, 0]]), 1), axis=0)
    pairs = pairs[pairs[:, 0] >= 0]
    mean = (pairs[:, 1] - pairs[:, 0]).mean() / n if len(pairs) else 1 / 3
    z = (mean - (n + 1) / (3 * n)) * math.sqrt(18 * len(pairs))
    p = math.erfc(abs(z) / math.sqrt(2))
    i = np.arange(n) / n
    expected = (i**2 + (1 - i) ** 2) / 2  # mean distance of position i to a random position
    scores = np.clip(np.nanmean(steps, 1) / expected, 0, 1)
    flags = np.zeros(n, bool)
    flags[int(np.argmin(scores))] = p < LEVEL
    return Issue(flags, scores, p)


def imbalance_issues(labels: np.ndarray, classes: int) -> Issue:
    """Return the samples of the rarest class if its share is below 0.1 / C, with the share as score; as cleanlab.

    Classes without labels are not counted.
    """
    sizes = np.bincount(labels, minlength=classes)
    rarest = int(np.argmin(np.where(sizes > 0, sizes, len(labels) + 1)))
    share = sizes[rarest] / len(labels)
    flags = (labels == rarest) & (share < 0.1 / np.count_nonzero(sizes))
    return Issue(flags, np.where(flags, share, 1.0), float(share))


def neighbor_shares(labels: np.ndarray, classes: int, neighbors: tuple[np.ndarray, ...]) -> np.ndarray:
    """Return the share of each class (n, C) among the neighbors of each sample, which serve as probabilities."""
    other = neighbors[1]
    owner = np.repeat(np.arange(len(other)), other.shape[1])[other.ravel() >= 0]
    flat = owner * classes + labels[other[other >= 0]]
    counts = np.bincount(flat, minlength=len(other) * classes).reshape(-1, classes)
    return counts / np.maximum(counts.sum(1, keepdims=True), 1)
