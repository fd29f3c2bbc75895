"""cleanlab's label quality scores, with sites: `from fnlkit.cleanlab.rank import get_label_quality_scores`."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from fnlkit.core.errors import InputError, nearest
from fnlkit.kernels import checks, class_thresholds
from fnlkit.kernels.counting import SLACK

Method = Literal["self_confidence", "normalized_margin", "confidence_weighted_entropy"]
METHODS = get_args(Method)
# cleanlab's lower bound of a denominator.
_LEAST = 1e-6


def get_label_quality_scores(
    labels: ArrayLike,
    pred_probs: ArrayLike,
    *,
    method: Method = "self_confidence",
    adjust_pred_probs: bool = False,
    sites: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Score the quality of each label; a low score marks a label that is likely wrong.

    Parameters
    ----------
    labels : array (n,) of int
        Given labels, 0..C-1.
    pred_probs : array (n, C)
        Out-of-sample class probabilities; rows sum to 1 within 0.01.
    method : str
        With p the probabilities of a sample and k its label: ``self_confidence`` is p[k]; ``normalized_margin`` is
        (p[k] - max of the others + 1) / 2; ``confidence_weighted_entropy`` is log(r + 1) / r with r = H(p) / (log(C) p[k]).
    adjust_pred_probs : bool
        Subtract the class thresholds (`fnlkit.class_thresholds`), add the largest one, and normalize. Not for
        ``confidence_weighted_entropy``.
    sites : array (n,), optional
        Site of each sample. `adjust_pred_probs` uses the thresholds of the site; other scores do not depend on sites.

    Returns
    -------
    ndarray (n,) float64
        In 0..1. As in cleanlab, a probability of exactly 1 has the score 0 under ``confidence_weighted_entropy``.

    Raises
    ------
    InputError
        Wrong shapes or methods, labels out of range, NaN, rows that are no probabilities, a single class for a method that
        compares classes.

    Notes
    -----
    Equal to ``cleanlab.rank.get_label_quality_scores`` of cleanlab 2.9; with `sites`, to its calls on the samples of each site.

    Examples
    --------
    >>> get_label_quality_scores([0, 1], [[0.75, 0.25], [0.5, 0.5]], method="normalized_margin")
    array([0.75, 0.5 ])
    """
    if method not in METHODS:
        raise InputError(f"must be {', '.join(METHODS)}, found {method!r}{nearest(str(method), METHODS)}", parameter="method")
    if adjust_pred_probs and method == "confidence_weighted_entropy":
        raise InputError("`adjust_pred_probs` cannot be used with `method` 'confidence_weighted_entropy'; use another method")
    labels, probs = read_labels(labels, pred_probs)
    if probs.shape[1] < 2 and method != "self_confidence":
        raise InputError(f"{method!r} compares classes, but `pred_probs` has {probs.shape[1]} column", parameter="method")
    own, other = np.empty(len(labels)), np.empty(len(labels))
    for rows in rows_of_sites(sites, len(labels)):
        own[rows], other[rows], _ = own_and_other(probs[rows], labels[rows], adjust_pred_probs)
    if method == "confidence_weighted_entropy":
        entropy = -xlogy(probs, probs, dtype=np.float64).sum(1) / np.log(probs.shape[1])
        ratio = entropy / np.maximum(own, _LEAST)
        return np.log(ratio + 1) / np.maximum(ratio, _LEAST)
    return own if method == "self_confidence" else (own - other + 1) / 2


def own_and_other(
    probs: np.ndarray, labels: np.ndarray, adjust: bool = False
) -> tuple[np.ndarray, np.ndarray, NDArray[np.bool_]]:
    """Probability of the label (n,), the largest other one (n,), and whether the label is the predicted class (n,).

    The label is the predicted class if it is the most probable class after 1e-6 was added to its probability. With `adjust`,
    the first two results are those of the probabilities less the class thresholds, normalized.
    """
    rows = np.arange(len(labels))
    raised = probs.copy()
    raised[rows, labels] += SLACK
    agrees = raised.argmax(1) == labels
    if adjust:
        limits = class_thresholds(probs, labels)
        raised = probs + (limits.max() - limits)
        probs = raised / raised.sum(1, keepdims=True)
        raised = probs.copy()
    raised[rows, labels] = -np.inf
    return probs[rows, labels], raised.max(1), agrees


def read_labels(labels: ArrayLike, pred_probs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Check labels (n,) int64, and probabilities (n, C) float32 or float64."""
    probs = checks.real(pred_probs, "pred_probs", 2, "(n, C)")
    labels = checks.integers(labels, "labels", len(probs), "row of `pred_probs`")
    checks.check_range(labels, "labels", probs.shape[1])
    if not len(labels):
        raise InputError("is empty; give at least one sample", parameter="labels")
    checks.finite(probs, "pred_probs")
    checks.distributions(probs, "pred_probs", 1e-2, "apply softmax to logits first")
    return labels, probs


def rows_of_sites(sites: ArrayLike | None, n: int) -> list[np.ndarray | slice]:
    """Index the samples of each site, in the sorted order of the sites; one site if `sites` is None."""
    if sites is None:
        return [slice(None)]
    names = checks.array(sites, "sites")
    if names.shape != (n,):
        raise InputError(f"must have shape ({n:,},), one a sample; found {names.shape}", parameter="sites")
    try:
        _, site, sizes = np.unique(names, return_inverse=True, return_counts=True)
    except TypeError as error:
        raise InputError("must hold names or numbers of one type; convert them with astype(str)", parameter="sites") from error
    return list[np.ndarray | slice](np.split(np.argsort(site, kind="stable"), np.cumsum(sizes)[:-1]))
