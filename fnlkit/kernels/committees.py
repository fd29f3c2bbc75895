"""Weights for several classifiers, from their predictions for samples with wrong labels that they were not trained on."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.core.errors import InputError
from fnlkit.kernels.annotator import fit_annotator
from fnlkit.kernels.inversion import invert_transition

# Share of right labels that the first transition matrix assumes, and the number of updates by expectation maximization.
RIGHT, PASSES = 0.6, 10
# The smallest weight, the draws of the agreements, and the largest usable entry of an inverted transition matrix.
LEAST, DRAWS, LARGEST = 0.05, 10_000, 10.0


def first_transition(classes: int) -> NDArray[np.float64]:
    """The matrix T[true, given] (C, C) before the first update, as in `fedem`."""
    return RIGHT * np.eye(classes) + (1 - RIGHT) / classes


def count_expected(probabilities: ArrayLike, given: ArrayLike, matrix: ArrayLike) -> NDArray[np.float64]:
    """Count expected samples by true and given class (C, C); the counts of several clients can be added.

    Each sample counts by q(z) ~ p(z|x) T[z, y] (Dawid, Skene 1979, with a classifier in place of class shares).

    Parameters
    ----------
    probabilities : (n, C)
        Class probabilities of a classifier that was not trained on these labels.
    given : (n,) int
        Given labels, 0..C-1.
    matrix : (C, C)
        T of the last update.
    """
    return fit_annotator(np.maximum(probabilities, 1e-4), given, matrix, strength=1.0, steps=0).counts


def next_transition(counts: ArrayLike) -> NDArray[np.float64]:
    """Update the matrix (C, C) from expected counts (C, C), with half a right label of each class added."""
    counts = np.asarray(counts, np.float64)
    counts = counts + 0.5 * np.eye(len(counts)) + 0.01
    return counts / counts.sum(1, keepdims=True)


def usable_inverse(matrix: ArrayLike) -> NDArray[np.float64] | None:
    """Invert a transition matrix (C, C); None if it is singular or an entry exceeds 10."""
    try:
        inverse = np.asarray(invert_transition(matrix)[0], np.float64)
    except InputError:
        return None
    return inverse if np.abs(inverse).max() <= LARGEST else None


def correct_agreement(predicted: ArrayLike, given: ArrayLike, inverse: ArrayLike) -> NDArray[np.float64]:
    """Compute values (M, n) whose mean estimates the accuracy of M classifiers.

    The value of a sample is inv(T)[given, predicted]: its expectation over the given label is 1 for the true class and 0 for
    any other class, if the labels follow T (Patrini et al., CVPR 2017, theorem 1, with the agreement in place of a loss).  The
    identity as inverse gives the agreement with the given labels.

    Parameters
    ----------
    predicted : (M, n) int
    given : (n,) int
    inverse : (C, C)
        For example of `usable_inverse`.

    Examples
    --------
    >>> correct_agreement([[0, 1]], [0, 0], usable_inverse([[0.75, 0.25], [0.25, 0.75]])).round(3).tolist()
    [[1.5, -0.5]]
    """
    return np.asarray(inverse, np.float64)[np.asarray(given), np.asarray(predicted)]


def find_weights(products: ArrayLike, rng: np.random.Generator) -> NDArray[np.float64]:
    """Probability (M,) that each classifier has the largest accuracy; below 5 % it is 0.

    If all are below 5 %, the largest remains. The estimates are normal, with the means and covariances of the samples.

    Parameters
    ----------
    products : (M + 1, M + 1)
        v v' for v = (1, values of a sample), summed over the samples; such sums of several clients can be added.
    rng : numpy.random.Generator

    Raises
    ------
    InputError
        If there are no samples.

    Examples
    --------
    >>> values = np.array([[1.0] * 80 + [0.0] * 20, [1.0] * 60 + [0.0] * 40])
    >>> find_weights(sum_products(values), np.random.default_rng(0)).tolist()
    [1.0, 0.0]
    """
    products = np.asarray(products, np.float64)
    samples = products[0, 0]
    if samples < 1:
        raise InputError("find_weights: there are no samples; `products` is a sum over samples")
    means = products[0, 1:] / samples
    covariance = (products[1:, 1:] / samples - np.outer(means, means)) / samples
    drawn = rng.multivariate_normal(means, covariance, DRAWS, check_valid="ignore", method="eigh")
    drawn += 1e-9 * rng.standard_normal(drawn.shape)  # equal predictions share the probability
    weights = np.bincount(drawn.argmax(1), minlength=len(means)) / DRAWS
    weights[weights < min(LEAST, weights.max())] = 0  # of many equal classifiers, none reaches it
    return weights / weights.sum()


def sum_products(values: ArrayLike) -> NDArray[np.float64]:
    """Sum values (M, n) of `correct_agreement` to the argument (M + 1, M + 1) of `find_weights`."""
    values = np.asarray(values, np.float64)
    rows = np.concatenate([np.ones((1, values.shape[1])), values])
    return rows @ rows.T
