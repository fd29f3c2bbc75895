"""Confident learning: a label is wrong if a model that never saw it is confident in another class.

Northcutt, Jiang, Chuang. Confident learning: Estimating uncertainty in dataset labels. JAIR 2021.
"""

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.parameters import Range, check_arguments
from fnlkit.estimators import federated
from fnlkit.estimators.federated import ClientSession
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.intervals import bootstrap
from fnlkit.estimators.judgment import Judgment, owners
from fnlkit.kernels import class_thresholds, count_matrix
from fnlkit.kernels.counting import confident_class, thresholds_of
from fnlkit.kernels.scores import transition

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.client.client import Client, LocalModel, Received


@declare(
    sends=federated.HELD_OUT
    | {
        "cells": Sent.counts("numbers of samples confident in their label, another or none, by label", "once", (3, "C")),
        "counts": Sent.counts("numbers of samples by confident class and given label", "once", ("C", "C")),
        "label_sums": Sent(
            "sums of the probabilities of given labels, by label", "once, with thresholds=pooled", ("C",), low=0
        ),
        "label_numbers": Sent.counts("numbers of samples of each label", "once, with thresholds=pooled", ("C",)),
    },
    cite="Northcutt 2021",
)
@check_arguments
def confident(
    evidence: EstimatorInputs,
    *,
    folds: Annotated[int, Range(2)] = 4,
    by: Literal["client", "sample"] = "client",
    thresholds: Literal["client", "pooled"] = "client",
) -> Judgment:
    """Judge labels by out-of-sample probabilities and class thresholds.

    A sample is confident in class j if p_j reaches t_j, the mean of p_j over samples labeled j (eq. 2). If several
    classes qualify, the most probable class counts. Each client counts confident class against given class and scales
    the counts to the numbers of its given labels; this estimates the joint distribution (eqs. 1, 3). The off-diagonal
    share is the level. The rows give the client's transition, and the rows of the sum over clients give the transition
    of the federation.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses given probabilities or a given run; otherwise predicts each fold by a model of the others: a head of `fedsums`,
        or a network if an option of a training is given or samples are large images (fnlkit.estimators.folds).
    folds : int >= 2
        Each part is predicted by a model trained on the others.
    by : "client" or "sample"
        Unit that a fold leaves out: whole clients, or a share of every client's samples.  A single client is split by samples.
    thresholds : "client" or "pooled"
        "client" computes thresholds per client as in FedEFC (eq. 6), which suits clients with different noise. "pooled"
        averages over all clients, each of which sends C sums and counts.
    """
    evidence.refuse("confident", embeddings="write `probabilities`, or omit both for a warm-up")
    if evidence.federated:
        return by_clients(evidence, federated.with_predictions(evidence, evidence.folds(folds, by)), thresholds)
    probabilities = evidence.predicted_out_of_sample(folds, by)
    evidence.weigh(probabilities.argmax(1), "predictions")
    options = {"thresholds": thresholds, "seed": evidence.seed, "independence": evidence.independence}
    return judge_probabilities(probabilities, evidence.labels, evidence.offsets, **options)


def judge_probabilities(
    probabilities: np.ndarray,
    labels: np.ndarray,
    offsets: np.ndarray,
    *,
    thresholds: str = "client",
    seed: int = 0,
    independence: ArrayLike = 1.0,
) -> Judgment:
    """Judge labels (m,) by probabilities (m, C); offsets (N + 1,) separate the clients.

    `independence`: as for fnlkit.estimators.intervals.bootstrap.
    """
    classes = probabilities.shape[1]
    pools = None if thresholds == "pooled" else offsets
    limits = class_thresholds(probabilities, labels, client_offsets=pools)
    confident_classes = confident_class(probabilities, limits if pools is None else limits[owners(offsets)])
    flagged = (confident_classes >= 0) & (confident_classes != labels)
    cells = label_cells(confident_classes, labels, offsets, classes)
    counts = count_matrix(probabilities, labels, thresholds=limits, client_offsets=offsets, least_diagonal=0)
    issue = 1 - probabilities[np.arange(len(labels)), labels]
    return judgment(cells, counts, seed, independence, issue, flagged, np.where(flagged, confident_classes, labels))


