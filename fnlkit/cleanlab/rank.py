"""cleanlab's label quality scores, with sites: `from fnlkit.rank import get_label_quality_scores`."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.errors import InputError, nearest
from fnlkit.kernels import checks, class_thresholds
from fnlkit.kernels.labels import entropy_scores, own_and_other

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
    """Return a quality score per label; a low score marks a label that is likely wrong.

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
        raise InputError(f"`method` must be {', '.join(METHODS)}, found {method!r}{nearest(str(method), METHODS)}")
    if adjust_pred_probs and method == "confidence_weighted_entropy":
        raise InputError("`adjust_pred_probs` cannot be used with `method` 'confidence_weighted_entropy'; use another method")
    labels, probs = read_labels(labels, pred_probs)
    if probs.shape[1] < 2 and method != "self_confidence":
        raise InputError(f"`method` {method!r} compares classes, but `pred_probs` has {probs.shape[1]} column")
    if not adjust_pred_probs:
        own, other, _ = own_and_other(probs, labels)
        if method == "confidence_weighted_entropy":
            return entropy_scores(probs, own, _LEAST)
        own = own.astype(np.float64, copy=False)
        return own if method == "self_confidence" else margins(own, other)
    order, offsets = group_by_site(sites, len(labels))
    limits = class_thresholds(probs[order], labels[order], client_offsets=offsets)
    shifts = limits.max(1, keepdims=True) - limits
    scores, rows = np.empty(len(labels)), np.arange(len(labels))[order]
    for shift, start, stop in zip(shifts, offsets[:-1], offsets[1:], strict=True):
        here = rows[start:stop]
        own, other, _ = own_and_other(probs[here], labels[here], shift=shift)
        scores[here] = own if method == "self_confidence" else margins(own, other)
    return scores


def margins(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the normalized margins (own - other + 1) / 2 (n,), which replace `own`."""
    own -= other
    own += 1
    return np.multiply(own, 0.5, out=own)


def read_labels(labels: ArrayLike, pred_probs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return checked labels (n,) int64, and probabilities (n, C) float32 or float64, whose values `own_and_other` checks."""
    probs = checks.real(pred_probs, "pred_probs", 2, "(n, C)")
    labels = checks.integers(labels, "labels", len(probs), "row of `pred_probs`")
    checks.check_range(labels, "labels", probs.shape[1])
    if not len(labels):
        raise InputError("`labels` is empty; give at least one sample")
    return labels, probs


def group_by_site(sites: ArrayLike | None, n: int) -> tuple[np.ndarray | slice, np.ndarray]:
    """Return an index that sorts n samples by site, and the offsets (S + 1,) of the sites; one site if `sites` is None."""
    if sites is None:
        return slice(None), np.array([0, n])
    names = checks.array(sites, "sites")
    if names.shape != (n,):
        raise InputError(f"`sites` must have shape ({n:,},), one a sample; found {names.shape}")
    try:
        _, site, sizes = np.unique(names, return_inverse=True, return_counts=True)
    except TypeError as error:
        raise InputError("`sites` must hold names or numbers of one type; convert them with astype(str)") from error
    return np.argsort(site, kind="stable"), np.append(0, np.cumsum(sizes))


def owners(offsets: np.ndarray) -> np.ndarray:
    """Return the number of the site (n,) of each sample, for samples sorted by site."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
