"""One step of momentum SGD or Adam, including drift terms, on a part of the flat parameter vector.

The gradient of a layer is applied as soon as it is computed, while it is still in the first-level cache.  No vector of
all gradients exists.
"""

import math
from typing import NamedTuple

import numpy as np

from fnlkit._kernels._compile import strict

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8  # of torch.optim.Adam


class Descent(NamedTuple):
    """Parameters of a step; an array field of length 0 disables a term.  Kernels get those of M networks.

    `real` is float32 or float64, P is the number of weights.

    Attributes
    ----------
    rate : (steps,) real
        Learning rate of each step.
    momentum, decay : real
        Factors of `torch.optim.SGD` (dampening 0, no Nesterov).
    pull : real
        Factor of ``w - anchor`` in the gradient.
    norm_pull : real
        Factor of the gradient of ``||w - anchor||``.  The term is omitted in the first step of each epoch, and it is zero
        if w equals the anchor (FedCorr's public code).
    epoch_steps : int
        Steps per epoch.
    anchor, linear : (P,) real
        Center of the pull, and a constant term of the gradient.
    first, second : (P,) real
        Moments of Adam, updated in place.  With Adam, `rate` and `momentum` are 0, so that the velocity is the gradient.
    adam : (steps,) real
        Learning rate of each step of Adam.
    """

    rate: np.ndarray
    momentum: np.floating
    decay: np.floating
    pull: np.floating
    norm_pull: np.floating
    epoch_steps: int
    anchor: np.ndarray
    linear: np.ndarray
    first: np.ndarray
    second: np.ndarray
    adam: np.ndarray


@strict
def descent_of(descent: Descent, m: int) -> Descent:
    """Return the parameters of one network; fields from `pull` on, without `adam`, have a leading axis M."""
    return Descent(
        descent.rate,
        descent.momentum,
        descent.decay,
        descent.pull[m],
        descent.norm_pull[m],
        descent.epoch_steps[m],
        descent.anchor[m],
        descent.linear[m],
        descent.first[m],
        descent.second[m],
        descent.adam,
    )


@strict
def pull_at(descent: Descent, step: int, theta: np.ndarray) -> float:
    """Return the factor of ``w - anchor`` in the gradient of this step."""
    if descent.norm_pull == 0 or step % descent.epoch_steps == 0:
        return descent.pull
    squared = 0.0
    for i in range(descent.anchor.size):
        away = float(theta[i]) - descent.anchor[i]
        squared += away * away
    if squared == 0:
        return descent.pull
    return theta.dtype.type(descent.pull + descent.norm_pull / np.sqrt(squared))


@strict
def adapt(w: np.ndarray, g: np.ndarray, descent: Descent, step: int) -> None:
    """Take a step of Adam with the gradients `g` of all weights, which `descend` wrote to the velocity."""
    real, t, first, second = w.dtype.type, step + 1, descent.first, descent.second
    new, square = real(1.0 - _FIRST), real(1.0 - _SECOND)
    size, root = real(descent.adam[step] / (1.0 - _FIRST**t)), real(1.0 / math.sqrt(1.0 - _SECOND**t))
    for i in range(first.size):
        first[i] += new * (g[i] - first[i])
        second[i] = real(_SECOND) * second[i] + square * g[i] * g[i]
        w[i] -= size * first[i] / (np.sqrt(second[i]) * root + real(_TINY))


@strict
def descend(
    theta: np.ndarray,
    velocity: np.ndarray,
    start: int,
    gradient: np.ndarray,
    descent: Descent,
    step: int,
    pull: float,
) -> None:
    """Move the weights from ``theta[start]`` on against their gradient, which is overwritten."""
    g, count = gradient, gradient.size
    w, v = theta[start : start + count], velocity[start : start + count]
    decay, momentum, rate = descent.decay, descent.momentum, descent.rate[step]
    if decay != 0:
        for i in range(count):
            g[i] += decay * w[i]
    if pull != 0:
        anchor = descent.anchor[start : start + count]
        for i in range(count):
            g[i] += pull * (w[i] - anchor[i])
    if descent.linear.size:
        linear = descent.linear[start : start + count]
        for i in range(count):
            g[i] += linear[i]
    for i in range(count):
        moved = momentum * v[i] + g[i]
        v[i] = moved
        w[i] -= rate * moved
