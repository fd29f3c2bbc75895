"""Expectation maximization for the transition matrix of one annotator."""

import numpy as np

from fnlkit._kernels._compile import inline, kernel

_LEAST = 1e-300  # smallest sum of a row that is scaled


@inline
def _shrink(counts, common, strength, matrix):
    """Write the rows of counts + strength common, scaled to sum to 1."""
    for c in range(counts.shape[0]):
        total = 0.0
        for j in range(counts.shape[1]):
            matrix[c, j] = counts[c, j] + strength * common[c, j]
            total += matrix[c, j]
        for j in range(counts.shape[1]):
            matrix[c, j] /= max(total, _LEAST)


@kernel
def expect(
    p: np.ndarray,
    labels: np.ndarray,
    common: np.ndarray,
    strength: float,
    steps: int,
    before: np.ndarray,
    after: np.ndarray,
    columns: np.ndarray,
    q: np.ndarray,
) -> None:
    """Do `steps` + 1 times: compute q with the matrix of the counts `before`, and the counts `after` from q.

    `columns` (C, C) receives the last matrix with rows and columns exchanged, so that a label selects a row.  Counts after a
    step are the counts before the next step.
    """
    classes, matrix = common.shape[0], np.empty_like(common)
    for step in range(steps + 1):
        if step > 0:
            for c in range(classes):
                for j in range(classes):
                    before[c, j] = after[c, j]
        _shrink(before, common, strength, matrix)
        for c in range(classes):
            for j in range(classes):
                columns[j, c], after[c, j] = matrix[c, j], 0.0
        for i in range(labels.size):
            y, total = labels[i], 0.0
            for c in range(classes):
                q[i, c] = p[i, c] * columns[y, c]
                total += q[i, c]
            total = max(total, _LEAST)
            for c in range(classes):
                q[i, c] /= total
            for c in range(classes):
                after[c, y] += q[i, c]
