"""Class thresholds and confident counts: two passes over the probabilities (Northcutt et al. 2021, section 3.1).

Rationale
---------
Each lane of a vector has a row of its own: the rows of a block are transposed, and comparisons need no search within a
vector. Short rows leave no lane unused: ten classes are transposed as eight and two, so that nothing after a row is read.
"""

from typing import Any

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.lanes import (
    at_least,
    at_most,
    below,
    choose,
    gather_columns,
    gather_tile,
    larger,
    load,
    smaller,
    splat,
    store,
)

gather_half, gather_quarter, gather_eighth, gather_one = map(gather_columns, (2, 4, 8, 16))
# Largest deviation of the sum of a row from 1, and of a probability below 0, for rounding.
SUM_SLACK, LOW_SLACK = 1e-2, 1e-6


@inline
def transpose_rows(probs: np.ndarray, classes: int, first: int, last: int, starts: np.ndarray, columns: np.ndarray) -> None:
    """Write the rows first, first + 1, ... as columns[c * width + lane]; lanes after row last - 1 repeat this row.

    `columns` has width * (classes rounded up to whole vectors) entries; those after the last class are unspecified.  `starts`
    has the multiples of `classes`.
    """
    width, at = 64 // probs.itemsize, 0
    if first + width <= last:
        while at + width <= classes:
            gather_tile(probs, starts, first * classes + at, columns, at * width)
            at += width
        if classes & width >> 1:
            gather_half(probs, starts, first * classes + at, columns, at * width)
            at += width >> 1
        if classes & width >> 2:
            gather_quarter(probs, starts, first * classes + at, columns, at * width)
            at += width >> 2
        if classes & width >> 3:
            gather_eighth(probs, starts, first * classes + at, columns, at * width)
            at += width >> 3
        if at < classes:
            gather_one(probs, starts, first * classes + at, columns, at * width)
        return
    for lane in range(width):  # an incomplete block
        row = min(first + lane, last - 1) * classes
        for c in range(classes):
            columns[c * width + lane] = probs[row + c]


@inline
def judge_lanes(columns: np.ndarray, classes: int, limits: np.ndarray, low: Any) -> tuple[Any, Any, Any]:
    """Return the class in which each lane is confident, number `classes` for none, the sums of the lanes, and the minima.

    A row is confident in the only class with p >= limit; of several, in the most probable class of all, the first if equal.
    """
    width = len(columns) // len(limits)
    one, none = splat(columns.dtype.type(1)), splat(columns.dtype.type(classes))
    zero = one - one
    # Class c adds classes + c to `code`: the number of confident classes and, of a single one, the class.
    code, sums, here, where, best = zero, zero, none, none, splat(columns.dtype.type(-np.inf))
    for c in range(classes):
        p = load(columns, c * width)
        code = choose(at_least(p, splat(limits[c])), code + here, code)
        where = choose(below(best, p), here, where)
        best, low = larger(p, best), smaller(p, low)
        here, sums = here + one, sums + p
    single = choose(below(zero, code), code - none, none)
    return choose(at_least(code, none + none), where - none, single), sums, low


@inline
def largest_lanes(columns: np.ndarray, classes: int, limits: np.ndarray) -> Any:
    """Return the most probable class of each lane, the first of equal ones, or number `classes` if its p < limit."""
    width = len(columns) // len(limits)
    one, none = splat(columns.dtype.type(1)), splat(columns.dtype.type(classes))
    here, where, best = one - one, none, splat(columns.dtype.type(-np.inf))
    for c in range(classes):
        p = load(columns, c * width)
        where = choose(below(best, p), choose(at_least(p, splat(limits[c])), here, none), where)
        best, here = larger(p, best), here + one
    return where


@inline
def are_sums(sums: Any, number: np.ndarray) -> int:
    """Return a mask of the lanes whose sum is 1 up to `SUM_SLACK`; a sum of NaN is none.  `number` has the type of the sums."""
    kind = number.dtype.type
    return at_least(sums, splat(kind(1 - SUM_SLACK))) & at_most(sums, splat(kind(1 + SUM_SLACK)))


@kernel
def are_probabilities(probs: np.ndarray, classes: int, start: int, stop: int) -> bool:
    """Return whether the rows start..stop of probs (n * classes,) have no negative number or NaN and sum to 1."""
    width = 64 // probs.itemsize
    starts, columns = np.arange(width) * classes, np.empty(-(-classes // width) * width * width, probs.dtype)
    low, fine = splat(probs.dtype.type(np.inf)), -1
    for first in range(start, stop, width):
        transpose_rows(probs, classes, first, stop, starts, columns)
        sums = splat(probs.dtype.type(0))
        for c in range(classes):
            p = load(columns, c * width)
            low, sums = smaller(p, low), sums + p
        fine &= are_sums(sums, probs) | -1 << width
    return fine == -1 and not below(low, splat(probs.dtype.type(-LOW_SLACK)))


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
    """Add 1 to counts[client, true * classes + label] for each row that is confident in a class `true` (`judge_lanes`).

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
        Whether all rows are probabilities (`are_probabilities`).  If False, the counts must not be used.
    """
    width = 64 // probs.itemsize
    starts, true = np.arange(width) * classes, np.empty(width, probs.dtype)
    columns = np.empty(limits.shape[1] * width, probs.dtype)
    low, fine = splat(probs.dtype.type(np.inf)), -1
    for client in range(len(offsets) - 1):
        last = min(offsets[client + 1], stop)
        for first in range(max(offsets[client], start), last, width):
            transpose_rows(probs, classes, first, last, starts, columns)
            found, sums, low = judge_lanes(columns, classes, limits[client], low)
            if largest:
                found = largest_lanes(columns, classes, limits[client])
            fine &= are_sums(sums, probs) | -1 << width
            store(true, 0, found)
            for i in range(min(width, last - first)):
                # The product with `classes` in float32 would be rounded above 4,096 classes.
                true_class = np.int64(np.int32(true[np.uint64(i)]))
                counts[client, np.uint64(true_class * classes + labels[np.uint64(first + i)])] += 1
    return fine == -1 and not below(low, splat(probs.dtype.type(-LOW_SLACK)))
