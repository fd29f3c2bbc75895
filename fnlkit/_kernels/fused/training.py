"""Local training of networks that end in linear layers with ReLU: one compiled function per network.

A network supplies the layers before its linear layers, the *front*; `network_kernel` returns its compiled function.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fnlkit._kernels._compile import strict, strict_kernel
from fnlkit._kernels.fused.dense import (
    dense_backward_input,
    dense_forward,
    dense_step,
    gate,
    pitch_for,
    rectify,
    rows_for,
)
from fnlkit._kernels.fused.input import Augment, Batch, Samples, augment_of, choose, load_batch
from fnlkit._kernels.fused.step import Descent, adapt, descent_of, pull_at


class Layers(NamedTuple):
    """Linear layers of a network, and the memory of a batch.

    Attributes
    ----------
    widths : (layers + 1,) int64
        Size of the input, units of each hidden layer, number of classes.
    weights_at : (layers + 1,) int64
        Position of each layer's weights in the flat parameter vector, and their end.
    values_at : (layers + 2,) int64
        Position of the input and of each layer's output in a batch's activations, and the end.
    """

    widths: np.ndarray
    weights_at: np.ndarray
    values_at: np.ndarray


class Linear(NamedTuple):
    """The fields of Layers, and memory for a batch.

    Attributes
    ----------
    widths, weights_at, values_at
        As in Layers.
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


class Targets(NamedTuple):
    """Targets of the cross entropy; arrays have length 0 if unused.

    Attributes
    ----------
    y : (n,) int64
        Labels.
    soft : (n, C) real
        Distributions, instead of labels.
    keep : (n,) real
        Factor of each sample.
    smoothing : float
        Share of each target that is spread over all classes.
    """

    y: np.ndarray
    soft: np.ndarray
    keep: np.ndarray
    smoothing: float


class Scratch(NamedTuple):
    """Memory of a call that runs in one thread.

    Attributes
    ----------
    batch : Batch
    p, target : (C,) float64
        Predicted and wanted probabilities of a sample.
    front : tuple
        Memory of the layers before the linear layers.
    """

    batch: Batch
    p: np.ndarray
    target: np.ndarray
    front: Any


@functools.lru_cache(64)
def linear_layers(widths: tuple[int, ...], first: int, batch: int) -> tuple[Layers, int]:
    """Return the Layers with weights from position `first` on for batches of `batch`, and the length of their memory."""
    pitches = [pitch_for.py_func(width) for width in widths]
    sizes = [units * (width + 1) for width, units in zip(widths, widths[1:], strict=False)]
    values_at = np.cumsum([0, *pitches]) * rows_for.py_func(batch)
    layers = Layers(np.array(widths, np.int64), np.cumsum([first, *sizes]), values_at)
    return layers, 2 * int(values_at[-1]) + 5 * max(pitches)


@strict
def linear_of(layers: Layers, memory: np.ndarray) -> Linear:
    """Return the layers with their memory."""
    widths, weights_at, values_at = layers
    size = values_at[widths.size]
    return Linear(widths, weights_at, values_at, memory[:size], memory[size : 2 * size], memory[2 * size :])


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
    slopes: np.ndarray,
    row: int,
    inputs: bool,
    count: int,
    descent: Descent,
    step: int,
    pull: float,
) -> None:
    """Update all layers, last first, from the gradient of the logits and an additional gradient of the last hidden layer.

    Parameters
    ----------
    slopes : (r, B, width + C) real
        The additional gradient is in the first columns of row `row`; a width of 0: none.
    inputs : bool
        Whether to compute the gradient of the input of the first layer.
    """
    values, deltas, scratch, top = linear.values, linear.deltas, linear.scratch, linear.widths.size - 2
    for layer in range(top, -1, -1):
        at, x_at, delta_at = linear.weights_at[layer], linear.values_at[layer], linear.values_at[layer + 1]
        width, units = linear.widths[layer], linear.widths[layer + 1]
        if layer < top:
            gate(deltas, values, delta_at, units, count)
        if layer > 0 or inputs:
            dense_backward_input(theta, at, deltas, delta_at, units, deltas, x_at, width, count, scratch)
            if layer == top and slopes.shape[2] > units:
                for b in range(count):
                    start = x_at + b * pitch_for(width)
                    for i in range(width):
                        deltas[start + i] += slopes[row, b, i]
        dense_step(theta, velocity, at, values, x_at, width, deltas, delta_at, units, count, scratch, descent, step, pull)
    if inputs:
        gate(deltas, values, linear.values_at[0], linear.widths[0], count)


@strict
def spoil(linear: Linear, poison: np.ndarray, count: int) -> None:
    """Add each sample's 0 or NaN to its logits and to its last hidden layer."""
    last = linear.widths.size - 1
    for layer in range(last - 1, last + 1):
        width = linear.widths[layer]
        for b in range(count):
            start = linear.values_at[layer] + b * pitch_for(width)
            for j in range(width):
                linear.values[start + j] += poison[b]


