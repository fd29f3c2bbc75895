"""Training with the transition matrix of each client, which the client estimates and stores for the loss."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent
from fnlkit.federated.client.scoring import softmax_numpy
from fnlkit.kernels.scores import anchor_transition
from fnlkit.methods.fedavg import Round

if TYPE_CHECKING:
    from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received


TRANSITION = {
    "transition": Sent.share(
        "estimate of T", "each round after that, only with report_transition=true", ("C", "C"), summed=True
    ),
}


def keep_transition(
    client: "Client", model: "LocalModel", transition: np.ndarray, identity: float, report: bool
) -> "dict[str, torch.Tensor] | None":
    """Store T for the loss; reply it only if requested."""
    client.state["transition"] = torch.from_numpy(transition).to(model.weights)
    client.state["identity_share"] = torch.tensor(identity, dtype=torch.float64)
    return {"transition": torch.from_numpy(transition)} if report else None


def limit_condition(transition: np.ndarray, limit: float) -> tuple[np.ndarray, Any]:
    """Move T toward the identity until its condition number is at most `limit`: ((1 - a) T + a I, a).

    a is the smallest of 0, 0.1, ..., 1 that reaches it.
    """
    identity = np.eye(len(transition))
    away = transition != identity
    # A client with few samples has few samples of many classes; the other classes keep the identity in any blend.
    seen = np.flatnonzero(away.any(0) | away.any(1))
    for tenths in range(11):
        blend = (1 - tenths / 10) * transition + tenths / 10 * identity
        if _within(blend, seen, limit):
            break
    return blend, tenths / 10


def _within(matrix, seen, limit):
    """Whether the condition number of a matrix is at most `limit`.

    Outside the rows and columns `seen` the matrix is the identity.  Singular values of 1,000 classes take a third of a second;
    the eigenvalues of their squares take a tenth, and are exact enough for a limit of up to 1e5.
    """
    if len(matrix) <= 64 or limit > 1e5 or not len(seen):
        return np.linalg.cond(matrix) <= limit
    part = matrix[np.ix_(seen, seen)]
    squares = np.linalg.eigvalsh(part.T @ part)
    ones = [1.0] if len(seen) < len(matrix) else []
    return max([squares[-1], *ones]) <= limit**2 * min([squares[0], *ones])


def train_corrected(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    estimate: Callable[..., Any],
    **step,
) -> "Generator[Round, None, Model]":
    """Yield rounds with correction (Algorithm 1, phase 2).

    Clients run `estimate` on the received model and then train.
    """
    if not rounds:
        clients.note(
            "no prestopping round was found before the last round, so the loss was not corrected and this run equals FedAvg; "
            "compare=best finds a prestopping round more often, and latest=ROUND sets the last possible round"
        )
    for _ in range(rounds):
        model, replies = opt.round(clients, select(clients, model), model, before=(estimate,), **step)
        report = {}
        if "transition" in replies:
            report["transition"] = replies["transition"].mean(0).numpy()
        yield Round(model, "correction", replies, report)
    return model


def keep_anchor_transition(
    client: "Client",
    model: "LocalModel",
    received: "Received",
    *,
    percentile: float,
    anchor: str,
    limit: float,
    weighting: str = "off",
    report: bool = False,
    confidence: float = 0.95,
    missed: bool = False,
) -> "dict[str, torch.Tensor] | None":
    """Store T, estimated from anchor points or from confident predictions; with `missed`, only if the client has none."""
    if missed and "transition" in client.state:
        return None
    labels, probabilities = client.y.cpu().numpy(), softmax_numpy(model(client.x))
    if anchor == "confident":
        transition = confident_transition(probabilities, labels, confidence)
    else:
        transition = anchor_transition(probabilities, percentile=percentile, average=anchor == "mean")
    if weighting == "public":
        weighted = transition.T * (np.bincount(labels, minlength=client.classes) / len(labels))
        totals = weighted.sum(1, keepdims=True)
        return keep_transition(client, model, (weighted / np.where(totals > 0, totals, 1)).T.copy(), 0.0, report)
    return keep_transition(client, model, *limit_condition(transition, limit), report)


def confident_transition(probabilities: np.ndarray, labels: np.ndarray, confidence: float) -> np.ndarray:
    """Estimate T (C, C), with rows that sum to 1, from confident predictions.

    A row contains the shares of given labels among the samples predicted as this class with p > `confidence`.  The predicted
    class counts as the true class (Di 2024, appendix 9.2).  A class without such a sample gets the row of the identity.

    Parameters
    ----------
    probabilities : (n, C)
    labels : (n,) int
    confidence : float in [0, 1]
    """
    classes = probabilities.shape[1]
    sure = probabilities.max(1) > confidence
    counts = np.zeros((classes, classes))
    np.add.at(counts, (probabilities[sure].argmax(1), labels[sure]), 1)
    totals = counts.sum(1, keepdims=True)
    return np.where(totals > 0, counts / np.where(totals > 0, totals, 1), np.eye(classes))
