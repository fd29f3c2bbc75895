"""A multilayer perceptron in one kernel: all local steps of a client without returning to Python.

Linear layers with ReLU between them.  An image is flattened channel by channel, as in PyTorch.
"""

from typing import NamedTuple

import numpy as np

from fnlkit._kernels._compile import strict
from fnlkit._kernels.fused.dense import pitch_for
from fnlkit._kernels.fused.input import Frame
from fnlkit._kernels.fused.training import Layers, Linear, linear_layers, linear_of, network_kernel


class _Front(NamedTuple):
    """A perceptron has no layers before the linear layers."""

    linear: Linear


def allocate(net: tuple[int, ...], real: np.dtype) -> tuple[()]:
    """Return an empty tuple: no layers before the linear layers need scratch."""
    return ()


def stride_of(net: tuple[int, ...]) -> int:
    """Return the distance between two samples of a batch."""
    return pitch_for.py_func(net[0])


def layers_of(net: tuple[int, ...], batch: int) -> tuple[Layers, int, int]:
    """Return the Layers, and the lengths of `memory` and of `places` of a sample."""
    return *linear_layers(net, 0, batch), 0


@strict
def _make(layers, samples, batch, memory, places, scratch):
    _, height, columns, _ = samples.shape
    linear = linear_of(layers, memory)
    return _Front(linear), linear.values, Frame(pitch_for(layers.widths[0]), 0, columns, 1, height * columns)


@strict
def _forward(theta, front, samples):
    """Do nothing: the batch is loaded to the input of the linear layers."""


@strict
def _backward(theta, velocity, front, samples, descent, step, pull):
    """Do nothing."""


# A network's description `net`: size of a sample, hidden units of each layer, number of classes.
advance = network_kernel(__name__, _make, _forward, _backward, False)
