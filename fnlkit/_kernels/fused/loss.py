"""Losses of the fused path: value and gradient with respect to the logits, in double precision.

The label term of a sample is a cross entropy with a *target* t, which can be signed and need not sum to 1.  With
p = softmax(logits + offset), the gradient is ``p * sum(t) - t``.  [j=y] is 1 if j = y, else 0:

====  ==================  ===================================================  ========================================
kind  name                value of one sample                                  target
====  ==================  ===================================================  ========================================
0     cross entropy       -(1-s) log p_y - s/C sum_j log p_j                   (1-s) [j=y] + s/C
1     forward correction  -log( sum_j p_j T[j,y] + floor )                     p_j T[j,y] / (sum_i p_i T[i,y] + floor)
2     peer                -log(p_y + floor) + b log(p_y' + floor)              ([j=y] - b [j=y']) p_j / (p_j + floor)
      in expectation      -log(p_y + floor) + b sum_j q_j log(p_j + floor)     ([j=y] - b q_j) p_j / (p_j + floor)
3     label mixture, FLR  -log p_y + b log max(1 - <c(p),t>, floor)            [j=y] + b p_j t_j / (1 - <c(p),t>)
4     distillation        -log p_y + b F^2 KL                                  [j=y]; divergence added separately
5     soft labels         -sum_j q_j log p_j                                   q_j
6     embeddings          -log p_y + b d(ê, e)                                 [j=y]; the distance d is in `head`
7     two views, FedLSR   -log q_y + b JS(u, v) + H                            see `losses.views`
8     reweighting         -w log p_y with w = p_y / ( (p T)_y + floor )        w [j=y] + b dw/dlogits log p_y
====  ==================  ===================================================  ========================================

In kind 3, c clamps to [clamp, 1 - clamp].  No gradient flows through t, or through a number that is clamped or replaced by
`floor`.  In kind 4, the divergence is KL(student || teacher) or KL(teacher || student) of the softmaxes at temperature F.
Sources: Patrini et al. 2017 (1); Liu and Guo 2020, Cheng et al. 2021, Di et al. 2024 (2); Kim et al. 2024, eq. 1 (3);
Hinton et al. 2015, Tsouvalas et al. 2024, eq. 9 (4); Jiang et al. 2022 (7); Xia et al. 2019 (8).  In kind 7,
q is the square of m p_1 + (1 - m) p_2 scaled to sum to 1, u and v are the softmaxes of both views at temperature F, clamped
from below, and H is the entropy of u and v.

Each kind can be combined with the terms of `Terms`, labels that change during training (`Memory`), a choice of samples in each
batch (`Choice`), and for two networks labels that both refine (`Division`).

Functions of a single sample take the fields that they need.  A whole `Loss` is passed as some hundred machine words, which
takes longer than the loss of a sample.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fnlkit._kernels.fused.losses.choice import choose, mark
from fnlkit._kernels.fused.losses.division import add_division, divide
from fnlkit._kernels.fused.losses.fields import ALL, CROSS_ENTROPY, DISTILL, EMBEDDING, MIXTURE, SOFT, VIEWS, Loss, Room
from fnlkit._kernels.fused.losses.labels import add_class, add_label, add_soft
from fnlkit._kernels.fused.losses.memory import learn, recall, refurbish
from fnlkit._kernels.fused.losses.mixture import add_mixture, mixture_targets
from fnlkit._kernels.fused.losses.regularizers import add_balance, add_divergence, add_entropy, add_taught
from fnlkit._kernels.fused.losses.softmax import largest, predict
from fnlkit._kernels.fused.losses.views import add_views
from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.input import Batch


@strict
def _count_correct(y, batch, samples, classes, room):
    """Return the number of samples whose label has the largest probability, with two networks the largest mean."""
    correct, mean = 0, room.scratch
    for b in range(samples):
        for j in range(classes):
            mean[j] = room.log_p[0, b, j] if room.logits.shape[0] == 1 else room.p[0, b, j] + room.p[1, b, j]
        best = 0
        for j in range(classes):
            best = j if mean[j] > mean[best] else best
        correct += 1 if best == y[batch.chosen[b]] and mean[best] == mean[best] else 0
    return correct


@strict
def cross_entropy_and_gradient(
    y: np.ndarray, chosen: np.ndarray, samples: int, logits: np.ndarray, gradient: np.ndarray, mean: np.ndarray
) -> tuple[float, int]:
    """Do `loss_and_gradient` for the cross entropy alone, without the bookkeeping of other losses."""
    networks, _, classes = logits.shape
    total, correct = 0.0, 0
    for b in range(samples):
        label = y[chosen[b]]
        for j in range(classes):
            mean[j] = 0.0
        for k in range(networks):
            highest, scale = logits[k, b, 0], 0.0
            for j in range(1, classes):
                highest = max(highest, logits[k, b, j])
            for j in range(classes):
                gradient[k, b, j] = math.exp(logits[k, b, j] - highest)
                scale += gradient[k, b, j]
            total += math.log(scale) - (logits[k, b, label] - highest)
            for j in range(classes):
                p = gradient[k, b, j] / scale
                mean[j] += p
                gradient[k, b, j] = (p - (1.0 if j == label else 0.0)) / samples
        best = 0
        for j in range(1, classes):
            best = j if mean[j] > mean[best] else best
        correct += 1 if best == label and mean[best] == mean[best] else 0
    return total, correct


@strict
def mixed_cross_entropy_and_gradient(
    y: np.ndarray,
    batch: Batch,
    share: float,
    samples: int,
    logits: np.ndarray,
    gradient: np.ndarray,
    log_p: np.ndarray,
    p: np.ndarray,
) -> tuple[float, int]:
    """Do `loss_and_gradient` for the cross entropy of one network after mixup, with the same bytes.

    `log_p` and `p` (C,) are scratch.
    """
    _, _, classes = logits.shape
    total, correct, none = 0.0, 0, np.zeros(0)
    for b in range(samples):
        predict(none, logits[0, b], classes, log_p, p)
        own, other, target = y[batch.chosen[b]], y[batch.chosen[batch.mates[b]]], gradient[0, b]
        correct += 1 if largest(log_p, classes) == own and log_p[own] == log_p[own] else 0
        for j in range(classes):
            target[j] = 0.0
        target[own] += share
        target[other] += 1.0 - share
        total += -share * log_p[own] - (1.0 - share) * log_p[other]
        mass = 0.0
        for j in range(classes):
            mass += target[j]
        for j in range(classes):
            target[j] = (p[j] * mass - target[j]) / samples
    return total, correct


@strict
def loss_and_gradient(
    loss: Loss, y: np.ndarray, batch: Batch, step: int, share: float, samples: int, room: Room
) -> tuple[float, int]:
    """Write the gradient of a batch's mean loss to ``room.gradient``; return the sum of losses and the correct rows.

    Parameters
    ----------
    loss : Loss
    y : (n,) int64
        Labels of the client.
    batch : Batch
        The samples of the rows and their mixup partners.
    step : int
    share : float
        Weight of the label of the row itself; 1 without mixup.  Labels and t of kind 3 are mixed.  Averages, y' and `keep`
        belong to the sample of the row.
    samples : int
        Number of rows in use.
    room : Room
        With logits of the batch.

    Returns
    -------
    total : float
        Without the distance to a teacher's embeddings or to centroids.
    correct : int
        Number of correct predictions: rows with the largest logit at the row's label.
    """
    networks, _, classes = room.logits.shape
    terms, memory, choice = loss.terms, loss.memory, loss.choice
    own = room.own if batch.raw.shape[0] else room.logits
    divided = loss.division.clean.shape[0] > 0
    classified = loss.kind == CROSS_ENTROPY or loss.kind == MIXTURE or loss.kind == DISTILL or loss.kind == EMBEDDING
    total, scratch = 0.0, room.scratch
    if divided:
        divide(loss, batch, samples, classes, room)
    if loss.kind == MIXTURE:
        mixture_targets(loss, own[0], room.server[0], batch, samples, classes, room.soft[0])
    for k in range(networks):
        for b in range(samples):
            predict(terms.offset, room.logits[k, b], classes, room.log_p[k, b], room.p[k, b])
            room.chosen[k, b] = 1.0
    correct = _count_correct(y, batch, samples, classes, room)
    if loss.kind == VIEWS:
        return add_views(loss, y, batch, step, samples, classes, room), correct
    if memory.guesses.shape[0]:
        for b in range(samples):
            refurbish(memory, batch.chosen[b], largest(room.logits[0, b], classes), classes, scratch)
    mark(loss, y, own, batch, samples, share, classes, room)
    if choice.rule != ALL and not memory.record:
        choose(loss, y, batch, samples, classes, room)
    for k in range(networks):
        if divided:
            total += add_division(loss, batch, samples, share, classes, k, room)
        for b in range(samples):
            row = batch.chosen[b]
            log_p, p, target, gradient = room.log_p[k, b], room.p[k, b], room.target[k, b], room.gradient[k, b]
            value, whole = 0.0, room.chosen[k, b]
            if divided:
                whole = 1.0
            else:
                for j in range(classes):
                    target[j] = gradient[j] = 0.0
                if memory.history.shape[0]:
                    recall(memory, row, room.marks[b], p, classes, room.soft[k, b])
                    for j in range(classes):
                        target[j] += terms.label * room.soft[k, b, j]
                        value -= terms.label * room.soft[k, b, j] * log_p[j]
                else:
                    other = loss.other[step, batch.slots[b]] if loss.other.shape[0] else -1
                    for turn in range(2):
                        place = batch.mates[b] if turn else b
                        part = room.factor[place if choice.mated else b] * (1.0 - share if turn else share)
                        label, weight = room.marks[place], part * terms.label
                        if part == 0:
                            continue
                        if classified:
                            bounds = terms.bounded, terms.power
                            value += add_class(label, part, weight, loss.smoothing, *bounds, log_p, classes, target)
                        elif loss.kind == SOFT:
                            value += add_soft(loss.soft[batch.chosen[place]], weight, log_p, classes, target)
                        else:
                            numbers = loss.kind, loss.strength, loss.floor, loss.matrix, loss.prior
                            value += add_label(*numbers, label, other, weight, log_p, p, classes, target)
            if loss.kind == MIXTURE:
                own_soft, other_soft = room.soft[k, b], room.soft[k, batch.mates[b]]
                value += add_mixture(loss.strength, loss.clamp, loss.floor, own_soft, other_soft, share, p, classes, target)
            if terms.teach != 0:
                value += add_taught(terms.teach, terms.teach_heat, room.server[k, b], log_p, classes, target, scratch)
            if terms.entropy != 0:
                value += add_entropy(terms.entropy, log_p, p, classes, gradient)
            if memory.learned.shape[0]:
                value += learn(memory, terms.reverse, row, y[row], log_p, p, classes, scratch, gradient)
            mass = 0.0
            for j in range(classes):
                if terms.offset.shape[0] and terms.offset[j] == -np.inf:
                    target[j] = 0.0
                mass += target[j]
            for j in range(classes):
                gradient[j] = (p[j] * mass - target[j] + gradient[j]) * whole / samples
            if loss.kind == DISTILL:
                heat = loss.temperature, loss.backwards
                value += add_divergence(loss.strength, *heat, room.logits[k, b], room.server[k, b], classes, samples, gradient)
            room.pulled[b] = whole * terms.pull if room.nearest[b] == y[row] else 0.0
            total += whole * value
        if terms.balance != 0:
            total += add_balance(terms.balance, room.p[k], samples, classes, room.gradient[k])
    return total, correct
