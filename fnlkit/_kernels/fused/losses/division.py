"""Labels of two networks that divide each other's samples, as in DivideMix."""

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
def divide(loss: Loss, batch: Batch, samples: int, classes: int, room: Room) -> None:
    """Write the targets `soft` and the labeled samples `sure` of both networks, before mixup."""
    part, views = loss.division, loss.division.views
    single = samples // views
    for k in range(2):
        for b in range(samples):
            log_softmax(room.own[k, b], classes, 1.0, room.log_p[k, b])
            for j in range(classes):
                room.p[k, b, j] = math.exp(room.log_p[k, b, j])
        for i in range(single):
            for j in range(classes):
                total = 0.0
                for v in range(views):
                    total += room.p[k, v * single + i, j]
                room.target[k, i, j] = total / views
    for b in range(samples):
        i, row = b % single, batch.chosen[b]
        for k in range(2):
            clean = part.clean[row, 1 - k]
            sure = clean >= part.threshold
            room.sure[k, b] = 1.0 if sure else 0.0
            highest = -np.inf
            for j in range(classes):
                own = 1.0 if j == loss.labels[row] else 0.0
                guess = (room.target[0, i, j] + room.target[1, i, j]) / 2
                q = clean * own + (1.0 - clean) * room.target[k, i, j] if sure else guess
                room.soft[k, b, j] = math.log(max(q, 1e-30)) / part.heat
                highest = max(highest, room.soft[k, b, j])
            total = 0.0
            for j in range(classes):
                room.soft[k, b, j] = math.exp(room.soft[k, b, j] - highest)
                total += room.soft[k, b, j]
            for j in range(classes):
                room.soft[k, b, j] /= total


@strict
def _add_squares(soft, p, factor, classes, slope):
    """Add the gradient of factor mean_j (p_j - soft_j)^2 to `slope`; return the term."""
    along, value = 0.0, 0.0
    for j in range(classes):
        along += p[j] * (p[j] - soft[j])
        value += (p[j] - soft[j]) ** 2
    for j in range(classes):
        slope[j] += 2.0 * factor / classes * p[j] * (p[j] - soft[j] - along)
    return factor * value / classes


@strict
def add_division(loss: Loss, batch: Batch, samples: int, share: float, classes: int, k: int, room: Room) -> float:
    """Write the targets of network k for mixed samples, and the slopes of the squared errors; return the sum of both terms."""
    total, labeled = 0.0, 0.0
    for b in range(samples):
        room.chosen[k, b] = room.sure[k, b] if share >= 0.5 else room.sure[k, batch.mates[b]]
        labeled += room.chosen[k, b]
    scale, rest = samples / max(labeled, 1e-12 * samples), samples / max(samples - labeled, 1e-12 * samples)
    for b in range(samples):
        mate, slope, mixed = batch.mates[b], room.gradient[k, b], room.target[k, b]
        for j in range(classes):
            mixed[j] = share * room.soft[k, b, j] + (1.0 - share) * room.soft[k, mate, j]
            slope[j] = 0.0
        if room.chosen[k, b] > 0:
            for j in range(classes):
                total -= scale * mixed[j] * room.log_p[k, b, j]
                mixed[j] *= scale
        else:
            total += _add_squares(mixed, room.p[k, b], loss.division.unlabeled * rest, classes, slope)
            for j in range(classes):
                mixed[j] = 0.0
    return total
