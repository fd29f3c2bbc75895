"""Gaussian classifier with one covariance, from counts, class sums and second moments of features."""

from math import isqrt

import numpy as np

from fnlkit.errors import InputError


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities (..., C) of logits (..., C)."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    shifted /= shifted.sum(-1, keepdims=True)
    return shifted


def triangle(square: np.ndarray) -> np.ndarray:
    """Return the upper triangle (d (d + 1) / 2,) of a symmetric matrix (d, d)."""
    return square[np.triu_indices(len(square))]


def symmetric(upper: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix (d, d) of an upper triangle (d (d + 1) / 2,)."""
    side = (isqrt(8 * len(upper) + 1) - 1) // 2
    out = np.zeros((side, side), upper.dtype)
    out[np.triu_indices(side)] = upper
    return out + np.triu(out, 1).T


def within_classes(counts: np.ndarray, sums: np.ndarray, moments: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (class means (C, D), covariance within the classes (D, D) + `ridge` times the mean variance).

    A class without samples has the mean 0.  Source: Friedman 1989, Regularized discriminant analysis, equation 18 up to a
    factor, with a pooled covariance.

    Parameters
    ----------
    counts : (C,)
    sums : (C, D)
        Sum of features by class.
    moments : (D, D)
        Sum of x x' over the same samples.
    ridge : float >= 0
    """
    means = sums / np.maximum(counts, 1e-9)[:, None]
    covariance = (moments - (means.T * counts) @ means) / max(float(np.sum(counts)), 1e-9)
    average = max(float(np.trace(covariance)), 0.0) / max(len(covariance), 1)
    covariance[np.diag_indices_from(covariance)] += ridge * average + 1e-9
    return means, covariance


def gaussian_head(counts: np.ndarray, sums: np.ndarray, moments: np.ndarray, ridge: float) -> np.ndarray:
    """Return the weights and, in the last row, the biases (D + 1, C) of the classifier; parameters as for `within_classes`.

    Raises
    ------
    InputError
        If the covariance is not positive definite: the sums do not belong to the same samples.
    """
    means, covariance = within_classes(counts, sums, moments, ridge)
    try:
        np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        raise InputError("the covariance of the clients' features is not positive definite; increase `ridge`") from None
    weights = np.linalg.solve(covariance, means.T)
    shares = np.maximum(counts, 1e-9) / np.sum(counts)
    return np.concatenate([weights, (np.log(shares) - 0.5 * (means.T * weights).sum(0))[None]])
