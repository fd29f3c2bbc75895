"""Labels replaced by earlier predictions: JointOpt's soft labels, SELFIE's labels of samples with certain predictions."""

import math
from functools import partial
from typing import Any

import torch

from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.losses.parts import away_from_uniform, reads, select_label


def remember_history(
    client: Client, model: LocalModel, received: Received, *, name: str, length: int, probabilities: bool
) -> None:
    """Client step: allocate memory for the last `length` predictions of each sample and their number, once."""
    if f"{name}_seen" not in client.rows:
        n, dtype = len(client), model.weights.dtype
        shape = (n, length, client.classes) if probabilities else (n, length)
        client.rows[f"{name}_history"] = torch.zeros(shape, dtype=dtype if probabilities else torch.int64)
        client.rows[f"{name}_seen"] = torch.zeros(n, dtype=torch.int64)


def append_prediction(
    history: torch.Tensor, seen: torch.Tensor, now: torch.Tensor, axis: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace the oldest prediction in a ring buffer by `now`, and count the predictions."""
    place = torch.remainder(seen, history.shape[axis])[(...,) + (None,) * -axis]
    return history.scatter(axis, place.expand_as(now.unsqueeze(axis)), now.unsqueeze(axis)), seen + 1


@reads(before=lambda *, length=10, **keywords: [_room("joint", length, True)])
def joint(
    logits: torch.Tensor, batch: Batch, *, alpha: float, beta: float, length: int = 10, given: bool = False
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Loss -<s, log p> + alpha KL(uniform || mean p) + beta H(p), (..., B) (Tanaka 2018).

    s is the mean of the sample's last `length` predictions before this step; p is added to these predictions afterwards.

    Parameters
    ----------
    alpha, beta : float >= 0
    length : int
        Number of averaged predictions; 10 epochs in the paper.
    given : bool
        Use the given label for s, as before the first update.
    """
    logp = logits.log_softmax(-1)
    p, classes = logp.exp(), logits.shape[-1]
    history, seen = batch.rows["joint_history"], batch.rows["joint_seen"]
    label = torch.nn.functional.one_hot(batch.y, classes).to(logits)
    count = seen.clamp(1, length)[..., None]
    soft = label if given else torch.where(seen[..., None] > 0, history.to(logits).sum(-2) / count, label)
    values = -(soft * logp).sum(-1) + alpha * away_from_uniform(logp)[..., None] - beta * (p * logp).sum(-1)
    history, seen = append_prediction(history, seen, p.detach().to(history), -2)
    return values, {"joint_history": history, "joint_seen": seen}


@reads(before=lambda *, length=15, **keywords: [_room("selfie", length, False), make_labels])
def refurbished(
    logits: torch.Tensor, batch: Batch, *, forget: float, certain: float = 0.05, length: int = 15, plain: bool = False
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Cross entropy of the samples that SELFIE trains on, 0 for the others, (..., B) (Song 2019, Algorithm 1).

    These are the ceil((1 - forget) B) samples with the smallest loss, and all samples that were certain at any time.  A sample
    is certain if its last `length` predicted classes have an entropy of at most `certain` log C; its label is then the most
    frequent of these classes.  The values are scaled so that their mean is the mean over the samples in use.

    Parameters
    ----------
    forget : float in [0, 1)
        tau, the share of wrong labels.
    certain : float in [0, 1]
        epsilon.
    length : int
        q.
    plain : bool
        Train on all samples with their working labels and only record predictions (warm-up).
    """
    classes = logits.shape[-1]
    history, seen = append_prediction(batch.rows["selfie_history"], batch.rows["selfie_seen"], logits.detach().argmax(-1), -1)
    rows = {"selfie_history": history, "selfie_seen": seen}
    if plain:
        return -select_label(logits.log_softmax(-1), batch.y), rows
    counts = torch.nn.functional.one_hot(history, classes).sum(-2).to(logits)
    entropy = -torch.special.xlogy(counts / length, counts / length).sum(-1) / math.log(classes)
    now_certain = (seen >= length) & (entropy <= certain)
    label = torch.where(now_certain, counts.argmax(-1), batch.rows["selfie_label"])
    logp = logits.log_softmax(-1)
    losses = -select_label(logp, batch.y)
    rank = losses.detach().argsort(dim=-1, stable=True).argsort(dim=-1)
    taken = (rank < math.ceil((1 - forget) * losses.shape[-1] - 1e-9)) | (label >= 0)
    values = torch.where(label >= 0, -select_label(logp, label.clamp_min(0)), losses)
    count = taken.sum(-1, keepdim=True).clamp_min(1)
    return taken * values * (losses.shape[-1] / count.to(losses)), {**rows, "selfie_label": label}


def make_labels(client: Client, model: LocalModel, received: Received) -> None:
    """Client step: allocate memory for refurbished labels, -1 for none, once."""
    if "selfie_label" not in client.rows:
        client.rows["selfie_label"] = torch.full((len(client),), -1)


def _room(name, length, probabilities):

    return partial(remember_history, name=name, length=length, probabilities=probabilities)
