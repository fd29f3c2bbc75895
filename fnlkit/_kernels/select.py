"""Find the k-th smallest of a vector of distances, by counting instead of sorting.

Rationale
---------
Numbers >= 0 have the same order as their bit patterns read as integers, and these integers are, up to a constant, a
piecewise linear logarithm.  The number of neighbors within a radius grows like a power of the radius, so a straight line
through two counts over bit patterns predicts the next trial well.  Counting costs one comparison per vector, without
branches.  Insertion sort costs one unpredictable comparison per element.  As soon as only a few more than k values are
within a radius, they are packed together, and the remaining search is in the first-level cache.
"""

import math

import numpy as np

from fnlkit._kernels._compile import inline
from fnlkit._kernels.lanes import (
    as_integer,
    as_number,
    at_most,
    choose,
    compress,
    count_bits,
    larger,
    largest,
    load,
    splat,
    store,
)

# Length of `short` in addition to k, in vectors.
ROOM = 5
# First estimate of the log2 growth of a squared radius while the count within doubles: 2 / d with d = 5 dimensions.
_GROWTH = 0.4


@inline
def count_within(values: np.ndarray, padded: int, radius: float) -> int:
    """Return the number of values <= radius."""
    width = 64 // values.itemsize
    limit = splat(radius)
    count = 0
    for at in range(0, padded, width):
        count += count_bits(at_most(load(values, at), limit))
    return count


@inline
def log2_of(count: int) -> float:
    """Return log2 of a count to within 0.09, from the bit pattern of the number."""
    return as_integer(float(count)) * 2.0**-52 - 1023.0


@inline
def largest_within(values: np.ndarray, padded: int, radius: float) -> float:
    """Return the largest value <= radius; all values must be >= 0."""
    width = 64 // values.itemsize
    limit = splat(radius)
    zero = splat(values.dtype.type(0))
    best = zero
    for at in range(0, padded, width):
        vector = load(values, at)
        best = larger(choose(at_most(vector, limit), vector, zero), best)
    return largest(best)


@inline
def narrow(values: np.ndarray, padded: int, k: int, low: int, below: int, high: int, within: int, growth: float) -> float:
    """Return the k-th smallest value, given two patterns that enclose it.

    `below` < k values are <= the number with pattern `low`; `within` >= k values are <= the number with pattern `high`.
    """
    zero = values.dtype.type(0)
    step = 0
    while within != k and high - low > 1:
        # Start with predictions. After four steps, every second step halves the range.
        if step >= 4 and step & 1:
            middle = low + (high - low >> 1)
        elif below > 0:
            share = (log2_of(k) - log2_of(below)) / (log2_of(within) - log2_of(below))
            middle = low + int(share * (high - low))
        else:
            middle = high - int(growth * (log2_of(within) - log2_of(k)))
        middle = min(max(middle, low + 1), high - 1)
        count = count_within(values, padded, as_number(middle, zero))
        if count < k:
            low, below = middle, count
        else:
            high, within = middle, count
        step += 1
    if within == k:
        return largest_within(values, padded, as_number(high, zero))
    return as_number(high, zero)


@inline
def kth_smallest(values: np.ndarray, padded: int, k: int, guess: float, short: np.ndarray) -> tuple[float, float, int]:
    """Find the k-th smallest of values[:padded]; all are >= 0, at least k are finite, and k >= 1.

    Parameters
    ----------
    values : (padded,)
        Padded to whole vectors with infinity.
    guess : number
        Start of the search: any number; the `limit` of a similar vector saves time.
    short : (k + ROOM vectors,)
        Scratch.

    Returns
    -------
    radius : number
    limit : number
        At least `radius`.
    held : int
        Number of values <= limit.  `short` contains these values in their order, padded to whole vectors with infinity.
        0 if there were too many because of ties at the radius.
    """
    width = 64 // values.itemsize
    zero = values.dtype.type(0)
    room = len(short) - width
    low, high = as_integer(zero) - 1, as_integer(values.dtype.type(math.inf)) - 1
    below, within = np.int64(0), padded  # a literal 0 would compile `narrow` twice
    trial = min(max(as_integer(guess), 0), high)
    if not guess > 0:
        trial = low + (high - low >> 1)
    growth = _GROWTH * (as_integer(values.dtype.type(2)) - as_integer(values.dtype.type(1)))
    stride = growth
    aim = log2_of(k + (room - k) // 3)
    predict = True
    while True:
        count = count_within(values, padded, as_number(trial, zero))
        if count < k:
            low, below = trial, count
        else:
            high, within = trial, count
            if count <= room:
                break
        if high - low <= 1:
            radius = as_number(high, zero)
            return radius, radius, 0
        if predict and below > 0 and within < padded:
            share = (aim - log2_of(below)) / (log2_of(within) - log2_of(below))
            trial = low + int(share * (high - low))
            predict = False
        elif predict and (below > 0 or within < padded):
            # Only one bound is known: try increasing steps.
            trial += int(stride * (aim - log2_of(max(count, 1))))
            stride *= 2
            predict = low < trial < high
        else:
            trial = low
        if not low < trial < high:
            trial = low + (high - low >> 1)
            predict = True
    limit = as_number(high, zero)
    edge = splat(limit)
    held = 0
    for at in range(0, padded, width):
        vector = load(values, at)
        bits = at_most(vector, edge)
        store(short, held, compress(vector, bits))
        held += count_bits(bits)
    # The store of the last vector can leave unspecified values after the last packed value.
    store(short, held, splat(values.dtype.type(math.inf)))
    filled = (held + width - 1) // width * width
    return narrow(short, filled, k, low, below, high, within, growth), limit, held
