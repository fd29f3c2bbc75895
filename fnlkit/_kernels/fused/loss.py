"""Losses of the fused path: value and gradient with respect to the logits, in double precision.

The gradient of each loss is that of a cross entropy with a *target* t, which can be signed and need not sum to 1.  With
p = softmax(logits), the gradient is ``p * sum(t) - t``.  Each loss therefore returns a value and adds to the target.
[j=y] is 1 if j = y, else 0:

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
6     embeddings          -log p_y + b mean_j |ê_j - e_j|                      [j=y]; the distance is in `head`
====  ==================  ===================================================  ========================================

In kind 3, c clamps to [clamp, 1 - clamp].  No gradient flows through t, or through a number that is clamped or replaced by
`floor`.  In kind 4, the divergence is KL(student || teacher) or KL(teacher || student) of the softmaxes at temperature F.
Sources: Patrini et al. 2017 (1); Liu and Guo 2020, Cheng et al. 2021, Di et al. 2024 (2); Kim et al. 2024, eq. 1 (3);
Hinton et al. 2015, Tsouvalas et al. 2024, eq. 9 (4).
"""

import math
from typing import NamedTuple

import numpy as np

from fnlkit._kernels.fused.tile import strict

CROSS_ENTROPY, FORWARD, PEER, MIXTURE, DISTILL, SOFT, EMBEDDING = range(7)


class Loss(NamedTuple):
    """Parameters of a loss; C classes, n samples of the client, unused array fields have length 0.

    Attributes
    ----------
    kind : int
        Row of the table above.
    smoothing : float
        s of kind 0.
    strength : float
        b.
    temperature : float
        F of kind 4.
    backwards : bool
        Kind 4: KL(student || teacher) instead of KL(teacher || student).
    alpha, beta, gamma : float
        Kind 3: share of the server's average in t, rate of the server's average, rate of the local average.
    floor, clamp : float
    matrix : (C, C) float64
        ``T[true, given]`` of kind 1.
    other : (steps, B) int64
        y' of kind 2; if empty, `prior` is used.
    prior : (C,) float64
        q of kind 2.
    soft : (n, C) real
        Soft labels of kind 5.
    keep : (n,) real
        Factor of each sample's loss without regularizers; length 0 for 1.
    server, local : (n, C) real
        Running averages of kind 3, updated in place.  Without `server`, t is the local average alone.
    seen : (n,) bool
        True for the rows of the averages that have a value; updated in place.
    teacher : (n, D) real
        Embeddings e of kind 6.
    """

    kind: int
    smoothing: float
    strength: float
    temperature: float
    backwards: bool
    alpha: float
    beta: float
    gamma: float
    floor: float
    clamp: float
    matrix: np.ndarray
    other: np.ndarray
    prior: np.ndarray
    soft: np.ndarray
    keep: np.ndarray
    server: np.ndarray
    local: np.ndarray
    seen: np.ndarray
    teacher: np.ndarray


@strict
def needs_server(loss):
    """Return True if the loss needs predictions of the round's initial model on each batch."""
    return loss.kind == DISTILL or (loss.kind == MIXTURE and loss.server.shape[0] > 0)


@strict
def needs_unmixed(loss, batch):
    """Return True if the loss needs predictions of both models on each batch before mixup."""
    return loss.kind == MIXTURE and batch.raw.shape[0] > 0


@strict
def log_softmax(logits, at, classes, temperature, out):
    """Write ``log softmax(logits[at : at + classes] / temperature)``."""
    highest = float(logits[at])
    for j in range(1, classes):
        highest = max(highest, float(logits[at + j]))
    total = 0.0
    for j in range(classes):
        out[j] = (logits[at + j] - highest) / temperature
        total += math.exp(out[j])
    shift = math.log(total)
    for j in range(classes):
        out[j] -= shift


