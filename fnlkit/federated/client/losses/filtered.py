"""FedDiv's loss: mixup of samples that a filter selects and on which global and local model agree."""

import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import away_from_uniform, reads, select_label


@reads(unmixed=True, mixes=True)
def consistent(logits: torch.Tensor, batch: Batch, *, prior: float = 0.0, debias: float = 0.5) -> torch.Tensor:
    """Loss share CE(y_i) k_i + (1 - share) CE(y_j) k_j of mixup + prior KL(uniform || mean p), (..., B) (Li 2024).

    k_i is 1 if the filter selected the sample (``rows["filter_keep"]``).  On clients with ``state["filter_agree"]`` = 1, the
    local model in training must also predict the global model's class ``rows["filter_global"]`` (eq. 10).  Local predictions
    are `debias_logits` by ``state["filter_bias"]``.  The values are scaled so that their mean is that over selected samples.

    Parameters
    ----------
    prior : float >= 0
        eta of eqs. 14 and 15.
    debias : float >= 0
        xi of eq. 9.
    """
    logp, labels = logits.log_softmax(-1), batch.rows["filter_label"]
    bias = batch.state["filter_bias"].to(logits)[..., None, :]
    local = debias_logits(batch.unmixed.to(logits), bias, debias).argmax(-1)
    free = (batch.state["filter_agree"].to(local.device) == 0)[..., None]
    keep = batch.rows["filter_keep"] & ((local == batch.rows["filter_global"]) | free)
    share, keep = batch.share.to(logits)[..., None], keep.to(logits)
    mate = batch.partner
    own, other = share * keep, (1 - share) * keep.gather(-1, mate)
    values = -own * select_label(logp, labels) - other * select_label(logp, labels.gather(-1, mate))
    values = values / (own + other).mean(-1, keepdim=True).clamp_min(1e-12)
    return values + prior * away_from_uniform(logp)[..., None]


def debias_logits(logits: torch.Tensor, bias: torch.Tensor, strength: float) -> torch.Tensor:
    """Subtract a client's bias to frequent classes: logits - strength log bias, (..., C) (eq. 9)."""
    return logits - strength * bias.clamp_min(1e-12).log()


def filter_weight(losses: torch.Tensor, filter: torch.Tensor) -> torch.Tensor:
    """Probability (n,) that a sample is clean, by a filter (3, 2) of means, variances and shares (eq. 3).

    Parameters
    ----------
    losses : Tensor (n,)
    filter : Tensor (3, 2)
        Columns: the clean and the noisy component.
    """
    mean, variance, share = filter.to(losses).unbind(0)
    log = -0.5 * ((losses[:, None] - mean).square() / variance + variance.log()) + share.clamp_min(1e-300).log()
    return torch.softmax(log, -1)[:, 0]
