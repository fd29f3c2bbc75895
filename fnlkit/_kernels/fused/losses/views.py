"""Loss of two views of each sample: cross entropy of their sharpened mean, their divergence, and entropy (FedLSR)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fnlkit._kernels.fused.losses.softmax import log_softmax
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.input import Batch
    from fnlkit._kernels.fused.losses.fields import Loss, Room


@strict
def _add_logs(a, b):
    """Return ``log(exp(a) + exp(b))``."""
    return max(a, b) + math.log1p(math.exp(min(a, b) - max(a, b)))


@strict
def _sharpen(double, label, mixed, classes, log_q, slope):
    """Write the gradient with respect to the log of the mean prediction to `slope`; return the cross entropy of its square."""
    log_softmax(mixed, classes, 0.5, log_q)
    if not double:
        for j in range(classes):
            slope[j] = 2.0 * math.exp(log_q[j]) - (2.0 if j == label else 0.0)
        return -log_q[label]
    for j in range(classes):
        log_q[j] = math.exp(log_q[j])
    log_softmax(log_q, classes, 1.0, slope)
    value, along = -slope[label], 0.0
    for j in range(classes):
        slope[j] = math.exp(slope[j]) - (1.0 if j == label else 0.0)
        along += slope[j] * log_q[j]
    for j in range(classes):
        slope[j] = 2.0 * log_q[j] * (slope[j] - along)
    return value


@strict
def _apart(strength, factor, double, held, classes, slope, scratch):
    """Write the gradient of divergence and entropy with respect to the log predictions `held` (2, C); return their sum."""
    scale, value = strength / (classes if double else 1.0), 0.0
    for j in range(classes):
        middle = _add_logs(held[0, j], held[1, j]) - math.log(2.0)
        for v in range(2):
            slope[v, j] = scale * math.exp(held[v, j]) * (held[v, j] - middle) / 2
            value += slope[v, j]
    for v in range(1 if double else 2):
        entropy = 0.0
        for j in range(classes):
            scratch[j] = math.exp(held[v, j])
        if double:  # the entropy of a second softmax, of the first view only
            log_softmax(scratch, classes, 1.0, scratch)
            for j in range(classes):
                entropy -= math.exp(scratch[j]) * scratch[j]
            for j in range(classes):
                inner = -math.exp(scratch[j]) * (scratch[j] + entropy)
                slope[v, j] += factor * inner * math.exp(held[v, j])
            value += factor * entropy
        else:
            for j in range(classes):
                entropy -= scratch[j] * held[v, j]
                slope[v, j] -= factor * scratch[j] * (held[v, j] + 1.0) / 2
            value += factor * entropy / 2
    return value


@strict
def add_views(loss: Loss, y: np.ndarray, batch: Batch, step: int, samples: int, classes: int, room: Room) -> float:
    """Write the gradient of a batch whose second half has the second views of the first half; return the sum of losses."""
    single, share, total = samples // 2, loss.share[step], 0.0
    least = math.log(loss.clamp) if loss.clamp > 0 else -np.inf
    log_share = math.log(max(share, 1e-30)), math.log(1.0 - share)
    mixed, log_q, slope = np.empty(classes), np.empty(classes), np.empty(classes)
    hot, held, away = np.empty((2, classes)), np.empty((2, classes)), np.empty((2, classes))
    for b in range(single):
        for j in range(classes):
            mixed[j] = _add_logs(room.log_p[0, b, j] + log_share[0], room.log_p[0, b + single, j] + log_share[1])
        total += 2 * _sharpen(loss.double, y[batch.chosen[b]], mixed, classes, log_q, slope)
        for v in range(2):
            log_softmax(room.logits[0, b + v * single], classes, loss.temperature, hot[v])
            for j in range(classes):
                held[v, j] = max(hot[v, j], least)
        total += 2 * _apart(loss.strength, loss.terms.entropy, loss.double, held, classes, away, log_q)
        for v in range(2):
            row, whole, along = b + v * single, 0.0, 0.0
            gradient = room.gradient[0, row]
            for j in range(classes):
                gradient[j] = slope[j] * math.exp(room.log_p[0, row, j] + log_share[v] - mixed[j])
                whole += gradient[j]
                away[v, j] = 0.0 if hot[v, j] < least else away[v, j]
                along += away[v, j]
            for j in range(classes):
                own = gradient[j] - room.p[0, row, j] * whole
                gradient[j] = (own + (away[v, j] - math.exp(hot[v, j]) * along) / loss.temperature) / single
    return total
