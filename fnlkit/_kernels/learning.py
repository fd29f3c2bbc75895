"""A matrix between predictions and labels, learned with Adam for predictions that do not change."""

import math
from typing import Any

import llvmlite.ir as ir
import numpy as np
from numba.core import types
from numba.extending import intrinsic

from fnlkit._kernels._compile import inline, kernel

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8  # of torch.optim.Adam
_LEAST = 1e-12  # smallest sum of a row that is scaled


# Coefficients 1 / 13! to 1 / 0! of the exponential function.
_SERIES = tuple(1 / math.factorial(n) for n in range(13, -1, -1))
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10


@intrinsic
def _power_of_two(typingctx, exponent):
    """Return 2^k for a whole number k >= -1022 of type float64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = builder.sext(builder.fptosi(args[0], ir.IntType(32)), ir.IntType(64))
        bits = builder.shl(builder.add(whole, whole.type(1023)), whole.type(52))
        return builder.bitcast(bits, ir.DoubleType())

    return types.float64(types.float64), codegen


@inline
def exp_negative(x):
    """Return exp(x) for x <= 0, with vector instructions in a loop; calls of `math.exp` would take most of the time."""
    x = max(x, -700.0)
    whole = np.floor(x / math.log(2) + 0.5)
    rest, total = (x - whole * _LN2_HIGH) - whole * _LN2_LOW, 0.0
    for coefficient in _SERIES:
        total = total * rest + coefficient
    return total * _power_of_two(whole)


@inline
def _through_slope(p, labels, matrix, factor, floor, slope):
    """Write the gradient of the mean of -log((p T)_y + floor), or of factor / ((p T)_y + floor), for p (n, C)."""
    n, classes = p.shape
    turned, found = matrix.T.copy(), np.zeros((classes, classes))
    for i in range(n):
        label, through = labels[i], floor
        for j in range(classes):
            through += p[i, j] * turned[label, j]
        steep = -1 / (n * through)
        if factor.size:
            steep *= factor[i] / through
        for j in range(classes):
            found[label, j] += steep * p[i, j]
    for i in range(classes):
        for j in range(classes):
            slope[i, j] = found[j, i]


@inline
def _matrix_of(base, values, out):
    """Write the matrix that `values` (C, C) describe."""
    classes = len(values)
    for i in range(classes):
        total = 0.0
        for j in range(classes):
            out[i, j] = max(base[i, j] + values[i, j], 0.0)
            total += out[i, j]
        for j in range(classes):
            out[i, j] /= max(total, _LEAST)


@inline
def _through_values(base, values, matrix, slope):
    """Replace the gradient of a matrix by the gradient of its values."""
    classes = len(values)
    for i in range(classes):
        along, total = 0.0, 0.0
        for j in range(classes):
            along += slope[i, j] * matrix[i, j]
            total += max(base[i, j] + values[i, j], 0.0)
        along = along if total >= _LEAST else 0.0
        for j in range(classes):
            slope[i, j] = (slope[i, j] - along) / max(total, _LEAST)
            if base[i, j] + values[i, j] < 0:
                slope[i, j] = 0.0


@kernel
def learn(
    p: np.ndarray,
    labels: np.ndarray,
    base: np.ndarray,
    values: np.ndarray,
    factor: np.ndarray,
    floor: float,
    rate: float,
    steps: int,
) -> None:
    """Move `values` (C, C) float64 in place by Adam steps on a loss of all samples with predictions `p` (n, C).

    The loss is -log((p T)_y + floor), or factor / ((p T)_y + floor) with `factor` (n,); T is the positive part of
    base + values, with rows scaled to sum to 1.
    """
    classes = len(values)
    first, second, slope = np.zeros_like(values), np.zeros_like(values), np.zeros_like(values)
    matrix = np.zeros_like(values)
    for t in range(1, steps + 1):
        _matrix_of(base, values, matrix)
        _through_slope(p, labels, matrix, factor, floor, slope)
        _through_values(base, values, matrix, slope)
        for i in range(classes):
            for j in range(classes):
                first[i, j] += (1 - _FIRST) * (slope[i, j] - first[i, j])
                second[i, j] = _SECOND * second[i, j] + (1 - _SECOND) * slope[i, j] * slope[i, j]
                spread = math.sqrt(second[i, j] / (1 - _SECOND**t)) + _TINY
                values[i, j] -= rate / (1 - _FIRST**t) * first[i, j] / spread
