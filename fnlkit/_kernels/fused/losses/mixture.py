"""Label mixture: averages of predictions, and the regularizer towards their mean (ELR, FLR)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fnlkit._kernels.fused.losses.softmax import log_softmax
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.input import Batch
    from fnlkit._kernels.fused.losses.fields import Loss


@strict
def _clamp(clamp, log_p, classes, out):
    """Write a prediction in the form that enters an average: clamped, then scaled to sum to 1."""
    total = 0.0
    for j in range(classes):
        out[j] = math.exp(log_p[j])
        if clamp > 0:
            out[j] = min(max(out[j], clamp), 1.0 - clamp)
        total += out[j]
    if clamp > 0:
        for j in range(classes):
            out[j] /= total


@strict
def _remember(averages, seen, rates, row, now, theirs, classes, out):
    """Update the averages of one sample with two predictions and write the target t."""
    local, server = averages
    alpha, beta, gamma = rates
    first = not seen[row]
    seen[row] = True
    with_server = server.shape[0] > 0
    for j in range(classes):
        local[row, j] = now[j] if first else gamma * local[row, j] + (1.0 - gamma) * now[j]
        out[j] = local[row, j]
        if with_server:
            server[row, j] = theirs[j] if first else beta * server[row, j] + (1.0 - beta) * theirs[j]
            out[j] = alpha * server[row, j] + (1.0 - alpha) * out[j]


@strict
def mixture_targets(
    loss: Loss, local: np.ndarray, server: np.ndarray, batch: Batch, samples: int, classes: int, out: np.ndarray
) -> None:
    """Write t (samples, C) of a batch from the logits of the local model and of the server's model before mixup."""
    log_p, now, theirs = np.empty(classes), np.empty(classes), np.empty(classes)
    averages, rates = (loss.local, loss.server), (loss.alpha, loss.beta, loss.gamma)
    for b in range(samples):
        log_softmax(local[b], classes, 1.0, log_p)
        _clamp(loss.clamp, log_p, classes, now)
        if loss.server.shape[0]:
            log_softmax(server[b], classes, 1.0, log_p)
            _clamp(loss.clamp, log_p, classes, theirs)
        _remember(averages, loss.seen, rates, batch.chosen[b], now, theirs, classes, out[b])


@strict
def add_mixture(
    strength: float,
    clamp: float,
    floor: float,
    own: np.ndarray,
    other: np.ndarray,
    share: float,
    p: np.ndarray,
    classes: int,
    target: np.ndarray,
) -> float:
    """Add the regularizer's target for t = share own + (1 - share) other; return the regularizer."""
    along = 0.0
    for j in range(classes):
        held = min(max(p[j], clamp), 1.0 - clamp) if clamp > 0 else p[j]
        along += held * (share * own[j] + (1.0 - share) * other[j])
    apart = 1.0 - along
    if apart < floor:
        return strength * math.log(floor)
    for j in range(classes):
        if clamp == 0 or clamp <= p[j] <= 1.0 - clamp:
            target[j] += strength * p[j] * (share * own[j] + (1.0 - share) * other[j]) / apart
    return strength * math.log(apart)
