"""Probabilities of given labels and of other classes, and the samples of each label with the largest margins.

Rationale
---------
The first pass reads each row once: it checks the row and keeps its two numbers that nearly all filters and scores need. Most
rows predict their label, so that later passes compare single classes only in rows with a more probable class. All passes read
rows in their order: reading those of one label after another would wait for the memory.
"""

from __future__ import annotations

import math

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.lanes import (
    at_least,
    below,
    choose,
    count_bits,
    equal,
    exponents,
    first_bit,
    larger,
    largest,
    load,
    load_some,
    mantissas,
    splat,
    total,
)

# Largest deviation of a row's sum from 1, and smallest probability.
SUM, LEAST = 1e-2, -1e-6


@kernel
def judge_rows(
    probs: np.ndarray,
    labels: np.ndarray,
    classes: int,
    slack: float,
    start: int,
    stop: int,
    own: np.ndarray,
    other: np.ndarray,
    agrees: np.ndarray,
) -> int:
    """Write the probability of the label, the largest other one, and whether the label is the predicted class.

    Parameters
    ----------
    probs : (n * classes,)
    labels : (n,) int64, each in 0..classes-1
    slack : number of the type of `probs`
        Added to the probability of the label before it is compared with the others.
    own, other : (n,) float64
    agrees : (n,) bool

    Returns
    -------
    int
        The first row that is no distribution, or -1.
    """
    width = 64 // probs.itemsize
    zero, nothing = splat(probs.dtype.type(0)), splat(probs.dtype.type(-np.inf))
    least = splat(probs.dtype.type(LEAST))
    for i in range(start, stop):
        row, label = i * classes, labels[i]
        mine = probs[row + label]
        raised = splat(mine + slack)
        sums, top, negative, higher = zero, nothing, 0, 0
        for at in range(0, classes, width):
            there = (1 << min(width, classes - at)) - 1
            p = load(probs, row + at) if at + width <= classes else load_some(probs, row + at, there, 0.0)
            sums = sums + p
            negative |= below(p, least)
            lower = there  # classes before the label
            if at + width > label:
                lower = (1 << (label - at)) - 1 if label >= at else 0
                if label >= at:
                    there &= ~(1 << (label - at))
            p = choose(there, p, nothing)
            top = larger(p, top)
            higher |= below(raised, p) | equal(raised, p) & lower
        if not abs(total(sums) - 1) <= SUM or negative:
            return i
        agrees[i] = higher == 0
        own[i], other[i] = mine, largest(top)
    return -1


@kernel
def shift_rows(
    probs: np.ndarray, labels: np.ndarray, shift: np.ndarray, start: int, stop: int, own: np.ndarray, other: np.ndarray
) -> None:
    """Write `own` and `other` as `judge_rows` for rows (n, classes) plus `shift` (classes,), divided by their sums."""
    classes = probs.shape[1]
    for i in range(start, stop):
        label = labels[i]
        best, sums = -math.inf, 0.0
        for j in range(classes):
            value = probs[i, j] + shift[j]
            sums += value
            if j != label and value > best:
                best = value
        own[i], other[i] = (probs[i, label] + shift[label]) / sums, best / sums


# log((1 + s) / (1 - s)) = 2 s (1 + s^2 / 3 + s^4 / 5 + ...); for |s| < 0.172, the error of these terms is below 1e-12.
_ODD = (1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3, 1.0)


