"""Gaussian classifier with one covariance, from counts, class sums and second moments of features."""

import contextlib
from math import isqrt

import numpy as np

from fnlkit.core.errors import InputError

# Least mean variance within the classes, as a share of the mean square.
LEAST = 1e-4


def softmax(logits: np.ndarray) -> np.ndarray:
    """Turn logits (..., C) into probabilities (..., C)."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    shifted /= shifted.sum(-1, keepdims=True)
    return shifted


def triangle(square: np.ndarray) -> np.ndarray:
    """Flatten a symmetric matrix (d, d) to its upper triangle (d (d + 1) / 2,)."""
    return square[np.triu_indices(len(square))]


def symmetric(upper: np.ndarray) -> np.ndarray:
    """Restore the symmetric matrix (d, d) from its upper triangle (d (d + 1) / 2,)."""
    side = (isqrt(8 * len(upper) + 1) - 1) // 2
    matrix = np.zeros((side, side), upper.dtype)
    matrix[np.triu_indices(side)] = upper
    return matrix + np.triu(matrix, 1).T


def within_classes(
    counts: np.ndarray, sums: np.ndarray, moments: np.ndarray, ridge: float, *, keep: float = 1.0, prior: float = 0.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimate classes from sums: numbers (C,), means (C, D) and the shrunken covariance within the classes (D, D).

    The covariance is `keep` S + `ridge` t I, where t is the mean variance, or at least `LEAST` of the mean square.  A class
    without samples has the mean 0.

    Source: Friedman 1989, Regularized discriminant analysis, equation 18 with a pooled covariance and keep = 1 - ridge.

    Parameters
    ----------
    counts : (C,)
    sums : (C, D)
        Sum of features by class.
    moments : (D, D)
        Sum of x x' over the same samples.
    ridge, keep : float >= 0
    prior : float >= 0
        Samples at the origin that are added to each class.
    """
    number, total = counts + prior, max(float(np.sum(counts)), 1e-9)
    means = sums / np.maximum(number, 1e-9)[:, None]
    covariance = (moments - (means.T * number) @ means) / total
    # Without a variance within the classes, as where a feature is the label or a class has one sample, the weights stay finite.
    average = max(float(np.trace(covariance)), LEAST * float(np.trace(moments)) / total, 0.0) / max(len(covariance), 1)
    return number, means, keep * covariance + (ridge * average + 1e-9) * np.eye(len(covariance))


def gaussian_head(counts: np.ndarray, sums: np.ndarray, moments: np.ndarray, ridge: float, *, prior: float = 0.0) -> np.ndarray:
    """Solve the Gaussian classifier from sums: weights, and biases in the last row (D + 1, C); see `within_classes`.

    Raises
    ------
    InputError
        If the covariance has clearly negative eigenvalues: the sums do not belong to the same samples.
    """
    number, means, covariance = within_classes(counts, sums, moments, ridge, prior=prior)
    covariance = _positive_definite(covariance, float(np.trace(moments)) / max(float(np.sum(counts)), 1e-9))
    weights = np.linalg.solve(covariance, means.T)
    shares = np.maximum(number, 1e-9) / max(float(np.sum(number)), 1e-9)
    return np.concatenate([weights, (np.log(shares) - 0.5 * (means.T * weights).sum(0))[None]])


def _positive_definite(covariance, square):
    """Raise the smallest eigenvalues (D, D) of a covariance where rounding of the sums made it singular or indefinite.

    `square` is the mean squared length of the samples, which the rounding is proportional to.
    """
    with contextlib.suppress(np.linalg.LinAlgError):
        np.linalg.cholesky(covariance)
        return covariance
    values, axes = np.linalg.eigh(covariance) if np.isfinite(covariance).all() else ([-np.inf], None)
    if values[0] < -LEAST * square:
        raise InputError("the covariance of the clients' features is not positive definite: their sums contradict each other")
    return (axes * np.maximum(values, LEAST * square / len(values))) @ axes.T


def discriminant(
    counts: np.ndarray, sums: np.ndarray, moments: np.ndarray, shrinkage: float = 0.1
) -> tuple[np.ndarray, np.ndarray]:
    """Compute (coefficients (C, D), offsets (C,)) of the classifier with the covariance (1 - s) S + s t I.

    A class without samples has a large negative offset.  Parameters as for `within_classes`.
    """
    _, means, covariance = within_classes(counts, sums, moments, shrinkage, keep=1 - shrinkage)
    coefficients = np.linalg.solve(covariance, means.T).T
    offsets = np.log(np.maximum(counts, 1.0) / max(1.0, np.sum(counts))) - 0.5 * (coefficients * means).sum(1)
    return np.where(counts[:, None] > 0, coefficients, 0), np.where(counts > 0, offsets, -1e3)
