"""A multilayer perceptron in one kernel: all local steps of a client without returning to Python.

Linear layers with ReLU between them.  An image is flattened channel by channel, as in PyTorch.
"""

from typing import NamedTuple

import numpy as np

from fnlkit._kernels.fused.dense import pitch_for, rows_for
from fnlkit._kernels.fused.input import Frame, input_shape
from fnlkit._kernels.fused.tile import strict
from fnlkit._kernels.fused.training import Linear, linear_layers, local_training, plain_training, prediction

_TOGETHER = 20  # samples of one block in prediction


class _Front(NamedTuple):
    """A perceptron has no layers before the linear layers, which read a copy of the batch."""

    images: np.ndarray
    linear: Linear


@strict
def _frame(samples, width):
    _, height, columns, _ = input_shape(samples)
    return Frame(pitch_for(width), 0, columns, 1, height * columns)


@strict
def _make(widths, samples, batch, head, networks, real):
    images = np.zeros(rows_for(batch) * pitch_for(widths[0]), real)
    first = _Front(images, linear_layers(widths, 0, batch, head, real))
    second = _Front(images, linear_layers(widths, 0, batch, head, real)) if networks > 1 else first
    return (first, second), images, _frame(samples, widths[0])


@strict
def _forward(theta, front, samples):
    """Copy the batch to the input of the linear layers."""
    images, values = front.images, front.linear.values
    for i in range(samples * pitch_for(front.linear.widths[0])):
        values[i] = images[i]


@strict
def _backward(theta, velocity, front, samples, descent, step, pull):
    """Do nothing: there are no layers before the linear layers."""


# The network's description: size of a sample, hidden units of each layer, number of classes (layers + 1,) int64.
fit = local_training(__name__, _make, _forward, _backward, False)
fit_plain = plain_training(__name__, _make, _forward, _backward, False)
predict = prediction(__name__, _make, _forward, _TOGETHER)
