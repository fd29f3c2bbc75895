"""Scores of labels, predictions and estimates against true labels; requires neither torch nor scikit-learn."""

import numpy as np
from numpy.typing import ArrayLike


def confusion(true: np.ndarray, other: np.ndarray, classes: int) -> np.ndarray:
    """Count samples (C, C) with true labels in rows and the other labels in columns.

    Parameters
    ----------
    true, other : int (n,) in 0 ... C - 1
    classes : int
    """
    true, other = np.asarray(true, np.int64), np.asarray(other, np.int64)
    flat = true * classes + other
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def memorization(predicted: np.ndarray, given: np.ndarray, true: np.ndarray) -> dict[str, float]:
    """Shares of correct, memorized and wrong predictions on clean and on mislabeled samples.

    A prediction is memorized if it equals the wrong given label (FLR, Kim 2024, Table 1).

    Parameters
    ----------
    predicted, given, true : int (n,)

    Returns
    -------
    dict
        clean_correct, clean_wrong, noisy_correct, noisy_memorized, noisy_wrong; a group without samples is left out.
    """
    predicted, given, true = (np.asarray(v) for v in (predicted, given, true))
    clean = given == true
    shares: dict[str, float] = {}
    if clean.any():
        shares["clean_correct"] = float(np.mean(predicted[clean] == true[clean]))
        shares["clean_wrong"] = 1 - shares["clean_correct"]
    if (~clean).any():
        shares["noisy_correct"] = float(np.mean(predicted[~clean] == true[~clean]))
        shares["noisy_memorized"] = float(np.mean(predicted[~clean] == given[~clean]))
        shares["noisy_wrong"] = 1 - shares["noisy_correct"] - shares["noisy_memorized"]
    return shares


def client_levels(labels: np.ndarray, true: np.ndarray, offsets: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Share of wrong labels of each client (N,); 0 for a client without samples."""
    wrong = (np.asarray(labels) != np.asarray(true))[indices]
    sums = np.add.reduceat(np.append(wrong, False).astype(np.float64), offsets[:-1])
    sizes = np.diff(offsets)
    return np.where(sizes > 0, sums / np.maximum(sizes, 1), 0.0)


def transition(counts: np.ndarray) -> np.ndarray:
    """Scale the rows of counts[true, given] to sum to 1: T (..., C, C); a class without samples gets the identity's row."""
    counts = np.asarray(counts, np.float64)
    totals = counts.sum(-1, keepdims=True)
    scaled, empty = counts / np.where(totals > 0, totals, 1), totals[..., 0] <= 0
    if empty.any():
        scaled[empty] = np.eye(counts.shape[-1])[np.nonzero(empty)[-1]]
    return scaled


def transition_errors(estimated: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Compare an estimate (C, C) with counts of labels: transition_cosine and transition_error.

    Parameters
    ----------
    estimated : (C, C)
    counts : (C, C)
        counts[true, given], see `confusion`; rows without a sample are excluded from the comparison.
    """
    there = counts.sum(1) > 0
    a, b = estimated[there].ravel(), transition(counts)[there].ravel()
    return {
        "transition_cosine": float(a @ b / np.sqrt((a @ a) * (b @ b))),
        "transition_error": float(np.abs(a - b).sum() / b.sum()),
    }


def anchor_transition(probabilities: np.ndarray, *, percentile: float = 97.0, average: bool = False) -> np.ndarray:
    """Estimate T (C, C) with rows that sum to 1: row j is the prediction at the anchor sample of class j.

    Parameters
    ----------
    probabilities : (n, C)
        Predicted probabilities of given labels.
    percentile : float in [0, 100]
        The anchor of class j is the sample with the largest p_j that does not exceed this percentile of p_j: the largest
        itself is often an outlier (Patrini 2017, eq. 12: 97 in the authors' code, 100 on CIFAR-100).
    average : bool
        Average all predictions from the percentile on (FedEFC's public code) instead of using a single sample.
    """
    probabilities = np.asarray(probabilities, np.float64)
    limits = np.percentile(probabilities, percentile, axis=0, method="higher")
    rows = []
    for j, limit in enumerate(limits):
        column = probabilities[:, j]
        if average:
            rows.append(probabilities[column >= limit].mean(0))
        else:
            rows.append(probabilities[np.where(column <= limit, column, -1).argmax()])
    return transition(np.array(rows))


def auc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Area under the ROC curve of scores (n,) for a mask (n,); ties count half; None for a single class.

    Mann and Whitney's statistic, so that commands without torch, scikit-learn and SciPy can import this file.
    """
    scores, positive = np.asarray(scores, np.float64), np.asarray(positive, bool)
    positives, negatives = scores[positive], np.sort(scores[~positive])
    if not len(positives) or not len(negatives):
        return None
    lower, not_higher = (int(np.searchsorted(negatives, positives, side).sum()) for side in ("left", "right"))
    return (lower + not_higher) / 2 / (len(positives) * len(negatives))


def allot(number: int, weights: ArrayLike) -> np.ndarray:
    """Divide `number` into whole numbers proportional to weights (m,), largest remainders first."""
    exact = number * np.asarray(weights, np.float64) / max(np.sum(weights), 1e-300)
    numbers = np.floor(exact).astype(np.int64)
    numbers[np.argsort(numbers - exact, kind="stable")[: int(number - numbers.sum())]] += 1
    return numbers


def effective_size(groups: np.ndarray) -> float:
    """Number of independent observations among samples of these groups (n,): (sum n_g)^2 / sum n_g^2 (Kish 1965).

    It treats all samples of a group as one observation, which is exact if they share their errors and cautious otherwise.  It
    is the number of groups if they have equal sizes, and smaller otherwise.

    Examples
    --------
    >>> effective_size(np.array([0, 0, 1, 1, 2, 2])), effective_size(np.arange(6)), effective_size(np.array([0, 0, 0, 1]))
    (3.0, 6.0, 1.6)
    """
    counts = np.unique(groups, return_counts=True)[1].astype(np.float64)
    return float(counts.sum() ** 2 / max(1.0, (counts**2).sum()))
