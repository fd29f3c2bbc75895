"""Plain training until the accuracy on noisy labels stops rising: phase 1 of FedEFC and its baselines."""

from collections.abc import Callable, Generator
from typing import Any, Literal

import torch

from fnlkit.core.declarations import Sent
from fnlkit.core.parameters import Patience, Rounds
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round

ACCURACY = {
    "accuracy": Sent.share("model accuracy on the client's labels", "each round until the prestopping round", summed=True),
}


def score_accuracy(client: Client, model: LocalModel, received: Received) -> dict[str, torch.Tensor]:
    """Reply A_k: the current model's accuracy on the client's (noisy) labels (eq. 2)."""
    right = model(client.x).argmax(-1).cpu() == client.y.cpu()
    return {"accuracy": right.double().mean()}


def monitoring_rounds(rounds: int, start: int, patience: int) -> tuple[int, int]:
    """First monitored round, and the number of consecutive rounds without a rise."""
    if start < 0:  # published: after round 10 of 100 (MNIST), 40 of 200 and of 300 (CIFAR)
        start = rounds // 10 if rounds <= 100 else min(40, rounds // 5)
    if patience < 0:
        patience = 3 if rounds <= 100 else 6
    return start, patience


def prestop(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    start: Rounds = -1,
    patience: Patience = -1,
    compare: Literal["best", "previous"] = "best",
    ties: Literal["count", "reset"] = "count",
    accuracy: Literal["global", "local"] = "global",
    latest: Rounds = -1,
) -> Generator[Round, None, tuple[Model, Any]]:
    """Yield plain rounds until the estimated accuracy stops rising (phase 1).

    Return (model, rounds used).  Parameters as in `fedefc`.
    """
    start, patience = monitoring_rounds(rounds, start, patience)
    reference, counter = -1.0, 0
    steps: dict[str, Any] = {"before" if accuracy == "global" else "after": (score_accuracy,)}
    for t in range(rounds):
        model, replies = opt.round(clients, select(clients, model), model, expect=("accuracy",), **steps)
        report = {}
        if len(replies.ids):
            now = replies["accuracy"].mean().item()  # A(t), all clients with equal weight (eq. 2)
            report = {"estimated_accuracy": now}
            if t >= start:
                better = now > reference or (ties == "reset" and now == reference)
                counter = 0 if better else counter + 1
                reference = max(now, reference)
            if compare == "previous":
                reference = now
        stopped = counter == patience or t == latest
        if stopped:
            report["prestopping_round"] = t
        yield Round(model, "prestopping", replies, report)
        if stopped:
            return model, t + 1
    return model, rounds
