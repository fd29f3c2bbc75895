"""FedEFC: stop plain training early, then correct the loss with a transition matrix.

Yu, Ahn, Kang. FedEFC: Federated learning using enhanced forward correction against noisy labels. 2025.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from fnlkit.client.losses import forward_corrected
from fnlkit.client.scoring import softmax_numpy
from fnlkit.components.declarations import Sent, method
from fnlkit.components.parameters import AboveOne, Patience, Rounds, check_arguments, passes_on
from fnlkit.kernels import count_matrix
from fnlkit.methods.fedavg import Round

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients
    from fnlkit.server.optimizers.optimizer import FedOpt


ACCURACY = {
    "accuracy": Sent.share("model accuracy on the client's labels", "each round until the prestopping round", summed=True),
}
TRANSITION = {
    "transition": Sent.share(
        "estimate of T", "each round after that, only with report_transition=true", ("C", "C"), summed=True
    ),
}


# ---- on the client
def score_accuracy(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Reply A_k: the current model's accuracy on the client's (noisy) labels (eq. 2)."""
    right = model(client.x).argmax(-1).cpu() == client.y.cpu()
    return {"accuracy": right.double().mean()}


def estimate_transition(
    client: "Client",
    model: "LocalModel",
    received: "dict[str, torch.Tensor]",
    *,
    rule: Literal["cleanlab", "largest"],
    weighting: str,
    clip: bool,
    limit: float,
    report: bool,
) -> "dict[str, torch.Tensor] | None":
    """Store T, estimated from the confident counts of the client (eqs. 3 to 9).

    The counts use the predictions of the received model.
    """
    labels = client.y.cpu().numpy()
    counts = count_matrix(softmax_numpy(model(client.x)), labels, rule=rule, least_diagonal=1 if clip else 0)
    shares = np.bincount(labels, minlength=client.classes) / len(labels)
    transition, identity = transition_of(counts, shares, weighting=weighting, limit=limit)
    return keep_transition(client, model, transition, identity, report)


def keep_transition(
    client: "Client", model: "LocalModel", transition: np.ndarray, identity: float, report: bool
) -> "dict[str, torch.Tensor] | None":
    """Store T for the loss; reply it only if requested."""
    client.state["transition"] = torch.from_numpy(transition).to(model.weights)
    client.state["identity_share"] = torch.tensor(identity, dtype=torch.float64)
    return {"transition": torch.from_numpy(transition)} if report else None


def transition_of(
    counts: np.ndarray, shares: np.ndarray, *, weighting: str = "off", limit: float = 1e3
) -> tuple[np.ndarray, Any]:
    """Return an invertible T (C, C) with rows summing to 1, and the share of identity.

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
    """Return ((1 - a) T + a I, a) with a condition number of at most `limit`.

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
    """Return whether the condition number of a matrix is at most `limit`.

    Outside the rows and columns `seen` the matrix is the identity.  Singular values of 1,000 classes take a third of a second;
    the eigenvalues of their squares take a tenth, and are exact enough for a limit of up to 1e5.
    """
    if len(matrix) <= 64 or limit > 1e5 or not len(seen):
        return np.linalg.cond(matrix) <= limit
    part = matrix[np.ix_(seen, seen)]
    squares = np.linalg.eigvalsh(part.T @ part)
    ones = [1.0] if len(seen) < len(matrix) else []
    return max([squares[-1], *ones]) <= limit**2 * min([squares[0], *ones])


# ---- the server
def monitoring_rounds(rounds: int, start: int, patience: int) -> tuple[int, int]:
    """Return the first monitored round and the number of consecutive rounds without a rise."""
    if start < 0:  # published: after round 10 of 100 (MNIST), 40 of 200 and of 300 (CIFAR)
        start = rounds // 10 if rounds <= 100 else min(40, rounds // 5)
    if patience < 0:
        patience = 3 if rounds <= 100 else 6
    return start, patience