@strict
def _add_label(loss, label, row, other, share, log_p, p, classes, target):
    """Add `share` times the target of one label to `target`; return `share` times the loss."""
    value = 0.0
    if loss.kind == SOFT:
        for j in range(classes):
            target[j] += share * loss.soft[row, j]
            value -= loss.soft[row, j] * log_p[j]
    elif loss.kind == FORWARD:
        through = loss.floor
        for j in range(classes):
            through += p[j] * loss.matrix[j, label]
        for j in range(classes):
            target[j] += share * p[j] * loss.matrix[j, label] / through
        value = -math.log(through)
    elif loss.kind == PEER:
        for j in range(classes):
            part = loss.prior[j] if other < 0 else 1.0 if j == other else 0.0
            pull = (1.0 if j == label else 0.0) - loss.strength * part
            if pull != 0:
                kept = p[j] / (p[j] + loss.floor) if loss.floor != 0 else 1.0
                target[j] += share * pull * kept
                value -= pull * (math.log(p[j] + loss.floor) if loss.floor != 0 else log_p[j])
    else:
        target[label] += share * (1.0 - loss.smoothing)
        value -= (1.0 - loss.smoothing) * log_p[label]
        if loss.smoothing != 0:
            for j in range(classes):
                target[j] += share * loss.smoothing / classes
                value -= loss.smoothing / classes * log_p[j]
    return share * value


@strict
def _bounded(loss, log_p, classes, out):
    """Write a prediction in the form that enters an average: clamped, then scaled to sum to 1."""
    total = 0.0
    for j in range(classes):
        out[j] = math.exp(log_p[j])
        if loss.clamp > 0:
            out[j] = min(max(out[j], loss.clamp), 1.0 - loss.clamp)
        total += out[j]
    if loss.clamp > 0:
        for j in range(classes):
            out[j] /= total


@strict
def _remember(loss, row, now, server, classes, out):
    """Update the averages of one sample with two predictions and write the target t."""
    first = not loss.seen[row]
    loss.seen[row] = True
    with_server = loss.server.shape[0] > 0
    for j in range(classes):
        loss.local[row, j] = now[j] if first else loss.gamma * loss.local[row, j] + (1.0 - loss.gamma) * now[j]
        out[j] = loss.local[row, j]
        if with_server:
            loss.server[row, j] = server[j] if first else loss.beta * loss.server[row, j] + (1.0 - loss.beta) * server[j]
            out[j] = loss.alpha * loss.server[row, j] + (1.0 - loss.alpha) * out[j]


@strict
def _targets(loss, logits, at, server_logits, classes, pitch, batch, samples):
    """Return t (samples, C) of a batch from the logits of the local model and of the server's model.

    Both are logits on samples before mixup; those of the local model start at `at`.
    """
    log_p, now, server = np.empty(classes), np.empty(classes), np.empty(classes)
    out = np.empty((samples, classes))
    for b in range(samples):
        log_softmax(logits, at + b * pitch, classes, 1.0, log_p)
        _bounded(loss, log_p, classes, now)
        if loss.server.shape[0]:
            log_softmax(server_logits, b * pitch, classes, 1.0, log_p)
            _bounded(loss, log_p, classes, server)
        _remember(loss, batch.chosen[b], now, server, classes, out[b])
    return out


@strict
def _add_mixture(loss, own, other, share, p, classes, target):
    """Add the regularizer's target for t = share own + (1 - share) other; return the regularizer."""
    along = 0.0
    for j in range(classes):
        held = min(max(p[j], loss.clamp), 1.0 - loss.clamp) if loss.clamp > 0 else p[j]
        along += held * (share * own[j] + (1.0 - share) * other[j])
    apart = 1.0 - along
    if apart < loss.floor:
        return loss.strength * math.log(loss.floor)
    for j in range(classes):
        if loss.clamp == 0 or loss.clamp <= p[j] <= 1.0 - loss.clamp:
            target[j] += loss.strength * p[j] * (share * own[j] + (1.0 - share) * other[j]) / apart
    return loss.strength * math.log(apart)


