"""Inverses of stacks of small matrices, by a formula if one exists, otherwise by elimination in vector lanes."""

import math

import numpy as np

from fnlkit._kernels._compile import inline, kernel
from fnlkit._kernels.lanes import (
    as_number,
    blend,
    count_bits,
    equal,
    gather_tile,
    larger,
    load,
    load_some,
    not_numbers,
    or_xor,
    scatter_tile,
    splat,
    store,
    with_bits,
    xor,
)

# The largest deviation of the sum of a row from 1, and the largest negative entry, of a transition matrix.
SLACK, NEGATIVE = 1e-3, 1e-6
# Condition of a matrix that no kernel has inverted, and of one with a row that is no probability distribution.
LEFT, IMPROPER = -1.0, -2.0


@kernel
def invert_two_valued(matrices: np.ndarray, start: int, stop: int, inverses: np.ndarray, conditions: np.ndarray) -> None:
    """Invert the matrices with one value on and one value off the diagonal; mark the others `LEFT`.

    Processes the matrices start..stop.  Each vector needs one comparison and one store, and the inverse of one matrix is
    written while the next matrix is read.  The cost is hardly more than that of copying.  Numbers are compared by their bits,
    so 0 and -0 differ; `invert_constant` handles such matrices.

    Parameters
    ----------
    matrices, inverses : (N, K, K)
        Inverses of marked matrices can be overwritten.
    conditions : (N,)
        ||T|| ||T^-1|| in the maximum row sum norm; infinity for a singular matrix.
    """
    size = matrices.shape[1]
    area = size * size
    width = 64 // matrices.itemsize
    if area < width or start >= stop:
        conditions[start:stop] = LEFT
        return
    whole, behind = area // width * width, area - width
    zero = matrices.dtype.type(0)
    flat, flat_inverses = matrices.reshape(-1), inverses.reshape(-1)
    # All bits set for an entry on the diagonal; the last vector overlaps the previous one.
    diagonal = np.zeros(whole + width, matrices.dtype)
    for i in range(whole + width):
        if (i if i < whole else behind + i - whole) % (size + 1) == 0:
            diagonal[i] = as_number(-1, zero)
    # The inverse to write next: its position, its value off the diagonal, and the bits that turn it into the diagonal value.
    place, rest, turn = start * area, splat(zero), splat(zero)
    for m in range(start, stop):
        base = m * area
        on, off = flat[base], flat[base + size - 1]
        if flat[base + 1] != off:  # most matrices of other kinds leave here, without being read and overwritten as a whole
            conditions[m] = LEFT
            continue
        offs = splat(off)
        apart = xor(splat(on), offs)
        last = load(diagonal, whole)
        differ = xor(load(flat, base + behind), blend(last, apart, offs))
        for at in range(0, whole, width):
            here = load(diagonal, at)
            differ = or_xor(differ, load(flat, base + at), blend(here, apart, offs))
            store(flat_inverses, place + at, blend(here, turn, rest))
        store(flat_inverses, place + behind, blend(last, turn, rest))
        if with_bits(differ):
            conditions[m] = LEFT
            continue
        if abs(on + (size - 1) * off - 1) > SLACK or min(on, off) < -NEGATIVE:
            conditions[m] = IMPROPER
            continue
        scale = 1 / (on - off)
        outer = off * scale / (on - off + off * size)
        condition = (abs(on) + (size - 1) * abs(off)) * (abs(scale - outer) + (size - 1) * abs(outer))
        conditions[m] = condition if condition < np.inf else np.inf
        place, rest = base, splat(matrices.dtype.type(-outer))
        turn = xor(splat(matrices.dtype.type(scale - outer)), rest)
    for at in range(0, whole, width):
        store(flat_inverses, place + at, blend(load(diagonal, at), turn, rest))
    store(flat_inverses, place + behind, blend(load(diagonal, whole), turn, rest))


