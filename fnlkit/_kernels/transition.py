"""Inverses of stacks of small matrices: a formula where one exists, elimination with one matrix a vector lane elsewhere."""

import numpy as np

from fnlkit._kernels._compile import kernel
from fnlkit._kernels.lanes import load, spread, store


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
    reciprocal = np.empty(size, matrices.dtype)
    for m in range(start, stop):
        matrix = matrices[m]
        off = matrix[0, size - 1] if size > 1 else matrix[0, 0] * 0
        differs = 0
        for row in range(size):
            for column in range(size):
                differs += matrix[row, column] != off
            # The diagonal may be what it likes.
            differs -= matrix[row, row] != off
        if differs:
            conditions[m] = -1.0
            continue
        inverse = inverses[m]
        first = matrix[0, 0] - off
        constant = True
        for row in range(size):
            constant &= matrix[row, row] - off == first
        if constant:
            scale = 1 / first
            outer = off * scale * scale / (1 + off * size * scale)
            for row in range(size):
                for column in range(size):
                    inverse[row, column] = -outer
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
    lanes from walking together.  Whether the result is right is checked: where ||T X - 1|| exceeds what rounding explains,
    the condition number becomes -1 and the caller turns to LAPACK.

    Parameters
    ----------
    matrices, inverses : (N, K, K)
    conditions : (N,)
        In the maximum row sum norm.
    """
    size = matrices.shape[1]
    lanes = 64 // matrices.itemsize
    area = size * size
    work = np.empty(area * lanes, matrices.dtype)
    given = np.empty(area * lanes, matrices.dtype)
    row_lanes = np.empty(lanes, matrices.dtype)
    norms = np.empty((3, lanes), matrices.dtype)
    one = spread(matrices.dtype.type(1))
    zero = spread(matrices.dtype.type(0))
    tolerance = matrices.dtype.type(1e-13 if matrices.itemsize == 8 else 1e-5)
    for group in range(start, stop, lanes):
        held = min(lanes, stop - group)
        for lane in range(lanes):
            # A group that is not full repeats its last matrix.
            matrix = matrices[which[group + min(lane, held - 1)]]
            for row in range(size):
                for column in range(size):
                    given[(row * size + column) * lanes + lane] = matrix[row, column]
        work[:] = given
        for pivot in range(size):
            pivot_row = pivot * size * lanes
            scale = one / load(work, pivot_row + pivot * lanes)
            store(work, pivot_row + pivot * lanes, one)
            for at in range(pivot_row, pivot_row + size * lanes, lanes):
                store(work, at, load(work, at) * scale)
            for row in range(size):
                if row != pivot:
                    this = row * size * lanes
                    factor = load(work, this + pivot * lanes)
                    store(work, this + pivot * lanes, zero)
                    for column in range(0, size * lanes, lanes):
                        store(work, this + column, load(work, this + column) - factor * load(work, pivot_row + column))
        norms[:] = 0
        for row in range(size):
            for kind in range(2):
                source = work if kind else given
                for lane in range(lanes):
                    row_lanes[lane] = 0
                for column in range(size):
                    for lane in range(lanes):
                        row_lanes[lane] += abs(source[(row * size + column) * lanes + lane])
                for lane in range(lanes):
                    norms[kind, lane] = max(norms[kind, lane], row_lanes[lane])
            for column in range(size):
                residual = zero - one if row == column else zero
                for inner in range(size):
                    left = load(given, (row * size + inner) * lanes)
                    residual = residual + left * load(work, (inner * size + column) * lanes)
                store(row_lanes, 0, residual)
                for lane in range(lanes):
                    norms[2, lane] = max(norms[2, lane], abs(row_lanes[lane]))
        for lane in range(held):
            m = which[group + lane]
            condition = norms[0, lane] * norms[1, lane]
            # Also false for NaN.
            if norms[2, lane] <= tolerance * condition and condition < np.inf:
                conditions[m] = condition
            else:
                conditions[m] = -1.0
            inverse = inverses[m]
            for row in range(size):
                for column in range(size):
                    inverse[row, column] = work[(row * size + column) * lanes + lane]
