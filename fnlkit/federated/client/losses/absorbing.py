"""FedRG's loss: symmetric cross entropy on all samples, and a noise absorption matrix on samples that count as noisy."""

import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import select_label
from fnlkit.federated.client.losses.robust import symmetric_cross_entropy

# Logarithm of 0 in the reverse cross entropy: of the public code's smallest entry of a label, 1e-4.
LOG_ZERO = -9.210340371976182


def absorbing(logits: torch.Tensor, batch: Batch, *, robust: float = 0.4, absorb: float = 1.0) -> torch.Tensor:
    """Robust SCE + absorb m_i (-log(p T)_y), (..., B), with m_i = B / noisy samples for noisy samples, else 0.

    SCE = 0.1 CE + RCE.  T is ``state["rg_absorption"]`` (..., C, C), T[true, given]; a sample is noisy if ``rows["rg_noisy"]``
    is 1.  The values have the mean of both terms over their samples.

    Parameters
    ----------
    robust, absorb : float >= 0
    """
    values = robust * symmetric_cross_entropy(logits, batch, alpha=0.1, beta=1.0, log_zero=LOG_ZERO)
    noisy = batch.rows["rg_noisy"].to(logits)
    likelihood = select_label(logits.softmax(-1) @ batch.state["rg_absorption"].to(logits), batch.y)
    weight = noisy * (logits.shape[-2] / (noisy.sum(-1, keepdim=True) + 1e-8))
    return values - absorb * weight * (likelihood + 1e-12).log()
