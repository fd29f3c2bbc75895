"""Losses of the last hidden layer: distillation of a teacher's embeddings, and distances to class centroids.

The loss of one sample is ``b mean_j |ê_j - e_j|``, or ``b |ê - e| / root of D`` with ``loss.norm``.  e is the sample's row of
``loss.teacher`` (n, D).  ê is the network's last hidden layer, or ``head(hidden)`` if D + D * width head weights follow the
network's weights.  Source: Tsouvalas et al. 2024, eq. 9.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit._kernels.fused.dense import SPARE, dense_backward_input, dense_forward, dense_step, pitch_for, rows_for
from fnlkit._kernels.fused.losses.fields import EMBEDDING, Loss
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.input import Batch
    from fnlkit._kernels.fused.step import Descent


@strict
def head_room(loss: Loss, batch: int, width: int, real: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return scratch for `follow_teacher`: embeddings, their gradients, and the gradients of the features.

    The arrays are empty if the loss has no teacher.
    """
    size = loss.teacher.shape[1] if loss.kind == EMBEDDING else 0
    rows = rows_for(batch) if size else 0
    return (
        np.zeros(rows * pitch_for(size), real),
        np.zeros(rows * pitch_for(size), real),
        np.zeros(rows * pitch_for(width), real),
    )


@strict
def follow_teacher(
    theta: np.ndarray,
    velocity: np.ndarray,
    head_at: int,
    hidden: np.ndarray,
    at: int,
    width: int,
    loss: Loss,
    batch: Batch,
    samples: int,
    room: tuple[np.ndarray, np.ndarray, np.ndarray],
    gradient: np.ndarray,
    gradient_at: int,
    scratch: np.ndarray,
    descent: Descent,
    step: int,
    pull: float,
) -> float:
    """Add the gradient of the last features to `gradient`, update the head, and return the loss.

    Parameters
    ----------
    theta, velocity : (P + SPARE,) real
    head_at : int
        Position of the head's weights; P if there is no head.
    hidden, gradient : flat real
        Last features of the batch from position `at`, their gradients from `gradient_at`, in rows pitch_for(width) apart.
    batch : Batch
    room : arrays of `head_room`
    """
    outputs, deltas, through = room
    size = loss.teacher.shape[1]
    headed = head_at < theta.size - SPARE
    pitch, row_pitch = pitch_for(size), pitch_for(width)
    if headed:
        dense_forward(theta, head_at, hidden, at, width, outputs, 0, size, samples)
    slope = theta.dtype.type(loss.strength / (size * samples))
    zero = theta.dtype.type(0)
    total = 0.0
    for b in range(samples):
        teacher = loss.teacher[batch.chosen[b]]
        start = at + b * row_pitch
        mine = outputs[b * pitch : b * pitch + size] if headed else hidden[start : start + size]
        delta = deltas[b * pitch : b * pitch + size]
        apart = 0.0
        # As in torch, the slope at zero is zero, and NaN stays NaN.
        if loss.norm:
            for j in range(size):
                delta[j] = mine[j] - teacher[j]
                apart += float(delta[j]) * delta[j]
            apart = np.sqrt(apart / size)
            pace = slope / theta.dtype.type(apart) if apart > 0 else zero
            for j in range(size):
                delta[j] *= pace
            total += loss.strength * apart
            continue
        for j in range(size):
            away = mine[j] - teacher[j]
            apart += abs(away)
            delta[j] = slope if away > 0 else -slope if away < 0 else zero * away
        total += loss.strength * apart / size
    if headed:
        dense_backward_input(theta, head_at, deltas, 0, size, through, 0, width, samples, scratch)
        dense_step(theta, velocity, head_at, hidden, at, width, deltas, 0, size, samples, scratch, descent, step, pull)
    for b in range(samples):
        into = gradient[gradient_at + b * row_pitch : gradient_at + b * row_pitch + width]
        for k in range(width):
            into[k] += through[b * row_pitch + k] if headed else deltas[b * pitch + k]
    return total


@strict
def nearest_centroids(
    loss: Loss, hidden: np.ndarray, at: int, width: int, samples: int, outputs: np.ndarray, nearest: np.ndarray
) -> None:
    """Write the class of the centroid with the largest cosine to the features of each sample; `outputs` is scratch."""
    terms, classes = loss.terms, loss.terms.norms.size
    dense_forward(terms.centroids, 0, hidden, at, width, outputs, 0, classes, samples)
    for b in range(samples):
        features = hidden[at + b * pitch_for(width) : at + b * pitch_for(width) + width]
        square = 0.0
        for i in range(width):
            square += float(features[i]) * features[i]
        length, best, top = np.sqrt(square), 0, -np.inf
        for c in range(classes):
            cosine = outputs[b * pitch_for(classes) + c] / max(length * terms.norms[c], 1e-12)
            best, top = (c, cosine) if cosine > top else (best, top)
        nearest[b] = best


@strict
def follow_centroids(
    loss: Loss,
    y: np.ndarray,
    hidden: np.ndarray,
    at: int,
    width: int,
    batch: Batch,
    samples: int,
    pulled: np.ndarray,
    gradient: np.ndarray,
    gradient_at: int,
) -> float:
    """Add the gradient of ``pulled[b] mean_j (f_j - c_j)^2`` to `gradient`; return the sum of the term."""
    total = 0.0
    for b in range(samples):
        if pulled[b] == 0:
            continue
        start, label = b * pitch_for(width), y[batch.chosen[b]]
        features, into = hidden[at + start : at + start + width], gradient[gradient_at + start : gradient_at + start + width]
        center = loss.terms.centroids[label * width : (label + 1) * width]
        slope, square = hidden.dtype.type(2.0 * pulled[b] / (width * samples)), 0.0
        for i in range(width):
            away = features[i] - center[i]
            into[i] += slope * away
            square += float(away) * away
        total += pulled[b] * square / width
    return total
