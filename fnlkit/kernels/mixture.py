"""Mixtures of two one-dimensional Gaussians, and membership in the upper component."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fnlkit._kernels.mixture import Scratch, mixture
from fnlkit.kernels import checks

# Shift of the centers at which k-means ends, in variances, as in scikit-learn.
_SHIFT = 1e-4


class TwoComponents(NamedTuple):
    """Two Gaussians fitted to values; the component with the smaller mean comes first.

    Attributes
    ----------
    upper : bool (n,)
        Whether a value belongs to the component with the larger mean.
    means, variances, shares : float64 (2,)
    """

    upper: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    shares: np.ndarray


def gaussians(
    points: np.ndarray, *, seed: int = 0, steps: int = 100, tolerance: float = 1e-3, ridge: float = 1e-6
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fit two Gaussians with full covariances to points by EM.

    Return (share (n, 2), means (2, D), covariances (2, D, D), weights (2,)); a share is the probability of a component.

    Parameters
    ----------
    points : (n, D) finite numbers, not all equal
    seed : int
        Seed of the k-means initialization.
    steps : int >= 1
        Largest number of EM steps.
    tolerance : float
        EM stops if the mean log likelihood changes by less.
    ridge : float > 0
        Added to variances.

    Notes
    -----
    The random draws, the defaults and, up to rounding, the results equal sklearn.mixture.GaussianMixture.  A value in the
    middle of two centers of k-means goes to the center that rounding favors, in the same arithmetic.  If two starts of k-means
    are equally good, the order of a sum decides, so that about 1 of 150 sets of few distinct values is split differently.
    Importing sklearn takes two seconds, and a fit of 200 numbers takes about as long as a client's local training.
    """
    points = checks.contiguous(points, np.float64)
    n, dims = points.shape
    centered = points - points.mean(axis=0)
    scratch = Scratch(_first_centers(centered, seed), np.empty((2, dims)), np.empty(2), np.empty((dims, dims)), np.empty(dims))
    share, means, covariances, weights = np.zeros((n, 2)), np.empty((2, dims)), np.zeros((2, dims, dims)), np.empty(2)
    least = _SHIFT * float(np.square(centered).mean())
    mixture(points, centered, least, steps, tolerance, ridge, share, means, covariances, weights, scratch)
    upper = np.triu_indices(points.shape[1], 1)
    covariances[:, upper[0], upper[1]] = covariances[:, upper[1], upper[0]]
    return share, means, covariances, weights


def _first_centers(x, seed):
    """Return the centers (2, D) of k-means++: a random point, and the better of two points drawn by squared distance.

    Squared distances are rounded as in scikit-learn: equal distances can differ, and decide ties.
    """
    draws = np.random.RandomState(seed)
    first = int(draws.choice(len(x), p=np.full(len(x), 1 / len(x))))
    squares = np.square(x).sum(1)
    near = np.maximum(0.0, -2 * (x @ x[first]) + squares[first] + squares)
    running = np.cumsum(near)
    drawn = np.minimum(np.searchsorted(running, draws.uniform(size=2) * running[-1]), len(x) - 1)
    left = np.minimum(near[:, None], np.maximum(0.0, -2 * (x @ x[drawn].T) + squares[drawn] + squares[:, None])).sum(0)
    return x[[first, drawn[left.argmin()]]]


def two_components(values: ArrayLike, *, seed: int = 0) -> TwoComponents:
    """Fit two Gaussians to values (n,).

    A mixture of two always splits the values unless all are equal, even if there is only one group: `upper` marks the larger
    values and does not prove two groups.  Equal values (and fewer than two) give no True.

    Parameters
    ----------
    values : (n,) finite numbers
    seed : int
        Seed of the k-means initialization.

    Notes
    -----
    Source: FedCorr (Xu 2022), Section 3.2, steps 1 and 2; see `gaussians`.
    """
    values = np.asarray(values, np.float64).reshape(-1, 1)
    if len(values) < 2 or np.ptp(values) == 0:
        mean = values[:1, 0] if len(values) else np.zeros(1)
        return TwoComponents(np.zeros(len(values), bool), np.repeat(mean, 2), np.zeros(2), np.array([1.0, 0.0]))
    share, means, covariances, weights = gaussians(values, seed=seed)
    order = np.argsort(means[:, 0], kind="stable")
    return TwoComponents(share.argmax(1) == order[1], means[order, 0], covariances[order, 0, 0], weights[order])