@strict
def cross_entropy(
    linear: Linear, targets: Targets, batch: Batch, share: float, count: int, p: np.ndarray, target: np.ndarray
) -> None:
    """Write the gradient of the mean cross entropy of a batch with respect to the logits, in double precision.

    `share` is the weight of a row's own label under mixup.  `p` and `target` (C,) float64 are scratch.
    """
    classes, last = p.size, linear.widths.size - 1
    for b in range(count):
        start, row, highest, scale, mass = linear.values_at[last] + b * pitch_for(classes), batch.chosen[b], -np.inf, 0.0, 0.0
        logits = linear.values[start : start + classes]
        for j in range(classes):
            highest = max(highest, float(logits[j]))
            target[j] = 0.0
        if targets.soft.shape[0]:
            for j in range(classes):
                target[j] = targets.soft[row, j]
        else:
            target[targets.y[row]] += share
            target[targets.y[batch.chosen[batch.mates[b]]]] += 1.0 - share
        keep = targets.keep[row] if targets.keep.shape[0] else 1.0
        for j in range(classes):
            p[j] = math.exp(logits[j] - highest)
            scale += p[j]
            if targets.smoothing != 0:
                target[j] = (1.0 - targets.smoothing) * target[j] + targets.smoothing / classes
            mass += target[j]
        for j in range(classes):
            linear.deltas[start + j] = keep * (p[j] / scale * mass - target[j]) / count


@strict
def copy_out(linear, count, results, row):
    """Write the last hidden layer, if there is space, and the logits to ``results[row]`` (B, width + C)."""
    last = linear.widths.size - 1
    classes = linear.widths[last]
    width = results.shape[2] - classes
    for b in range(count):
        for j in range(width):
            results[row, b, j] = linear.values[linear.values_at[last - 1] + b * pitch_for(width) + j]
        for j in range(classes):
            results[row, b, width + j] = linear.values[linear.values_at[last] + b * pitch_for(classes) + j]


def network_kernel(
    module: str,
    make: Callable[..., Any],
    front_forward: Callable[..., Any],
    front_backward: Callable[..., Any],
    inputs: bool,
) -> Callable[..., Any]:
    """Return the compiled function of a network.

    It is a single compiled function of `module`: each further level of calls would compile everything once more.

    Parameters
    ----------
    module : str
    make : compiled function (layers, samples, batch, memory, places, scratch)
        Returns (front, images, frame).  A batch of up to `batch` samples is loaded to `images`, as `frame` describes.
        `memory` (flat real) and `places` (B, ...) int32 are those of one network; `scratch` is ``Scratch.front``.
    front_forward : compiled function (theta, front, samples)
        Writes the input of the linear layers, ``front.linear``.
    front_backward : compiled function (theta, velocity, front, samples, descent, step, pull)
        Updates the weights of the front from the gradient of the linear layers' input.
    inputs : bool
        Whether the front needs that gradient.

    Returns
    -------
    compiled function
        ``advance(train, theta, velocity, memory, places, scratch, layers, samples, offset, targets, order, who, first, begin,
        end, descent, augment, slopes, results)``: the clients `who` (g,) each take the steps from `first` (g,) to `end` (g,).
        K clients have M networks, M / K each with the same batches.

        train : whether the steps from `begin` (g,) on train with the cross entropy; otherwise they write `results`.
        Steps before `begin` update the weights from `slopes`, the gradients of the results that the same step wrote.
        theta, velocity : (M, P + SPARE) real.
        memory, places : (M, ...) real and (M, B, ...) int32.  scratch : Scratch.  layers : Layers.
        samples : Samples of all clients.
        offset : (K,) int64, first sample of each client.  targets : Targets of all samples; only for TRAIN.
        order : (K, steps, B) int64, positions of samples, -1 for an empty place; a step without samples does nothing.
        descent : Descent.  augment : Augment with a leading axis K.
        slopes, results : (r, B, width + C) real, the last hidden layer, or a width of 0, and the logits; a row for each step of
        each network in the order of the loops.
    """

    def advance(
        train: bool,
        theta: np.ndarray,
        velocity: np.ndarray,
        memory: np.ndarray,
        places: np.ndarray,
        scratch: Scratch,
        layers: Layers,
        samples: Samples,
        offset: np.ndarray,
        targets: Targets,
        order: np.ndarray,
        who: np.ndarray,
        first: np.ndarray,
        begin: np.ndarray,
        end: np.ndarray,
        descent: Descent,
        augment: Augment,
        slopes: np.ndarray,
        results: np.ndarray,
    ) -> None:
        networks, back, row, batch = theta.shape[0] // offset.size, -1, -1, scratch.batch
        last, classes = layers.widths.size - 1, layers.widths[-1]
        for j in range(who.size):
            k = who[j]
            for m in range(k * networks, (k + 1) * networks):
                front, images, frame = make(layers, samples, order.shape[2], memory[m], places[m], scratch.front)
                w, v, linear = theta[m], velocity[m], front.linear
                mine, choices = descent_of(descent, m), augment_of(augment, k)
                for step in range(first[j], end[j]):
                    forward = step >= begin[j]
                    row += forward
                    back += not forward
                    count = choose(batch, order[k], step, offset[k])
                    if count == 0:
                        continue
                    if forward:
                        share = load_batch(batch, count, samples, choices, step, images, frame)
                        front_forward(w, front, count)
                        linear_forward(w, linear, count)
                        spoil(linear, batch.poison, count)
                        if train:
                            cross_entropy(linear, targets, batch, share, count, scratch.p, scratch.target)
                        else:
                            copy_out(linear, count, results, row)
                            continue
                    else:
                        width = slopes.shape[2] - classes
                        for b in range(count):
                            for c in range(classes):
                                linear.deltas[linear.values_at[last] + b * pitch_for(classes) + c] = slopes[back, b, width + c]
                    pull = pull_at(mine, step, w)
                    linear_backward(w, v, linear, slopes, back, inputs, count, mine, step, pull)
                    front_backward(w, v, front, count, mine, step, pull)
                    if mine.first.size:
                        adapt(w, v, mine, step)

    return strict_kernel(advance, module)
