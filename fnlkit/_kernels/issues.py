"""Probabilities of given labels and of other classes, and the samples of each label with the largest margins.

Rationale
---------
The first pass reads each row once: it checks the row and keeps its two numbers that nearly all filters and scores need. Most
rows predict their label, so that later passes read only rows with a more probable class, in their order: reading those of one
label after another would wait for the memory.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.polynomial import Chebyshev, Polynomial

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.counts import transpose_rows
from fnlkit._kernels.lanes import (
    at_most,
    below,
    choose,
    equal,
    exponents,
    first_bit,
    larger,
    load,
    load_some,
    mantissas,
    splat,
    store,
    store_bits,
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
    own, other : (n,) of the type of `probs`
        `other` is at least `LEAST`.
    agrees : (n,) bool

    Returns
    -------
    int
        The first row that is no distribution, or -1.
    """
    kind, width = probs.dtype.type, 64 // probs.itemsize
    starts, given = np.arange(width) * classes, np.empty(width, probs.dtype)
    columns = np.empty(-(-classes // width) * width * width, probs.dtype)
    zero, one, least, every = splat(kind(0)), splat(kind(1)), splat(kind(LEAST)), (1 << width) - 1
    for first in range(start, stop, width):
        if stop - start >= width:
            first = min(first, stop - width)  # the last block is complete, too
            for lane in range(width):
                given[lane] = labels[first + lane]
        else:
            for lane in range(width):
                starts[lane] = min(lane, stop - start - 1) * classes
                given[lane] = labels[start + min(lane, stop - start - 1)]
        transpose_rows(probs, classes, starts, first * classes, columns)
        label, here, own_p, sums, top, low = load(given, 0), zero, zero, zero, least, zero
        for at in range(0, classes * width, width):
            p, same = load(columns, at), equal(here, label)
            own_p, top = choose(same, p, own_p), larger(choose(same, least, p), top)
            sums, low, here = sums + p, choose(below(p, low), p, low), here + one
        proper = at_most(larger(sums - one, one - sums), splat(kind(SUM))) & ~below(low, least)
        if proper != every:
            return first + first_bit(~proper)
        raised = own_p + splat(slack)
        higher, ties = below(raised, top), equal(raised, top)
        if stop - start >= width:
            store(own, first, own_p)
            store(other, first, top)
            store_bits(agrees, first, ~higher & every, top)
        else:
            store(columns, 0, own_p)
            store(columns, width, top)
            for lane in range(stop - start):
                own[first + lane], other[first + lane] = columns[lane], columns[width + lane]
                agrees[first + lane] = ~higher >> lane & 1
        while ties:  # the first of equal classes is predicted
            i = min(first + first_bit(ties), stop - 1)
            for c in range(labels[i]):
                agrees[i] &= probs[i * classes + c] < other[i]
            ties &= ties - 1
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


@kernel
def split_rows(
    has: np.ndarray, probs: np.ndarray, c: int, start: int, stop: int, labels: np.ndarray, pairs: np.ndarray
) -> None:
    """Write has[i, c] to labels[i], and 1 - probs[i, c] and probs[i, c] to pairs[i]."""
    for i in range(start, stop):
        labels[i], pairs[i, 0], pairs[i, 1] = has[i, c], 1 - probs[i, c], probs[i, c]


# Polynomial of log(1 + x) / x for x from sqrt(1/2) - 1 to sqrt(2) - 1; its largest error is 2e-13.
_LOG = Chebyshev.interpolate(lambda x: np.log1p(x) / x, 14, domain=[0.5**0.5 - 1, 2**0.5 - 1]).convert(kind=Polynomial).coef


@inline
def log_lanes(x: Any) -> Any:
    """Return the logarithms of positive normal numbers (float64)."""
    power, part = exponents(x), mantissas(x)
    high = below(splat(math.sqrt(2)), part)
    part = choose(high, part * splat(0.5), part) - splat(1.0)
    power = choose(high, power + splat(1.0), power)
    series = splat(_LOG[14])
    for k in range(13, -1, -1):
        series = series * part + splat(_LOG[k])
    return power * splat(math.log(2)) + part * series


@kernel
def weigh_entropies(probs: np.ndarray, classes: int, own: np.ndarray, least: float, out: np.ndarray) -> None:
    """Write log(r + 1) / max(r, least) with r the entropy of the row in units of log(classes) over max(own, least).

    Parameters
    ----------
    probs : (n * classes,) float64
    own, out : (n,) float64
    """
    stop, starts, part = len(own), np.arange(8) * classes, np.empty(8)
    columns = np.empty(-(-classes // 8) * 64)
    zero, one, scale, lowest = splat(0.0), splat(1.0), splat(-1 / math.log(classes)), splat(least)
    tiny = splat(2.3e-308)  # smallest normal number
    for first in range(0, stop, 8):
        first = max(min(first, stop - 8), 0)  # the last block is complete, too
        for lane in range(8 if stop < 8 else 0):
            starts[lane] = min(lane, stop - 1) * classes
        transpose_rows(probs, classes, starts, first * classes, columns)
        sums = zero
        for at in range(0, classes * 8, 8):
            p = load(columns, at)
            positive = below(tiny, p)
            sums = sums + choose(positive, p, zero) * log_lanes(choose(positive, p, one))
        for lane in range(8 if stop < 8 else 0):
            part[lane] = own[min(lane, stop - 1)]
        ratio = sums * scale / larger(load(own, first) if stop >= 8 else load(part, 0), lowest)
        score = log_lanes(ratio + one) / larger(ratio, lowest)
        if stop >= 8:
            store(out, first, score)
        else:
            store(part, 0, score)
            for i in range(stop):
                out[i] = part[i]


@kernel
def sort_groups(groups: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """Write the positions (n,) sorted by group; `places` (groups,) has the first place of each group and is changed."""
    for i in range(len(groups)):
        group = groups[i]
        out[places[group]] = i
        places[group] += 1


@inline
def keep_largest(margins: np.ndarray, rows: np.ndarray, first: int, last: int, number: int) -> float:
    """Move the `number` largest of margins[first:last] and their rows to the front, and return the smallest of them.

    Of equal margins, the one of the first row is larger.
    """
    low, high, place = first, last - 1, first + number - 1
    while low < high:
        pivot, row = margins[(low + high) // 2], rows[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while margins[i] > pivot or (margins[i] == pivot and rows[i] < row):
                i += 1
            while margins[j] < pivot or (margins[j] == pivot and rows[j] > row):
                j -= 1
            if i <= j:
                margins[i], margins[j], rows[i], rows[j] = margins[j], margins[i], rows[j], rows[i]
                i, j = i + 1, j - 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return margins[place]


@kernel
def mark_higher(
    probs: np.ndarray,
    groups: np.ndarray,
    classes: int,
    rows: np.ndarray,
    first_group: int,
    last_group: int,
    numbers: np.ndarray,
    limits: np.ndarray,
    places: np.ndarray,
    found: np.ndarray,
    margins: np.ndarray,
    candidates: np.ndarray,
    out: np.ndarray,
) -> None:
    """Set `out` at rows of the groups first_group..last_group with the largest margins p[c] - p[label] > 0, a number per pair.

    A pair is a group and a class c. Its candidates are the largest margins so far; when their place is full, those that are not
    among the `numbers` largest are dropped, and only larger margins are read from then on.

    Parameters
    ----------
    probs : (n * classes,)
    groups : (n,) int64
        The label is group % classes.
    rows : (m,) int64
        Rows in which a class is more probable than the label, increasing.
    numbers, found : (groups, classes) int64
        Numbers of rows to set, and of candidates at the end.
    limits : (groups, classes rounded up to whole vectors) of the type of `probs`
        Margins must be larger: 0, and infinity where the number is below 1.
    places : (groups * classes + 1,) int64
        The candidates of pair g * classes + c are margins[places[pair] : places[pair + 1]].
    candidates : int64
        Their rows.
    out : (n,) bool
    """
    width, padded, flat_limits = 64 // probs.itemsize, limits.shape[1], limits.reshape(-1)
    for i in rows:
        group = groups[i]
        if group < first_group or group >= last_group:
            continue
        own = probs[i * classes + group % classes]
        for at in range(0, classes, width):
            if at + width <= classes:
                p = load(probs, i * classes + at)
            else:
                p = load_some(probs, i * classes + at, (1 << (classes - at)) - 1, -math.inf)
            bits = below(load(flat_limits, group * padded + at), p - splat(own))
            while bits:
                c = at + first_bit(bits)
                bits &= bits - 1
                pair, place = group * classes + c, places[group * classes + c] + found[group, c]
                margins[place], candidates[place] = probs[i * classes + c] - own, i
                found[group, c] += 1
                if place + 1 == places[pair + 1]:
                    limits[group, c] = keep_largest(margins, candidates, places[pair], place + 1, numbers[group, c])
                    found[group, c] = numbers[group, c]
    for group in range(first_group, last_group):
        for c in range(classes):
            start, size = places[group * classes + c], found[group, c]
            if size > numbers[group, c]:
                keep_largest(margins, candidates, start, start + size, numbers[group, c])
            for place in range(start, start + min(size, numbers[group, c])):
                out[candidates[place]] = True


@kernel
def mark_rest(
    probs: np.ndarray, order: np.ndarray, bounds: np.ndarray, missing: np.ndarray, start: int, stop: int, out: np.ndarray
) -> None:
    """Set `out` at the `missing` (groups, classes) rows of each group with the largest margins p[c] - p[label] <= 0.

    Group g, of start..stop, has the rows order[bounds[g] : bounds[g + 1]] of probs (n, classes), and the label g % classes.
    """
    classes = probs.shape[1]
    for group in range(start, stop):
        label, most = group % classes, bounds[group + 1] - bounds[group]
        for c in range(classes):
            if missing[group, c] < 1 or c == label:
                continue
            margins, rows, size = np.empty(most, probs.dtype), np.empty(most, np.int64), 0
            for i in order[bounds[group] : bounds[group + 1]]:
                margin = probs[i, c] - probs[i, label]
                if not margin > 0:
                    margins[size], rows[size] = margin, i
                    size += 1
            if missing[group, c] < size:
                keep_largest(margins, rows, 0, size, missing[group, c])
            for place in range(min(missing[group, c], size)):
                out[rows[place]] = True
