"""Softmax of the logits of a sample."""

from __future__ import annotations

import math

import numpy as np

from fnlkit._kernels.fused.tile import strict


@strict
def log_softmax(logits: np.ndarray, classes: int, temperature: float, out: np.ndarray) -> None:
    """Write ``log softmax(logits / temperature)``."""
    highest = logits[0]
    for j in range(1, classes):
        highest = max(highest, logits[j])
    total = 0.0
    for j in range(classes):
        out[j] = (logits[j] - highest) / temperature
        total += math.exp(out[j])
    shift = math.log(total)
    for j in range(classes):
        out[j] -= shift


@strict
def predict(offset: np.ndarray, logits: np.ndarray, classes: int, log_p: np.ndarray, p: np.ndarray) -> None:
    """Write log p and p of a sample, with the offset of the logits."""
    if offset.shape[0] == 0:
        highest, total = logits[0], 0.0
        for j in range(1, classes):
            highest = max(highest, logits[j])
        for j in range(classes):
            log_p[j] = logits[j] - highest
            p[j] = math.exp(log_p[j])
            total += p[j]
        shift = math.log(total)
        for j in range(classes):
            log_p[j] -= shift
            p[j] /= total
        return
    highest = -np.inf
    for j in range(classes):
        log_p[j] = logits[j] + offset[j]
        highest = max(highest, log_p[j])
    total = 0.0
    for j in range(classes):
        if offset[j] != -np.inf:
            total += math.exp(log_p[j] - highest)
    shift = highest + math.log(total)
    for j in range(classes):
        present = offset[j] != -np.inf
        log_p[j] = log_p[j] - shift if present else 0.0
        p[j] = math.exp(log_p[j]) if present else 0.0


@strict
def largest(values: np.ndarray, classes: int) -> int:
    """Return the first position of the largest number; NaN is the largest, as in PyTorch."""
    best = 0
    for j in range(1, classes):
        best = j if values[j] > values[best] else best
    return best
