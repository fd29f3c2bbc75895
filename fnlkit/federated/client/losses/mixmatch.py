"""DivideMix's loss: each of two models learns from samples that the other model divided, with labels refined by both."""

from typing import Any

import torch
from torch.nn.functional import mse_loss

from fnlkit.core.declarations import declare
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import away_from_uniform, reads
from fnlkit.models.pair_output import both


def sharpen(p: torch.Tensor, temperature: float) -> torch.Tensor:
    """Sharpen probabilities: p^(1/T), scaled to sum to 1 over the last axis (Li 2020, Section 3.2)."""
    return (p.clamp_min(1e-30).log() / temperature).softmax(-1)


@declare(scheduled=("unlabeled",))
@reads(features=True, unmixed=True, mixes=True)
def mixmatch(
    logits: torch.Tensor,
    batch: Batch,
    *,
    unlabeled: float,
    temperature: float = 0.5,
    threshold: float = 0.5,
    views: int = 2,
) -> torch.Tensor:
    """L_X + lambda_u L_U + L_reg of both models together, (..., B) (Li 2020, Algorithm 1).

    A sample is labeled for a model if the other model's probability w of a clean label, ``rows["divided_clean"]``, reaches the
    threshold.  The target of a labeled sample is w y + (1 - w) p with the model's own prediction p.  The target of other
    samples is the mean of both models' predictions.  Predictions are averaged over the sample's views and targets are
    sharpened.  Mixup uses lambda' = max(lambda, 1 - lambda), and a mixed sample is labeled if the larger of its two parts is.
    L_X is the cross entropy of labeled samples, L_U the mean squared error of the others, and L_reg the divergence of the mean
    prediction from the uniform distribution.

    Parameters
    ----------
    logits : Tensor (..., B, C)
        Not used: ``batch.features`` and ``batch.unmixed_features`` have both models' logits.  B includes all views.
    unlabeled : float >= 0
        lambda_u of this round.
    temperature, threshold : float
        T and tau.
    views : int
        M: number of views of a sample in the batch.
    """
    logp, classes = both(batch.features).log_softmax(-1), logits.shape[-1]  # (..., B, 2, C)
    targets, sure = divide_targets(batch, classes, temperature, threshold, views)
    share = batch.share.to(logp)[..., None, None]
    mate = batch.partner[..., None, None]
    mixed = torch.lerp(targets.gather(-3, mate.expand_as(targets)), targets, share[..., None])
    labeled = torch.where(share >= 0.5, sure, sure.gather(-2, mate[..., 0].expand_as(sure))).to(logp)  # (..., B, 2)
    absent = 1 - labeled
    weight = labeled / labeled.mean(-2, keepdim=True).clamp_min(1e-12)
    rest = absent * (unlabeled / absent.mean(-2, keepdim=True).clamp_min(1e-12))
    squares = mse_loss(logp.exp(), mixed, reduction="none").mean(-1)
    prior = away_from_uniform(logp, -3)  # (..., 2)
    values = rest * squares - weight * (mixed * logp).sum(-1) + prior[..., None, :]
    return values.sum(-1)


def divide_targets(batch: Batch, classes: int, temperature: float, threshold: float, views: int) -> tuple[torch.Tensor, Any]:
    """Compute each model's targets (..., B, 2, C) for the samples before mixup, and select the labeled samples."""
    predicted = both(batch.unmixed_features).softmax(-1)
    predicted = predicted.unflatten(-3, (views, -1)).mean(-4)
    predicted = torch.cat([predicted] * views, -3)
    labels = batch.rows["divided_label"][..., None, None]
    one_hot_labels = (labels == torch.arange(classes, device=labels.device)).to(predicted)
    clean = batch.rows["divided_clean"].to(predicted).flip(-1)  # the other model's decision
    sure = clean >= threshold
    refined = torch.lerp(predicted, one_hot_labels, clean[..., None])
    guessed = predicted.mean(-2, keepdim=True).expand_as(predicted)
    return sharpen(torch.where(sure[..., None], refined, guessed), temperature), sure