def judgment(
    cells: np.ndarray,
    counts: np.ndarray,
    seed: int,
    independence: ArrayLike,
    issue: np.ndarray,
    flagged: np.ndarray,
    guess: np.ndarray,
) -> Judgment:
    """Make the Judgment from clients' cells (N, 3, C) and counts (N, C, C), and per-sample arrays (m,)."""
    flat = cells.reshape(len(cells), -1)
    level, joint_matrix = off_diagonal(flat), joint(counts, cells.sum(1))
    interval = bootstrap(flat, off_diagonal, seed=seed, independence=independence)
    return Judgment(level, *interval, level, issue, flagged, guess, transition(joint_matrix.sum(0)), transition(joint_matrix))


def by_clients(evidence: EstimatorInputs, session: ClientSession, thresholds: str) -> Judgment:
    """Judge labels in the federated form.

    Clients count; the server adds the counts and computes the intervals.
    """
    broadcast = None
    if thresholds == "pooled":
        replies = session.ask(reply_label_sums)
        limits = thresholds_of(replies["label_sums"].sum(0).numpy(), replies["label_numbers"].sum(0).numpy())
        broadcast = {"limits": limits}
    replies = session.ask(federated.reply_predicted, reply_counts, broadcast=broadcast)
    evidence.weigh_counts(replies["predicted"].sum(0), "predictions")
    rows = (session.kept(name) for name in ("issue", "flagged", "guess"))
    return judgment(replies["cells"].numpy(), replies["counts"].numpy(), evidence.seed, evidence.independence, *rows)


def reply_label_sums(client: "Client", model: "LocalModel", received: "Received") -> "dict[str, torch.Tensor]":
    """Reply, for each label, the sum (C,) of the given labels' probabilities and the number of samples."""
    import torch

    p, labels = federated.predictions(client), client.y.numpy()
    label_p = p[np.arange(len(labels)), labels]
    sums, numbers = (np.bincount(labels, w, client.classes) for w in (label_p, None))
    return {"label_sums": torch.from_numpy(sums), "label_numbers": torch.from_numpy(numbers)}


def reply_counts(client: "Client", model: "LocalModel", received: "Received") -> "dict[str, torch.Tensor]":
    """Reply cells (3, C) and counts (C, C); keep the judgment.

    The thresholds are the received ones if there are any, otherwise the client's.
    """
    import torch

    p, labels = federated.predictions(client), client.y.numpy()
    limits = received["limits"].numpy() if "limits" in received else class_thresholds(p, labels)
    confident_classes = confident_class(p, limits)
    flagged = (confident_classes >= 0) & (confident_classes != labels)
    issue = 1 - p[np.arange(len(labels)), labels]
    federated.keep_judgment(client, issue, flagged, np.where(flagged, confident_classes, labels))
    cells = label_cells(confident_classes, labels, np.array([0, len(labels)]), client.classes)[0]
    counts = count_matrix(p, labels, thresholds=limits, least_diagonal=0)
    return {"cells": torch.from_numpy(cells), "counts": torch.from_numpy(counts)}


def joint(counts: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Scale counts[true, given] (..., C, C) to the number of samples (..., C) of each given label.

    A label without a confident sample counts as right.
    """
    columns = counts.sum(-2, keepdims=True)
    scaled = counts / np.maximum(columns, 1) * given[..., None, :]
    diagonal = np.eye(counts.shape[-1]) * given[..., None, :]
    return np.where(columns > 0, scaled, diagonal)


def label_cells(confident_in: np.ndarray, labels: np.ndarray, offsets: np.ndarray, classes: int) -> np.ndarray:
    """Count samples by given label (N, 3, C): confident in it, in another class, in none."""
    clients = len(offsets) - 1
    kind = np.where(confident_in < 0, 2, np.where(confident_in == labels, 0, 1))
    cell = (owners(offsets) * 3 + kind) * classes + labels
    return np.bincount(cell, minlength=clients * 3 * classes).reshape(clients, 3, classes)


def off_diagonal(cells: np.ndarray) -> np.ndarray:
    """Estimate shares of wrong labels (...): the off-diagonal of the joint, from the cells (..., 3 C) of `label_cells`.

    A label without a confident sample gets the client's share over all labels, or 0 if no sample is confident.
    """
    right, wrong, unsure = np.split(np.asarray(cells, np.float64), 3, -1)
    sure = right + wrong
    all_sure = sure.sum(-1, keepdims=True)
    overall = wrong.sum(-1, keepdims=True) / np.maximum(all_sure, 1)
    share = np.where(sure > 0, wrong / np.maximum(sure, 1), overall)
    total = (sure + unsure).sum(-1)
    return (share * (sure + unsure)).sum(-1) / np.maximum(total, 1)
