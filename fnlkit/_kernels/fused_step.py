"""One step of momentum SGD on a stretch of the flat parameter vector, drift terms included.

The gradient of a layer is used up as soon as it is known, while it still lies in the first-level cache; no vector of all
gradients exists.
"""

from typing import NamedTuple

import numpy as np

from .fused_tile import strict


class Descent(NamedTuple):
    """How weights move; array fields of length 0 are terms that are off.  `real` is float32 or float64, P the parameters.

    Attributes
    ----------
    rate : (steps,) real
        Learning rate of every step.
    momentum, decay : real
        Factors of `torch.optim.SGD` (dampening 0, no Nesterov).
    pull : real
        Factor of ``w - anchor`` in the gradient.
    by_norm : bool
        The pull is that of ``pull * ||w - anchor||``, and is left out in the first step of every epoch.
    epoch_steps : int
        Steps of one epoch.
    anchor, linear : (P,) real
        Centre of the pull, and a constant term of the gradient.
    """

    rate: np.ndarray
    momentum: np.floating
    decay: np.floating
    pull: np.floating
    by_norm: bool
    epoch_steps: int
    anchor: np.ndarray
    linear: np.ndarray


@strict
def pull_at(descent, step, theta):
    """Factor of ``w - anchor`` in this step's gradient: constant, or over the distance when the term is a norm."""
    pull = descent.pull
    if not descent.by_norm or pull == 0:
        return pull
    zero = theta.dtype.type(0)
    if step % descent.epoch_steps == 0:
        return zero
    squared = 0.0
    for i in range(descent.anchor.size):
        away = theta[i] - descent.anchor[i]
        squared += away * away
    return theta.dtype.type(pull / np.sqrt(squared)) if squared != 0 else zero


@strict
def descend(theta, velocity, start, gradient, at, count, descent, step, pull):
    """Move ``theta[start : start + count]`` against ``gradient[at : at + count]``, which is overwritten."""
    w = theta[start : start + count]
    v = velocity[start : start + count]
    g = gradient[at : at + count]
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
