"""Class thresholds and confident counts: two passes over the probabilities (Northcutt et al. 2021, section 3.1)."""

import numpy as np

from fnlkit._kernels._compile import inlined, kernel
from fnlkit._kernels.lanes import (
    at_least,
    choose,
    equal,
    first_bit,
    larger,
    largest,
    load,
    load_some,
    not_numbers,
    smallest,
    spread,
)


@inlined
def sum_rows(probs, labels, classes, start, stop, sums, members):
    """Add p[i, labels[i]] to sums[labels[i]] and 1 to members[labels[i]]; returns the first row of no class, or -1."""
    for i in range(start, stop):
        label = labels[i]
        if label < 0 or label >= classes:
            return i
        sums[label] += probs[i * classes + label]
        members[label] += 1
    return -1


@inlined
def count_rows(probs, labels, classes, limits, counts, start, stop):
    """Count the rows of one client; see `count_confident`."""
    width = 64 // probs.itemsize
    blocks = (classes + width - 1) // width
    tail = (1 << (classes - (blocks - 1) * width)) - 1
    nothing = -np.inf
    nans = 0
    if blocks == 1:
        limit = load(limits, 0)
        for i in range(start, stop):
            p = load_some(probs, i * classes, tail, nothing)
            nans |= not_numbers(p, p)
            confident = at_least(p, limit)
            top = equal(p, spread(largest(p)))
            # One confident class: that one.  Several: the largest of all.
            chosen = confident if confident & (confident - 1) == 0 else top
            true = first_bit(chosen | 1 << classes)
            counts[true * classes + labels[i]] += 1
        return nans != 0
    behind = (blocks - 1) * width
    for i in range(start, stop):
        row = i * classes
        p = load_some(probs, row + behind, tail, nothing)
        confident = at_least(p, load(limits, behind))
        best, block, several = p, spread(probs.dtype.type(blocks - 1)), confident & (confident - 1)
        true = behind + first_bit(confident) if confident else classes
        nans |= not_numbers(p, p)
        # Backwards, so that what is remembered is the first: of the confident classes, and of the largest
        # probabilities.
        for b in range(blocks - 2, -1, -1):
            p = load(probs, row + b * width)
            nans |= not_numbers(p, p)
            block = choose(at_least(p, best), spread(probs.dtype.type(b)), block)
            best = larger(p, best)
            confident = at_least(p, load(limits, b * width))
            several |= confident & (confident - 1) | (0 if true == classes else confident)
            true = b * width + first_bit(confident) if confident else true
        top = equal(best, spread(largest(best)))
        # Among the lanes that hold the largest probability, the one of the earliest block; then of the earliest lane.
        first = smallest(choose(top, block, spread(probs.dtype.type(blocks))))
        lane = first_bit(top & equal(block, spread(first)) | 1 << (width - 1))
        true = int(first) * width + lane if several else true
        # Only a row with NaN can have an answer behind the last class; it must not be written there.
        counts[min(true, classes) * classes + labels[i]] += 1
    return nans != 0


@kernel
def label_sums(probs, labels, classes, offsets, start, stop, sums, members):
    """Sum the probability of each row's own label by client and label, for the rows start..stop.

    Parameters
    ----------
    probs : (n * classes,)
    labels : (n,) int64
    offsets : (K + 1,) int64
    sums, members : (K, classes) float64, int64
        Added to.

    Returns
    -------
    int
        The first row whose label is no class, or -1.
    """
    for client in range(len(offsets) - 1):
        first, last = max(offsets[client], start), min(offsets[client + 1], stop)
        if first < last:
            wrong = sum_rows(probs, labels, classes, first, last, sums[client], members[client])
            if wrong >= 0:
                return wrong
    return -1


@kernel
def count_confident(probs, labels, classes, offsets, limits, counts, start, stop):
    """Add 1 to counts[client, true * classes + label] for each row start..stop that is confident in a class `true`.

    Confident in c means p[c] >= limits[client, c].  A row with several confident classes counts for its largest
    probability, confident or not.  A row with none is counted for the class number `classes`, which the caller drops: a
    store that is always made is cheaper than a branch that is sometimes taken.

    Parameters
    ----------
    probs : (n * classes,)
    labels : (n,) int64, each in 0..classes-1
    offsets : (K + 1,) int64
    limits : (K, classes rounded up to whole vectors)
        Infinity behind the last class.
    counts : (K, (classes + 1) * classes) int64

    Returns
    -------
    bool
        Whether some probability is NaN; the counts are then worth nothing.
    """
    nans = False
    for client in range(len(offsets) - 1):
        first, last = max(offsets[client], start), min(offsets[client + 1], stop)
        if first < last:
            nans |= count_rows(probs, labels, classes, limits[client], counts[client], first, last)
    return nans
