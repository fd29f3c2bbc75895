"""The k-th smallest of a vector of distances, by counting instead of sorting.

Rationale
---------
Numbers >= 0 are ordered like their bit patterns read as integers, and those are, up to a constant, a piecewise linear
logarithm.  The number of neighbours within a radius grows like a power of the radius, so on patterns a straight line through
two counts predicts the next trial well.  Counting costs one comparison a vector, without branches; insertion sort costs an
unpredictable one an element.  As soon as a radius holds a few more than k, those are packed together and the rest is over
in registers.
"""

import math

from fnlkit._kernels._compile import inlined
from fnlkit._kernels.lanes import as_integer, as_number, at_most, count_bits, load, packed, spread, store


@inlined
def count_within(values, padded, radius):
    """Number of values <= radius."""
    width = 64 // values.itemsize
    limit = spread(radius)
    count = 0
    for at in range(0, padded, width):
        count += count_bits(at_most(load(values, at), limit))
    return count


@inlined
def bisect(values, padded, k, low, below, high):
    """The k-th smallest of `values`, which lies above pattern `low`, with `below` < k values, and at or under `high`."""
    zero = values.dtype.type(0)
    while high - low > 1:
        middle = low + (high - low >> 1)
        count = count_within(values, padded, as_number(middle, zero))
        if count == k:
            # All that is left to do is to find the largest of exactly k.
            best = zero
            radius = as_number(middle, zero)
            for i in range(padded):
                if values[i] <= radius and values[i] > best:
                    best = values[i]
            return best
        if count < k:
            low = middle
        else:
            high = middle
    return as_number(high, zero)


@inlined
def kth_smallest(values, padded, k, guess, short):
    """The k-th smallest of values[:padded], all >= 0, at least k of them finite; 1 <= k.

    Parameters
    ----------
    values : (padded,)
        Filled up to whole vectors with infinity.
    guess : number
        Where to look first: any number; that of a similar vector saves time.
    short : (k + at least four vectors,)
        Scratch.

    Returns
    -------
    radius : number
    count : int
        Number of values that `short` holds: all those <= some number >= radius, in order; 0 where there were too many ties.
    """
    width = 64 // values.itemsize
    room = len(short) - 2 * width
    zero = values.dtype.type(0)
    low = as_integer(zero) - 1
    high = as_integer(values.dtype.type(math.inf)) - 1
    below, within = 0, padded
    # One trial in two halves the range, so that a wrong prediction costs at most a factor of two.
    trial = min(max(as_integer(guess), low + 1), high)
    if not guess > 0:
        trial = low + (high - low >> 1)
    step = as_integer(values.dtype.type(2)) - as_integer(values.dtype.type(1))
    predict = True
    aim = math.log((k + room) * 0.5)
    while True:
        count = count_within(values, padded, as_number(trial, zero))
        if k <= count <= room:
            high = trial
            break
        if count < k:
            low, below = trial, count
        else:
            high, within = trial, count
        if high - low <= 1:
            return as_number(high, zero), 0
        if predict and below > 0 and within < padded:
            # Between two counts: where the line through their logarithms meets the aim.
            share = (aim - math.log(below)) / (math.log(within) - math.log(below))
            trial = low + int(share * (high - low))
            predict = False
        elif predict and (below > 0 or within < padded):
            # One count: the radius of a ball in four dimensions, then ever larger steps.
            trial += int(step * (aim - math.log(max(count, 1))))
            step *= 2
            predict = low < trial < high
        if not (low < trial < high):
            trial = low + (high - low >> 1)
            predict = True
    limit = spread(as_number(high, zero))
    held = 0
    for at in range(0, padded, width):
        vector = load(values, at)
        bits = at_most(vector, limit)
        if bits:
            store(short, held, packed(vector, bits))
            held += count_bits(bits)
    filled = (held + width - 1) // width * width
    for i in range(held, filled):
        short[i] = math.inf
    return bisect(short, filled, k, low, below, high), held
