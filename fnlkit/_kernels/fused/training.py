"""Parts that all fused networks share: the linear layers at the end, local training, and prediction.

A network is a front followed by linear layers with ReLU between them.  The front of LeNet-5 is the convolutions; a perceptron
has an empty front.  All activations of a batch in the linear layers are in one array, and their gradients are in a second
array with the same layout.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from fnlkit._kernels.fused.dense import (
    dense_backward_input,
    dense_forward,
    dense_step,
    gate,
    pitch_for,
    rectify,
    rows_for,
    scratch_for,
)
from fnlkit._kernels.fused.head import follow_teacher, head_room
from fnlkit._kernels.fused.input import choose, empty_batch, load_batch, load_sample, mix_batch, spoil, unmix_batch
from fnlkit._kernels.fused.loss import EMBEDDING, loss_and_gradient, needs_server, needs_unmixed
from fnlkit._kernels.fused.step import pull_at
from fnlkit._kernels.fused.tile import strict


class Linear(NamedTuple):
    """Linear layers of a network, and memory for a batch.

    Attributes
    ----------
    widths : (layers + 1,) int64
        Size of the input, units of each hidden layer, number of classes.
    weights_at : (layers + 1,) int64
        Position of each layer's weights in the flat parameter vector, and of the weights of a head.
    values_at : (layers + 2,) int64
        Position of the input and of each layer's output in `values` and `deltas`, and the end.
    values, deltas : flat real
        Activations and their gradients.
    scratch : flat real
    """

    widths: np.ndarray
    weights_at: np.ndarray
    values_at: np.ndarray
    values: np.ndarray
    deltas: np.ndarray
    scratch: np.ndarray


@strict
def linear_layers(widths, first, batch, head, real):
    """Return the Linear of layers with weights from position `first` on, for batches of `batch` and a head of `head` units."""
    weights_at, values_at = np.zeros(widths.size, np.int64), np.zeros(widths.size + 1, np.int64)
    weights_at[0], need = first, scratch_for(widths[widths.size - 2], head)
    for layer in range(widths.size):
        values_at[layer + 1] = values_at[layer] + rows_for(batch) * pitch_for(widths[layer])
        if layer > 0:
            weights_at[layer] = weights_at[layer - 1] + widths[layer] * (widths[layer - 1] + 1)
            need = max(need, scratch_for(widths[layer - 1], widths[layer]))
    size = values_at[widths.size]
    return Linear(widths, weights_at, values_at, np.zeros(size, real), np.zeros(size, real), np.empty(need, real))


@strict
def linear_forward(theta, linear, samples):
    """Run all layers; the input is at the front of ``linear.values``, the logits are at the end."""
    widths, values, last = linear.widths, linear.values, linear.widths.size - 1
    for layer in range(last):
        at, to = linear.values_at[layer], linear.values_at[layer + 1]
        dense_forward(theta, linear.weights_at[layer], values, at, widths[layer], values, to, widths[layer + 1], samples)
        if layer + 1 < last:
            rectify(values, to, widths[layer + 1], samples)


@strict
def linear_backward(theta, velocity, linear, inputs, loss, batch, count, room, descent, step, pull):
    """Update all layers, and the head if there is one, from the gradients of the logits.

    Computes the gradient of the layers' input if `inputs` is true.  Returns the teacher's term of the loss.
    """
    values, deltas, scratch, last = linear.values, linear.deltas, linear.scratch, linear.widths.size - 1
    distance = 0.0
    for layer in range(last - 1, -1, -1):
        at, x_at, delta_at = linear.weights_at[layer], linear.values_at[layer], linear.values_at[layer + 1]
        width, units = linear.widths[layer], linear.widths[layer + 1]
        if layer > 0 or inputs:
            dense_backward_input(theta, at, deltas, delta_at, units, deltas, x_at, width, count, scratch)
        if layer > 0 and layer == last - 1 and loss.kind == EMBEDDING:
            distance = follow_teacher(
                theta, velocity, linear.weights_at[last], values, x_at, width, loss, batch, count, room, deltas, x_at, scratch,
                descent, step, pull,
            )  # fmt: skip
        dense_step(theta, velocity, at, values, x_at, width, deltas, delta_at, units, count, scratch, descent, step, pull)
        if layer > 0 or inputs:
            gate(deltas, values, x_at, width, count)
    return distance


def _inner(function):
    """Compile a function as a part of the kernels that call it; it is cached with them only."""
    return njit(nogil=True, error_model="numpy")(function)


def local_training(front_forward, front_backward, inputs):
    """Return a compiled function for the local training of a network.

    Parameters
    ----------
    front_forward : compiled function (theta, front, samples)
        Writes the input of the linear layers.
    front_backward : compiled function (theta, velocity, front, samples, descent, step, pull)
        Updates the weights of the front from the gradient of the linear layers' input.
    inputs : bool
        Whether the front needs that gradient.

    Returns
    -------
    compiled function
        ``train(theta, velocity, front, images, frame, linear, samples, y, order, descent, loss, augment, epoch_loss,
        epoch_correct)``; a batch is loaded to `images`, as `frame` describes.
    """

    @_inner
    def forward(theta, front, linear, samples):
        front_forward(theta, front, samples)
        linear_forward(theta, linear, samples)

    @_inner
    def train(
        theta, velocity, front, images, frame, linear, samples, y, order, descent, loss, augment, epoch_loss, epoch_correct
    ):
        real, values, last = theta.dtype, linear.values, linear.widths.size - 1
        logits_at, classes = linear.values_at[last], linear.widths[last]
        pitch, size = pitch_for(classes), linear.values.size - logits_at
        batch, room = (
            empty_batch(order.shape[1], augment, frame, real),
            head_room(loss, order.shape[1], linear.widths[last - 1], real),
        )
        with_server, unmixed = needs_server(loss), needs_unmixed(loss, batch)
        server_theta = np.zeros(theta.size if with_server else 0, real)
        server_logits, own_logits = np.zeros(size, real), np.zeros(size if unmixed else 0, real)
        if with_server:
            for i in range(descent.anchor.size):
                server_theta[i] = descent.anchor[i]

        for step in range(order.shape[0]):
            count, epoch = choose(batch, order, step), step // descent.epoch_steps
            if count == 0:
                continue
            share = load_batch(batch, count, samples, augment, step, images, frame)
            if unmixed:
                unmix_batch(batch, count, images, frame)
                forward(theta, front, linear, count)
                for i in range(size):
                    own_logits[i] = values[logits_at + i]
            if with_server:
                forward(server_theta, front, linear, count)
                for i in range(size):
                    server_logits[i] = values[logits_at + i]
            if unmixed:
                mix_batch(batch, count, augment, step, images, frame)
            forward(theta, front, linear, count)
            spoil(values, logits_at, classes, pitch, batch.poison, count)
            total, correct = loss_and_gradient(
                loss, values, logits_at, server_logits, own_logits, classes, pitch, y, batch, step, share, count, linear.deltas
            )
            epoch_loss[epoch] += total
            epoch_correct[epoch] += correct
            pull = pull_at(descent, step, theta)
            epoch_loss[epoch] += linear_backward(theta, velocity, linear, inputs, loss, batch, count, room, descent, step, pull)
            front_backward(theta, velocity, front, count, descent, step, pull)

    return train


def prediction(front_forward):
    """Return a compiled function ``predict(theta, front, images, frame, linear, block, samples, augment, logits)``.

    It writes the logits (n, classes) of all samples, `block` samples at a time.
    """

    @_inner
    def predict(theta, front, images, frame, linear, block, samples, augment, logits):
        poison, last = np.empty(block, theta.dtype), linear.widths.size - 1
        classes, logits_at = linear.widths[last], linear.values_at[last]
        for first in range(0, logits.shape[0], block):
            count = min(block, logits.shape[0] - first)
            for b in range(count):
                poison[b] = load_sample(samples, first + b, augment, 0, 0, images, b * frame.stride, frame)
            front_forward(theta, front, count)
            linear_forward(theta, linear, count)
            for b in range(count):
                for j in range(classes):
                    logits[first + b, j] = linear.values[logits_at + b * pitch_for(classes) + j] + poison[b]

    return predict
