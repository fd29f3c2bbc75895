"""FedReDA's losses: cross entropy on samples that count as clean, distillation from other clients' mean model on the rest."""

import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.losses.adjusted import keep_class_shares
from fnlkit.federated.client.losses.parts import reads, select_label


def add_prior(logits: torch.Tensor, shares: torch.Tensor, prior: float) -> torch.Tensor:
    """Add the prior of the classes: z + prior log shares, (..., B, C), with shares (..., C) of at least 1e-8."""
    return logits + prior * shares.to(logits).clamp_min(1e-8).log()[..., None, :]


@reads(before=lambda **keywords: (keep_class_shares,))
def prior_adjusted(logits: torch.Tensor, batch: Batch, *, prior: float = 0.5) -> torch.Tensor:
    """Loss -log softmax(z + prior log shares)_y, (..., B), with the client's class shares ``state["class_share"]``."""
    return -select_label(add_prior(logits, batch.state["class_share"], prior).log_softmax(-1), batch.y)


@reads(before=lambda **keywords: (keep_class_shares,))
def reliable(
    logits: torch.Tensor,
    batch: Batch,
    *,
    prior: float = 0.5,
    threshold: float = 0.6,
    agreement: float = 0.7,
    smoothing: float = 0.05,
    temperature: float = 3.0,
    distil: float = 1.0,
    rate: float = 0.9,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """FedReDA's loss (..., B), with the rows to write back: average losses and numbers of clean uses.

    A sample counts as clean if ``rows["reda_clean"]`` reaches `threshold`, or if the local model and the teacher predict the
    same class, both with a probability of at least `agreement`.  Clean samples have the cross entropy with label smoothing,
    the others distil F^2 KL(teacher^F || p^F).  The values are scaled so that their mean is the sum of the means over both
    groups.  All predictions are of logits plus prior times the logarithms of the client's class shares;
    ``rows["reda_teacher"]`` (..., B, C) are the teacher's logits without them.

    Parameters
    ----------
    prior : float >= 0
    threshold, agreement : float in [0, 1]
    smoothing : float in [0, 1]
    temperature : float > 0
        F.
    distil : float >= 0
    rate : float in [0, 1]
        Weight of the earlier losses in ``rows["reda_loss"]``, which is -1 before the first use of a sample.
    """
    shares = batch.state["class_share"]
    student, teacher = (add_prior(z, shares, prior) for z in (logits, batch.rows["reda_teacher"].to(logits)))
    logp = student.log_softmax(-1)
    sure, guess = logp.detach().exp().max(-1)
    taught, other = teacher.softmax(-1).max(-1)
    agree = (guess == other) & (taught >= agreement) & (sure >= agreement)
    clean = (agree | (batch.rows["reda_clean"] >= threshold)).to(logits)
    losses = -select_label(logp, batch.y)
    learn = (1 - smoothing) * losses - smoothing * logp.mean(-1)
    target, cool = (teacher / temperature).log_softmax(-1), (student / temperature).log_softmax(-1)
    follow = distil * temperature**2 * (target.exp() * (target - cool)).sum(-1)
    size = logits.shape[-2]
    values = clean * learn * (size / clean.sum(-1, keepdim=True).clamp_min(1))
    values = values + (1 - clean) * follow * (size / (1 - clean).sum(-1, keepdim=True).clamp_min(1))
    before, now = batch.rows["reda_loss"].to(logits), losses.detach()
    average = torch.where(before < 0, now, rate * before + (1 - rate) * now)
    return values, {"reda_loss": average, "reda_uses": batch.rows["reda_uses"].to(logits) + clean}
