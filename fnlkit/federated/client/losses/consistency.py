"""FedLSR's loss: the cross entropy of a sharpened mean of two views, and a consistency term between the views."""

import math

import torch

from fnlkit.core.declarations import declare
from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.parts import reads, select_label


@declare(scheduled=("consistency",))
@reads(uniform=True)
def self_regularized(
    logits: torch.Tensor,
    batch: Batch,
    *,
    consistency: float,
    entropy: float = 0.3,
    power: float = 3.0,
    variant: str = "public",
) -> torch.Tensor:
    """CE(sharpened p, y) + c JS(p1^, p2^) + e H, (..., 2 B): equal for both views of a sample (Jiang 2022).

    p = m p_1 + (1 - m) p_2 of the two views, with m uniform in each step (Beta(1, 1)).  Sharpening squares p and scales it to
    sum to 1.  p^ is the softmax of `power` times the logits.

    Parameters
    ----------
    logits : Tensor (..., 2 B, C)
        Logits of a batch with two views (Fit.views).
    consistency, entropy : float >= 0
        gamma of this round, and gamma_e.
    power : float > 0
        1 / T of the self-distillation.
    variant : "public" or "plain"
        ``public``: CE uses the sharpened p as logits, so that it is between log(1 + (C - 1) / e) and 1 more; JS is divided by
        C; p^ is clamped at 1e-6; H is the entropy of the softmax of p1^.  ``plain``: CE is -log of the sharpened p_y, JS is the
        sum over classes, H the mean entropy of p1^ and p2^.
    """
    first, second = logits.unflatten(-2, (2, -1)).unbind(-3)
    share = batch.uniform[..., :1, None].to(logits)
    mixed = torch.logaddexp(first.log_softmax(-1) + share.clamp_min(1e-30).log(),
                            second.log_softmax(-1) + (1 - share).log())  # fmt: skip
    labels = batch.y[..., : first.shape[-2]]
    sharpened = (2 * mixed).log_softmax(-1)
    one, two = (power * first).log_softmax(-1), (power * second).log_softmax(-1)
    if variant == "public":
        sharpened = sharpened.exp().log_softmax(-1)
        one, two = one.clamp_min(math.log(1e-6)), two.clamp_min(math.log(1e-6))
    middle = torch.logaddexp(one, two) - math.log(2)
    divergence = ((one.exp() * (one - middle)).sum(-1) + (two.exp() * (two - middle)).sum(-1)) / 2
    if variant == "public":
        divergence = divergence / logits.shape[-1]
        one = two = one.exp().log_softmax(-1)
    unsure = -((one.exp() * one).sum(-1) + (two.exp() * two).sum(-1)) / 2
    values = -select_label(sharpened, labels) + consistency * divergence + entropy * unsure
    return torch.cat([values, values], -1)
