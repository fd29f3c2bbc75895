"""Label mixture: averages of predictions, and the regularizer towards their mean (ELR, FLR)."""

import math

import numpy as np

from fnlkit._kernels.fused.losses.softmax import log_softmax
from fnlkit._kernels.fused.tile import strict


@strict
def _bounded(loss, log_p, classes, out):
    """Write a prediction in the form that enters an average: clamped, then scaled to sum to 1."""
    total = 0.0
    for j in range(classes):
        out[j] = math.exp(log_p[j])
        if loss.clamp > 0:
            out[j] = min(max(out[j], loss.clamp), 1.0 - loss.clamp)
        total += out[j]
    if loss.clamp > 0:
        for j in range(classes):
            out[j] /= total


@strict
def _remember(loss, row, now, server, classes, out):
    """Update the averages of one sample with two predictions and write the target t."""
    first = not loss.seen[row]
    loss.seen[row] = True
    with_server = loss.server.shape[0] > 0
    for j in range(classes):
        loss.local[row, j] = now[j] if first else loss.gamma * loss.local[row, j] + (1.0 - loss.gamma) * now[j]
        out[j] = loss.local[row, j]
        if with_server:
            loss.server[row, j] = server[j] if first else loss.beta * loss.server[row, j] + (1.0 - loss.beta) * server[j]
            out[j] = loss.alpha * loss.server[row, j] + (1.0 - loss.alpha) * out[j]


@strict
def mixture_targets(loss, local, server, batch, samples, classes, out):
    """Write t (samples, C) of a batch from the logits of the local model and of the server's model before mixup."""
    log_p, now, theirs = np.empty(classes), np.empty(classes), np.empty(classes)
    for b in range(samples):
        log_softmax(local[b], classes, 1.0, log_p)
        _bounded(loss, log_p, classes, now)
        if loss.server.shape[0]:
            log_softmax(server[b], classes, 1.0, log_p)
            _bounded(loss, log_p, classes, theirs)
        _remember(loss, batch.chosen[b], now, theirs, classes, out[b])


@strict
def add_mixture(loss, own, other, share, p, classes, target):
    """Add the regularizer's target for t = share own + (1 - share) other; return the regularizer."""
    along = 0.0
    for j in range(classes):
        held = min(max(p[j], loss.clamp), 1.0 - loss.clamp) if loss.clamp > 0 else p[j]
        along += held * (share * own[j] + (1.0 - share) * other[j])
    apart = 1.0 - along
    if apart < loss.floor:
        return loss.strength * math.log(loss.floor)
    for j in range(classes):
        if loss.clamp == 0 or loss.clamp <= p[j] <= 1.0 - loss.clamp:
            target[j] += loss.strength * p[j] * (share * own[j] + (1.0 - share) * other[j]) / apart
    return loss.strength * math.log(apart)
