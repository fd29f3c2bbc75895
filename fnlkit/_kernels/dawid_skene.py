"""Expectation maximization over votes that are sorted by sample (Dawid and Skene 1979), one pass over the votes per round.

Rationale
---------
rounding      Posteriors and logarithms are rounded to multiples of 2^-30.  Sums of fewer than 2^23 such numbers of size 1 are
              exact, so that no result depends on the order of samples, votes or annotators.  Ties stay ties: rounding errors
              of plain sums would decide them, and rounds would amplify them.
layout        A vote is a row `annotator * classes + label` of the matrices; the true class is the last axis, so that a vote
              adds one contiguous row.
"""

import math

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.learning import exp_negative

_UNIT = 2.0**30


@inline
def _rounded(x):
    return np.rint(x * _UNIT) / _UNIT


@kernel
def start(offsets: np.ndarray, rows: np.ndarray, posterior: np.ndarray, counts: np.ndarray, mass: np.ndarray) -> None:
    """Write the share of each class among the votes of a sample to `posterior` (m, C), and add it to `counts` and `mass`.

    Parameters
    ----------
    offsets : (m + 1,) int64
        The votes of sample i are offsets[i]:offsets[i + 1]; at least one.
    rows : (v,) int64
        annotator * C + label.
    counts : (A * C, C)
        Sum of the posteriors of the samples with this vote.
    mass : (C,)
        Sum of the posteriors of all samples.
    """
    classes = posterior.shape[1]
    for i in range(len(offsets) - 1):
        for t in range(classes):
            posterior[i, t] = 0.0
        for j in range(offsets[i], offsets[i + 1]):
            posterior[i, rows[j] % classes] += 1.0
        for t in range(classes):
            posterior[i, t] = _rounded(posterior[i, t] / (offsets[i + 1] - offsets[i]))
            mass[t] += posterior[i, t]
        for j in range(offsets[i], offsets[i + 1]):
            for t in range(classes):
                counts[rows[j], t] += posterior[i, t]


@kernel
def maximize(
    counts: np.ndarray,
    mass: np.ndarray,
    prior: float,
    strength: float,
    error: np.ndarray,
    logs: np.ndarray,
    share_logs: np.ndarray,
) -> None:
    """Write error rates (A * C, C), their logarithms, and the logarithms of the class shares (C,).

    Rates are shrunk by `strength` labels of each class to the rates of all annotators, to which `prior` right labels of each
    class are added.
    """
    classes = counts.shape[1]
    samples = 0.0
    for t in range(classes):
        samples += mass[t]
    for t in range(classes):
        share_logs[t] = _rounded(math.log(max(mass[t] / samples, 1e-300)))
    common = np.zeros((classes, classes))
    for row in range(len(counts)):
        for t in range(classes):
            common[row % classes, t] += counts[row, t]
    for t in range(classes):
        common[t, t] += prior
    _scale(common, common, 0, 0.0)
    for first in range(0, len(counts), classes):
        for label in range(classes):
            for t in range(classes):
                error[first + label, t] = counts[first + label, t]
        _scale(error, common, first, strength)
        for label in range(classes):
            for t in range(classes):
                logs[first + label, t] = _rounded(math.log(max(error[first + label, t], 1e-300)))


@inline
def _scale(rates, common, first, strength):
    """Add `strength` common labels to the rows of an annotator, and scale the rates of each true class to sum to 1."""
    classes = len(common)
    for t in range(classes):
        total = 0.0
        for label in range(classes):
            rates[first + label, t] += strength * common[label, t]
            total += rates[first + label, t]
        for label in range(classes):
            rates[first + label, t] = rates[first + label, t] / total if total > 0 else 1.0 / classes


@kernel
def expect(
    offsets: np.ndarray,
    rows: np.ndarray,
    logs: np.ndarray,
    share_logs: np.ndarray,
    posterior: np.ndarray,
    counts: np.ndarray,
    mass: np.ndarray,
) -> float:
    """Infer all posteriors, add them to `counts` and `mass` as in `start`, and return the largest change of a posterior."""
    classes = len(share_logs)
    score = np.empty(classes)
    moved = 0.0
    for i in range(len(offsets) - 1):
        for t in range(classes):
            score[t] = share_logs[t]
        for j in range(offsets[i], offsets[i + 1]):
            row = rows[j]
            for t in range(classes):
                score[t] += logs[row, t]
        high = score[0]
        for t in range(1, classes):
            high = max(high, score[t])
        for t in range(classes):
            score[t] = exp_negative(score[t] - high)
        total = 0.0
        for t in range(classes):
            total += score[t]
        for t in range(classes):
            value = _rounded(score[t] / total)
            moved = max(moved, abs(value - posterior[i, t]))
            posterior[i, t] = value
            mass[t] += value
            score[t] = value
        for j in range(offsets[i], offsets[i + 1]):
            row = rows[j]
            for t in range(classes):
                counts[row, t] += score[t]
    return moved