@kernel
def invert_constant(matrices: np.ndarray, start: int, stop: int, inverses: np.ndarray, conditions: np.ndarray) -> None:
    """Invert the matrices marked `LEFT` whose entries off the diagonal are all equal.

    Processes the matrices start..stop.  T = D + b 1 1' with D diagonal has the inverse (Sherman and Morrison 1950)
    D^-1 - b D^-1 1 1' D^-1 / (1 + b 1' D^-1 1).

    Parameters
    ----------
    matrices, inverses : (N, K, K)
    conditions : (N,)
        ||T|| ||T^-1|| in the maximum row sum norm; `LEFT` stays if the formula does not apply.
    """
    size = matrices.shape[1]
    area = size * size
    width = 64 // matrices.itemsize
    whole = area // width * width
    tail = (1 << (area - whole)) - 1
    reciprocal = np.empty(size, matrices.dtype)
    flat = matrices.reshape(-1)
    for m in range(start, stop):
        if conditions[m] != LEFT:
            continue
        matrix = matrices[m]
        off = matrix[0, size - 1] if size > 1 else matrix.dtype.type(0)
        if size > 1 and matrix[0, 1] != off:
            continue
        offs = splat(off)
        # Count the entries that differ from `off`: there must be as many in the whole matrix as on the diagonal.
        allowed = 0
        for row in range(size):
            allowed += matrix[row, row] != off
        for at in range(m * area, m * area + whole, width):
            allowed -= width - count_bits(equal(load(flat, at), offs))
            if allowed < 0:
                break
        if tail:
            allowed -= width - count_bits(equal(load_some(flat, m * area + whole, tail, off), offs))
        if allowed != 0:
            conditions[m] = LEFT
            continue
        inverse = inverses[m]
        trace, low = 0.0, off
        for row in range(size):
            low = min(low, matrix[row, row])
            if abs(matrix[row, row] + (size - 1) * off - 1) > SLACK:
                low = matrix.dtype.type(-1)
        if low < -NEGATIVE:
            conditions[m] = IMPROPER
            continue
        for row in range(size):
            reciprocal[row] = 1 / (matrix[row, row] - off)
            trace += reciprocal[row]
        if not abs(trace) < np.inf:
            # At least one diagonal entry is equal to `off`. Elimination can invert the matrix if there is only one such entry.
            conditions[m] = LEFT
            continue
        outer = off / (1 + off * trace)
        norm, inverse_norm = 0.0, 0.0
        for row in range(size):
            row_sum = 0.0
            for column in range(size):
                value = -outer * reciprocal[row] * reciprocal[column]
                if row == column:
                    value += reciprocal[row]
                inverse[row, column] = value
                row_sum += abs(value)
            norm = max(norm, abs(matrix[row, row]) + (size - 1) * abs(off))
            inverse_norm = max(inverse_norm, row_sum)
        condition = norm * inverse_norm
        conditions[m] = condition if condition < np.inf else LEFT


@inline
def _gather(flat, sources, area, given):
    """Store one matrix per lane: given[entry * lanes + lane]."""
    lanes = 64 // flat.itemsize
    if area >= lanes:
        for entry in range(0, area - lanes, lanes):
            gather_tile(flat, sources, entry, given, entry * lanes)
        # The last tile overlaps the previous one.
        gather_tile(flat, sources, area - lanes, given, (area - lanes) * lanes)
    else:
        for lane in range(lanes):
            for entry in range(area):
                given[entry * lanes + lane] = flat[sources[lane] + entry]


@inline
def _scatter(work, sources, area, held, flat):
    """Undo `_gather`; only the first `held` lanes are different matrices, the others repeat the last."""
    lanes = 64 // flat.itemsize
    if area >= lanes:
        for entry in range(0, area - lanes, lanes):
            scatter_tile(work, entry * lanes, flat, sources, entry)
        scatter_tile(work, (area - lanes) * lanes, flat, sources, area - lanes)
    else:
        for lane in range(held):
            for entry in range(area):
                flat[sources[lane] + entry] = work[entry * lanes + lane]


@inline
def _copy_and_norm(given, work, size):
    """Copy the matrices; return of each the largest row sum of absolute values and the largest deviation from a sum of 1.

    A negative entry counts as a deviation, in units in which `NEGATIVE` equals `SLACK`.
    """
    lanes = 64 // given.itemsize
    step, zero, one = size * lanes, splat(given.dtype.type(0)), splat(given.dtype.type(1))
    unit = splat(given.dtype.type(SLACK / NEGATIVE))
    norm, away = zero, zero
    for row in range(0, size * step, step):
        row_sum, negative = zero, zero
        for at in range(row, row + step, lanes):
            value = load(given, at)
            store(work, at, value)
            row_sum = row_sum + larger(value, zero - value)
            negative = larger(zero - value, negative)
        norm = larger(row_sum, norm)
        away = larger(larger(row_sum - one, one - row_sum), larger(negative * unit, away))
    return norm, away


