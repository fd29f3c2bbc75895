"""Losses of FedNoRo, FedELC and MaskedOptim: logits adjusted by class shares, distillation of noisy clients, learned labels."""

from functools import partial

import torch

from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.losses.exchange import select_small_losses
from fnlkit.federated.client.losses.parts import reads, select_label


def keep_class_shares(client: Client, model: LocalModel, received: Received) -> None:
    """Client step: store the shares (C,) of the classes among the working labels."""
    counts = torch.bincount(client.y.cpu(), minlength=client.classes)
    client.state["class_share"] = (counts / max(1, len(client))).to(model.weights)


def log_softmax_with_prior(logits: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Compute log softmax(z + log shares), (..., B, C), with 0 in place of -inf for classes that a client does not have.

    Source: Menon 2021.  The zeros follow FedNoRo's public code, so that absent classes contribute nothing.
    """
    shares = shares.to(logits)[..., None, :].expand_as(logits)
    present = shares > 0
    logp = torch.where(present, logits + shares.clamp_min(1e-30).log(), -torch.inf).log_softmax(-1)
    return torch.where(present, logp, 0.0)


@reads(before=lambda **keywords: (keep_class_shares,))
def logit_adjusted(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross entropy of adjusted logits, -log softmax(z + log shares)_y, (..., B) (Wu 2023)."""
    return -select_label(log_softmax_with_prior(logits, batch.state["class_share"]), batch.y)


@reads(teacher=True, before=lambda **keywords: (keep_class_shares,))
def adjusted_distilled(logits: torch.Tensor, batch: Batch, *, temperature: float = 0.8) -> torch.Tensor:
    """Distill with adjusted logits: (1 - w) CE + w KL(teacher || p), (..., B) (Wu 2023).

    Parameters
    ----------
    temperature : float > 0
        Temperature of the received model's softmax, which is the teacher; not of p.

    Notes
    -----
    w is ``received["distil"]`` (...): 0 on clients that count as clean.
    """
    return _distilled(logits, batch, batch.received["distil"].to(logits)[..., None], temperature)


def _distilled(logits, batch, weight, temperature):
    logp = log_softmax_with_prior(logits, batch.state["class_share"])
    teacher = (batch.teacher / temperature).softmax(-1).to(logp)
    away = (torch.special.xlogy(teacher, teacher) - teacher * logp).sum(-1)
    return (1 - weight) * -select_label(logp, batch.y) + weight * away


def keep_given_shares(client: Client, model: LocalModel, received: Received) -> None:
    """Client step: store the shares (C,) of the given labels, with at least one sample of each class, as FedSIR's code does.

    All samples learn from the teacher until they are relabeled.
    """
    counts = torch.bincount(client.given.cpu(), minlength=client.classes).clamp_min(1)
    client.state["class_share"] = (counts / counts.sum()).to(model.weights)
    client.rows.setdefault("distilled", torch.ones(len(client), dtype=torch.bool))


@reads(teacher=True, before=lambda **keywords: (keep_given_shares,))
def partly_distilled(logits: torch.Tensor, batch: Batch, *, temperature: float = 0.8) -> torch.Tensor:
    """Distill as `adjusted_distilled`, with w = 0 for samples whose ``rows["distilled"]`` is False, (..., B) (Gholami 2026).

    Parameters
    ----------
    temperature : float > 0
        Temperature of the received model's softmax.
    """
    weight = batch.received["distil"].to(logits)[..., None] * batch.rows["distilled"]
    return _distilled(logits, batch, weight, temperature)


def make_label_logits(client: Client, model: LocalModel, received: Received, *, scale: float) -> None:
    """Client step: initialize the label logits of all samples at `scale` for the given class and 0 for others, once."""
    if "label_logits" not in client.rows:
        start = torch.nn.functional.one_hot(client.y.cpu(), client.classes) * scale
        client.rows["label_logits"] = start.to(model.weights.dtype)


@reads(before=lambda *, scale=10.0, **keywords: (keep_class_shares, _room(scale)))
def label_learning(
    logits: torch.Tensor,
    batch: Batch,
    *,
    alpha: float = 0.5,
    beta: float = 0.2,
    rate: float = 15.625,
    scale: float = 10.0,
    kept: float = 1.0,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Learn labels s on noisy clients: KL(p || s) / C + beta H(p) / C, (..., B); elsewhere `logit_adjusted`.

    s = softmax of the sample's ``rows["label_logits"]``, which descend the gradient of KL(p || s) / C - alpha log s_y.
    This gradient is computed in closed form from s - p and s - y (Jiang 2024, PENCIL of Yi 2019).

    Parameters
    ----------
    alpha, beta : float >= 0
        Weight of the given label, and of the entropy.
    rate : float >= 0
        Learning rate of label logits for a sample's own loss: the public code's 1000 divided by its batch of 64.
    scale : float > 0
        K, the initial value of label logits.
    kept : float in (0, 1]
        Share of a batch, those with the smallest cross entropy of the given label, with the term -alpha log s_y (Jiang 2025,
        MaskedOptim); int(kept B) samples, at least one.  1: all samples.

    Notes
    -----
    Noisy clients are those with ``received["noisy"]`` (...) = 1.
    """
    classes, labels = logits.shape[-1], batch.rows["label_logits"].to(logits)
    logp, logs = logits.log_softmax(-1), labels.log_softmax(-1)
    p, s = logp.exp(), logs.exp()
    learned = ((p * (logp - logs)).sum(-1) - beta * (p * logp).sum(-1)) / classes
    noisy = batch.received["noisy"].to(logits)[..., None]
    one_hot_labels = torch.nn.functional.one_hot(batch.y, classes).to(logits)
    towards_given = s - one_hot_labels
    if kept < 1:
        losses = -select_label(logp.detach(), batch.y)
        towards_given = towards_given * select_small_losses(losses, 1 - kept)[..., None]
    step = (s - p.detach()) / classes + alpha * towards_given
    plain = -select_label(log_softmax_with_prior(logits, batch.state["class_share"]), batch.y)
    return torch.where(noisy > 0, learned, plain), {"label_logits": labels - rate * noisy[..., None] * step}


def _room(scale):
    return partial(make_label_logits, scale=scale)
