"""Class thresholds and confident counts: two passes over the probabilities (Northcutt et al. 2021, section 3.1).

Positions are unsigned where they are not known to be positive: numba tests signed positions, because negative ones count from
the end, and the test takes a quarter of the time of these short loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.lanes import (
    at_least,
    below,
    choose,
    count_bits,
    equal,
    first_bit,
    larger,
    largest,
    load,
    load_some,
    not_numbers,
    smallest,
    splat,
)


@inline
def sum_rows(
    probs: np.ndarray, labels: np.ndarray, classes: int, start: int, stop: int, sums: np.ndarray, members: np.ndarray
) -> int:
    """Add p[i, labels[i]] to sums[labels[i]] and 1 to members[labels[i]].

    Returns the first row with a label out of range, or -1.
    """
    row, after = np.uint64(start * classes), np.uint64(classes)
    for i in range(start, stop):
        label = np.uint64(labels[i])  # of a negative label, a large number
        if label >= after:
            return i
        sums[label] += probs[row + label]
        members[label] += 1
        row += after
    return -1


# Number of rows that are classified before any row is counted. The address of a count is known late, and a processor that has
# seen two increments of the same count in a row delays all following loads.
TOGETHER = 64
# Up to this number of rows with several confident classes, only these rows are searched for the largest probability.
FEW = 24


@inline
def count_rows(
    probs: np.ndarray, labels: np.ndarray, classes: int, limits: np.ndarray, counts: np.ndarray, start: int, stop: int
) -> bool:
    """Count the rows of one client; see `count_confident`."""
    width = 64 // probs.itemsize
    true, several = np.empty(TOGETHER, np.int64), 0
    sums = splat(probs.dtype.type(0))
    lanes = np.arange(width).astype(probs.dtype)
    for first in range(start, stop, TOGETHER):
        last = min(first + TOGETHER, stop)
        if classes > width:
            sums = judge_long(probs, classes, limits, lanes, first, last, true, sums)
        elif several <= FEW:  # as in the rows before
            sums, several = judge_few(probs, classes, limits, first, last, true, sums)
        else:
            sums, several = judge_short(probs, classes, limits, first, last, true, sums)
        for i in range(first, last):
            counts[np.uint64(true[np.uint64(i - first)] * classes + labels[np.uint64(i)])] += 1
    return not_numbers(sums, sums) != 0


@inline
def judge_short(
    probs: np.ndarray, classes: int, limits: np.ndarray, start: int, stop: int, true: np.ndarray, sums: Any
) -> tuple[Any, int]:
    """Write the class of each row to `true`, for rows that fit into one vector.

    Returns `sums` plus the entries of the rows, which contains NaN if a row does, and the number of rows with several
    confident classes.
    """
    tail, nothing, number = (1 << classes) - 1, -np.inf, 0
    limit = load(limits, 0)
    for i in range(start, stop):
        p = load_some(probs, i * classes, tail, nothing)
        sums = sums + p
        confident = at_least(p, limit)
        top = equal(p, splat(largest(p)))
        # A single confident class is chosen; of several, the class with the largest probability; of none, number `classes`.
        single = confident & (confident - 1) == 0
        number += not single
        chosen = confident if single else top
        true[np.uint64(i - start)] = first_bit(chosen | 1 << classes)
    return sums, number


@inline
def judge_few(
    probs: np.ndarray, classes: int, limits: np.ndarray, start: int, stop: int, true: np.ndarray, sums: Any
) -> tuple[Any, int]:
    """Do the same as `judge_short`, in less time if few rows have several confident classes."""
    tail, nothing, several = (1 << classes) - 1, -np.inf, 0  # bit i of `several`: row start + i
    limit = load(limits, 0)
    for i in range(start, stop):
        p = load_some(probs, i * classes, tail, nothing)
        sums = sums + p
        confident = at_least(p, limit)
        true[np.uint64(i - start)] = first_bit(confident | 1 << classes)
        several |= (confident & (confident - 1) != 0) << (i - start)
    number = count_bits(several)
    for _ in range(number):
        i = first_bit(several)
        several &= several - 1
        p = load_some(probs, (start + i) * classes, tail, nothing)
        true[i] = first_bit(equal(p, splat(largest(p))) | 1 << classes)
    return sums, number


@inline
def judge_long(
    probs: np.ndarray, classes: int, limits: np.ndarray, lanes: np.ndarray, start: int, stop: int, true: np.ndarray, sums: Any
) -> Any:
    """Write the class of each row to `true`, for rows of several vectors.

    `lanes` (width,) contains 0, 1, ....  Returns the same as `judge_short`.
    """
    width = 64 // probs.itemsize
    behind = (classes - 1) // width * width
    tail, nothing = (1 << (classes - behind)) - 1, -np.inf
    step = splat(probs.dtype.type(width))
    for i in range(start, stop):
        row = i * classes
        p, here = load(probs, row), load(lanes, 0)
        confident = at_least(p, load(limits, 0))
        best, where, some = p, here, p
        found, number = first_bit(confident), count_bits(confident)
        for at in range(width, behind, width):
            p, here = load(probs, row + at), here + step
            confident = at_least(p, load(limits, at))
            where = choose(below(best, p), here, where)
            best, some = larger(p, best), some + p
            found = at + first_bit(confident) if confident else found
            number += count_bits(confident)
        p, here = load_some(probs, row + behind, tail, nothing), here + step
        confident = at_least(p, load(limits, behind))
        where = choose(below(best, p), here, where)
        best, sums = larger(p, best), sums + (some + p)
        found = behind + first_bit(confident) if confident else found
        number += count_bits(confident)
        top = equal(best, splat(largest(best)))
        first = int(smallest(choose(top, where, splat(probs.dtype.type(classes)))))
        # Only a row with NaN can give an index after the last class, and this index must not be written to.
        true[np.uint64(i - start)] = min(found if number == 1 else first, classes) if number else classes
    return sums


@inline
def count_largest_rows(
    probs: np.ndarray, labels: np.ndarray, classes: int, limits: np.ndarray, counts: np.ndarray, start: int, stop: int
) -> bool:
    """Count the rows of one client whose largest probability reaches the limit; see `count_largest`."""
    width = 64 // probs.itemsize
    blocks = (classes + width - 1) // width
    behind = (blocks - 1) * width
    tail = (1 << (classes - behind)) - 1
    nothing = -np.inf
    nans = 0
    if blocks == 1:
        limit = load(limits, 0)
        for i in range(start, stop):
            p = load_some(probs, i * classes, tail, nothing)
            nans |= not_numbers(p, p)
            top = equal(p, splat(largest(p)))
            chosen = top & -top & at_least(p, limit)
            counts[np.uint64(first_bit(chosen | 1 << classes) * classes + labels[np.uint64(i)])] += 1
        return nans != 0
    for i in range(start, stop):
        row = i * classes
        best = load_some(probs, row + behind, tail, nothing)
        nans |= not_numbers(best, best)
        block = splat(probs.dtype.type(blocks - 1))
        for b in range(blocks - 2, -1, -1):  # backwards, so that the first of equal probabilities wins
            p = load(probs, row + b * width)
            nans |= not_numbers(p, p)
            block = choose(at_least(p, best), splat(probs.dtype.type(b)), block)
            best = larger(p, best)
        top = equal(best, splat(largest(best)))
        first = smallest(choose(top, block, splat(probs.dtype.type(blocks))))
        true = int(first) * width + first_bit(top & equal(block, splat(first)) | 1 << (width - 1))
        # Only a row with NaN can give an index after the last class.
        true = min(true, classes)
        if true < classes and probs[row + true] < limits[true]:
            true = classes
        counts[np.uint64(true * classes + labels[np.uint64(i)])] += 1
    return nans != 0


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
        if first < last:
            wrong = sum_rows(probs, labels, classes, first, last, sums[client], members[client])
            if wrong >= 0:
                return wrong
    return -1


@kernel
def count_confident(
    probs: np.ndarray,
    labels: np.ndarray,
    classes: int,
    offsets: np.ndarray,
    limits: np.ndarray,
    counts: np.ndarray,
    start: int,
    stop: int,
) -> bool:
    """Add 1 to counts[client, true * classes + label] for each row that is confident in a class `true`.

    A row is confident in class c if p[c] >= limits[client, c].  A row with several confident classes is counted for the
    class with the largest probability, even if that class is not confident.  A row without confident class is counted for
    class number `classes`, which the caller drops: storing always is cheaper than branching.  Processes the rows start..stop.

    Parameters
    ----------
    probs : (n * classes,)
    labels : (n,) int64, each in 0..classes-1
    offsets : (K + 1,) int64
    limits : (K, classes rounded up to whole vectors)
        Infinity after the last class.
    counts : (K, (classes + 1) * classes) int64

    Returns
    -------
    bool
        True if a probability is NaN; can be True without NaN.  If True, the counts must not be used.
    """
    nans = False
    for client in range(len(offsets) - 1):
        first, last = max(offsets[client], start), min(offsets[client + 1], stop)
        if first < last:
            nans |= count_rows(probs, labels, classes, limits[client], counts[client], first, last)
    return nans


@kernel
def count_largest(
    probs: np.ndarray,
    labels: np.ndarray,
    classes: int,
    offsets: np.ndarray,
    limits: np.ndarray,
    counts: np.ndarray,
    start: int,
    stop: int,
) -> bool:
    """Count rows as `count_confident`, but only for the class with the largest probability.

    A row is counted for this class (the first of equal classes) if the row is confident in it.  Parameters and return value
    are the same as for `count_confident`.
    """
    nans = False
    for client in range(len(offsets) - 1):
        first, last = max(offsets[client], start), min(offsets[client + 1], stop)
        if first < last:
            nans |= count_largest_rows(probs, labels, classes, limits[client], counts[client], first, last)
    return nans