@kernel
def entropies(probs: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """Write -sum of p log p over the classes of each row of probs (n, classes), in units of log(classes)."""
    classes = probs.shape[1]
    row = np.zeros(-(-classes // 8) * 8)
    one, zero, half, root = splat(1.0), splat(0.0), splat(0.5), splat(math.sqrt(2))
    smallest_normal, log2, two = splat(2.3e-308), splat(math.log(2)), splat(2.0)
    scale = -1 / math.log(classes)
    for i in range(start, stop):
        for j in range(classes):
            row[j] = probs[i, j]
        sums = zero
        for at in range(0, classes, 8):
            p = load(row, at)
            positive = below(smallest_normal, p)
            safe = choose(positive, p, one)
            power, part = exponents(safe), mantissas(safe)
            high = below(root, part)
            part, power = choose(high, part * half, part), choose(high, power + one, power)
            s = (part - one) / (part + one)
            square = s * s
            series = splat(_ODD[0])
            series = series * square + splat(_ODD[1])
            series = series * square + splat(_ODD[2])
            series = series * square + splat(_ODD[3])
            series = series * square + splat(_ODD[4])
            series = series * square + splat(_ODD[5])
            series = series * square + splat(_ODD[6])
            sums = sums + choose(positive, p, zero) * (power * log2 + two * s * series)
        out[i] = scale * total(sums)


@kernel
def confident_rows(probs: np.ndarray, classes: int, limits: np.ndarray, start: int, stop: int, out: np.ndarray) -> None:
    """Write the class that each row is confident in, -1 for none.

    A row is confident in the only class with p >= limit; of several, in the most probable class of all.

    Parameters
    ----------
    probs : (n * classes,)
    limits : (classes rounded up to whole vectors,) of the type of `probs`
        Infinity after the last class.
    out : (n,) int64
    """
    width = 64 // probs.itemsize
    for i in range(start, stop):
        row = i * classes
        number, found = 0, -1
        for at in range(0, classes, width):
            there = (1 << min(width, classes - at)) - 1
            p = load(probs, row + at) if at + width <= classes else load_some(probs, row + at, there, 0.0)
            bits = at_least(p, load(limits, at))
            if bits:
                found = at + first_bit(bits)
                number += count_bits(bits)
        if number > 1:
            best = probs[row]
            found = 0
            for j in range(1, classes):
                if probs[row + j] > best:
                    best, found = probs[row + j], j
        out[i] = found


@kernel
def sort_groups(groups: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """Write the positions (n,) sorted by group; `places` (groups,) has the first place of each group and is changed."""
    for i in range(len(groups)):
        group = groups[i]
        out[places[group]] = i
        places[group] += 1


@inline
def mark_largest(margins: np.ndarray, rows: np.ndarray, number: int, out: np.ndarray) -> None:
    """Set `out` at the rows with the `number` largest margins; of equal margins, at the first rows."""
    size = len(margins)
    if number >= size:
        for i in range(size):
            out[rows[i]] = True
        return
    limit = np.partition(margins, size - number)[size - number]
    for i in range(size):
        if margins[i] > limit:
            out[rows[i]] = True
            number -= 1
    for i in range(size):
        if number > 0 and margins[i] == limit:
            out[rows[i]] = True
            number -= 1


@kernel
def count_higher(
    probs: np.ndarray, groups: np.ndarray, classes: int, wrong: np.ndarray, start: int, stop: int, counts: np.ndarray
) -> None:
    """Add to counts[group, c] the number of rows of the group in which class c is more probable than the label.

    Parameters
    ----------
    probs : (n * classes,)
    groups : (n,) int64
        The label is group % classes.
    wrong : (n,) bool
        Rows in which a class is more probable than the label.
    counts : (groups, classes) int64
    """
    width = 64 // probs.itemsize
    for i in range(start, stop):
        if not wrong[i]:
            continue
        row, group = i * classes, groups[i]
        mine = splat(probs[row + group % classes])
        for at in range(0, classes, width):
            if at + width <= classes:
                p = load(probs, row + at)
            else:
                p = load_some(probs, row + at, (1 << (classes - at)) - 1, -math.inf)
            bits = below(mine, p)
            while bits:
                counts[group, at + first_bit(bits)] += 1
                bits &= bits - 1


@kernel
def collect_higher(
    probs: np.ndarray,
    groups: np.ndarray,
    classes: int,
    wrong: np.ndarray,
    start: int,
    stop: int,
    places: np.ndarray,
    margins: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Write the margins p[c] - p[label] > 0 and their rows by group and class c; see `count_higher`.

    `places` (groups, classes) has the first place of each group and class, and is changed.
    """
    width = 64 // probs.itemsize
    for i in range(start, stop):
        if not wrong[i]:
            continue
        row, group = i * classes, groups[i]
        own = probs[row + group % classes]
        mine = splat(own)
        for at in range(0, classes, width):
            if at + width <= classes:
                p = load(probs, row + at)
            else:
                p = load_some(probs, row + at, (1 << (classes - at)) - 1, -math.inf)
            bits = below(mine, p)
            while bits:
                c = at + first_bit(bits)
                place = places[group, c]
                margins[place], rows[place] = probs[row + c] - own, i
                places[group, c] = place + 1
                bits &= bits - 1


@kernel
def mark_pairs(
    probs: np.ndarray,
    order: np.ndarray,
    bounds: np.ndarray,
    numbers: np.ndarray,
    places: np.ndarray,
    margins: np.ndarray,
    rows: np.ndarray,
    start: int,
    stop: int,
    out: np.ndarray,
) -> None:
    """Set `out` at the samples of each group with the largest margins p[c] - p[label], a number for each class c.

    Parameters
    ----------
    probs : (n, classes)
    order : (n,) int64
        Samples by group; of equal margins, the first sample of a group is set.
    bounds : (groups + 1,) int64
        Group g has the samples order[bounds[g] : bounds[g + 1]], all with the label g % classes.
    numbers : (groups, classes) int64
        Below 1 for the label.
    places : (groups * classes + 1,) int64
        margins[places[g * classes + c] : places[g * classes + c + 1]] are those above 0, of the samples `rows`.
    start, stop : int
        Groups.
    out : (n,) bool
    """
    classes = probs.shape[1]
    for group in range(start, stop):
        label, first, last = group % classes, bounds[group], bounds[group + 1]
        for c in range(classes):
            number, pair = numbers[group, c], group * classes + c
            if number < 1:
                continue
            here = slice(places[pair], places[pair + 1])
            mark_largest(margins[here], rows[here], number, out)
            number -= places[pair + 1] - places[pair]
            if number < 1:
                continue
            rest, which, size = np.empty(last - first, probs.dtype), np.empty(last - first, np.int64), 0
            for at in range(first, last):
                i = order[at]
                if not probs[i, c] > probs[i, label]:
                    rest[size], which[size] = probs[i, c] - probs[i, label], i
                    size += 1
            mark_largest(rest[:size], which[:size], number, out)