@inline
def _eliminate(work, size):
    """Invert in place by Gauss-Jordan elimination without row exchanges."""
    lanes = 64 // work.itemsize
    step = size * lanes
    one, zero = splat(work.dtype.type(1)), splat(work.dtype.type(0))
    for pivot in range(size):
        pivot_row = pivot * step
        diagonal = pivot * lanes
        scale = one / load(work, pivot_row + diagonal)
        store(work, pivot_row + diagonal, one)
        for at in range(pivot_row, pivot_row + step, lanes):
            store(work, at, load(work, at) * scale)
        for row in range(0, size * step, step):
            if row != pivot_row:
                factor = zero - load(work, row + diagonal)
                store(work, row + diagonal, zero)
                for column in range(0, step, lanes):
                    store(work, row + column, load(work, row + column) + factor * load(work, pivot_row + column))


@inline
def _check(given, work, probe, images, norm, size):
    """Return the norm of each inverse, the largest entry of T (X v) - v, and the lanes with NaN."""
    lanes = 64 // work.itemsize
    zero = splat(work.dtype.type(0))
    inverse_norm, residual_norm = zero, zero
    # `larger` drops NaN, so lanes with NaN are recorded.
    nans = not_numbers(norm, norm)
    for row in range(size):
        row_sum, image = zero, zero
        for column in range(size):
            value = load(work, (row * size + column) * lanes)
            row_sum = row_sum + larger(value, zero - value)
            image = image + value * splat(probe[column])
        store(images, row * lanes, image)
        inverse_norm = larger(row_sum, inverse_norm)
        nans |= not_numbers(row_sum, row_sum)
    for row in range(size):
        residual = zero - splat(probe[row])
        for column in range(size):
            residual = residual + load(given, (row * size + column) * lanes) * load(images, column * lanes)
        residual_norm = larger(larger(residual, zero - residual), residual_norm)
    return inverse_norm, residual_norm, nans


@kernel
def invert_lanes(
    matrices: np.ndarray, which: np.ndarray, start: int, stop: int, inverses: np.ndarray, conditions: np.ndarray
) -> None:
    """Invert the matrices which[start:stop] by Gauss-Jordan elimination, one matrix per lane.

    There are no row exchanges: transition matrices have their weight on the diagonal, so exchanges are rarely needed, and lanes
    with different exchanges could not share instructions.  The result X is tested on a probe vector v without structure, which
    costs a fraction of computing T X.  If ||T (X v) - v|| exceeds the rounding error, the condition number is `LEFT` and the
    caller uses LAPACK.

    Parameters
    ----------
    matrices, inverses : (N, K, K)
    conditions : (N,)
        In the maximum row sum norm.
    """
    size = matrices.shape[1]
    lanes, area = 64 // matrices.itemsize, size * size
    work, given = np.empty(area * lanes, matrices.dtype), np.empty(area * lanes, matrices.dtype)
    images, probe = np.empty(size * lanes, matrices.dtype), np.empty(size, matrices.dtype)
    for c in range(size):
        probe[c] = (1 + c * 0.6180339887498949 % 1) * (1 if c * 1.4142135623730951 % 1 < 0.5 else -1)
    condition, wrong = np.empty(lanes, matrices.dtype), np.empty(lanes, matrices.dtype)
    deviation = np.empty(lanes, matrices.dtype)
    sources = np.empty(lanes, np.int64)
    flat, flat_inverses = matrices.reshape(-1), inverses.reshape(-1)
    tolerance = matrices.dtype.type(1e-13 if matrices.itemsize == 8 else 1e-5)
    for group in range(start, stop, lanes):
        held = min(lanes, stop - group)
        for lane in range(lanes):
            # An incomplete group repeats its last matrix.
            sources[lane] = which[group + min(lane, held - 1)] * area
        _gather(flat, sources, area, given)
        norm, away = _copy_and_norm(given, work, size)
        _eliminate(work, size)
        inverse_norm, residual_norm, nans = _check(given, work, probe, images, norm, size)
        store(condition, 0, norm * inverse_norm)
        store(wrong, 0, residual_norm)
        store(deviation, 0, away)
        for lane in range(held):
            sure = wrong[lane] <= tolerance * condition[lane] and condition[lane] < np.inf
            found = condition[lane] if sure and not nans >> lane & 1 else LEFT
            conditions[which[group + lane]] = IMPROPER if deviation[lane] > SLACK else found
        _scatter(work, sources, area, held, flat_inverses)


@kernel
def row_norms(matrices: np.ndarray, start: int, stop: int, norms: np.ndarray) -> None:
    """Write the largest row sum of absolute values of the matrices start..stop; NaN for a matrix with NaN."""
    size = matrices.shape[1]
    for m in range(start, stop):
        norm = 0.0
        for row in range(size):
            row_sum = 0.0
            for column in range(size):
                row_sum += abs(matrices[m, row, column])
            if row_sum > norm or math.isnan(row_sum):  # NaN stays: no later sum is larger
                norm = row_sum
        norms[m] = norm
