"""Labels with several classes a sample as one pair of classes after another: the class, and its absence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.cleanlab.rank import Method, get_label_quality_scores
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks

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
