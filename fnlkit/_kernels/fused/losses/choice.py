"""Choice of samples in a batch, and labels and factors of their label terms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fnlkit._kernels.fused.losses.fields import EXCHANGED, Loss, Room
from fnlkit._kernels.fused.losses.softmax import largest
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.input import Batch


@strict
def choose(loss: Loss, y: np.ndarray, batch: Batch, samples: int, classes: int, room: Room) -> None:
    """Write the factor of each sample's loss for each network to ``room.chosen``."""
    networks, choice = room.logits.shape[0], loss.choice
    eligible = np.ones(samples, np.bool_)
    if choice.disagreeing:
        for b in range(samples):
            eligible[b] = largest(room.logits[0, b], classes) != largest(room.logits[1, b], classes)
    able = eligible.sum()
    share = (1.0 - choice.forget) * able
    # 1e-9: (1 - 0.9) 10 is 1 and not 0.9999999999999998
    count = math.ceil(share - 1e-9) if choice.upwards else max(1.0, math.floor(share + 1e-9))
    for k in range(networks):
        for b in range(samples):
            room.rank[k, b] = -room.log_p[k, b, y[batch.chosen[b]]]
    for k in range(networks):
        source, total = 1 - k if choice.rule == EXCHANGED else k, 0.0
        for b in range(samples):
            before = 0
            for c in range(samples):
                smaller = room.rank[source, c] < room.rank[source, b]
                before += eligible[c] and (smaller or (room.rank[source, c] == room.rank[source, b] and c < b))
            taken = eligible[b] and before < count
            taken = taken or (choice.agreed and able == 0)
            if loss.memory.fixed.shape[0]:
                taken = taken or loss.memory.fixed[batch.chosen[b]] >= 0
            room.chosen[k, b] = 1.0 if taken else 0.0
            total += room.chosen[k, b]
        for b in range(samples):
            room.chosen[k, b] *= samples / max(total, 1.0)


@strict
def mark(
    loss: Loss, y: np.ndarray, own: np.ndarray, batch: Batch, samples: int, share: float, classes: int, room: Room
) -> None:
    """Write the label and the factor of the label term of each sample to ``room.marks`` and ``room.factor``.

    `own` are the logits of the local model before mixup.
    """
    choice, total = loss.choice, 0.0
    for b in range(samples):
        row = batch.chosen[b]
        room.marks[b] = loss.labels[row] if loss.labels.shape[0] else y[row]
        room.factor[b] = loss.keep[row] if loss.keep.shape[0] else 1.0
        if loss.terms.pseudo.shape[0] and room.nearest[b] != y[row]:
            room.marks[b] = loss.terms.pseudo[row]
        if loss.memory.fixed.shape[0] and not loss.memory.record and loss.memory.fixed[row] >= 0:
            room.marks[b] = loss.memory.fixed[row]
        if choice.agree.shape[0]:
            best = 0
            for j in range(1, classes):
                this, top = own[0, b, j] + choice.agree_offset[j], own[0, b, best] + choice.agree_offset[best]
                best = j if this > top else best
            room.factor[b] *= 1.0 if best == choice.agree[row] else 0.0
    if choice.mated:
        for b in range(samples):
            total += share * room.factor[b] + (1.0 - share) * room.factor[batch.mates[b]]
        scale = 1.0 / max(total / samples, 1e-12)
        for b in range(samples):
            room.factor[b] *= scale
