"""Two models that select samples for each other: Co-teaching's small losses, Co-teaching+'s disagreements."""

from typing import Any

import torch

from fnlkit.core.declarations import declare
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import reads, select_label
from fnlkit.models.pair_output import both


@declare(scheduled=("forget",))
@reads(features=True)
def exchanged(
    logits: torch.Tensor, batch: Batch, *, forget: float, disagreeing: bool = False, agreed: str = "none"
) -> torch.Tensor:
    """Sum each network's cross entropy on the samples of the batch that the other network chose, (..., B).

    A network chooses the int((1 - forget) B) samples with its smallest cross entropy, at least one (Han 2018, Algorithm 1,
    lines 5 to 8).  The values are scaled so that their mean over the batch is the mean over the chosen samples.

    Parameters
    ----------
    logits : Tensor (..., B, C)
        Not used: ``batch.features`` has both networks' logits, of a fnlkit.models.pair.Pair.
    forget : float in [0, 1)
        R(T), the share that is dropped.
    disagreeing : bool
        Choose only among samples for which the two networks predict different classes (Yu 2019, Algorithm 1, step 4).
    agreed : "none" or "all"
        Samples to train on if the networks agree on every sample of a batch.
    """
    pair = both(batch.features).movedim(-2, 0)  # (2, ..., B, C)
    losses = -select_label(pair.log_softmax(-1), batch.y.expand(pair.shape[:-1]))
    eligible: Any = None
    if disagreeing:
        first, second = pair.detach().argmax(-1)
        eligible = first != second
    taken = select_small_losses(losses.detach(), forget, eligible).flip(0)
    if disagreeing and agreed == "all":
        taken = taken | ~eligible.any(-1, keepdim=True)
    count = taken.sum(-1, keepdim=True).clamp_min(1)
    return (taken * losses * (losses.shape[-1] / count.to(losses))).sum(0)


def select_small_losses(losses: torch.Tensor, forget: float, eligible: torch.Tensor | None = None) -> torch.Tensor:
    """Select samples (..., B) with the int((1 - forget) n) smallest losses of the n eligible samples, at least one.

    Parameters
    ----------
    losses : Tensor (..., B)
    forget : float in [0, 1)
    eligible : bool Tensor or None
        Broadcast to the shape of `losses`; None: all samples.
    """
    # 1e-9: (1 - 0.9) 10 is 1 and not 0.9999999999999998
    if eligible is None:
        smallest = losses.argsort(dim=-1, stable=True)[..., : max(1, int((1 - forget) * losses.shape[-1] + 1e-9))]
        return torch.zeros_like(losses, dtype=torch.bool).scatter(-1, smallest, True)
    eligible = eligible.expand(losses.shape)
    rank = losses.masked_fill(~eligible, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    count = ((1 - forget) * eligible.sum(-1, keepdim=True) + 1e-9).floor().clamp_min(1)
    return eligible & (rank < count)
