"""A multilayer perceptron in one kernel: all local steps of a client without returning to Python.

Linear layers with ReLU between them.  An image is flattened channel by channel, as in PyTorch.
"""

from typing import NamedTuple

import numpy as np

from fnlkit._kernels._compile import strict
from fnlkit._kernels.fused.dense import pitch_for
from fnlkit._kernels.fused.input import Frame, input_shape
from fnlkit._kernels.fused.training import Linear, linear_layers, linear_memory, network_kernel


class _Front(NamedTuple):
    """A perceptron has no layers before the linear layers."""

    linear: Linear


@strict
def _allocate(widths, real):
    return np.zeros(0, real)


@strict
def _make(widths, samples, batch, memory, places, scratch):
    _, height, columns, _ = input_shape(samples)
    linear = linear_layers(widths, 0, batch, memory)
    return _Front(linear), linear.values, Frame(pitch_for(widths[0]), 0, columns, 1, height * columns)


@strict
def _forward(theta, front, samples):
    """Do nothing: the batch is loaded to the input of the linear layers."""


@strict
def _backward(theta, velocity, front, samples, descent, step, pull):
    """Do nothing."""


def memory_for(widths: tuple[int, ...], batch: int) -> tuple[int, int]:
    """Return the lengths of `memory` and `places` of a network."""
    return linear_memory(widths, batch), 0


# The network's description: size of a sample, hidden units of each layer, number of classes (layers + 1,) int64.
advance = network_kernel(__name__, _allocate, _make, _forward, _backward, False)
