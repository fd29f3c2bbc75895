"""The bi-tempered logistic loss: bounded in the logits, and with heavier tails than the softmax.

Amid, Warmuth, Anil, Koren. Robust bi-tempered logistic loss based on Bregman divergences. NeurIPS 2019.
"""

from typing import Annotated

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, Positive, Range
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.cross_entropy import cross_entropy
from fnlkit.federated.client.losses.parts import select_label

# Bisection steps that determine the normalizer of a tempered softmax with t < 1 to the last bit.
_HALVINGS = 64


def log_t(x: torch.Tensor, t: float) -> torch.Tensor:
    """Tempered logarithm (x^(1 - t) - 1) / (1 - t); log x for t = 1 (eq. 1)."""
    return x.log() if t == 1 else (x ** (1 - t) - 1) / (1 - t)


def exp_t(x: torch.Tensor, t: float) -> torch.Tensor:
    """Inverse of `log_t`, max(0, 1 + (1 - t) x)^(1 / (1 - t)); exp x for t = 1 (eq. 2)."""
    if t == 1:
        return x.exp()
    base = 1 + (1 - t) * x
    positive = base > 0
    return torch.where(positive, torch.where(positive, base, 1.0) ** (1 / (1 - t)), 0.0)


def tempered_softmax(logits: torch.Tensor, t: float, iterations: int = 5) -> torch.Tensor:
    """Compute exp_t(logits - lambda) (..., C) that sum to 1 over the last axis (eq. 4), differentiable in the logits.

    lambda is computed without a graph: by fixed-point iterations for t > 1 (Algorithm 1 of the appendix), and by bisection for
    t < 1.  The derivative of lambda, sum_j p_j^t dz_j / sum_j p_j^t, follows from sum_j p_j = 1.

    Parameters
    ----------
    logits : Tensor (..., C)
    t : float > 0
    iterations : int
        Fixed-point iterations.
    """
    if t == 1:
        return logits.softmax(-1)
    with torch.no_grad():
        normalizer = (_fixed_point if t > 1 else _bisection)(logits, t, iterations)
        weight = exp_t(logits - normalizer, t) ** t
        weight = weight / weight.sum(-1, keepdim=True)
    pulled = (weight * (logits - logits.detach())).sum(-1, keepdim=True)  # 0, with the gradient of lambda
    return exp_t(logits - normalizer - pulled, t)


def _fixed_point(logits, t, iterations):
    top = logits.max(-1, keepdim=True).values
    away = logits - top
    scaled = away
    for _ in range(iterations):
        scaled = away * exp_t(scaled, t).sum(-1, keepdim=True) ** (1 - t)
    return top - log_t(1 / exp_t(scaled, t).sum(-1, keepdim=True), t)


def _bisection(logits, t, iterations):
    top, classes = logits.max(-1, keepdim=True).values, logits.shape[-1]
    low = torch.zeros_like(top)  # the largest entry alone reaches 1 here; at `high` no entry exceeds 1 / C
    high = low - log_t(torch.full_like(top, 1 / classes), t)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        more = exp_t(logits - top - middle, t).sum(-1, keepdim=True) > 1
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return top + (low + high) / 2


@declare(cite="Amid 2019")
def bi_tempered(
    logits: torch.Tensor,
    batch: Batch,
    *,
    t1: Annotated[float, Range(0, 1)] = 0.8,
    t2: Positive = 1.2,
    iterations: Count = 5,
) -> torch.Tensor:
    """Limit the influence of wrong labels, near the decision boundary and far from it, by two temperatures.

    Return -log_t1 p_y - (1 - sum_j p_j^(2 - t1)) / (2 - t1), (..., B), p the softmax tempered with t2 (eq. 6).

    Parameters
    ----------
    t1 : float in [0, 1]
        Below 1 the loss of a single sample is at most 1 / (1 - t1).
    t2 : float > 0
        Above 1 the softmax has heavy tails.  Below 1 it has no tails: an unlikely class has probability 0, and no gradient
        even if it is the label.  t1 = t2 = 1 is the cross entropy.
    iterations : int
        Fixed-point iterations. 5 in the public code, which normalizes logits of size 4 with an error of 1e-6.
    """
    if t1 == t2 == 1:
        return cross_entropy(logits, batch)
    p = tempered_softmax(logits, t2, iterations)
    label_p = select_label(p, batch.y).clamp_min(torch.finfo(p.dtype).tiny)
    return -log_t(label_p, t1) - (1 - (p ** (2 - t1)).sum(-1)) / (2 - t1)
