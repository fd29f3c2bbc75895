"""Fully connected layers of the fused path: forward pass, gradients, and the step of the weights.

The activations of a batch are in one flat array; the row of sample b starts at ``at + b * pitch_for(width)``.  The array
has rows for `rows_for` samples: blocks compute slightly more rows and columns than needed, and the surplus is written to
padding that is never used.  For the same reason the flat parameter vector must have `SPARE` finite numbers after its end.
"""

import numpy as np

from fnlkit._kernels._compile import strict
from fnlkit._kernels.fused.step import Descent, descend
from fnlkit._kernels.fused.tile import LANES, dot_products, tile_product

_ROWS, _UNITS = 5, 4
_BLOCK = 4 * LANES
SPARE = _BLOCK

# Both blocks use twenty accumulators: an outer product of five numbers and 64 numbers, and dot products of five rows with four
# rows.
_five_by_block = tile_product([list(range(_ROWS))], [[0, LANES, 2 * LANES, 3 * LANES]])
_five_by_four, _five_by_one = dot_products(_ROWS, _UNITS), dot_products(_ROWS, 1)


@strict
def rows_for(samples: int) -> int:
    """Return the number of rows to allocate: whole blocks, and one row that the last block can read into."""
    return (samples + _ROWS - 1) // _ROWS * _ROWS + 1


@strict
def pitch_for(width: int) -> int:
    """Return the distance between the rows of two samples."""
    return (width + _BLOCK - 1) // _BLOCK * _BLOCK


@strict
def dense_forward(
    theta: np.ndarray, weight_at: int, x: np.ndarray, x_at: int, width: int, y: np.ndarray, y_at: int, units: int, samples: int
) -> None:
    """Write ``y[b, o] = bias[o] + sum_k weight[o, k] x[b, k]``; in `theta` the bias follows the weight.

    Whole vectors are read, so the padding of `x` must be zero.
    """
    x_row, y_row, vectors = pitch_for(width), pitch_for(units), (width + LANES - 1) // LANES
    whole = units // _UNITS * _UNITS
    for b in range(0, samples, _ROWS):
        x_here, y_here = x_at + b * x_row, y_at + b * y_row
        for o in range(0, whole, _UNITS):
            _five_by_four(y, y_here + o, y_row, x, x_here, x_row, theta, weight_at + o * width, width, vectors)
        for o in range(whole, units):
            _five_by_one(y, y_here + o, y_row, x, x_here, x_row, theta, weight_at + o * width, width, vectors)
    bias = theta[weight_at + units * width : weight_at + units * (width + 1)]
    for b in range(samples):
        row = y[y_at + b * y_row : y_at + b * y_row + units]
        for o in range(units):
            row[o] += bias[o]


@strict
def rectify(values: np.ndarray, at: int, width: int, samples: int) -> None:
    """Replace negative numbers by zero in place; NaN stays NaN."""
    zero = values.dtype.type(0)
    for b in range(samples):
        row = values[at + b * pitch_for(width) : at + b * pitch_for(width) + width]
        for k in range(width):
            row[k] = zero if row[k] < zero else row[k]


@strict
def gate(gradients: np.ndarray, values: np.ndarray, at: int, width: int, samples: int) -> None:
    """Set the gradient to zero where the output of the ReLU is zero; NaN keeps the gradient, as in PyTorch."""
    zero = values.dtype.type(0)
    for b in range(samples):
        start = at + b * pitch_for(width)
        g, v = gradients[start : start + width], values[start : start + width]
        for k in range(width):
            g[k] = zero if v[k] <= zero else g[k]


@strict
def dense_backward_input(
    theta: np.ndarray,
    weight_at: int,
    deltas: np.ndarray,
    deltas_at: int,
    units: int,
    x_deltas: np.ndarray,
    x_at: int,
    width: int,
    samples: int,
    scratch: np.ndarray,
) -> None:
    """Write ``x_deltas[b, k] = sum_o deltas[b, o] weight[o, k]``."""
    x_row, row = pitch_for(width), pitch_for(units)
    for b in range(0, samples, _ROWS):
        for m in range(_ROWS):
            start = deltas_at + (b + m) * row
            for o in range(units):
                scratch[o * _ROWS + m] = deltas[start + o]
        for k in range(0, width, _BLOCK):
            place = x_at + b * x_row + k
            _five_by_block(x_deltas, place, x_row, scratch, 0, theta, weight_at + k, 1, units, 0, _ROWS, 0, width)


@strict
def dense_step(
    theta: np.ndarray,
    velocity: np.ndarray,
    weight_at: int,
    x: np.ndarray,
    x_at: int,
    width: int,
    deltas: np.ndarray,
    deltas_at: int,
    units: int,
    samples: int,
    scratch: np.ndarray,
    descent: Descent,
    step: int,
    pull: float,
) -> None:
    """Compute the gradient of a layer's weights and biases, five units at a time, and update them."""
    x_row, pitch = pitch_for(width), pitch_for(units)
    for o in range(0, units, _ROWS):
        for k in range(0, width, _BLOCK):
            _five_by_block(scratch, k, x_row, deltas, deltas_at + o, x, x_at + k, 1, samples, 0, pitch, 0, x_row)
        for m in range(min(_ROWS, units - o)):
            row = scratch[m * x_row : m * x_row + width]
            descend(theta, velocity, weight_at + (o + m) * width, row, descent, step, pull)
    for o in range(units):
        total = theta.dtype.type(0)
        for b in range(samples):
            total += deltas[deltas_at + b * pitch + o]
        scratch[o] = total
    descend(theta, velocity, weight_at + units * width, scratch[:units], descent, step, pull)
