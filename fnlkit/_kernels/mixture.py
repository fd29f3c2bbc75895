"""Two groups of points: k-means, then a mixture of two Gaussians with full covariances (EM)."""

import math
from typing import NamedTuple

import numpy as np

from fnlkit._kernels._compile import inline, lean_kernel

# Largest number of steps of k-means, as in scikit-learn.
_STEPS = 300


class Scratch(NamedTuple):
    """Memory of a fit: centers of k-means before and after a step (2, D), sizes of both groups, a matrix and a vector."""

    centers: np.ndarray
    moved: np.ndarray
    counts: np.ndarray
    factor: np.ndarray
    away: np.ndarray


@inline
def _two_means(x, least, share, scratch):
    """Write the groups of k-means as `share` (n, 2), each row (0, 1) or (1, 0), from ``scratch.centers`` on.

    Distances are compared without the square of the point, as in scikit-learn, whose rounding decides about a point in the
    middle of the centers.
    """
    centers, moved, counts = scratch.centers, scratch.moved, scratch.counts
    n, dims = x.shape
    for step in range(_STEPS + 1):
        changed, shift, first, second = step == 0, 0.0, 0.0, 0.0
        for d in range(dims):
            first += centers[0, d] * centers[0, d]
            second += centers[1, d] * centers[1, d]
            moved[0, d] = moved[1, d] = 0.0
        counts[0] = counts[1] = 0.0
        for i in range(n):
            to_first = to_second = 0.0
            for d in range(dims):
                to_first += x[i, d] * centers[0, d]
                to_second += x[i, d] * centers[1, d]
            near = 1 if second - 2 * to_second < first - 2 * to_first else 0
            changed = changed or share[i, near] == 0
            share[i, near], share[i, 1 - near] = 1.0, 0.0
            counts[near] += 1.0
            for d in range(dims):
                moved[near, d] += x[i, d]
        if not changed or least < 0:
            return
        for k in range(2):
            for d in range(dims):
                moved[k, d] *= 1.0 / counts[k]
                shift += (moved[k, d] - centers[k, d]) * (moved[k, d] - centers[k, d])
                centers[k, d] = moved[k, d]
        if shift <= least or step == _STEPS - 1:
            least = -1.0  # only the groups of these centers are left


@inline
def _maximize(x, share, ridge, weights, means, covariances):
    """Write the parameters of both Gaussians for the responsibilities `share` (n, 2)."""
    n, dims = x.shape
    for k in range(2):
        weights[k] = 10 * 2.220446049250313e-16
        for d in range(dims):
            means[k, d] = 0.0
            for e in range(d + 1):
                covariances[k, d, e] = 0.0
        for i in range(n):
            weights[k] += share[i, k]
            for d in range(dims):
                means[k, d] += share[i, k] * x[i, d]
        for d in range(dims):
            means[k, d] /= weights[k]
        for i in range(n):
            for d in range(dims):
                for e in range(d + 1):
                    covariances[k, d, e] += share[i, k] * (x[i, d] - means[k, d]) * (x[i, e] - means[k, e])
        for d in range(dims):
            for e in range(d + 1):
                covariances[k, d, e] /= weights[k]
            covariances[k, d, d] += ridge
    total = weights[0] + weights[1]
    for k in range(2):
        weights[k] /= total


@inline
def _expect(x, weights, means, covariances, factor, away, share):
    """Write the responsibilities of both Gaussians; return the mean log likelihood.

    `factor` (D, D) and `away` (D,) are scratch: the Cholesky factor, and a point in its coordinates.
    """
    n, dims = x.shape
    total = 0.0
    for k in range(2):
        for d in range(dims):
            for e in range(d + 1):
                left = covariances[k, d, e]
                for j in range(e):
                    left -= factor[d, j] * factor[e, j]
                factor[d, e] = math.sqrt(left) if d == e else left / factor[e, e]
        constant = math.log(weights[k]) - 0.5 * dims * math.log(2 * math.pi)
        for d in range(dims):
            constant -= math.log(factor[d, d])
        for i in range(n):
            square = 0.0
            for d in range(dims):
                left = x[i, d] - means[k, d]
                for j in range(d):
                    left -= factor[d, j] * away[j]
                away[d] = left / factor[d, d]
                square += away[d] * away[d]
            share[i, k] = constant - 0.5 * square
    for i in range(n):
        high, low = max(share[i, 0], share[i, 1]), min(share[i, 0], share[i, 1])
        whole = high + math.log1p(math.exp(low - high))
        total += whole
        for k in range(2):
            share[i, k] = math.exp(share[i, k] - whole)
    return total / n


@lean_kernel
def mixture(
    x: np.ndarray,
    centered: np.ndarray,
    least: float,
    steps: int,
    tolerance: float,
    ridge: float,
    share: np.ndarray,
    means: np.ndarray,
    covariances: np.ndarray,
    weights: np.ndarray,
    scratch: Scratch,
) -> None:
    """Fit two Gaussians to points (n, D) float64 and write `share` (n, 2), `means`, `covariances` (2, D, D) and `weights`.

    EM starts from the groups of k-means, and ends after `steps` or if the mean log likelihood changes by less than
    `tolerance`.  `ridge` is added to variances.  k-means of the `centered` points starts from ``scratch.centers`` and ends if
    the squared shift of the centers is at most `least`.  `share` must be 0; the upper triangle of a covariance is not written.
    """
    _two_means(centered, least, share, scratch)
    before, last, count = -np.inf, False, 0
    while True:
        _maximize(x, share, ridge, weights, means, covariances)
        now = _expect(x, weights, means, covariances, scratch.factor, scratch.away, share)
        if last:
            return
        count += 1
        last = count == steps or abs(now - before) < tolerance
        before = now
