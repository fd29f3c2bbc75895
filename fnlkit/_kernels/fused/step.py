"""One step of momentum SGD on a stretch of the flat parameter vector, drift terms included.

The gradient of a layer is used up as soon as it is known, while it still lies in the first-level cache; no vector of
all gradients exists.
"""

from typing import NamedTuple

import numpy as np

from fnlkit._kernels.fused.tile import strict


class Descent(NamedTuple):
    """How weights move; array fields of length 0 are terms that are off.  `real` is float32 or float64, P the
    parameters.

    Attributes
    ----------
    rate : (steps,) real
        Learning rate of every step.
    momentum, decay : real
        Factors of `torch.optim.SGD` (dampening 0, no Nesterov).
    pull : real
        Factor of ``w - anchor`` in the gradient.
    norm_pull : real
        Factor of the gradient of ``||w - anchor||``, which is left out in the first step of every epoch and zero where
        w is the anchor (FedCorr's public code).
    epoch_steps : int
        Steps of one epoch.
    anchor, linear : (P,) real
        Centre of the pull, and a constant term of the gradient.
    """

    rate: np.ndarray
    momentum: np.floating
    decay: np.floating
    pull: np.floating
    norm_pull: np.floating
    epoch_steps: int
    anchor: np.ndarray
    linear: np.ndarray


@strict
def pull_at(descent, step, theta):
    """Factor of ``w - anchor`` in this step's gradient."""
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