def prestop(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    start: Rounds = -1,
    patience: Patience = -1,
    compare: Literal["best", "previous"] = "best",
    ties: Literal["count", "reset"] = "count",
    accuracy: Literal["global", "local"] = "global",
    latest: Rounds = -1,
) -> "Generator[Round, None, tuple[Model, Any]]":
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
            "no prestopping round was found within the budget, so the loss was not corrected and this run equals FedAvg; "
            "compare=best finds a prestopping round more often, and latest=ROUND sets the last possible round"
        )
    for _ in range(rounds):
        model, replies = opt.round(clients, select(clients, model), model, before=(estimate,), **step)
        report = {}
        if "transition" in replies:
            report["transition"] = replies["transition"].mean(0).numpy()
        yield Round(model, "correction", replies, report)
    return model


@method(sends=ACCURACY | TRANSITION, loss="own", schedule=monitoring_rounds, cite="Yu 2025")
@check_arguments
@passes_on(prestop)
def fedefc(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    rule: Literal["largest", "cleanlab"] = "largest",
    weighting: Literal["off", "paper", "public"] = "off",
    clip: bool = False,
    limit: AboveOne = 1e3,
    report_transition: bool = False,
    **watch,
) -> "Generator[Round, None, Model]":
    """Stop plain training before the noise is learned, then apply forward correction.

    Train plainly up to the prestopping round T_e, then with forward correction by a transition matrix of each client.

    Parameters
    ----------
    rounds : int
    start : int >= 0, or -1
        First monitored round.  Default: -1, which is 40, but at most a fifth of the rounds (a tenth of up to 100: MNIST).
    patience : int >= 1, or -1
        gamma_thr, consecutive rounds without a rise.  Default: -1, which is 6, or 3 for up to 100 rounds (MNIST).
    compare : "best" or "previous"
        Reference of A(t).  ``best``: the highest accuracy since `start` (public code).  ``previous``: the last round's
        accuracy (Algorithm 1 as printed), which falls `patience` times in a row only once in hundreds of rounds.  The paper's
        T_e of 54 requires ``best``.
    ties : "count" or "reset"
        Effect of an equal accuracy on the counter: Algorithm 1 counts it, the paper's text does not.
    accuracy : "global" or "local"
        Model whose accuracy a client sends: the received model (eq. 2), or its trained model.  ``local`` is close to the public
        code, which uses the running accuracy during training.
    latest : int >= 0, or -1
        Use this round as T_e if none was found before; -1 sets no limit.
    rule : "largest" or "cleanlab"
        Condition for a sample to be confident in a class.  ``largest``: the class is the most probable and reaches its
        threshold (eqs. 3 and 4).  ``cleanlab``: cleanlab's confident joint (public code); see `fnlkit.count_matrix`.
    weighting : "off", "paper" or "public"
        Weight the counts with the client's class distribution, for severe imbalance; see `transition_of`.
    clip : bool
        Count each class at least once as itself (public code).
    limit : float > 1
        Largest condition number of T.  If exceeded, identity is blended in, and the share is stored in state["identity_share"].
    report_transition : bool
        Clients also send T, to study its quality.

    Notes
    -----
    Noise alone produces `patience` decreases in a row once in (patience + 1)! rounds, so that `compare=previous` may never stop
    plain training.  If metrics.jsonl has no `prestopping_round`, the run was plain FedAvg.

    A class without a confident sample gets the row of the identity.  Networks of the public code start Xavier-uniform:
    `resnet18(init=xavier)`.

    Reports
    -------
    estimated_accuracy each round until T_e, prestopping_round, and the cohort's mean transition (C, C) on request.
    """
    model, used = yield from prestop(clients, model, opt, select, rounds=rounds, **watch)
    estimate = partial(estimate_transition, rule=rule, weighting=weighting, clip=clip, limit=limit, report=report_transition)
    return (
        yield from train_corrected(clients, model, opt, select, rounds=rounds - used, estimate=estimate, loss=forward_corrected)
    )
