"""Terms that are added to the label term: teachers, entropy, and the balance of classes."""

from __future__ import annotations

import math

import numpy as np

from fnlkit._kernels.fused.losses.softmax import log_softmax
from fnlkit._kernels.fused.tile import strict


@strict
def add_divergence(
    strength: float,
    heat: float,
    backwards: bool,
    logits: np.ndarray,
    server: np.ndarray,
    classes: int,
    samples: int,
    gradient: np.ndarray,
) -> float:
    """Add the gradient of the divergence from the teacher to `gradient`; return the divergence term."""
    student, teacher = np.empty(classes), np.empty(classes)
    log_softmax(logits, classes, heat, student)
    log_softmax(server, classes, heat, teacher)
    divergence = 0.0
    for j in range(classes):
        if backwards:
            divergence += math.exp(student[j]) * (student[j] - teacher[j])
        else:
            divergence += math.exp(teacher[j]) * (teacher[j] - student[j])
    for j in range(classes):
        if backwards:
            slope = math.exp(student[j]) * (student[j] - teacher[j] - divergence)
        else:
            slope = math.exp(student[j]) - math.exp(teacher[j])
        gradient[j] += strength * heat * slope / samples
    return strength * heat * heat * divergence


@strict
def add_taught(
    teach: float, heat: float, server: np.ndarray, log_p: np.ndarray, classes: int, target: np.ndarray, teacher: np.ndarray
) -> float:
    """Add the target of teach KL(teacher || p); return the term."""
    log_softmax(server, classes, heat, teacher)
    value = 0.0
    for j in range(classes):
        t = math.exp(teacher[j])
        target[j] += teach * t
        value += t * (teacher[j] - log_p[j]) if t > 0 else 0.0
    return teach * value


@strict
def add_entropy(strength: float, log_p: np.ndarray, p: np.ndarray, classes: int, slope: np.ndarray) -> float:
    """Add the gradient of strength H(p) to `slope`; return the term."""
    entropy = 0.0
    for j in range(classes):
        entropy -= p[j] * log_p[j]
    for j in range(classes):
        slope[j] -= strength * p[j] * (log_p[j] + entropy)
    return strength * entropy


@strict
def add_balance(strength: float, p: np.ndarray, samples: int, classes: int, gradient: np.ndarray) -> float:
    """Add the gradient of strength KL(1/C || mean p) of a batch to `gradient`; return the sum over samples of the term."""
    mean, value = np.zeros(classes), -math.log(classes)
    for b in range(samples):
        for j in range(classes):
            mean[j] += p[b, j] / samples
    for j in range(classes):
        value -= math.log(mean[j]) / classes
    for b in range(samples):
        along = 0.0
        for j in range(classes):
            along -= p[b, j] / (classes * mean[j])
        for j in range(classes):
            gradient[b, j] += strength * p[b, j] * (-1.0 / (classes * mean[j]) - along) / samples
    return strength * value * samples