@strict
def _add_divergence(loss, logits, at, server_logits, server_at, classes, gradient, samples):
    """Add the gradient of the divergence from the teacher to `gradient`; return the divergence term."""
    student, teacher = np.empty(classes), np.empty(classes)
    heat = loss.temperature
    log_softmax(logits, at, classes, heat, student)
    log_softmax(server_logits, server_at, classes, heat, teacher)
    divergence = 0.0
    for j in range(classes):
        if loss.backwards:
            divergence += math.exp(student[j]) * (student[j] - teacher[j])
        else:
            divergence += math.exp(teacher[j]) * (teacher[j] - student[j])
    for j in range(classes):
        if loss.backwards:
            slope = math.exp(student[j]) * (student[j] - teacher[j] - divergence)
        else:
            slope = math.exp(student[j]) - math.exp(teacher[j])
        gradient[at + j] += loss.strength * heat * slope / samples
    return loss.strength * heat * heat * divergence


@strict
def loss_and_gradient(
    loss, logits, at, server_logits, own_logits, classes, pitch, y, batch, step, share, samples, gradient
):  # fmt: skip
    """Write the gradient of a batch's mean loss; return the sum of losses and the correct rows.

    Parameters
    ----------
    loss : Loss
    logits, gradient : flat real
        Row b starts at ``at + b * pitch``; `gradient` is written.
    server_logits : flat real
        Logits of the round's initial model, row b from ``b * pitch`` on; see `needs_server`.
    own_logits : flat real
        Logits of the local model on samples before mixup, with the same rows; see `needs_unmixed`.  Length 0 without mixup.
    y : (n,) int64
        Labels of the client.
    batch : Batch
        The samples of the rows and their mixup partners.
    step : int
    share : float
        Weight of the row's own label; 1 without mixup.  Labels and t of kind 3 are mixed.  Averages, y' and `keep` are those
        of the row's own sample.
    samples : int
        Number of rows in use.

    Returns
    -------
    total : float
    correct : int
        Number of correct predictions: rows with the largest logit at the row's label.
    """
    log_p, p, target = np.empty(classes), np.empty(classes), np.empty(classes)
    total, correct = 0.0, 0
    towards = np.empty((0, classes))
    if loss.kind == MIXTURE:
        if own_logits.size:
            towards = _targets(loss, own_logits, 0, server_logits, classes, pitch, batch, samples)
        else:
            towards = _targets(loss, logits, at, server_logits, classes, pitch, batch, samples)
    for b in range(samples):
        start, row = at + b * pitch, batch.chosen[b]
        log_softmax(logits, start, classes, 1.0, log_p)
        best = 0
        for j in range(classes):
            p[j] = math.exp(log_p[j])
            target[j] = 0.0
            best = j if log_p[j] > log_p[best] else best
        correct += 1 if best == y[row] and log_p[best] == log_p[best] else 0
        keep = float(loss.keep[row]) if loss.keep.shape[0] else 1.0
        other = loss.other[step, batch.slots[b]] if loss.other.shape[0] else -1
        value = 0.0
        for turn in range(2):
            label_row = batch.chosen[batch.mates[b]] if turn else row
            part = keep * (1.0 - share if turn else share)
            if part != 0:
                value += _add_label(loss, y[label_row], label_row, other, part, log_p, p, classes, target)
        if loss.kind == MIXTURE:
            value += _add_mixture(loss, towards[b], towards[batch.mates[b]], share, p, classes, target)
        mass = 0.0
        for j in range(classes):
            mass += target[j]
        for j in range(classes):
            gradient[start + j] = (p[j] * mass - target[j]) / samples
        if loss.kind == DISTILL:
            value += _add_divergence(loss, logits, start, server_logits, b * pitch, classes, gradient, samples)
        total += value
    return total, correct
