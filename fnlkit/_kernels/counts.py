"""Class thresholds and confident counts: two passes over the probabilities (Northcutt et al. 2021, section 3.1).

Rationale
---------
Each lane of a vector has a row of its own: the rows of a block are transposed, and comparisons need no search within a
vector. Short rows, of ten classes, leave no lane unused.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.lanes import at_least, below, choose, gather_tile, larger, load, not_numbers, splat, store


@inline
def transpose_rows(probs: np.ndarray, classes: int, starts: np.ndarray, start: int, columns: np.ndarray) -> None:
    """Write probs[start + starts[lane] + c] to columns[c * width + lane], for increasing starts of a vector of rows.

    `columns` has width * (classes rounded up to whole vectors) entries; those after the last class are unspecified.
    """
    width = 64 // probs.itemsize
    if start + starts[width - 1] + len(columns) // width <= len(probs):
        for at in range(0, classes, width):
            gather_tile(probs, starts, start + at, columns, at * width)
        return
    for lane in range(width):  # near the end of the array, where a tile would read after it
        for c in range(classes):
            columns[c * width + lane] = probs[start + starts[lane] + c]


@inline
def confident_lanes(columns: np.ndarray, classes: int, limits: np.ndarray, largest: bool) -> tuple[Any, Any]:
    """Return the class that each lane is confident in, number `classes` for none, and the sums of the lanes.

    A row is confident in the only class with p >= limit; of several, in the most probable class of all. With `largest`, in the
    most probable class if p >= limit. Of equal classes, in the first one.
    """
    width = len(columns) // len(limits)
    zero, one, none = splat(columns.dtype.type(0)), splat(columns.dtype.type(1)), splat(columns.dtype.type(classes))
    # Class c adds classes + c to `code`: the number of confident classes and, of a single one, the class.
    code, sums, here = zero, zero, none
    for c in range(classes):
        p = load(columns, c * width)
        code = choose(at_least(p, splat(limits[c])), code + here, code)
        here, sums = here + one, sums + p
    single = choose(below(zero, code), code - none, none)
    several = at_least(code, none + none)
    if not (largest or several):
        return single, sums
    best, where, reached, here = splat(columns.dtype.type(-np.inf)), none, none, zero
    for c in range(classes):
        p = load(columns, c * width)
        more = below(best, p)
        best, where = larger(p, best), choose(more, here, where)
        reached, here = choose(more, choose(at_least(p, splat(limits[c])), here, none), reached), here + one
    return reached if largest else choose(several, where, single), sums


@kernel
def label_sums(
    probs: np.ndarray,
    labels: np.ndarray,
    classes: int,
    offsets: np.ndarray,
    start: int,
    stop: int,
    sums: np.ndarray,
    members: np.ndarray,
) -> int:
    """Sum the probability of each row's given label by client and label, for the rows start..stop.

    Parameters
    ----------
    probs : (n * classes,)
    labels : (n,) int64
    offsets : (K + 1,) int64
    sums, members : (K, classes) float64, int64
        Updated in place.

    Returns
    -------
    int
        The first row with a label out of range, or -1.
    """
    for client in range(len(offsets) - 1):
        first, last = max(offsets[client], start), min(offsets[client + 1], stop)
        for i in range(first, last):
            label = np.uint64(labels[i])  # of a negative label, a large number
            if label >= np.uint64(classes):
                return i
            sums[client, label] += probs[np.uint64(i * classes) + label]
            members[client, label] += 1
    return -1


@kernel
def count_confident(
    probs: np.ndarray,
    labels: np.ndarray,
    classes: int,
    offsets: np.ndarray,
    limits: np.ndarray,
    largest: bool,
    counts: np.ndarray,
    start: int,
    stop: int,
) -> bool:
    """Add 1 to counts[client, true * classes + label] for each row that is confident in a class `true` (`confident_lanes`).

    A row without confident class is counted for class number `classes`, which the caller drops: storing always is cheaper than
    branching. Processes the rows start..stop.

    Parameters
    ----------
    probs : (n * classes,)
    labels : (n,) int64, each in 0..classes-1
    offsets : (K + 1,) int64
    limits : (K, classes rounded up to whole vectors)
    counts : (K, (classes + 1) * classes) int64

    Returns
    -------
    bool
        True if a probability is NaN; can be True without NaN.  If True, the counts must not be used.
    """
    width = 64 // probs.itemsize
    starts, true = np.arange(width) * classes, np.empty(width, probs.dtype)
    columns = np.empty(limits.shape[1] * width, probs.dtype)
    nans = 0
    for client in range(len(offsets) - 1):
        last = min(offsets[client + 1], stop)
        for first in range(max(offsets[client], start), last, width):
            for lane in range(width if last - first < width else 0):  # an incomplete block repeats its last row
                starts[lane] = min(lane, last - first - 1) * classes
            transpose_rows(probs, classes, starts, first * classes, columns)
            found, sums = confident_lanes(columns, classes, limits[client], largest)
            nans |= not_numbers(sums, sums)
            store(true, 0, found)
            for i in range(first, min(first + width, last)):
                counts[client, np.uint64(int(true[i - first]) * classes + labels[i])] += 1
            for lane in range(width if last - first < width else 0):
                starts[lane] = lane * classes
    return nans != 0
