"""Change labels with given uniform draws: by a transition matrix and by randomized response."""

import numpy as np

from fnlkit._kernels._compile import kernel


@kernel
def cumulate(transition: np.ndarray, sums: np.ndarray) -> int:
    """Write the cumulative sums of each row of `transition` (C, C) to `sums`.

    The sum is infinity from the row's last possible class on, in case a row sums to slightly less than 1.

    Returns
    -------
    int
        First row that is not a distribution (negative, NaN, or a sum more than 1e-6 from 1), or -1.
    """
    classes = len(transition)
    for row in range(classes):
        so_far, last = 0.0, 0
        for c in range(classes):
            p = transition[row, c]
            if not p >= 0:
                return row
            if p > 0:
                last = c
            so_far += p
            sums[row, c] = so_far
        if not abs(so_far - 1) <= 1e-6:
            return row
        sums[row, last:] = np.inf
    return -1


@kernel
def flip(labels: np.ndarray, sums: np.ndarray, uniforms: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """Write the class whose interval in the label's row of `sums` contains the uniform draw."""
    for i in range(start, stop):
        row = sums[labels[i]]
        low, high = 0, len(row) - 1
        while low < high:
            middle = (low + high) >> 1
            if uniforms[i] >= row[middle]:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@kernel
def respond(
    labels: np.ndarray, keep: np.ndarray, uniforms: np.ndarray, classes: int, start: int, stop: int, out: np.ndarray
) -> None:
    """Keep label i with probability keep[i], by the first draw; otherwise choose another class by the second draw."""
    for i in range(start, stop):
        other = min(int(uniforms[i, 1] * (classes - 1)), classes - 2)
        other += other >= labels[i]
        out[i] = labels[i] if uniforms[i, 0] < keep[i] else other
