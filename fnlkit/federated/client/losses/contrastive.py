"""Cross entropy minus the cross entropy with a random label: peer loss, CORES, FedDPCont."""

from typing import Annotated

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, Range
from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.losses.parts import reads, select_label

Floor = Annotated[float, Range(0, 1, open_high=True)]


@declare(scheduled=("strength",))
def contrastive(
    logits: torch.Tensor, batch: Batch, *, strength: float = 1.0, expected: bool = False, floor: float = 1e-5
) -> torch.Tensor:
    """Loss -log(p_y + floor) + strength log(p_y' + floor), y' ~ ``received["prior"]`` (C,), (..., B) (FedDPCont eq. 2).

    Values can be negative.  The gradient of each term at the label's logit has the factor p / (p + floor).  Far from the
    decision boundary both terms therefore vanish together, for right and wrong labels.  With a floor only in the second term, a
    wrong label would keep its full gradient where a right label has none.

    Parameters
    ----------
    strength : float >= 0
        beta of the proofs; 1 in the paper's eq. 2.
    expected : bool
        Use the expectation over y' instead of the draw ``batch.uniform`` (CORES, Cheng 2021, eq. 4), with less variance.
    floor : float >= 0
        Added to the probability inside both logarithms, which are then at least log(floor) (peer loss's public code:
        1e-5); 0 is eq. 2 as printed, whose second term is unbounded.
    """
    return _against(logits, batch, batch.received["prior"], strength, expected, floor)


def remember_label_shares(client: Client, model: LocalModel, received: Received) -> None:
    """Client step: store the distribution (C,) of the client's working labels, which never leaves the client."""
    client.state["label_shares"] = torch.bincount(client.y.cpu(), minlength=client.classes).double() / len(client)


@declare(cite="Liu 2020")
@reads(uniform=True, before=lambda **keywords: (remember_label_shares,))
def peer(logits: torch.Tensor, batch: Batch, *, strength: NotNegative = 1.0, floor: Floor = 1e-5) -> torch.Tensor:
    """Penalize agreement with randomly drawn labels, so that memorizing wrong labels does not reduce the loss (peer loss).

    Return CE(y) - strength CE(y'), (..., B), with y' drawn from the labels of the client (Liu, Guo 2020, eq. 6).

    The paper compares y' with the prediction of a second random sample.  Here, as in FedDPCont, y' is compared with the
    prediction of the same sample, which has the same expectation over a batch.  FedDPCont draws y' from the labels of all
    clients.

    Parameters
    ----------
    strength : float >= 0
        alpha; 1 for balanced classes.
    floor : float in [0, 1)
        As in `contrastive`.
    """
    return _against(logits, batch, batch.state["label_shares"][..., None, :], strength, False, floor)


@declare(cite="Cheng 2021")
@reads(before=lambda **keywords: (remember_label_shares,))
def cores(logits: torch.Tensor, batch: Batch, *, strength: NotNegative = 1.0, floor: Floor = 1e-5) -> torch.Tensor:
    """Penalize agreement with random labels as in peer loss, with the expectation instead of a draw (CORES).

    Return CE(y) - strength E CE(y'), (..., B), expected over the labels of the client (Cheng 2021, eq. 4: CORES).

    CORES also increases the strength over epochs and drops samples.  This loss does neither; the method `feddpcont` has a
    schedule of the strength.

    Parameters
    ----------
    strength : float >= 0
        beta.
    floor : float in [0, 1)
        As in `contrastive`.
    """
    return _against(logits, batch, batch.state["label_shares"][..., None, :], strength, True, floor)


def _against(logits, batch, prior, strength, expected, floor):
    logp = logits.log_softmax(-1)
    bounded = (logp.exp() + floor).log() if floor else logp
    prior = prior.to(logits.device)
    if expected:
        other = (prior.to(logits.dtype) * bounded).sum(-1)
    else:
        other = select_label(bounded, draw_classes(batch.uniform, prior))
    return strength * other - select_label(bounded, batch.y)


def draw_classes(uniform: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """Draw classes int64 (..., B) from probabilities (C,) or (..., 1, C) by inversion of draws in [0, 1)."""
    edges = prior.double().cumsum(-1)[..., :-1]
    return (uniform.double()[..., None] >= edges).sum(-1)
