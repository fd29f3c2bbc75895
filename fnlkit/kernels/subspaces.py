"""Singular vectors of the features of each class: similarity of classes, consensus of clients, and classes of samples.

Source: FedSIR (Gholami 2026); parameters are those of its public code, sinagh72/FedSIR.
"""

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.kernels.mixture import gaussians


def class_subspaces(
    features: ArrayLike, labels: ArrayLike, classes: int, *, residual: int = 12, ratio: float = 10.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Right singular vectors of each class: directions (C, d), residuals (C, residual, d) and spectra (C, 3).

    The direction of a class is its first vector.  Its residuals are the first vectors after the smallest k for which the k
    largest singular values sum to at least `ratio` times the others.  Features are not centered.

    Parameters
    ----------
    features : (n, d)
    labels : (n,) int
    classes : int
    residual : int >= 1
        Largest number of residual vectors.  A class with fewer has rows of zeros.
    ratio : float > 0

    Notes
    -----
    A spectrum is (number of samples, (s_1 - s_2) / s_1, s_1 / sum s).  An absent class has zeros.  Vectors of singular values
    that are zero up to the rounding of single precision are left out, because they are arbitrary.

    Examples
    --------
    >>> directions, residuals, spectra = class_subspaces([[2, 0], [2, 0], [0, 1]], [0, 0, 1], 2)
    >>> np.abs(directions).round(3).tolist(), spectra.tolist()
    ([[1.0, 0.0], [0.0, 1.0]], [[2.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    """
    features, labels = np.asarray(features, np.float64), np.asarray(labels)
    d = features.shape[1]
    directions, residuals, spectra = np.zeros((classes, d)), np.zeros((classes, residual, d)), np.zeros((classes, 3))
    for c in range(classes):
        class_features = features[labels == c]
        if not len(class_features) or not class_features.any():
            continue
        _, s, v = np.linalg.svd(class_features, full_matrices=False)
        rank = int((s > np.finfo(np.float32).eps * max(class_features.shape) * s[0]).sum())
        k = int(np.searchsorted(np.cumsum(s), ratio / (ratio + 1) * s.sum())) + 1
        rest = v[k:rank][:residual]
        directions[c], residuals[c, : len(rest)] = v[0], rest
        spectra[c] = len(class_features), (s[0] - (s[1] if len(s) > 1 else 0)) / s[0], s[0] / s.sum()
    return directions, residuals, spectra


def class_similarity(directions: ArrayLike, sizes: ArrayLike, *, least: int = 20) -> tuple[float, float]:
    """Mean and mean square of |v_i . v_j| over pairs of classes; 0 and 0 without a pair.

    Parameters
    ----------
    directions : (C, d)
        Unit vectors; zeros for a class without samples.
    sizes : (C,)
        Samples of each class.
    least : int
        Classes with fewer samples are left out, if two others are left.

    Examples
    --------
    >>> class_similarity([[1, 0], [0.6, 0.8], [0, 1]], [30, 30, 5])
    (0.6, 0.36)
    """
    directions, sizes = np.asarray(directions, np.float64), np.asarray(sizes)
    used = np.flatnonzero(sizes >= least)
    used = used if len(used) > 1 else np.flatnonzero(np.abs(directions).sum(1))
    if len(used) < 2:
        return 0.0, 0.0
    pairs = np.abs(directions[used] @ directions[used].T)[np.triu_indices(len(used), 1)]
    return float(pairs.mean()), float(np.square(pairs).mean())


def merge_subspaces(
    directions: np.ndarray, residuals: np.ndarray, spectra: np.ndarray, *, least: int = 100, strength: float = 0.03
) -> tuple[np.ndarray, np.ndarray]:
    """Merge K clients to a consensus: directions (C, d) and residuals (C, R, d).

    The direction of a class is the first eigenvector of the weighted mean of v v^T, and its residuals are the first R
    eigenvectors of the weighted mean of V^T V.  A client weighs n gap share of its spectrum, 0 with fewer than `least` samples
    of the class.  Without weights, or if the two largest eigenvalues of the mean of v v^T differ by less than `strength`, the
    vectors of the client with most samples are taken.  A class without samples has zeros.

    Parameters
    ----------
    directions : (K, C, d)
    residuals : (K, C, R, d)
    spectra : (K, C, 3)
    least : int
    strength : float
    """
    merged: np.ndarray = np.zeros(directions.shape[1:])
    rest: np.ndarray = np.zeros(residuals.shape[1:])
    for c in range(directions.shape[1]):
        n = spectra[:, c, 0]
        largest = int(n.argmax())
        merged[c], rest[c] = directions[largest, c], residuals[largest, c]
        weights = np.where(n >= least, spectra[:, c].prod(-1), 0.0)
        if weights.sum() <= 0:
            continue
        weights = weights / weights.sum()
        values, vectors = np.linalg.eigh(np.einsum("k,ki,kj->ij", weights, directions[:, c], directions[:, c]))
        if len(values) > 1 and values[-1] - values[-2] < strength:
            continue
        merged[c] = vectors[:, -1]
        values, vectors = np.linalg.eigh(np.einsum("k,kri,krj->ij", weights, residuals[:, c], residuals[:, c]))
        first = vectors[:, ::-1][:, : rest.shape[1]].T
        rest[c] = 0.0
        positive = values[::-1][: len(first)] > 1e-9
        rest[c, : len(first)] = np.where(positive[:, np.newaxis], first, 0.0)
    return merged, rest


def classify_by_subspaces(features: ArrayLike, directions: np.ndarray, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classify each sample by its direction and by its residuals, (n,) and (n,) int64.

    By direction: the largest |z . v_c|.  By residuals: the smallest ||V_c z|| / sqrt(number of residual vectors).  A class
    without the vectors is never chosen; -1 if there is no class.

    Parameters
    ----------
    features : (n, d)
    directions : (C, d)
    residuals : (C, R, d)
        Rows of zeros do not count.
    """
    features = np.asarray(features, np.float64)
    aligned = np.abs(features @ directions.T)
    known = directions.any(-1)
    counts = residuals.any(-1).sum(-1)
    left = np.sqrt(np.square(np.einsum("nd,crd->ncr", features, residuals)).sum(-1) / np.maximum(counts, 1))
    along = np.where(known.any(), np.where(known, aligned, -1.0).argmax(1), -1)
    away = np.where((counts > 0).any(), np.where(counts > 0, left, np.inf).argmin(1), -1)
    return along, away


def lower_group(points: ArrayLike, *, starts: int = 30, threshold: float = 0.5) -> np.ndarray:
    """Select the members (N,) bool of the Gaussian with the smaller mean of the first statistic, of two fitted Gaussians.

    Statistics are standardized first.  Fewer than two points, or equal points, are all members.

    Parameters
    ----------
    points : (N, D) finite numbers
    starts : int >= 1
        Initializations; the fit with the largest likelihood is used.
    threshold : float
        Least probability of a member.
    """
    points = np.asarray(points, np.float64)
    if len(points) < 2 or np.allclose(points, points[0]):
        return np.ones(len(points), bool)
    z = (points - points.mean(0)) / (points.std(0) + 1e-12)
    fits = [gaussians(z, seed=seed, steps=2000) for seed in range(starts)]
    share, means, *_ = max(fits, key=lambda fit: _log_likelihood(z, *fit[1:]))
    return share[:, means[:, 0].argmin()] >= threshold


def _log_likelihood(points, means, covariances, weights):
    terms = []
    for mean, covariance, weight in zip(means, covariances, weights, strict=True):
        away = points - mean
        distance = (away * np.linalg.solve(covariance, away.T).T).sum(1)
        terms.append(np.log(max(weight, 1e-300)) - 0.5 * (distance + np.linalg.slogdet(covariance)[1]))
    return np.logaddexp(*terms).sum()
