"""Losses of the fused path: value, and gradient with respect to the logits, in double precision whatever the weights are.

Every loss here is, as far as its gradient goes, a cross entropy with a *target* t that may be signed and need not sum to
one: with p = softmax(logits), the gradient is ``p * sum(t) - t``.  A loss therefore only adds to the target:

====  ====================  =====================================================  ===========================================
kind  name                  value of one sample                                    target
====  ====================  =====================================================  ===========================================
0     cross entropy         -(1-s) log p_y - s/C sum_j log p_j                     (1-s) [j=y] + s/C
1     forward correction    -log( sum_j p_j T[j,y] + 1e-12 )                       p_j T[j,y] / (sum_i p_i T[i,y] + 1e-12)
2     peer                  -log p_y + b log p_y'                                  [j=y] - b [j=y']
      in expectation        -log p_y + b sum_j q_j log p_j                         [j=y] - b q_j
3     label mixture (FLR)   -log p_y + a log max(1 - <p,t>, floor)                 [j=y] + a p_j t_j / (1 - <p,t>)
4     distillation          -log p_y + b F^2 KL(softmax(g/F) || softmax(z/F))      [j=y]; the divergence is added apart
5     soft labels           -sum_j q_j log p_j                                     q_j
====  ====================  =====================================================  ===========================================

Sources: Patrini et al. 2017 (1); Liu and Guo 2020, Cheng et al. 2021, Di et al. 2024 (2); Kim et al. 2024, eq. 1 (3);
Hinton et al. 2015 (4).  In 3 no gradient flows through t, and none where the clamp holds.
"""

import math
from typing import NamedTuple

import numpy as np

from .fused_tile import strict

CROSS_ENTROPY, FORWARD, PEER, MIXTURE, DISTILL, SOFT = range(6)


class Loss(NamedTuple):
    """What a loss needs beside the logits; C classes, n samples of the client, array fields of length 0 are unused.

    Attributes
    ----------
    kind : int
        Row of the table above.
    smoothing : float
        s of kind 0.
    weight : float
        b of kinds 2 and 4, a of kind 3.
    temperature : float
        F of kind 4.
    alpha, beta, gamma, floor : float
        Share of the server's average in t, rates of the two averages, and the clamp, of kind 3.
    matrix : (C, C) float64
        ``T[true, given]`` of kind 1.
    other : (steps, B) int64
        y' of kind 2; without it `prior` is used.
    prior : (C,) float64
        q of kind 2.
    soft : (n, C) real
        Soft labels of kind 5.
    server, local : (n, C) real
        Running averages of kind 3, updated in place.
    seen : (n,) bool
        Which of their rows hold anything yet; updated in place.
    """

    kind: int
    smoothing: float
    weight: float
    temperature: float
    alpha: float
    beta: float
    gamma: float
    floor: float
    matrix: np.ndarray
    other: np.ndarray
    prior: np.ndarray
    soft: np.ndarray
    server: np.ndarray
    local: np.ndarray
    seen: np.ndarray


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
def _add_label(loss, label, row, other, share, p, classes, target):
    """Add `share` times the target of one label to `target`; returns the value that the target does not give."""
    if loss.kind == SOFT:
        for j in range(classes):
            target[j] += share * loss.soft[row, j]
        return 0.0
    if loss.kind == FORWARD:
        through = 0.0
        for j in range(classes):
            through += p[j] * loss.matrix[j, label]
        through += 1e-12
        for j in range(classes):
            target[j] += share * p[j] * loss.matrix[j, label] / through
        return -share * math.log(through)
    target[label] += share * (1.0 - loss.smoothing)
    if loss.smoothing != 0:
        for j in range(classes):
            target[j] += share * loss.smoothing / classes
    if loss.kind == PEER:
        if loss.other.shape[0]:
            target[other] -= share * loss.weight
        else:
            for j in range(classes):
                target[j] -= share * loss.weight * loss.prior[j]
    return 0.0


@strict
def _add_mixture(loss, row, p, log_server, classes, target):
    """Update the two averages of one sample, add the regulariser's target; returns its value."""
    first = not loss.seen[row]
    loss.seen[row] = True
    along = 0.0
    for j in range(classes):
        server, local = math.exp(log_server[j]), p[j]
        if not first:
            server = loss.beta * loss.server[row, j] + (1.0 - loss.beta) * server
            local = loss.gamma * loss.local[row, j] + (1.0 - loss.gamma) * local
        loss.server[row, j] = server
        loss.local[row, j] = local
        along += p[j] * (loss.alpha * loss.server[row, j] + (1.0 - loss.alpha) * loss.local[row, j])
    apart = 1.0 - along
    if apart < loss.floor:
        return loss.weight * math.log(loss.floor)
    for j in range(classes):
        mixture = loss.alpha * loss.server[row, j] + (1.0 - loss.alpha) * loss.local[row, j]
        target[j] += loss.weight * p[j] * mixture / apart
    return loss.weight * math.log(apart)


@strict
def loss_and_gradient(loss, logits, at, server_logits, classes, pitch, y, batch, step, share, samples, gradient):
    """Write the gradient of the mean loss of a batch; returns the sum of the losses and the number of correct rows.

    Parameters
    ----------
    loss : Loss
    logits, gradient : flat real
        Row b starts at ``at + b * pitch``; `gradient` is written.
    server_logits : flat real
        Of the round's starting point, row b from ``b * pitch`` on; read by kinds 3 and 4 only.
    y : (n,) int64
        Labels of the client.
    batch : Batch
        Which samples the rows are, and which are mixed.
    step : int
    share : real
        Weight of the own label; 1 without mixup.
    samples : int
        Rows in use.

    Returns
    -------
    total : float
    correct : int
        Rows whose largest logit is that of the own label.
    """
    log_p, p, target, log_server = np.empty(classes), np.empty(classes), np.empty(classes), np.empty(classes)
    total, correct = 0.0, 0
    for b in range(samples):
        start, row = at + b * pitch, batch.chosen[b]
        log_softmax(logits, start, classes, 1.0, log_p)
        best = 0
        for j in range(classes):
            p[j] = math.exp(log_p[j])
            target[j] = 0.0
            best = j if log_p[j] > log_p[best] else best
        correct += 1 if best == y[row] and log_p[best] == log_p[best] else 0
        value = 0.0
        for turn in range(2):
            mate = batch.mates[b] if turn else b
            part = 1.0 - share if turn else float(share)
            if part != 0:
                other = loss.other[step, batch.slots[mate]] if loss.other.shape[0] else 0
                label_row = batch.chosen[mate]
                value += _add_label(loss, y[label_row], label_row, other, part, p, classes, target)
        if loss.kind != FORWARD:
            for j in range(classes):
                value -= target[j] * log_p[j] if target[j] != 0 else 0.0
        if loss.kind == MIXTURE:
            log_softmax(server_logits, b * pitch, classes, 1.0, log_server)
            value += _add_mixture(loss, row, p, log_server, classes, target)
        mass = 0.0
        for j in range(classes):
            mass += target[j]
        for j in range(classes):
            gradient[start + j] = (p[j] * mass - target[j]) / samples
        if loss.kind == DISTILL:
            heat = loss.temperature
            log_softmax(server_logits, b * pitch, classes, heat, log_server)
            log_softmax(logits, start, classes, heat, log_p)
            for j in range(classes):
                teacher = math.exp(log_server[j])
                value += loss.weight * heat * heat * teacher * (log_server[j] - log_p[j])
                gradient[start + j] += loss.weight * heat * (math.exp(log_p[j]) - teacher) / samples
        total += value
    return total, correct
