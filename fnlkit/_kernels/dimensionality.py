"""Local intrinsic dimensionality by maximum likelihood (Amsaleg et al. 2015; Xu et al. 2022, eq. 2)."""

import math
from typing import NamedTuple

import numpy as np

from fnlkit._kernels._compile import inline, lean_kernel
from fnlkit._kernels.lanes import (
    below,
    choose,
    compress,
    count_bits,
    exponents,
    load,
    mantissas,
    product,
    splat,
    store,
    total,
)
from fnlkit._kernels.select import ROOM, count_within, kth_smallest

# Upper limit of an estimate: if all neighbors are at the same distance, the dimension is infinite.
LARGEST = 1e6


# For smaller squared radii, the reciprocal or the ratio of a neighbor to the radius is not a normal float32 number.
TINY = 1e-30


@inline
def pack_below(values: np.ndarray, filled: int, radius: float, near: np.ndarray) -> int:
    """Move the values below `radius` to the front of `near`, in order, and pad the last vector with `radius`.

    The terms of the sum and their order then depend only on the points, not on how the radius was found.
    """
    width = 64 // values.itemsize
    limit = splat(radius)
    held = 0
    for at in range(0, filled, width):
        vector = load(values, at)
        bits = below(vector, limit)
        store(near, held, compress(vector, bits))
        held += count_bits(bits)
    store(near, held, limit)
    return held


@inline
def log_ratios(near: np.ndarray, held: int, radius: float) -> float:
    """Return the sum of log(v / radius) over near[:held] by splitting numbers into mantissa and exponent.

    Products of mantissas stay in [1, 2), so one logarithm at the end is enough, without underflow or overflow.
    """
    width = 64 // near.itemsize
    one = splat(near.dtype.type(1))
    limit, reciprocal = splat(radius), splat(near.dtype.type(1 / radius))
    running, powers = one, one - one
    for at in range(0, held, width):
        vector = load(near, at)
        running = running * choose(below(vector, limit), vector * reciprocal, one)
        powers = powers + exponents(running)
        running = mantissas(running)
    return math.log(product(running)) + math.log(2.0) * total(powers)


@inline
def log_ratios_slowly(near: np.ndarray, held: int, radius: float) -> float:
    """Return the same sum as `log_ratios` for all numbers >= 0; minus infinity if a number is 0."""
    logs = 0.0
    for i in range(held):
        logs += math.log(np.float64(near[i])) - math.log(np.float64(radius))
    return logs


@inline
def squared_distances(columns: np.ndarray, padded: int, mine: np.ndarray, squares: np.ndarray) -> None:
    """Write the squared distances from `mine` to all points, which are stored coordinate by coordinate."""
    width = 64 // columns.itemsize
    for at in range(0, padded, 4 * width):
        x = splat(mine[0])
        a, b = load(columns, at) - x, load(columns, at + width) - x
        c, d = load(columns, at + 2 * width) - x, load(columns, at + 3 * width) - x
        sum_a, sum_b, sum_c, sum_d = a * a, b * b, c * c, d * d
        for dimension in range(1, len(mine)):
            here = dimension * padded + at
            x = splat(mine[dimension])
            a, b = load(columns, here) - x, load(columns, here + width) - x
            c, d = load(columns, here + 2 * width) - x, load(columns, here + 3 * width) - x
            sum_a, sum_b, sum_c, sum_d = sum_a + a * a, sum_b + b * b, sum_c + c * c, sum_d + d * d
        store(squares, at, sum_a)
        store(squares, at + width, sum_b)
        store(squares, at + 2 * width, sum_c)
        store(squares, at + 3 * width, sum_d)


@inline
def estimate(logs: float, radius: float, use: int, k: int, published: bool) -> float:
    """Return the estimate from the sum of log(r_j / radius) over the `use` nearest neighbors.

    `radius` is the distance of the last of these neighbors.
    """
    if published:
        # Adding log(radius / (radius + 1e-6)) for each neighbor gives the sum of log(r_j / (radius + 1e-6)).
        shifted = logs + use * math.log(radius / (radius + 1e-6)) if radius > 0 else -math.inf
        # If all neighbors are at the same distance of about 1, the two small numbers cancel.
        return -k / (shifted + 1e-6) if shifted != -1e-6 else LARGEST
    if radius == 0:
        return 0.0
    # Compare without division, so that a sum of zero also gives the limit.
    return LARGEST if logs * LARGEST > -use else -use / logs


class Scratch(NamedTuple):
    """Memory for a client: coordinates of its points, squared distances, the smallest of them, and a point."""

    columns: np.ndarray
    squares: np.ndarray
    short: np.ndarray
    near: np.ndarray
    mine: np.ndarray


def scratch_for(points: np.ndarray, most: int, k: int) -> Scratch:
    """Return the Scratch of clients with up to `most` points."""
    width, (_, d), use = 64 // points.itemsize, points.shape, min(k, most)
    padded = most + 4 * width
    sizes = d * padded, padded, use + ROOM * width, use + 2 * width, d
    return Scratch(*(np.empty(size, points.dtype) for size in sizes))


@lean_kernel
def lid_rows(
    points: np.ndarray,
    offsets: np.ndarray,
    k: int,
    published: bool,
    start: int,
    stop: int,
    out: np.ndarray,
    scratch: Scratch,
) -> None:
    """Write the estimates of the rows start..stop to `out`.

    Parameters
    ----------
    points : (n, d)
    offsets : (K + 1,) int64
    published : bool
        Use the formula of FedCorr's public code instead of the paper's formula.
    out : (n,) float64
    scratch : Scratch
    """
    width = 64 // points.itemsize
    d = points.shape[1]
    columns, squares, near, mine = scratch.columns, scratch.squares, scratch.near, scratch.mine
    client = 0
    row = start
    while row < stop:
        while offsets[client + 1] <= row:
            client += 1
        first, last = offsets[client], offsets[client + 1]
        end = min(last, stop)
        m = last - first
        use = min(k, m - 1)
        if use < 1 or (use < 2 and not published):
            out[row:end] = 0.0
            row = end
            continue
        padded = (m + 4 * width - 1) // (4 * width) * (4 * width)
        # Store the points coordinate by coordinate, so that a vector contains one coordinate of `width` points.
        for c in range(d):
            for j in range(m):
                columns[c * padded + j] = points[first + j, c]
            for j in range(m, padded):
                columns[c * padded + j] = math.inf
        short, guess = scratch.short[: use + ROOM * width], points.dtype.type(0)
        for i in range(row, end):
            for c in range(d):
                mine[c] = points[i, c]
            squared_distances(columns, padded, mine, squares)
            squares[i - first] = math.inf
            radius, guess, held = kth_smallest(squares, padded, use, guess, short)
            if held > 0:
                held = pack_below(short, (held + width - 1) // width * width, radius, near)
            else:
                held = pack_below(squares, padded, radius, near)
            if radius < TINY or count_within(near, held, points.dtype.type(radius * 1e-7)) > 0:
                logs = log_ratios_slowly(near, held, radius)
            else:
                logs = log_ratios(near, held, radius)
            out[i] = estimate(0.5 * logs, math.sqrt(np.float64(radius)), use, k, published)
        row = end
