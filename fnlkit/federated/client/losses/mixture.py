"""FLR's label mixture: the cross entropy and a regularizer towards running averages of predictions."""

from functools import partial
from typing import Annotated, Any, Literal

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, Range, Share
from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.losses.parts import reads, select_label

Clamp = Annotated[float, Range(0, 0.5, open_high=True)]


def remember_predictions(client: Client, model: LocalModel, received: Received, *, server: bool, start: str) -> None:
    """Allocate one vector per sample and average, once; they stay on the client between rounds."""
    n, c, dtype = len(client), client.classes, model.weights.dtype
    if "mixture_seen" not in client.rows:
        client.rows["mixture_seen"] = torch.full((n,), start == "zero")
        client.rows["mixture_local"] = torch.zeros(n, c, dtype=dtype)
    if server and "mixture_server" not in client.rows:
        client.rows["mixture_server"] = torch.zeros(n, c, dtype=dtype)


@declare(scheduled=("alpha", "beta", "gamma"))
def label_mixture(
    logits: torch.Tensor,
    batch: Batch,
    *,
    strength: float,
    alpha: float,
    beta: float,
    gamma: float,
    floor: float = 1e-4,
    clamp: float = 0.0,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """FLR's loss (eq. 1), (..., B), with the two running averages to write back.

    s <- beta s + (1 - beta) p_server;  m <- gamma m + (1 - gamma) p;  t = alpha s + (1 - alpha) m, without gradient;
    value = -log p_y + strength log(1 - <p, t>).  The second term is never positive, so the loss can be negative.
    If ``rows["mixture_seen"]`` is False, the averages start at the current predictions.

    Under mixup, the averages of a sample use the predictions on the sample itself (``batch.unmixed``, ``batch.teacher``).  The
    target of a mixed sample is mixed as its input: lambda t_i + (1 - lambda) t_j, as in ELR+ (Liu 2020, appendix).

    Parameters
    ----------
    strength : float >= 0
        lambda of FLR.
    alpha, beta, gamma : float in [0, 1]
        Share of the server's average, and the rates of the two averages.  With alpha 0 and no ``batch.teacher`` the server's
        average is not used and not stored.
    floor : float > 0
        Smallest value of 1 - <p, t>; below it the regularizer has no gradient.
    clamp : float in [0, 1/2)
        Predictions are clamped to [clamp, 1 - clamp].  They are used in this form in <p, t>, and scaled to sum to 1 before they
        enter an average.  Outside of these bounds the regularizer has no gradient.  ELR's public code: 1e-4.
    """
    # In double precision: in single precision 1 - <p, t> cancels for confident predictions, which visibly changes training.
    logp = logits.double().log_softmax(-1)
    p = logp.exp()

    def average(now: torch.Tensor) -> torch.Tensor:
        if clamp:
            now = now.clamp(clamp, 1 - clamp)
            now = now / now.sum(-1, keepdim=True)
        return now

    seen = batch.rows["mixture_seen"][..., None]
    now = average(p.detach() if batch.unmixed is None else batch.unmixed.double().softmax(-1))
    m = batch.rows["mixture_local"]
    m = torch.where(seen, gamma * m + (1 - gamma) * now, now)
    rows = {"mixture_local": m, "mixture_seen": torch.ones_like(seen[..., 0])}
    t = m
    if batch.teacher is not None:
        server, s = average(batch.teacher.double().softmax(-1)), batch.rows["mixture_server"]
        s = torch.where(seen, beta * s + (1 - beta) * server, server)
        rows["mixture_server"] = s
        t = alpha * s + (1 - alpha) * m
    if batch.partner is not None:
        share = batch.share.double()[..., None, None]
        t = share * t + (1 - share) * t.gather(-2, batch.partner[..., None].expand_as(t))
    held = p.clamp(clamp, 1 - clamp) if clamp else p
    disagreement = (1 - (held * t).sum(-1)).clamp_min(floor)
    return -select_label(logp, batch.y) + strength * disagreement.log(), rows


def _own_average(*, start="zero", **keywords):
    return (partial(remember_predictions, server=False, start=start),)


@declare(cite="Liu 2020")
@reads(unmixed=True, before=_own_average)
def early_learning(
    logits: torch.Tensor,
    batch: Batch,
    *,
    strength: NotNegative = 3.0,
    momentum: Share = 0.7,
    start: Literal["prediction", "zero"] = "zero",
    clamp: Clamp = 1e-4,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Keep each prediction near the average of earlier predictions, made before the network memorized labels (ELR).

    Return CE + strength log(1 - <p, m>), (..., B), with m each sample's running average: ELR (Liu 2020, eq. 6).

    `label_mixture` with the local average alone; `--method elr` is the same with a warm-up.  Values can be negative.

    Parameters
    ----------
    strength, momentum : float >= 0, float in [0, 1]
        Public code: 3 and 0.7 for CIFAR-10 with symmetric noise, 1 and 0.9 with asymmetric noise.  FLR's comparison: 4 and 0.5,
        asymmetric 4 and 0.9.
    start : "prediction" or "zero"
        Initial value of averages: the first prediction, or zero as in ELR's public code.
    clamp : float in [0, 1/2)
        As in `label_mixture`.
    """
    return label_mixture(logits, batch, strength=strength, alpha=0.0, beta=0.0, gamma=momentum, clamp=clamp)


@declare(cite="Kim 2024")
@reads(unmixed=True, before=lambda **keywords: _own_average())
def entropy_regularized(
    logits: torch.Tensor, batch: Batch, *, strength: NotNegative = 2.0
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Make each prediction more confident, against the influence of wrong labels, without memory (ER).

    Return CE + strength log(1 - <p, p>), (..., B), with no gradient through the second p: ER (Kim 2024, appendix E.6).

    Parameters
    ----------
    strength : float >= 0
        lambda of FLR.
    """
    return label_mixture(logits, batch, strength=strength, alpha=0.0, beta=0.0, gamma=0.0)
