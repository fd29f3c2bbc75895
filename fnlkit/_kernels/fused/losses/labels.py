"""Label term: the target of a sample and the value, for each kind of loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fnlkit._kernels.fused.losses.fields import FORWARD, REWEIGHTED
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    import numpy as np


@strict
def add_class(
    label: int,
    share: float,
    weight: float,
    smoothing: float,
    bounded: float,
    power: float,
    log_p: np.ndarray,
    classes: int,
    target: np.ndarray,
) -> float:
    """Add the target of a label of kind 0 to `target`; return the loss.

    `weight` is the factor of the cross entropy, `share` that of the bounded term.
    """
    target[label] += weight * (1.0 - smoothing)
    value = -weight * (1.0 - smoothing) * log_p[label]
    if smoothing != 0:
        for j in range(classes):
            target[j] += weight * smoothing / classes
            value -= weight * smoothing / classes * log_p[j]
    if bounded != 0:
        raised = math.exp(power * log_p[label])
        target[label] += share * bounded * raised
        value += share * bounded * (1.0 - raised) / power
    return value


@strict
def add_soft(soft: np.ndarray, weight: float, log_p: np.ndarray, classes: int, target: np.ndarray) -> float:
    """Add `weight` times a soft label to `target`; return `weight` times the cross entropy."""
    value = 0.0
    for j in range(classes):
        target[j] += weight * soft[j]
        value -= soft[j] * log_p[j]
    return weight * value


@strict
def add_label(
    kind: int,
    strength: float,
    floor: float,
    matrix: np.ndarray,
    prior: np.ndarray,
    label: int,
    other: int,
    weight: float,
    log_p: np.ndarray,
    p: np.ndarray,
    classes: int,
    target: np.ndarray,
) -> float:
    """Add `weight` times the target of a label of kinds 1, 2 and 8 to `target`; return `weight` times the loss."""
    value = 0.0
    if kind == FORWARD or kind == REWEIGHTED:
        through = floor
        for j in range(classes):
            through += p[j] * matrix[j, label]
        value, steep = -math.log(through), 1.0
        if kind == REWEIGHTED:
            ratio = p[label] / through
            value, steep = -ratio * log_p[label], -strength * ratio * log_p[label]
            target[label] += weight * (ratio - steep)
        for j in range(classes):
            target[j] += weight * steep * p[j] * matrix[j, label] / through
    else:
        for j in range(classes):
            part = prior[j] if other < 0 else 1.0 if j == other else 0.0
            pull = (1.0 if j == label else 0.0) - strength * part
            if pull != 0:
                kept = p[j] / (p[j] + floor) if floor != 0 else 1.0
                target[j] += weight * pull * kept
                value -= pull * (math.log(p[j] + floor) if floor != 0 else log_p[j])
    return weight * value
