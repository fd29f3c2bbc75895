"""cleanlab's label quality scores, with sites: `from fnlkit.cleanlab.rank import get_label_quality_scores`.

Labels with several classes a sample are read as one pair of classes after another: the class, and its absence.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, get_args

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


# Weight of the next lower score in cleanlab's aggregation.
_ALPHA = 0.8


def read_class_lists(labels: Any, pred_probs: ArrayLike) -> tuple[NDArray[np.bool_], np.ndarray]:
    """Read which classes each sample has (n, C), and check probabilities (n, C) float32 or float64.

    Raises
    ------
    InputError
        Probabilities outside 0..1, another number of samples, classes that are no numbers 0..C-1 or occur twice in a list.
    """
    probs = checks.real(pred_probs, "pred_probs", 2, "(n, C)")
    checks.finite(probs, "pred_probs")
    if probs.size and not (probs.min() >= 0 and probs.max() <= 1):
        raise InputError(f"`pred_probs` must lie in 0..1, found {probs.min():.4g} to {probs.max():.4g}; apply a sigmoid first")
    has = class_table(labels, probs.shape[1])
    if not len(has) or len(has) != len(probs):
        raise InputError(f"has {len(has):,} lists, but `pred_probs` has {len(probs):,} rows", parameter="labels")
    return has, probs


def class_table(labels: Any, classes: int) -> NDArray[np.bool_]:
    """Tabulate which classes each sample has (n, C), from lists of classes."""
    try:
        sizes = np.fromiter(map(len, labels), np.int64, len(labels))
        flat = np.array(list(chain.from_iterable(labels)))
    except TypeError as error:
        raise InputError("with `multi_label`, `labels` must hold a list of classes per sample, such as [[0, 2], []]") from error
    flat = checks.integers(flat, "labels", len(flat), "class of a sample")
    checks.check_range(flat, "labels", classes)
    has = np.zeros((len(sizes), classes), bool)
    has.reshape(-1)[np.repeat(np.arange(len(sizes)) * classes, sizes) + flat] = True
    if np.count_nonzero(has) != len(flat):
        row = int(np.argmax(has.sum(1) != sizes))
        raise InputError(f": sample {row} has a class twice; give lists of classes, not rows of 0 and 1", parameter="labels")
    return has


def class_pairs(has: np.ndarray, probs: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield, for each class, labels (n,) 0 or 1 and probabilities (n, 2) of its absence and presence."""
    for labels, p in zip(has.T, probs.T, strict=True):
        yield labels.astype(np.int64), np.column_stack([1 - p, p])


def joint_scores(
    has: np.ndarray, probs: np.ndarray, *, method: Method, adjust_pred_probs: bool = False, sites: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Score each sample (n,) in 0..1: the scores of its classes, from highest to lowest, averaged exponentially.

    As in ``cleanlab.multilabel_classification.get_label_quality_scores``: a_1 = s_1 and a_t = 0.8 s_t + 0.2 a_(t-1).
    """
    scores = np.column_stack(
        [
            get_label_quality_scores(labels, pairs, method=method, adjust_pred_probs=adjust_pred_probs, sites=sites)
            for labels, pairs in class_pairs(has, probs)
        ]
    )
    scores.sort(1)
    average = scores[:, -1]
    for column in scores.T[-2::-1]:
        average = _ALPHA * column + (1 - _ALPHA) * average
    return average
