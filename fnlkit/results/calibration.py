"""Measures of predicted probabilities: area under the ROC curve, calibration error and likelihood."""

from typing import Any

import numpy as np

from fnlkit.kernels.scores import auc

# Bins of equal width on [0, 1]; bin b contains confidences above (b - 1) / BINS and up to b / BINS.
BINS = 15
# Names of the measures, their titles and the factor to the printed unit: percent, percent, nats.
TITLES = {"auc": ("AUC", 100), "ece": ("ECE", 100), "nll": ("NLL", 1)}


def probability_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Score predicted probabilities against labels.

    The AUC of a class is that of its samples against all others, by the probability of the class; ``auc`` is the mean over the
    classes that have samples and are not the only class. ``ece`` is the mean over samples of the distance between confidence
    (the largest probability) and share of right predictions in `BINS` bins of equal width (Guo 2017, eq. 3). ``nll`` is the
    mean negative log-likelihood in nats.

    Parameters
    ----------
    logits : (n, C)
    labels : int (n,)
        Samples with a negative label are left out.

    Returns
    -------
    dict
        auc, ece, nll; auc is missing if only one class has samples. per_class_auc: list of float or None (C,). reliability:
        [samples, mean confidence, share of right predictions] of each bin with samples. {} without samples, or if a logit is
        not finite.

    Examples
    --------
    >>> scores = probability_scores(np.log([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1]))
    >>> {name: round(scores[name], 3) for name in ("auc", "ece", "nll")}
    {'auc': 1.0, 'ece': 0.35, 'nll': 0.511}
    """
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    logits, labels = logits[labels >= 0], labels[labels >= 0]
    if not len(labels) or not np.isfinite(logits).all():
        return {}
    logs = logits - logits.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    probabilities, right = np.exp(logs), logits.argmax(1) == labels
    by_class = [auc(probabilities[:, c], labels == c) for c in range(logits.shape[1])]
    known = [value for value in by_class if value is not None]
    confidence = probabilities.max(1)
    places = np.clip(np.ceil(confidence * BINS).astype(int), 1, BINS)
    count, sure, hits = (np.bincount(places, weights, BINS + 1) for weights in (None, confidence, right))
    return {
        **({"auc": float(np.mean(known))} if known else {}),
        "ece": float(np.abs(sure - hits).sum() / len(labels)),
        "nll": float(-logs[np.arange(len(labels)), labels].mean()),
        "per_class_auc": by_class,
        "reliability": [[int(n), float(p / n), float(r / n)] for n, p, r in zip(count, sure, hits, strict=True) if n],
    }
