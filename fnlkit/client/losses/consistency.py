"""FedLSR's loss: the cross entropy of a sharpened mean of two views, which are also drawn to each other."""

import math

import torch

from fnlkit.client.losses.parts import at, reads


@reads(uniform=True)
def self_regularised(logits, batch, *, consistency, entropy=0.3, power=3.0):
    """Return CE(sharpened p, y) + c JS(p1^, p2^) + e H, (..., 2 B): equal for both views of a sample (Jiang 2022).

    p = m p_1 + (1 - m) p_2 of the two views, m uniform in each step (Beta(1, 1)), sharpened: p^2, scaled to sum to 1.  p^ is
    the softmax of `power` times the logits; H its mean entropy.

    Parameters
    ----------
    logits : Tensor (..., 2 B, C)
        Of a batch with two views (Fit.views).
    consistency, entropy : float >= 0
        gamma of this round, and gamma_e.
    power : float > 0
        1 / T of the self-distillation.
    """
    first, second = logits.unflatten(-2, (2, -1)).unbind(-3)
    share = batch.uniform[..., :1, None].to(logits)
    mixed = torch.logaddexp(first.log_softmax(-1) + share.clamp_min(1e-30).log(),
                            second.log_softmax(-1) + (1 - share).log())  # fmt: skip
    labels = batch.y[..., : first.shape[-2]]
    values = -at((2 * mixed).log_softmax(-1), labels)
    one, two = (power * first).log_softmax(-1), (power * second).log_softmax(-1)
    middle = torch.logaddexp(one, two) - math.log(2)
    apart = ((one.exp() * (one - middle)).sum(-1) + (two.exp() * (two - middle)).sum(-1)) / 2
    unsure = -((one.exp() * one).sum(-1) + (two.exp() * two).sum(-1)) / 2
    values = values + consistency * apart + entropy * unsure
    return torch.cat([values, values], -1)
