"""Auto: two treatments of noisy labels in alternating rounds, so that none has to be chosen.

A method of this project (docs/auto.md).  `infer` trains on labels that a Gaussian classifier and a matrix for each client
infer, as `fedem` does; the classifier of a client is that of all other clients.  `regularize` keeps the global predictions, as
`slr` does with half of its strength.  Each fails on data on which the other works.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from fnlkit.client.losses import soft_cross_entropy
from fnlkit.components.declarations import method
from fnlkit.components.parameters import Positive, Rounds, check_arguments
from fnlkit.methods.fedavg import Round, refuse_mixup
from fnlkit.methods.fedem import (
    PRIOR,
    SENDS,
    _infer_labels,
    can_keep_features,
    gaussian_head,
    keep_given,
    normalize_rows,
    symmetric,
)
from fnlkit.methods.flr import local_training

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients
    from fnlkit.server.optimizers.optimizer import FedOpt


TREATMENTS = ("infer", "regularize")
PASSES, STEPS, RIGHT = 4, 3, 0.6  # as in fedem


# ---- on the client
# A private name: a server of real sites must not request these sums (fnlkit.deploy.allowed).
def _infer_apart(
    client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]", *, ridge: float, last: bool, keep: bool
) -> "dict[str, torch.Tensor]":
    """Infer labels as `fedem` does, with the classifier of the other clients, and reply the sums of `fedem`.

    ``received["products"]`` (d (d + 1) / 2,), ``class_features`` (C, d) and ``counts`` (C, C) are the last pass's sums over
    all clients.  A client that they include subtracts its own, so that its labels do not train the classifier that judges them.
    """
    own = [client.state.pop(f"own_{name}", None) for name in SENDS]
    if "counts" in received:
        sums = [received[name].double().cpu() for name in SENDS]
        if own[0] is not None and received["included"] and received["counts"].sum() - own[-1].sum() >= 1:
            sums = [total - part for total, part in zip(sums, own, strict=True)]
        received = received | {"head": gaussian_head(symmetric(sums[0]), sums[1], sums[2].sum(1), ridge)}
    reply = _infer_labels(client, model, received, steps=STEPS, last=last, keep=keep)
    if not last:
        client.state |= {f"own_{name}": value.double() for name, value in reply.items()}
    return reply


# ---- the server
def infer_apart(clients: "Clients", model: "Model", *, strength: float, ridge: float) -> "tuple[torch.Tensor, float]":
    """Let all clients infer their labels in passes without training.

    Returns
    -------
    (C, C) Tensor, float
        Common transition matrix, and the estimated share of wrong labels.
    """
    classes, included = clients.classes, torch.zeros(len(clients), dtype=torch.bool)
    small = can_keep_features(clients, model)
    common = RIGHT * torch.eye(classes, dtype=torch.float64) + (1 - RIGHT) / classes
    told = {"strength": torch.tensor(strength, dtype=torch.float64), "common": common}
    for i in range(PASSES + 1):
        last = i == PASSES
        infer, expect = (
            partial(_infer_apart, ridge=ridge, last=last, keep=small and not last),
            ("counts",) if last else tuple(SENDS),
        )
        replies = clients.round(
            range(len(clients)), model, infer, expect=expect, broadcast=told, scatter={"included": included.double()}
        )
        sums = {name: replies[name].sum(0, dtype=torch.float64) for name in expect}
        counts = sums["counts"]
        if i:
            told["common"] = normalize_rows(counts + PRIOR * torch.eye(classes) + 0.01)
        if not last:
            told |= sums | {"products": sums["products"].float()}
            included = torch.isin(torch.arange(len(clients)), torch.as_tensor(replies.ids))
    return told["common"], float(1 - counts.trace() / counts.sum())


def warmup_rounds(warmup: int, rounds: int) -> int:
    """Return the plain rounds before labels are inferred.  Default: a fifteenth of all rounds."""
    return min(warmup if warmup >= 0 else round(rounds / 15), rounds)


def regularize(r: int, rounds: int) -> dict[str, Any]:
    """Return the keywords of FedOpt.round that keep the global predictions, as in `slr(strength=1)`."""
    constant = {"strength": 1.0, "alpha": 1.0, "beta": 0.0, "gamma": 0.0, "warmup": 0, "rates": "constant"}
    return local_training(r, rounds, **constant)[0]


@method(sends=SENDS, loss="own", schedule=warmup_rounds)
@check_arguments
def auto(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    treatment: Literal["both", "infer", "regularize"] = "both",
    warmup: Rounds = -1,
    strength: Positive = 3.0,
    ridge: Positive = 0.1,
) -> "Generator[Round, None, Model]":
    """Combine two treatments of noisy labels in alternating rounds, because labels do not show which of them works.

    After a short plain warm-up, all clients infer their labels in passes without training, with the classifier of the
    other clients.  Then the rounds alternate: one trains on the inferred labels, the next on the given labels with a
    regularizer towards the global predictions.

    Parameters
    ----------
    rounds : int
    treatment : str
        ``both``, or one of them after the same warm-up, for comparisons.
    warmup : int >= 0, or -1
        Plain rounds before labels are inferred.  Default: -1, a fifteenth of the rounds.
    strength, ridge : float > 0
        As in `fedem`.

    Notes
    -----
    A client judges its labels by a classifier without its own samples.  In tables of a few hundred rows, a classifier on 128
    features otherwise repeats the labels that it was made from.

    The passes cost bytes and no client-round: each client receives the sums of all clients, d (d + 1) / 2 numbers and more for
    d features.  **The sums of a single client reveal its samples** (docs/privacy.md); with two clients, each can compute the
    sums of the other.  A run stores only sums over all clients.  Real sites refuse the method.

    Reports
    -------
    common_transition (C, C) and wrong_share, the estimated share of wrong labels, once.
    """
    refuse_mixup(opt, "auto")
    warmup, report = warmup_rounds(warmup, rounds), {}
    for r in range(rounds):
        if r == warmup and treatment != "regularize":
            common, share = infer_apart(clients, model, strength=strength, ridge=ridge)
            report = {"common_transition": common.numpy(), "wrong_share": share}
        name = "warm-up" if r < warmup else TREATMENTS[r % 2] if treatment == "both" else treatment
        step = {"before": (keep_given,), "loss": soft_cross_entropy} if name == "infer" else {}
        step = regularize(r, rounds) if name == "regularize" else step
        model, replies = opt.round(clients, select(clients, model), model, **step)
        yield Round(model, name, replies, report)
        report = {}
    return model


def explain_choice(history: list[dict[str, Any]]) -> str | None:
    """Return the estimate of a run as a sentence, or None if its history has none.

    Parameters
    ----------
    history : list of dict
        Rows of a run.
    """
    row = next((row for row in history if "wrong_share" in row), None)
    if row is None:
        return None
    stages = {other["stage"] for other in history} & set(TREATMENTS)
    return (
        f"auto inferred labels in round {row['round'] + 1} (estimated share of wrong labels {100 * row['wrong_share']:.0f} %) "
        f"and trained with {' and '.join(sorted(stages))}."
    )
