"""Confident learning for one or several classification problems per sample, from counts (Northcutt 2021).

Each label of a multilabel task is a problem with two classes, and the tags of tokens are a single problem with all classes.
The thresholds equal the thresholds of `cleanlab` on the pooled data of all clients.
"""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike

from fnlkit.components.declarations import Sent
from fnlkit.estimators.confident import label_cells, off_diagonal
from fnlkit.estimators.intervals import bootstrap
from fnlkit.kernels.counting import confident_class, thresholds_of

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.estimators.federated import ClientSession


SENDS = {
    "label_sums": Sent("sums of the probabilities of given labels, by problem and label", "once", ("L", "c"), low=0),
    "label_numbers": Sent.counts("numbers of samples of each label, by problem", "once", ("L", "c")),
    "cells": Sent.counts(
        "numbers of samples for which the model is confident in the label, another or none, by problem and label",
        "once",
        ("L", 3, "c"),
    ),
}


def problems(task: str, predicted: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (labels (n, L), probabilities (n, L, c)) from predictions and targets (n, K)."""
    if task == "multilabel":
        return targets.astype(np.int64), np.stack([1 - predicted, predicted], -1)
    return targets.argmax(1)[:, None], predicted[:, None]


def judge_labels(labels: np.ndarray, probabilities: np.ndarray, limits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (flagged (n, L), confident class (n, L)) of labels and probabilities (n, L, c) under thresholds (L, c).

    A sample is flagged as in ``cleanlab.filter.find_label_issues(filter_by="confident_learning")``: the model is confident in
    another class, and the most probable class is not the given label.
    """
    found = np.stack([confident_class(probabilities[:, j], limits[j]) for j in range(labels.shape[1])], 1)
    return (found >= 0) & (found != labels) & (probabilities.argmax(-1) != labels), found


def quality(labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return cleanlab's quality (n,) of labels: probabilities of the given labels, averaged with most weight on the smallest.

    The average of several problems is the exponential moving average of the descending probabilities with weight 0.8.
    """
    own = np.sort(np.take_along_axis(probabilities, labels[..., None], -1)[..., 0], 1)[:, ::-1]
    out = own[:, 0]
    for j in range(1, own.shape[1]):
        out = 0.8 * own[:, j] + 0.2 * out
    return out


def levels(cells: np.ndarray, seed: int, independence: ArrayLike = 1.0) -> np.ndarray:
    """Return (level, low, high), each (N, L), from the cells (N, L, 3, c) of the clients.

    `independence`: as for fnlkit.estimators.intervals.bootstrap.
    """
    out = np.zeros((3, *cells.shape[:2]))
    for j in range(cells.shape[1]):
        flat = cells[:, j].reshape(len(cells), -1)
        out[:, :, j] = off_diagonal(flat), *bootstrap(flat, off_diagonal, seed=seed, independence=independence)
    return out


# ---- at the client
def keep_judge(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, task: str
) -> dict[str, torch.Tensor]:
    """Keep the probabilities of the chosen models; reply sums for the thresholds.  Labels with the choice -1 are skipped."""
    chosen, predicted = received["chosen"].numpy(), client.rows["task/predicted"].numpy()
    targets = client.rows["input/target"].numpy()
    picked = predicted[:, chosen[0]] if len(chosen) < predicted.shape[2] else predicted[:, chosen, np.arange(len(chosen))]
    labels, p = problems(task, picked, targets)
    client.rows["task/probabilities"] = torch.from_numpy(np.ascontiguousarray(p))
    sums, numbers = np.zeros((2, *p.shape[1:]))
    for j in np.flatnonzero(chosen >= 0):
        own = p[np.arange(len(p)), j, labels[:, j]]
        sums[j], numbers[j] = (np.bincount(labels[:, j], w, p.shape[2]) for w in (own, None))
    return {"label_sums": torch.from_numpy(sums), "label_numbers": torch.from_numpy(numbers.astype(np.int64))}


def judge(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, task: str) -> dict[str, torch.Tensor]:
    """Keep issue scores, flags, suggestions and qualities; reply cells.  Suggestions are columns of 0 and 1."""
    p, chosen, targets = client.rows["task/probabilities"].numpy(), received["chosen"].numpy(), client.rows["input/target"]
    labels, _ = problems(task, p[..., -1] if task == "multilabel" else p[:, 0], targets.numpy())
    flagged, found = judge_labels(labels, p, received["limits"].numpy())
    known = chosen >= 0
    flagged &= known
    best = np.where(flagged, found, labels)
    issue = 1 - np.take_along_axis(p, labels[..., None], -1)[..., 0]
    kept = {
        "issue": np.where(known, issue, 0).max(1),
        "flagged": flagged.any(1),
        "guess": best if task == "multilabel" else best[:, 0],
        "quality": quality(labels, p),
    }
    for name, values in kept.items():
        client.rows[f"estimate/{name}"] = torch.from_numpy(np.ascontiguousarray(values))
    cells, offsets = np.zeros((p.shape[1], 3, p.shape[2]), np.int64), np.array([0, len(p)])
    for j in np.flatnonzero(known):
        cells[j] = label_cells(found[:, j], labels[:, j], offsets, p.shape[2])[0]
    return {"cells": torch.from_numpy(cells)}


def estimate(
    session: "ClientSession", chosen: np.ndarray, task: str, seed: int, independence: ArrayLike = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (level, low, high (N, L), wrong, totals (N, L), cells (N, L, 3, c)) of the clients' labels.

    Parameters
    ----------
    session : fnlkit.estimators.federated.ClientSession
        Of clients with the row ``task/predicted``.
    chosen : int (N, L)
        Model that judges: 0 of the others, 1 of the client itself, -1 none.
    independence : float or (N,)
        As for fnlkit.estimators.intervals.bootstrap.
    """
    each = {"chosen": torch.from_numpy(chosen)}
    told = session.ask(partial(keep_judge, task=task), scatter=each)
    limits = thresholds_of(told["label_sums"].sum(0).numpy(), told["label_numbers"].sum(0).numpy())
    told = session.ask(partial(judge, task=task), broadcast={"limits": torch.from_numpy(limits)}, scatter=each)
    cells = told["cells"].numpy()
    sure = cells[:, :, :2].sum((2, 3))
    return levels(cells, seed, independence), cells[:, :, 1].sum(-1), sure, cells