def lower_probability(values: np.ndarray, *, seed: int = 0, steps: int = 10) -> np.ndarray:
    """Probability (n,) that each value belongs to the fitted Gaussian with the smaller mean.

    Values are first scaled to [0, 1], and EM makes few steps, as in DivideMix.  Equal values all get 1.

    Parameters
    ----------
    values : (n,) finite numbers
    seed : int
        Seed of the k-means initialization.
    steps : int >= 1
        Largest number of EM steps; 10 in DivideMix, 100 in FedRN.

    Notes
    -----
    Source: DivideMix (Li 2020), Section 3.1; 10 steps, tolerance 0.01 and 0.0005 added to variances as in the public code.
    """
    values = np.asarray(values, np.float64)
    spread = np.ptp(values) if len(values) else 0.0
    if not spread > 0:
        return np.ones(len(values))
    scaled = ((values - values.min()) / spread).reshape(-1, 1)
    share, means, *_ = gaussians(scaled, seed=seed, steps=steps, tolerance=1e-2, ridge=5e-4)
    return share[:, means[:, 0].argmin()].copy()


def higher_group(matrix: np.ndarray, *, votes: int = 9, missing: str = "least") -> np.ndarray:
    """Select rows (N,) bool of a matrix that belong to the Gaussian with the larger mean, of two that are fitted.

    Columns are scaled to [0, 1].  The mixture is fitted with the seeds 0 to `votes` - 1, and the most frequent grouping is
    returned.  Equal rows (and fewer than two) give no True.

    Parameters
    ----------
    matrix : (N, C)
        Clients by classes: mean losses in FedNoRo.
    votes : int >= 1
    missing : "least" or "mean"
        Entries that are not finite take the smallest, or the mean, of the finite ones of their column.

    Notes
    -----
    Source: FedNoRo (Wu 2023), Section 2.2; nine votes and ``missing=least`` are from the public code.
    """
    matrix = np.array(matrix, np.float64)
    if len(matrix) < 2:
        return np.zeros(len(matrix), bool)
    known = np.isfinite(matrix)
    low = np.where(known, matrix, np.inf).min(0)
    low = np.where(np.isfinite(low), low, 0.0)
    filling = low
    if missing == "mean":
        filling = np.where(known, matrix, 0.0).sum(0) / np.maximum(known.sum(0), 1)
    matrix = np.where(known, matrix, filling) - low
    top = matrix.max(0)
    matrix = matrix / np.where(top > 0, top, 1.0)
    if not np.ptp(matrix, axis=0).any():
        return np.zeros(len(matrix), bool)
    fits = []
    for seed in range(votes):
        share, means, *_ = gaussians(matrix, seed=seed)
        fits.append(tuple((share.argmax(1) == means.sum(1).argmax()).tolist()))
    return np.array(max(fits, key=fits.count), bool)


def fit_from(values: np.ndarray, start: np.ndarray | None = None, *, steps: int = 100, least: float = 1e-6) -> np.ndarray:
    """Fit two Gaussians to values by EM: (3, 2) means, variances and shares, the smaller mean first.

    Parameters
    ----------
    values : (n,) finite numbers, n >= 1
    start : (3, 2) or None
        Initial parameters. None: the lower and the upper half of the sorted values.
    steps : int
        Largest number of steps; EM stops earlier if the mean log-likelihood rises by less than 1e-4.
    least : float > 0
        Added to variances, and smallest share of a component.

    Notes
    -----
    Source: Dempster, Laird, Rubin 1977, as used by FedDiv (Li 2024), Section "Local filter training".
    """
    values = np.asarray(values, np.float64)
    if start is None:
        low, high = np.array_split(np.sort(values), 2)
        high = high if len(high) else low
        start = [[low.mean(), high.mean()], [low.var() + least, high.var() + least], [0.5, 0.5]]
    mean, variance, share = np.array(start, np.float64)
    before = -np.inf
    for _ in range(steps):
        log = -0.5 * ((values[:, None] - mean) ** 2 / variance + np.log(2 * np.pi * variance)) + np.log(share)
        top = log.max(1)
        total = top + np.log(np.exp(log - top[:, None]).sum(1))
        weight = np.exp(log - total[:, None])
        count = weight.sum(0)
        moved = count > least * len(values)  # an empty component keeps its parameters
        mean = np.where(moved, (weight * values[:, None]).sum(0) / np.where(moved, count, 1), mean)
        spread = (weight * (values[:, None] - mean) ** 2).sum(0) / np.where(moved, count, 1)
        variance = np.where(moved, spread + least, variance)
        share = np.maximum(count / len(values), least)
        share = share / share.sum()
        if total.mean() - before < 1e-4:
            break
        before = total.mean()
    order = np.argsort(mean, kind="stable")
    return np.stack([mean[order], variance[order], share[order]])
