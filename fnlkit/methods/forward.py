"""Forward correction and confident learning, FedEFC's baselines.

Patrini et al., Making deep neural networks robust to label noise, CVPR 2017; Northcutt, Jiang, Chuang, Confident
learning, JAIR 2021; both as in Yu, Ahn, Kang, FedEFC, 2025.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import AboveOne, Natural, Percentile, Share, check_arguments, passes_on
from fnlkit.federated.client.losses.correction import forward_corrected
from fnlkit.federated.client.losses.cross_entropy import kept_cross_entropy
from fnlkit.federated.client.scoring import softmax_numpy
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels import class_thresholds
from fnlkit.methods.corrected_training import (
    TRANSITION,
    keep_anchor_transition,
    train_corrected,
)
from fnlkit.methods.fedavg import Round
from fnlkit.methods.missed import catching_up
from fnlkit.methods.prestopping import ACCURACY, monitoring_rounds, prestop

# ---- on the client


def prune(client: Client, model: LocalModel, received: Received) -> None:
    """Write rows["keep"]: 0 for samples with a contradicted label, else n / kept."""
    flagged = confident_issues(softmax_numpy(model(client.x)), client.y.cpu().numpy())
    remaining = len(client) - flagged.sum()
    keep = np.where(flagged, 0.0, len(client) / remaining) if remaining else np.ones(len(client))
    client.rows["keep"] = torch.from_numpy(keep).to(model.weights.dtype)


def keep_unpruned(client: Client, model: LocalModel, received: Received) -> None:
    """Keep all samples of a client that missed the round of pruning."""
    if "keep" not in client.rows:
        client.rows["keep"] = torch.ones(len(client), dtype=model.weights.dtype)


def confident_issues(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Select the samples (n,) that the confident joint counts off its diagonal.

    A sample is confidently of class j if p_j reaches the mean p_j of the samples labeled j.  If several classes qualify, the
    most probable class counts, as in `fnlkit.count_matrix`.
    """
    sure = probabilities >= class_thresholds(probabilities, labels) - 1e-6
    confident = np.where(sure.sum(1) > 1, probabilities.argmax(1), sure.argmax(1))
    return sure.any(1) & (confident != labels)


# ---- the server
@method(sends=ACCURACY | TRANSITION, loss="own", schedule=monitoring_rounds, cite="Patrini 2017")
@check_arguments
@passes_on(prestop)
def forward(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    percentile: Percentile = 97.0,
    anchor: Literal["point", "mean", "confident"] = "point",
    confidence: Share = 0.95,
    weighting: Literal["off", "public"] = "off",
    limit: AboveOne = 1e3,
    report_transition: bool = False,
    **watch: Any,
) -> Generator[Round, None, Model]:
    """Correct the loss with transition matrices estimated after plain training.

    Train plainly up to the prestopping round, then with forward correction by T from anchor points.

    Parameters
    ----------
    rounds : int
    start, patience, compare, ties, accuracy, latest : int, str
        As in `fedefc`.
    percentile : float in [0, 100]
        Percentile of the anchor points, see `fnlkit.kernels.scores.anchor_transition`.
    anchor : "point", "mean" or "confident"
        Source of T: the sample at the percentile (Patrini 2017, eq. 12), the mean of all samples above the percentile
        (FedEFC's code), or the given labels of all samples whose prediction exceeds `confidence` (FedDPCont's baseline).
    confidence : float in [0, 1]
        Only with anchor=confident.
    weighting : "off" or "public"
        ``public``: T is weighted with the class distribution and transposed, as always in the authors' code.
    limit, report_transition : float, bool
        As in `fedefc`.
    """
    model, used = yield from prestop(clients, model, opt, select, rounds=rounds, **watch)
    estimate = partial(
        keep_anchor_transition,
        percentile=percentile,
        anchor=anchor,
        confidence=confidence,
        weighting=weighting,
        limit=limit,
        report=report_transition,
    )
    corrected = train_corrected(clients, model, opt, select, rounds=rounds - used, estimate=estimate, loss=forward_corrected)
    return (yield from corrected)


@method(sends=ACCURACY, loss="own", schedule=monitoring_rounds, cite="Northcutt 2021")
@check_arguments
@passes_on(prestop)
def confident_learning(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    local_epochs: Natural = 0,
    **watch: Any,
) -> Generator[Round, None, Model]:
    """Train without samples whose labels are confidently contradicted (Northcutt 2021).

    Train plainly up to the prestopping round, then on the samples that confident learning does not flag.

    Parameters
    ----------
    rounds : int
    local_epochs : int >= 0
        If positive, prune as FedLN's baseline does (Tsouvalas 2024, Section 5.2).  Before the first round each client
        trains the initial model for this many epochs and prunes by the predictions of this model; federated training then
        starts from the initial model.  20 in that paper.  Costs one additional round of all clients; a client that misses this
        round trains on all samples.
    start, patience, compare, ties, accuracy, latest : int, str
        As in `fedefc`; unused with local_epochs.
    """
    opt.fit.refuse_mixup("confident-learning")
    if local_epochs:
        replies = clients.round(np.arange(len(clients)), model, opt.fit.changed(epochs=local_epochs), prune)
        yield Round(model, "pruning", replies)
        opt = catching_up(opt, clients, replies, keep_unpruned)
        for _ in range(rounds):
            model, replies = opt.round(clients, select(clients, model), model, loss=kept_cross_entropy)
            yield Round(model, "training", replies)
        return model
    model, used = yield from prestop(clients, model, opt, select, rounds=rounds, **watch)
    pruned = train_corrected(clients, model, opt, select, rounds=rounds - used, estimate=prune, loss=kept_cross_entropy)
    return (yield from pruned)
