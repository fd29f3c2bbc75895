"""Bounded or nearly bounded losses, on which wrong labels have less influence than on the cross entropy."""

from typing import Annotated

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, Range
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import select_label

# Value of log 0 for a one-hot label inside a logarithm.
LogZero = Annotated[float, Range(-1000, 0, open_high=True)]


@declare(cite="Zhang 2018")
def generalized_cross_entropy(
    logits: torch.Tensor,
    batch: Batch,
    *,
    q: Annotated[float, Range(0, 1, open_low=True)] = 0.7,
    truncate: Annotated[float, Range(0, 1, open_high=True)] = 0.0,
) -> torch.Tensor:
    """Reduce the influence of labels that the network predicts with low probability (GCE).

    Return (1 - p_y^q) / q, (..., B): GCE (Zhang, Sabuncu 2018, eq. 6).

    Parameters
    ----------
    q : float in (0, 1]
        1 is the mean absolute error, the limit 0 is the cross entropy.
    truncate : float in [0, 1)
        k: samples with p_y <= k have the constant value (1 - k^q) / q and no gradient (eq. 7). 0.5 in the paper, which
        alternates between pruning and training; here the samples are pruned in each step. 0 truncates no sample.
    """
    logp = select_label(logits.log_softmax(-1), batch.y)
    values = (1 - (q * logp).exp()) / q
    if truncate:
        values = values.clamp_max((1 - truncate**q) / q)
    return values


@declare(cite="Wang 2019")
def symmetric_cross_entropy(
    logits: torch.Tensor, batch: Batch, *, alpha: NotNegative = 0.1, beta: NotNegative = 1.0, log_zero: LogZero = -4.0
) -> torch.Tensor:
    """Limit the influence of wrong labels by adding the reverse cross entropy, from prediction to label (SCE).

    Return alpha CE + beta RCE, (..., B), with the reverse cross entropy RCE = -log_zero (1 - p_y) (Wang 2019, eq. 8).

    Parameters
    ----------
    alpha, beta : float >= 0
        0.1 and 1 on CIFAR-10, 6 and 0.1 on CIFAR-100.
    log_zero : float < 0
        A: the value of log 0 for the one-hot label.
    """
    logp = select_label(logits.log_softmax(-1), batch.y)
    return -alpha * logp - beta * log_zero * (1 - logp.exp())  # expm1 has no gradient in float32 where p < 6e-8


@declare(cite="Ma 2020")
def normalized_and_reverse_cross_entropy(
    logits: torch.Tensor, batch: Batch, *, alpha: NotNegative = 1.0, beta: NotNegative = 1.0, log_zero: LogZero = -4.0
) -> torch.Tensor:
    """Combine two losses that are robust to wrong labels, an active and a passive loss (NCE + RCE).

    Return alpha NCE + beta RCE, (..., B), NCE = log p_y / sum_j log p_j (Ma 2020, eqs. 3 and 12).

    Parameters
    ----------
    alpha, beta : float >= 0
        1 and 1 on CIFAR-10, 10 and 0.1 on CIFAR-100.
    log_zero : float < 0
        A of the reverse cross entropy, as in `symmetric_cross_entropy`.
    """
    logp = logits.log_softmax(-1)
    label_logp = select_label(logp, batch.y)
    return alpha * label_logp / logp.sum(-1) - beta * log_zero * (1 - label_logp.exp())
