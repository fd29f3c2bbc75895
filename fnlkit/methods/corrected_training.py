"""Training with the transition matrix of each client, which the client estimates and stores for the loss."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent
from fnlkit.federated.client.scoring import softmax_numpy
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.scores import anchor_transition, confusion, transition
from fnlkit.methods.fedavg import Round

TRANSITION = {
    "transition": Sent.share(
        "estimate of T", "each round after that, only with report_transition=true", ("C", "C"), summed=True
    ),
}


def keep_transition(
    client: Client, model: LocalModel, transition: np.ndarray, identity: float, report: bool
) -> dict[str, torch.Tensor] | None:
    """Store T for the loss; reply it only if requested."""
    client.state["transition"] = torch.from_numpy(transition).to(model.weights)
    client.state["identity_share"] = torch.tensor(identity, dtype=torch.float64)
    return {"transition": torch.from_numpy(transition)} if report else None


def transition_of(
    counts: np.ndarray, shares: np.ndarray, *, weighting: str = "off", limit: float = 1e3
) -> tuple[np.ndarray, Any]:
    """Estimate an invertible T (C, C) with rows summing to 1, and the share of identity in it.

    Eq. 9 prints the division by a sum over true classes.  Here each true class is divided by its sum over given labels, as the
    text and the implementation details of the paper state: only this gives probabilities of a given label for each true class.

    A class without counts gets the row of the identity.  Theorem 1 needs an invertible T: if the condition number
    exceeds `limit`, the smallest multiple of 0.1 of the identity that brings it below is blended in.

    Parameters
    ----------
    counts : (C, C)
        counts[true, given]; the paper's C is the transpose.
    shares : (C,)
        The client's share of each given label.
    weighting : "off", "paper" or "public"
        ``paper``: counts are weighted with the class distribution, then normalized (severe imbalance).  ``public``: T is
        then also transposed, and rows without counts stay empty, as in the authors' code.
    limit : float > 1
        Largest condition number.
    """
    counts = np.array(counts, np.float64)
    if weighting != "off":
        counts = counts * shares
    totals = counts.sum(1, keepdims=True)
    transition = counts / np.where(totals > 0, totals, 1)
    if weighting == "public":
        return transition.T.copy(), 0.0
    return limit_condition(np.where(totals > 0, transition, np.eye(len(counts))), limit)


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
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    estimate: Callable[..., Any],
    **step,
) -> Generator[Round, None, Model]:
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
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    percentile: float,
    anchor: str,
    limit: float,
    weighting: str = "off",
    report: bool = False,
    confidence: float = 0.95,
    missed: bool = False,
) -> dict[str, torch.Tensor] | None:
    """Store T, estimated from anchor points or from confident predictions; with `missed`, only if the client has none."""
    if missed and "transition" in client.state:
        return None
    labels, probabilities = client.y.cpu().numpy(), softmax_numpy(model(client.x))
    if anchor == "confident":
        transition = confident_transition(probabilities, labels, confidence)
    else:
        transition = anchor_transition(probabilities, percentile=percentile, average=anchor == "mean")
    if weighting == "public":
        shares = np.bincount(labels, minlength=client.classes) / len(labels)
        return keep_transition(client, model, *transition_of(transition.T, shares, weighting="public"), report)
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
    sure = probabilities.max(1) > confidence
    return transition(confusion(probabilities[sure].argmax(1), labels[sure], probabilities.shape[1]))
