"""Noisy clients by class-wise losses, their weight by the distance of the models, and their labels (FedNoRo, FedELC)."""

import math
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent
from fnlkit.federated.client.losses.adjusted import logit_adjusted
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.federated.server.distance import distance_aware_weights
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Network, Received, Replies
from fnlkit.kernels.mixture import higher_group
from fnlkit.methods.fedavg import Round

CLASS_LOSSES = {
    "class_losses": Sent(
        "mean loss of the received model by class, -1 for absent classes", "once, after the warm-up", ("C",), low=-1
    )
}


def score_classes(client: Client, model: LocalModel, received: Received) -> dict[str, torch.Tensor]:
    """Reply the received model's mean cross entropy per class, -1 for absent classes."""
    labels = client.y.cpu()
    losses = sample_losses(model(client.x).cpu().double(), labels)
    counts = torch.bincount(labels, minlength=client.classes)
    sums = torch.zeros(client.classes, dtype=torch.float64).index_add_(0, labels, losses)
    return {"class_losses": torch.where(counts > 0, sums / counts.clamp_min(1), -1.0)}


def merge_prediction(client: Client, model: LocalModel, received: Received, *, scale: float) -> None:
    """Average a noisy client's label distributions with the model's predictions.

    The mean, multiplied by `scale`, becomes the new label logits.
    """
    if received["noisy"] > 0:
        labels = client.rows["label_logits"].softmax(-1)
        client.rows["label_logits"] = scale * (labels + model(client.x).softmax(-1).to(labels)) / 2


def stages(rounds: int, warmup: int, end: int, share: float = 0.1) -> tuple[int, int]:
    """Number of warm-up rounds, and the round of the teacher's full weight.

    Default: 10 and 49 of 100 rounds, as published.
    """
    return warmup if warmup >= 0 else round(share * rounds), end if end >= 0 else round(0.49 * rounds)


def find_noisy(clients: Clients, model: Model, missing: str) -> np.ndarray:
    """Collect the class-wise losses of all clients; return the noisy clients (N,) bool.

    See `higher_group`.  A client without a reply counts as noisy.
    """
    replies = clients.round(np.arange(len(clients)), model, score_classes, expect=("class_losses",))
    noisy = np.ones(len(clients), bool)
    if len(replies.ids):
        losses = replies["class_losses"].numpy()
        noisy[replies.ids] = higher_group(np.where(losses < 0, np.nan, losses), missing=missing)
    return noisy


def warm_up(
    clients: Clients, model: Model, opt: FedOpt, select: Callable[..., Any], *, warmup: int, rounds: int, missing: str
) -> Generator[Round, None, tuple[Model, np.ndarray]]:
    """Yield `warmup` of all rounds with adjusted logits, then find noisy clients.

    Return (model, noisy (N,)).  In a run without a later round, no client is judged, so that the run can be continued.
    """
    for _ in range(min(warmup, rounds)):
        model, replies = opt.round(clients, select(clients, model), model, loss=logit_adjusted)
        yield Round(model, "warm-up", replies)
    return model, find_noisy(clients, model, missing) if warmup < rounds else np.zeros(len(clients), bool)


def aware_of_distance(clients: Clients, network: Network, noisy: np.ndarray, distance: str) -> Callable[..., Any]:
    """Make a function Replies -> (N,) that computes the aggregation weights of a round."""
    slots: list[Any] = [("whole", 0, network.size, ())] if distance == "whole" else network.slots

    def weigh(replies: Replies) -> torch.Tensor:
        weights = clients.sizes.clone()
        stacked, clean = replies["weights"].cpu(), ~noisy[replies.ids]
        weights[replies.ids] = distance_aware_weights(stacked, weights[replies.ids], clean, slots)
        return weights

    return weigh


def teachers_weight(r: int, *, strength: float, start: int, end: int) -> float:
    """Compute w_kd of round r: strength exp(-5 (1 - x)^2).

    x rises from 0 in round `start` to 1 in round `end`.
    """
    x = min(1.0, max(0.0, (r - start) / (end - start))) if end > start else 1.0
    return strength * math.exp(-5 * (1 - x) ** 2)
