"""Confident learning: a label is wrong where a model that never saw it is confident in another class.

Northcutt, Jiang, Chuang. Confident learning: Estimating uncertainty in dataset labels. JAIR 2021.
"""

from typing import Annotated, Literal

import numpy as np

from fnlkit.estimators.intervals import bootstrap
from fnlkit.estimators.judgement import Judgement, owners
from fnlkit.kernels import class_thresholds, count_matrix
from fnlkit.parameters import Range, checked
from fnlkit.scores import transition


@checked
def confident(
    evidence,
    *,
    folds: Annotated[int, Range(2)] = 4,
    by: Literal["client", "sample"] = "client",
    thresholds: Literal["client", "pooled"] = "client",
):
    """Judge labels by out-of-sample probabilities and class thresholds.

    A sample is confident in class j where p_j reaches t_j, the mean of p_j over samples labelled j (eq. 2); in several:
    in its most probable class.  Each client's counts of confident against given class, scaled to its given labels'
    numbers, are its joint distribution (eqs. 1, 3): the off-diagonal share is the level; its rows, and those of the sum
    over clients, are the transitions.

    Parameters
    ----------
    evidence : fnlkit.estimators.evidence.Evidence
        Uses given probabilities or a given run; else trains by cross-validation.
    folds : int >= 2
        Each part is predicted by a model trained on the others.
    by : "client" or "sample"
        What is left out: whole clients, or a share of every client's samples.  One client is split by samples.
    thresholds : "client" or "pooled"
        Each client's own, as FedEFC has them (eq. 6), which suit clients of different noise; or the mean over all
        clients, of which each sends C sums and numbers.
    """
    evidence.refuse("confident", embeddings="write --probs, or nothing for a warm-up")
    if evidence.has_probabilities:
        probabilities = evidence.predicted()
    else:
        from fnlkit.estimators.warmup import cross_validated

        probabilities = cross_validated(evidence, folds=folds, by=by)
    evidence.weigh(probabilities.argmax(1), "predictions")
    return judge(probabilities, evidence.labels, evidence.offsets, thresholds=thresholds, seed=evidence.seed)


def judge(probabilities, labels, offsets, *, thresholds="client", seed=0):
    """Return the Judgement of probabilities (m, C) and labels (m,) of clients that lie at offsets (N + 1,)."""
    classes = probabilities.shape[1]
    where = None if thresholds == "pooled" else offsets
    limits = class_thresholds(probabilities, labels, client_offsets=where)
    found = confident_class(probabilities, limits if where is None else limits[owners(offsets)])
    flagged = (found >= 0) & (found != labels)
    cells = label_cells(found, labels, offsets, classes)
    counts = count_matrix(probabilities, labels, thresholds=limits, client_offsets=offsets, least_diagonal=0)
    level = off_diagonal(cells.reshape(len(cells), -1))
    given = cells.sum(1)
    return Judgement(
        level,
        *bootstrap(cells.reshape(len(cells), -1), off_diagonal, seed=seed),
        score=level,
        issue=1 - probabilities[np.arange(len(labels)), labels],
        flagged=flagged,
        guess=np.where(flagged, found, labels),
        transition=transition(joint(counts, given).sum(0)),
        client_transition=transition(joint(counts, given)),
    )


def confident_class(probabilities, limits):
    """Return the class (m,) that each sample is confident in, -1 for none; limits are (C,) or (m, C)."""
    reaches = probabilities >= limits - 1e-6  # the slack of the public code, as in fnlkit.count_matrix
    several = reaches.sum(1)
    return np.where(several == 0, -1, np.where(several == 1, reaches.argmax(1), probabilities.argmax(1)))


def joint(counts, given):
    """Return counts[true, given] (..., C, C) scaled so that each given label has its number of samples (..., C).

    A label that no confident sample has counts as right.
    """
    columns = counts.sum(-2, keepdims=True)
    scaled = counts / np.maximum(columns, 1) * given[..., None, :]
    diagonal = np.eye(counts.shape[-1]) * given[..., None, :]
    return np.where(columns > 0, scaled, diagonal)


def label_cells(found, labels, offsets, classes):
    """Return numbers (N, 3, C) of samples by given label that are confident in it, in another class, in none."""
    clients = len(offsets) - 1
    kind = np.where(found < 0, 2, np.where(found == labels, 0, 1))
    cell = (owners(offsets) * 3 + kind) * classes + labels
    return np.bincount(cell, minlength=clients * 3 * classes).reshape(clients, 3, classes)


def off_diagonal(cells):
    """Return the share (...) of the joint off its diagonal, from the cells (..., 3 C) of `label_cells`.

    A label without a confident sample gets the client's share over all labels, or 0 where no sample is confident.
    """
    right, wrong, unsure = np.split(np.asarray(cells, np.float64), 3, -1)
    sure = right + wrong
    all_sure = sure.sum(-1, keepdims=True)
    overall = wrong.sum(-1, keepdims=True) / np.maximum(all_sure, 1)
    share = np.where(sure > 0, wrong / np.maximum(sure, 1), overall)
    total = (sure + unsure).sum(-1)
    return (share * (sure + unsure)).sum(-1) / np.maximum(total, 1)
