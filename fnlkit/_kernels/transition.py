"""Inverses of stacks of small matrices: a formula where one exists, else elimination with one matrix a vector lane."""

import numpy as np

from fnlkit._kernels._compile import kernel
from fnlkit._kernels.lanes import count_bits, equal, larger, load, load_some, not_numbers, spread, store


@kernel
def invert_constant(matrices, start, stop, inverses, conditions):
    """Invert those of the matrices start..stop whose entries off the diagonal are all equal; mark the rest with -1.

    T = D + b 1 1' with D diagonal has the inverse (Sherman and Morrison 1950)
    D^-1 - b D^-1 1 1' D^-1 / (1 + b 1' D^-1 1).

    Parameters
    ----------
    matrices, inverses : (N, K, K)
    conditions : (N,)
        ||T|| ||T^-1|| in the maximum row sum norm; infinity for a singular matrix.
    """
    size = matrices.shape[1]
    area = size * size
    width = 64 // matrices.itemsize
    whole = area // width * width
    tail = (1 << (area - whole)) - 1
    reciprocal = np.empty(size, matrices.dtype)
    flat, flat_inverses = matrices.reshape(-1), inverses.reshape(-1)
    for m in range(start, stop):
        matrix = matrices[m]
        off = matrix[0, size - 1] if size > 1 else matrix.dtype.type(0)
        offs = spread(off)
        # As many entries differ as differ on the diagonal, which may be what it likes.
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
            conditions[m] = -1.0
            continue
        inverse = inverses[m]
        first = matrix[0, 0] - off
        constant = True
        for row in range(size):
            constant &= matrix[row, row] - off == first
        if constant:
            scale = 1 / first
            outer = matrices.dtype.type(off * scale * scale / (1 + off * size * scale))
            if area >= width:
                outers = spread(-outer)
                for at in range(m * area, m * area + whole, width):
                    store(flat_inverses, at, outers)
                # The last vector overlaps the one before.
                store(flat_inverses, (m + 1) * area - width, outers)
            else:
                for row in range(size):
                    for column in range(size):
                        inverse[row, column] = -outer
            for row in range(size):
                inverse[row, row] = scale - outer
            norm = abs(first + off) + (size - 1) * abs(off)
            inverse_norm = abs(scale - outer) + (size - 1) * abs(outer)
        else:
            trace = 0.0
            for row in range(size):
                reciprocal[row] = 1 / (matrix[row, row] - off)
                trace += reciprocal[row]
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
        # 1 / 0 on the way: either singular or one diagonal entry equal to `off`, which elimination can handle.
        if condition < np.inf:
            conditions[m] = condition
        else:
            conditions[m] = np.inf if constant else -1.0


@kernel
def invert_lanes(matrices, which, start, stop, inverses, conditions):
    """Invert the matrices which[start:stop] by Gauss-Jordan elimination without row exchanges, one matrix a lane.

    Transition matrices have their weight on the diagonal, so exchanges are rarely needed, and they are what would stop
    lanes from walking together.  Whether the result is right is checked: where ||T X - 1|| exceeds what rounding
    explains, the condition number becomes -1 and the caller turns to LAPACK.

    Parameters
    ----------
    matrices, inverses : (N, K, K)
    conditions : (N,)
        In the maximum row sum norm.
    """
    size = matrices.shape[1]
    lanes = 64 // matrices.itemsize
    step = size * lanes
    area = size * step
    work = np.empty(area, matrices.dtype)
    given = np.empty(area, matrices.dtype)
    condition = np.empty(lanes, matrices.dtype)
    wrong = np.empty(lanes, matrices.dtype)
    flat, flat_inverses = matrices.reshape(-1), inverses.reshape(-1)
    one = spread(matrices.dtype.type(1))
    zero = spread(matrices.dtype.type(0))
    tolerance = matrices.dtype.type(1e-13 if matrices.itemsize == 8 else 1e-5)
    for group in range(start, stop, lanes):
        held = min(lanes, stop - group)
        for lane in range(lanes):
            # A group that is not full repeats its last matrix.
            source = which[group + min(lane, held - 1)] * size * size
            for entry in range(size * size):
                given[entry * lanes + lane] = flat[source + entry]
        norm = zero
        for row in range(0, area, step):
            row_sum = zero
            for at in range(row, row + step, lanes):
                value = load(given, at)
                store(work, at, value)
                row_sum = row_sum + larger(value, zero - value)
            norm = larger(row_sum, norm)
        for pivot in range(size):
            pivot_row = pivot * step
            diagonal = pivot * lanes
            scale = one / load(work, pivot_row + diagonal)
            store(work, pivot_row + diagonal, one)
            for at in range(pivot_row, pivot_row + step, lanes):
                store(work, at, load(work, at) * scale)
            for row in range(0, area, step):
                if row != pivot_row:
                    factor = zero - load(work, row + diagonal)
                    store(work, row + diagonal, zero)
                    for column in range(0, step, lanes):
                        store(work, row + column, load(work, row + column) + factor * load(work, pivot_row + column))
        inverse_norm, residual_norm = zero, zero
        # `larger` passes NaN over, so lanes that have some are remembered.
        nans = not_numbers(norm, norm)
        for row in range(0, area, step):
            row_sum = zero
            # Two columns together share the loads of the left factor.
            for column in range(0, step, 2 * lanes):
                second = min(column + lanes, step - lanes)
                value, next_value = load(work, row + column), load(work, row + second)
                row_sum = row_sum + larger(value, zero - value)
                if second > column:
                    row_sum = row_sum + larger(next_value, zero - next_value)
                residual = zero - one if row == column * size else zero
                next_residual = zero - one if row == second * size else zero
                for inner in range(size):
                    left = load(given, row + inner * lanes)
                    residual = residual + left * load(work, inner * step + column)
                    next_residual = next_residual + left * load(work, inner * step + second)
                residual_norm = larger(larger(residual, zero - residual), residual_norm)
                residual_norm = larger(larger(next_residual, zero - next_residual), residual_norm)
            inverse_norm = larger(row_sum, inverse_norm)
            nans |= not_numbers(row_sum, row_sum)
        store(condition, 0, norm * inverse_norm)
        store(wrong, 0, residual_norm)
        for lane in range(held):
            m = which[group + lane]
            sure = wrong[lane] <= tolerance * condition[lane] and condition[lane] < np.inf
            conditions[m] = condition[lane] if sure and not nans >> lane & 1 else -1.0
            target = m * size * size
            for entry in range(size * size):
                flat_inverses[target + entry] = work[entry * lanes + lane]


@kernel
def row_norms(matrices, start, stop, norms):
    """Write the largest row sum of absolute values of the matrices start..stop; NaN where one is in it."""
    size = matrices.shape[1]
    for m in range(start, stop):
        norm = 0.0
        for row in range(size):
            row_sum = 0.0
            for column in range(size):
                row_sum += abs(matrices[m, row, column])
            if not row_sum <= norm:
                norm = row_sum
        norms[m] = norm
