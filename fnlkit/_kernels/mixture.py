"""Two groups of points: k-means, then a mixture of two Gaussians with full covariances (EM)."""

from __future__ import annotations

import math

import numpy as np

from fnlkit._kernels._compile import inline, kernel

# Settings of k-means in scikit-learn: largest number of steps, and the shift of the centers at which it stops, in variances.
_STEPS, _SHIFT = 300, 1e-4


@inline
def _distance(a, b):
    total = 0.0
    for d in range(a.size):
        total += (a[d] - b[d]) * (a[d] - b[d])
    return total


@inline
def _product(a, b):
    total = 0.0
    for d in range(a.size):
        total += a[d] * b[d]
    return total


@inline
def _expanded_distance(a, b):
    """Return the squared distance as scikit-learn rounds it: equal distances can differ, and decide ties."""
    return max(0.0, -2 * _product(a, b) + _product(a, a) + _product(b, b))


@inline
def _assign(x, centers, labels):
    """Write the nearer center of each point; return whether a label changed.

    Distances are compared without the square of the point, as in scikit-learn, whose rounding decides about a point in the
    middle of the centers.
    """
    changed = False
    first, second = _product(centers[0], centers[0]), _product(centers[1], centers[1])
    for i in range(x.shape[0]):
        near = 1 if second - 2 * _product(x[i], centers[1]) < first - 2 * _product(x[i], centers[0]) else 0
        changed = changed or labels[i] != near
        labels[i] = near
    return changed


@inline
def _start(x, first, uniforms, centers):
    """Write the centers of k-means++: the point `first`, and the better of two points drawn by squared distance."""
    n, dims = x.shape
    near, total, best = np.empty(n), 0.0, np.inf
    for i in range(n):
        near[i] = _expanded_distance(x[first], x[i])
        total += near[i]
    for trial in range(uniforms.size):
        wanted, running, drawn = uniforms[trial] * total, 0.0, n - 1
        for i in range(n):
            running += near[i]
            if running >= wanted:
                drawn = i
                break
        left = 0.0
        for i in range(n):
            left += min(near[i], _expanded_distance(x[drawn], x[i]))
        if left < best:
            best = left
            for d in range(dims):
                centers[0, d], centers[1, d] = x[first, d], x[drawn, d]


@inline
def _two_means(points, mean, first, uniforms):
    """Return the group (n,), 0 or 1, of each point."""
    n, dims = points.shape
    x, spread = np.empty((n, dims)), 0.0
    for d in range(dims):
        for i in range(n):
            x[i, d] = points[i, d] - mean[d]
            spread += x[i, d] * x[i, d] / (n * dims)
    centers, moved, labels = np.empty((2, dims)), np.empty((2, dims)), np.full(n, -1)
    _start(x, first, uniforms, centers)
    for _ in range(_STEPS):
        if not _assign(x, centers, labels):
            return labels
        counts, shift = np.zeros(2), 0.0
        moved[:] = 0.0
        for i in range(n):
            counts[labels[i]] += 1.0
            for d in range(dims):
                moved[labels[i], d] += x[i, d]
        for k in range(2):
            for d in range(dims):
                moved[k, d] *= 1.0 / counts[k]
            shift += _distance(moved[k], centers[k])
        for k in range(2):
            for d in range(dims):
                centers[k, d] = moved[k, d]
        if shift <= _SHIFT * spread:
            break
    _assign(x, centers, labels)
    return labels


@inline
def _maximize(x, share, ridge, weights, means, covariances):
    """Write the parameters of both Gaussians for the responsibilities `share` (n, 2)."""
    n, dims = x.shape
    for k in range(2):
        weights[k] = 10 * 2.220446049250313e-16
        means[k], covariances[k] = 0.0, 0.0
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
def _factorize(matrix, factor):
    """Write the Cholesky factor of a positive definite matrix, of which the lower triangle is read."""
    for d in range(matrix.shape[0]):
        for e in range(d + 1):
            left = matrix[d, e]
            for j in range(e):
                left -= factor[d, j] * factor[e, j]
            factor[d, e] = math.sqrt(left) if d == e else left / factor[e, e]


@inline
def _expect(x, weights, means, covariances, factor, share):
    """Write the responsibilities of both Gaussians; return the mean log likelihood."""
    n, dims = x.shape
    away, total = np.empty(dims), 0.0
    for k in range(2):
        _factorize(covariances[k], factor)
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


@kernel
def mixture(
    x: np.ndarray, mean: np.ndarray, first: int, uniforms: np.ndarray, steps: int, tolerance: float, ridge: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (share (n, 2), means (2, D), covariances (2, D, D), weights (2,)) of two Gaussians for points (n, D) float64.

    EM starts from the groups of k-means, and ends after `steps` or if the mean log likelihood changes by less than
    `tolerance`.  `ridge` is added to variances.  `mean` (D,) is the mean of the points, `first` and `uniforms` (2,) are the
    random draws of k-means++.  The upper triangle of a covariance is 0.
    """
    n, dims = x.shape
    share, factor = np.zeros((n, 2)), np.zeros((dims, dims))
    weights, means, covariances = np.empty(2), np.empty((2, dims)), np.zeros((2, dims, dims))
    labels, before = _two_means(x, mean, first, uniforms), -np.inf
    for i in range(n):
        share[i, labels[i]] = 1.0
    _maximize(x, share, ridge, weights, means, covariances)
    for _ in range(steps):
        now = _expect(x, weights, means, covariances, factor, share)
        _maximize(x, share, ridge, weights, means, covariances)
        if abs(now - before) < tolerance:
            break
        before = now
    _expect(x, weights, means, covariances, factor, share)
    return share, means, covariances, weights
