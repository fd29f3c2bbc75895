"""Weights for several classifiers, from their predictions for samples with wrong labels that they were not trained on."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.errors import InputError

# Share of right labels that the first transition matrix assumes, as in `fedem`.
RIGHT = 0.6
# The smallest weight, the draws of the agreements, and the largest usable entry of an inverted transition matrix.
LEAST, DRAWS, LARGEST = 0.05, 10_000, 10.0


def fit_transition(probabilities: ArrayLike, given: ArrayLike, *, passes: int = 10) -> NDArray[np.float64]:
    """Return the transition matrix T[true, given] (C, C) of labels, by expectation maximization.

    A pass infers q(z) ~ p(z|x) T[z, y] and counts T from it (Dawid, Skene 1979, with a classifier in place of class shares).

    Parameters
    ----------
    probabilities : (n, C)
        Class probabilities of a classifier that was not trained on these labels.
    given : (n,) int
        Given labels, 0..C-1.
    passes : int >= 1

    Examples
    --------
    >>> p = np.repeat([[0.99, 0.01], [0.01, 0.99]], 100, axis=0)
    >>> y = np.r_[np.zeros(80), np.ones(120)].astype(int)  # a fifth of the first class is labeled as the second
    >>> fit_transition(p, y).round(1).tolist()
    [[0.8, 0.2], [0.0, 1.0]]
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(given, np.int64)
    classes = p.shape[1]
    p, matrix = np.maximum(p, 1e-4), RIGHT * np.eye(classes) + (1 - RIGHT) / classes
    one_hot = np.eye(classes)[y]
    for _ in range(passes):
        q = p * matrix[:, y].T
        counts = (q / q.sum(1, keepdims=True)).T @ one_hot + 0.5 * np.eye(classes) + 0.01
        matrix = counts / counts.sum(1, keepdims=True)
    return matrix


def correct_agreement(predicted: ArrayLike, given: ArrayLike, matrix: ArrayLike) -> NDArray[np.float64]:
    """Return values (M, n) whose mean estimates the accuracy of M classifiers.

    The value of a sample is inv(T)[given, predicted]: its expectation over the given label is 1 for the true class and 0 for
    any other class, if the labels follow T.  If T is nearly singular, so that an entry of its inverse exceeds 10, the value is
    1 for a predicted given label, else 0.

    Parameters
    ----------
    predicted : (M, n) int
    given : (n,) int
    matrix : (C, C)
        Transition matrix T[true, given]; rows sum to 1.

    Examples
    --------
    >>> correct_agreement([[0, 1]], [0, 0], [[0.75, 0.25], [0.25, 0.75]]).round(3).tolist()
    [[1.5, -0.5]]
    """
    matrix = np.asarray(matrix, np.float64)
    inverse = np.eye(len(matrix))
    if np.linalg.cond(matrix) < 1 / np.finfo(float).eps:
        found = np.linalg.inv(matrix)
        inverse = found if np.abs(found).max() <= LARGEST else inverse
    return inverse[np.asarray(given), np.asarray(predicted)]


def find_weights(values: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the probability (M,) that each classifier has the largest mean; below 5 % it is 0.

    The means are normal, with the covariance of the samples.

    Parameters
    ----------
    values : (M, n)
        For example of `correct_agreement`.
    rng : numpy.random.Generator

    Raises
    ------
    InputError
        If there are no samples.

    Examples
    --------
    >>> find_weights(np.array([[1.0] * 80 + [0.0] * 20, [1.0] * 60 + [0.0] * 40]), np.random.default_rng(0)).tolist()
    [1.0, 0.0]
    """
    values = np.asarray(values, np.float64)
    if not values.size:
        raise InputError("find_weights: there are no samples; `values` must be (M, n) with n at least 1")
    covariance = np.atleast_2d(np.cov(values, bias=True)) / values.shape[1]
    drawn = rng.multivariate_normal(values.mean(1), covariance, DRAWS, check_valid="ignore", method="eigh")
    drawn += 1e-9 * rng.standard_normal(drawn.shape)  # equal predictions share the probability
    weights = np.bincount(drawn.argmax(1), minlength=len(values)) / DRAWS
    weights[weights < LEAST] = 0
    return weights / weights.sum()
