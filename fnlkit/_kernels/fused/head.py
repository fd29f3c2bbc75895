"""Distillation of a teacher's embeddings in the fused path: the last features, or their image under a linear head.

The value of one sample is ``b mean_j |ê_j - e_j|`` with e its row of ``loss.teacher`` (n, D) and ê the network's last
hidden layer, or ``head(hidden)`` where D + D * width weights lie behind the network's own.  Source: Tsouvalas et al. 2024,
eq. 9.
"""

import numpy as np

from fnlkit._kernels.fused.dense import SPARE, dense_backward_input, dense_forward, dense_step, pitch_for, rows_for
from fnlkit._kernels.fused.loss import EMBEDDING
from fnlkit._kernels.fused.tile import strict


@strict
def head_room(loss, batch, width, real):
    """Scratch for `follow_teacher`: (the embeddings, their gradients, the features' gradients); empty when not needed."""
    size = loss.teacher.shape[1] if loss.kind == EMBEDDING else 0
    rows = rows_for(batch) if size else 0
    return (
        np.zeros(rows * pitch_for(size), real),
        np.zeros(rows * pitch_for(size), real),
        np.zeros(rows * pitch_for(width), real),
    )


@strict
def follow_teacher(
    theta, velocity, head_at, hidden, at, width, loss, batch, samples, room, gradient, gradient_at, scratch, descent, step, pull
):  # fmt: skip
    """Add the gradient with respect to the last features to `gradient`, and make the head's step; returns the value.

    Parameters
    ----------
    theta, velocity : (P + SPARE,) real
    head_at : int
        Where the head's weights begin; without any, P.
    hidden, gradient : flat real
        Last features of the batch from `at`, their gradients from `gradient_at`, rows pitch_for(width) apart.
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
        for j in range(size):
            away = mine[j] - teacher[j]
            apart += abs(away)
            # torch has no slope at zero, and passes NaN on.
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
