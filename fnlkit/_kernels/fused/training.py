"""Parts that all fused networks share: the linear layers at the end, local training, and prediction.

A network is a front followed by linear layers with ReLU between them.  The front of LeNet-5 is the convolutions; a perceptron
has an empty front.  All activations of a batch in the linear layers are in one array, and their gradients are in a second
array with the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

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
from fnlkit._kernels.fused.head import follow_centroids, follow_teacher, head_room, nearest_centroids
from fnlkit._kernels.fused.input import (
    Augment,
    Samples,
    choose,
    empty_batch,
    load_batch,
    load_sample,
    mix_batch,
    spoil,
    unmix_batch,
)
from fnlkit._kernels.fused.loss import cross_entropy_and_gradient, loss_and_gradient, mixed_cross_entropy_and_gradient
from fnlkit._kernels.fused.losses.fields import EMBEDDING, Loss, loss_room, needs_server, needs_unmixed
from fnlkit._kernels.fused.step import Descent, adapt, pull_at
from fnlkit._kernels.fused.tile import strict, strict_kernel


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
def linear_layers(widths: np.ndarray, first: int, batch: int, head: int, real: Any) -> Linear:
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
def linear_forward(theta: np.ndarray, linear: Linear, samples: int) -> None:
    """Run all layers; the input is at the front of ``linear.values``, the logits are at the end."""
    widths, values, last = linear.widths, linear.values, linear.widths.size - 1
    for layer in range(last):
        at, to = linear.values_at[layer], linear.values_at[layer + 1]
        dense_forward(theta, linear.weights_at[layer], values, at, widths[layer], values, to, widths[layer + 1], samples)
        if layer + 1 < last:
            rectify(values, to, widths[layer + 1], samples)


@strict
def linear_backward(
    theta: np.ndarray,
    velocity: np.ndarray,
    linear: Linear,
    layers: Iterable[int],
    inputs: bool,
    count: int,
    descent: Descent,
    step: int,
    pull: float,
) -> None:
    """Update some layers, last first, from the gradients of the outputs.

    Computes the gradient of the input of the first layer of the network if `inputs` is true.
    """
    values, deltas, scratch = linear.values, linear.deltas, linear.scratch
    for layer in layers:
        at, x_at, delta_at = linear.weights_at[layer], linear.values_at[layer], linear.values_at[layer + 1]
        width, units = linear.widths[layer], linear.widths[layer + 1]
        if layer + 2 < linear.widths.size:
            gate(deltas, values, delta_at, units, count)
        if layer > 0 or inputs:
            dense_backward_input(theta, at, deltas, delta_at, units, deltas, x_at, width, count, scratch)
        dense_step(theta, velocity, at, values, x_at, width, deltas, delta_at, units, count, scratch, descent, step, pull)


def local_training(
    module: str, make: Callable[..., Any], front_forward: Callable[..., Any], front_backward: Callable[..., Any], inputs: bool
) -> Callable[..., Any]:
    """Return the kernel for the local training of a network, or of two networks with a common loss.

    The kernel is a single compiled function of `module`: each further level of calls would compile everything once more.

    Parameters
    ----------
    module : str
    make : compiled function (net, samples, batch, head, networks, real)
        Returns (fronts, images, frame): scratch for batches of `batch` samples and a head of `head` outputs, for each of two
        networks.  A batch is loaded to `images`, as `frame` describes.
    front_forward : compiled function (theta, front, samples)
        Writes the input of the linear layers, ``front.linear``.
    front_backward : compiled function (theta, velocity, front, samples, descent, step, pull)
        Updates the weights of the front from the gradient of the linear layers' input.
    inputs : bool
        Whether the front needs that gradient.

    Returns
    -------
    compiled function
        ``fit(theta, velocity, net, samples, y, order, descents, loss, augment, epoch_loss, epoch_correct)`` trains in place.
        theta, velocity (N, P + SPARE) real: weights of each network in state_dict order followed by the weights of a head, and
        the momentum buffers; the last SPARE are never used.  net: the network's description.  samples : Samples.  y (n,)
        int64.  order (steps, B) int64: positions of each step's samples, -1 for an empty place; a step without samples changes
        no weight.  descents (Descent, Descent): of each network.  loss : Loss.  augment : Augment.  epoch_loss (epochs,)
        float64 and epoch_correct (epochs,) int64: the sum of losses and the number of correct predictions are added.
    """

    @strict
    def predict(theta: np.ndarray, fronts: Any, count: int, out: np.ndarray) -> None:
        """Write the logits (N, B, C) of a batch."""
        for k in range(out.shape[0]):
            front = fronts[k]
            front_forward(theta[k], front, count)
            linear_forward(theta[k], front.linear, count)
            _copy_logits(front.linear, count, out[k])

    def fit(
        theta: np.ndarray,
        velocity: np.ndarray,
        net: Any,
        samples: Samples,
        y: np.ndarray,
        order: np.ndarray,
        descents: Any,
        loss: Loss,
        augment: Augment,
        epoch_loss: np.ndarray,
        epoch_correct: np.ndarray,
    ) -> None:
        real, networks = theta.dtype, theta.shape[0]
        fronts, images, frame = make(net, samples, order.shape[1], loss.teacher.shape[1], networks, real)
        first = fronts[0].linear
        last, top = first.widths.size - 1, first.widths.size - 2
        classes, width = first.widths[last], first.widths[last - 1]
        batch, head = empty_batch(order.shape[1], augment, frame, real), head_room(loss, order.shape[1], width, real)
        room = loss_room(networks, order.shape[1], classes)
        with_server, unmixed, centered = needs_server(loss), needs_unmixed(loss, batch), loss.terms.norms.size > 0
        similar = np.zeros(rows_for(order.shape[1]) * pitch_for(classes) if centered else 0, real)
        server_theta = np.zeros((networks, theta.shape[1] if with_server else 0), real)
        if with_server:
            for k in range(networks):
                anchor = descents[k].anchor
                for i in range(anchor.size):
                    server_theta[k, i] = anchor[i]

        for step in range(order.shape[0]):
            count, epoch = choose(batch, order, step), step // descents[0].epoch_steps
            if count == 0:
                continue
            share = load_batch(batch, count, samples, augment, step, images, frame)
            if unmixed:
                unmix_batch(batch, count, images, frame)
                predict(theta, fronts, count, room.own)
            if with_server:
                predict(server_theta, fronts, count, room.server)
            if unmixed:
                mix_batch(batch, count, augment, step, images, frame)
            predict(theta, fronts, count, room.logits)
            spoil(room.logits, batch.poison, count)
            if centered:
                nearest_centroids(loss, first.values, first.values_at[last - 1], width, count, similar, room.nearest)
            if loss.plain and share == 1.0:
                total, correct = cross_entropy_and_gradient(y, batch.chosen, count, room.logits, room.gradient, room.scratch)
            else:
                total, correct = loss_and_gradient(loss, y, batch, step, share, count, room)
            epoch_loss[epoch] += total
            epoch_correct[epoch] += correct
            for k in range(networks):
                front, descent = fronts[k], descents[k]
                pull = pull_at(descent, step, theta[k])
                _copy_gradient(room.gradient[k], count, front.linear)
                linear, x_at = front.linear, front.linear.values_at[top]
                values, deltas, scratch = linear.values, linear.deltas, linear.scratch
                linear_backward(theta[k], velocity[k], linear, range(top, top - 1, -1), inputs, count, descent, step, pull)
                # Losses of the last hidden layer.
                if top > 0 and loss.kind == EMBEDDING:
                    head_at = linear.weights_at[last]
                    epoch_loss[epoch] += follow_teacher(
                        theta[k], velocity[k], head_at, values, x_at, width, loss, batch, count, head, deltas, x_at, scratch,
                        descent, step, pull,
                    )  # fmt: skip
                if top > 0 and centered:
                    pulled = room.pulled
                    epoch_loss[epoch] += follow_centroids(loss, y, values, x_at, width, batch, count, pulled, deltas, x_at)
                linear_backward(theta[k], velocity[k], linear, range(top - 1, -1, -1), inputs, count, descent, step, pull)
                if inputs:
                    gate(deltas, values, linear.values_at[0], linear.widths[0], count)
                front_backward(theta[k], velocity[k], front, count, descent, step, pull)
                if descent.first.size:
                    adapt(theta[k], velocity[k], descent, step)

    return strict_kernel(fit, module)


def plain_training(
    module: str, make: Callable[..., Any], front_forward: Callable[..., Any], front_backward: Callable[..., Any], inputs: bool
) -> Callable[..., Any]:
    """Return the kernel for the cross entropy of one network; arguments as in `local_training`.

    ``fit_plain(theta, velocity, net, samples, y, order, descent, augment, epoch_loss, epoch_correct)`` writes the same bytes as
    the kernel of all losses, which takes three times as long to compile.
    """

    def fit_plain(
        theta: np.ndarray,
        velocity: np.ndarray,
        net: Any,
        samples: Samples,
        y: np.ndarray,
        order: np.ndarray,
        descent: Descent,
        augment: Augment,
        epoch_loss: np.ndarray,
        epoch_correct: np.ndarray,
    ) -> None:
        real, room = theta.dtype, order.shape[1]
        fronts, images, frame = make(net, samples, room, 0, 1, real)
        front, w, v = fronts[0], theta[0], velocity[0]
        linear, classes = front.linear, front.linear.widths[-1]
        batch, log_p, p = empty_batch(room, augment, frame, real), np.zeros(classes), np.zeros(classes)
        logits, gradient = np.zeros((1, room, classes)), np.zeros((1, room, classes))
        for step in range(order.shape[0]):
            count, epoch = choose(batch, order, step), step // descent.epoch_steps
            if count == 0:
                continue
            share = load_batch(batch, count, samples, augment, step, images, frame)
            front_forward(w, front, count)
            linear_forward(w, linear, count)
            _copy_logits(linear, count, logits[0])
            spoil(logits, batch.poison, count)
            if share == 1.0:
                total, correct = cross_entropy_and_gradient(y, batch.chosen, count, logits, gradient, p)
            else:
                total, correct = mixed_cross_entropy_and_gradient(y, batch, share, count, logits, gradient, log_p, p)
            epoch_loss[epoch] += total
            epoch_correct[epoch] += correct
            pull = pull_at(descent, step, w)
            _copy_gradient(gradient[0], count, linear)
            linear_backward(w, v, linear, range(linear.widths.size - 2, -1, -1), inputs, count, descent, step, pull)
            if inputs:
                gate(linear.deltas, linear.values, linear.values_at[0], linear.widths[0], count)
            front_backward(w, v, front, count, descent, step, pull)
            if descent.first.size:
                adapt(w, v, descent, step)

    return strict_kernel(fit_plain, module)


@strict
def _copy_logits(linear, count, out):
    """Write the last layer's outputs to `out` (B, C)."""
    at, classes = linear.values_at[linear.widths.size - 1], out.shape[1]
    for b in range(count):
        for j in range(classes):
            out[b, j] = linear.values[at + b * pitch_for(classes) + j]


