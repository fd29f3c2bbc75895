"""Labels that a client learns during training: past predictions, refurbished labels and label logits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fnlkit._kernels.fused.losses.softmax import largest
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.losses.fields import Memory


@strict
def recall(memory: Memory, row: int, label: int, p: np.ndarray, classes: int, soft: np.ndarray) -> None:
    """Write the mean of the sample's last predictions, or its label, to `soft`; then record the prediction p."""
    history = memory.history
    length, seen = history.shape[1], memory.seen[row]
    known = min(max(seen, 1), length)
    for j in range(classes):
        total = 0.0
        for i in range(length):
            total += history[row, i, j]
        own = 1.0 if j == label else 0.0
        soft[j] = own if memory.record or seen == 0 else total / known
    for j in range(classes):
        history[row, seen % length, j] = p[j]
    memory.seen[row] = seen + 1


@strict
def refurbish(memory: Memory, row: int, guess: int, classes: int, counts: np.ndarray) -> None:
    """Record a predicted class; fix the label of the sample if its predictions are certain."""
    guesses = memory.guesses
    length = guesses.shape[1]
    guesses[row, memory.seen[row] % length] = guess
    memory.seen[row] += 1
    if memory.record or memory.seen[row] < length:
        return
    for j in range(classes):
        counts[j] = 0.0
    for i in range(length):
        counts[guesses[row, i]] += 1.0
    entropy = 0.0
    for j in range(classes):
        if counts[j] > 0:
            entropy -= counts[j] / length * math.log(counts[j] / length)
    if entropy / math.log(classes) <= memory.certain:
        memory.fixed[row] = largest(counts, classes)


@strict
def learn(
    memory: Memory,
    reverse: float,
    row: int,
    label: int,
    log_p: np.ndarray,
    p: np.ndarray,
    classes: int,
    log_s: np.ndarray,
    target_gradient: np.ndarray,
) -> float:
    """Add the gradient of `reverse` KL(p || s) to `target_gradient`, then take a step of the label logits; return the term."""
    learned = memory.learned
    highest = -np.inf
    for j in range(classes):
        log_s[j] = learned[row, j]
        highest = max(highest, log_s[j])
    total = 0.0
    for j in range(classes):
        total += math.exp(log_s[j] - highest)
    shift = highest + math.log(total)
    divergence = 0.0
    for j in range(classes):
        log_s[j] -= shift
        divergence += p[j] * (log_p[j] - log_s[j])
    for j in range(classes):
        target_gradient[j] += reverse * p[j] * (log_p[j] - log_s[j] - divergence)
    for j in range(classes):
        s = math.exp(log_s[j])
        own = 1.0 if j == label else 0.0
        learned[row, j] -= memory.rate * ((s - p[j]) / classes + memory.hold * (s - own))
    return reverse * divergence