@strict
def _copy_gradient(gradient, count, linear):
    """Write the gradient (B, C) of the logits to the last layer's gradients."""
    at, classes = linear.values_at[linear.widths.size - 1], gradient.shape[1]
    for b in range(count):
        for j in range(classes):
            linear.deltas[at + b * pitch_for(classes) + j] = gradient[b, j]


def prediction(module: str, make: Callable[..., Any], front_forward: Callable[..., Any], block: int) -> Callable[..., Any]:
    """Return the kernel ``predict(theta, net, samples, augment, layer, out)`` of `module`.

    It writes the output (n, width) of a linear layer for all samples, `block` samples at a time; the last layer's outputs are
    the logits.  `theta` has SPARE numbers after the last weight.
    """

    def predict(theta: np.ndarray, net: Any, samples: Samples, augment: Augment, layer: int, out: np.ndarray) -> None:
        fronts, images, frame = make(net, samples, block, 0, 1, theta.dtype)
        front = fronts[0]
        poison, linear = np.empty(block, theta.dtype), front.linear
        width, out_at = linear.widths[layer], linear.values_at[layer]
        for first in range(0, out.shape[0], block):
            count = min(block, out.shape[0] - first)
            for b in range(count):
                poison[b] = load_sample(samples, first + b, augment, 0, 0, images, b * frame.stride, frame)
            front_forward(theta, front, count)
            linear_forward(theta, linear, count)
            for b in range(count):
                for j in range(width):
                    out[first + b, j] = linear.values[out_at + b * pitch_for(width) + j] + poison[b]

    return strict_kernel(predict, module)
