"""cleanlab's filter of wrong labels, with sites: `from fnlkit.filter import find_label_issues`."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.errors import InputError, nearest
from fnlkit.kernels import checks, class_thresholds, count_matrix
from fnlkit.kernels.counting import confident_class
from fnlkit.rank import Method, get_label_quality_scores, group_by_site, owners, read_labels

Filter = Literal[
    "prune_by_noise_rate",
    "prune_by_class",
    "both",
    "confident_learning",
    "predicted_neq_given",
    "low_normalized_margin",
    "low_self_confidence",
]
_FILTERS = get_args(Filter)
_PRUNING = _FILTERS[:3]
# A sample is no issue if its label is the predicted class after this addition to the probability of the label.
_SLACK = 1e-6


def find_label_issues(
    labels: ArrayLike,
    pred_probs: ArrayLike,
    *,
    sites: ArrayLike | None = None,
    return_indices_ranked_by: Method | None = None,
    rank_by_kwargs: dict[str, Any] | None = None,
    filter_by: Filter = "prune_by_noise_rate",
    frac_noise: float = 1.0,
    num_to_remove_per_class: ArrayLike | None = None,
    min_examples_per_class: int = 1,
    confident_joint: ArrayLike | None = None,
    n_jobs: int | None = None,
    verbose: bool = False,
    multi_label: bool = False,
) -> NDArray[np.bool_] | NDArray[np.int64]:
    """Return the mask or the indices of labels that are likely wrong.

    With `sites`, thresholds, counts and numbers of issues are computed for each site separately, without data of the other
    sites.

    Parameters
    ----------
    labels : array (n,) of int
        Given labels, 0..C-1.
    pred_probs : array (n, C)
        Out-of-sample class probabilities; rows sum to 1 within 0.01.
    sites : array (n,), optional
        Site of each sample. Default: all samples are at one site, as in cleanlab.
    return_indices_ranked_by : str, optional
        Method of `fnlkit.rank.get_label_quality_scores`: return indices of the issues, lowest score first. Default: a mask.
    rank_by_kwargs : dict, optional
        ``{"adjust_pred_probs": True}``.
    filter_by : str
        ``prune_by_noise_rate``: for each pair of classes, as many samples with the largest margins as are counted in the
        calibrated count matrix. ``prune_by_class``: for each label, as many samples with the smallest probabilities.
        ``both``: issues of both. ``confident_learning``: the model is confident in another class.
        ``predicted_neq_given``: the most probable class is another class. ``low_normalized_margin``,
        ``low_self_confidence``: the lowest scores, as many as ``confident_learning`` finds.
    frac_noise : float in 0..1
        Share of the counted issues to return; for the first three filters.
    num_to_remove_per_class : array (C,) of int, optional
        Number of issues of each label (at each site), for ``prune_by_class``.
    min_examples_per_class : int
        Labels with at most this number of samples (at a site) have no issues; for the first three filters.
    confident_joint : array (C, C), optional
        Counts with given labels in rows, for the first three filters without `sites`. Default: the calibrated `count_matrix`.
    n_jobs : int, optional
        Number of threads. Default: `fnlkit.kernels.get_threads()`.
    verbose, multi_label : bool
        Only False is supported.

    Returns
    -------
    ndarray (n,) bool, or (m,) int64 with `return_indices_ranked_by`

    Raises
    ------
    InputError
        As `get_label_quality_scores`, and for options that are unknown, unsupported or do not apply to `filter_by`.

    Notes
    -----
    Equal to ``cleanlab.filter.find_label_issues`` of cleanlab 2.9; with `sites`, to its calls on the samples of each site. Ties
    are resolved by position, in cleanlab by an unstable sort. cleanlab warns and ignores an option where this function raises.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.1, 0.9]]
    >>> find_label_issues([0, 0, 0, 1, 1], probs)
    array([False, False,  True, False, False])
    >>> find_label_issues([0, 0, 0, 1, 1], probs, return_indices_ranked_by="self_confidence")
    array([2])
    """
    _check_options(filter_by, frac_noise, num_to_remove_per_class, confident_joint, sites, rank_by_kwargs)
    if multi_label:
        raise InputError("`multi_label=True` is not supported; audit such labels with `fnlkit.partition(task='multilabel')`")
    if verbose:
        raise InputError("`verbose=True` is not supported; omit it")
    threads = None if n_jobs is None else checks.positive(n_jobs, "n_jobs")
    labels, probs = read_labels(labels, pred_probs)
    order, offsets = group_by_site(sites, len(labels))
    y, p = labels[order], probs[order]
    if filter_by in _PRUNING:
        if confident_joint is None:
            counts = count_matrix(p, y, client_offsets=offsets, calibrate=True, threads=threads)
        else:
            counts = _counts_by_given(confident_joint, p.shape[1])
        counts = _pruning_counts(counts, min_examples_per_class, frac_noise)
        found = _prune_labels(y, p, offsets, counts, filter_by, min_examples_per_class, num_to_remove_per_class)
        found &= ~_agree(y, p)
    elif filter_by == "confident_learning":
        found = _confident_issues(y, p, offsets, threads)
    elif filter_by == "predicted_neq_given":
        found = (p.argmax(1) != y) & ~_agree(y, p)
    else:
        method: Method = "self_confidence" if filter_by == "low_self_confidence" else "normalized_margin"
        scores = get_label_quality_scores(y, p, method=method)
        found = _lowest(scores, _confident_issues(y, p, offsets, threads), offsets)
    mask = np.zeros(len(labels), bool)
    mask[order] = found
    if return_indices_ranked_by is None:
        return mask
    scores = get_label_quality_scores(
        labels, probs, method=return_indices_ranked_by, sites=sites, **(rank_by_kwargs or {})
    )  # fmt: skip
    issues = np.flatnonzero(mask)
    return issues[np.argsort(scores[issues], kind="stable")]


def _check_options(filter_by, frac_noise, removed, joint, sites, rank_by_kwargs):
    """Raise for options that are unknown or do not apply to the filter."""
    if filter_by not in _FILTERS:
        raise InputError(f"`filter_by` must be {', '.join(_FILTERS)}, found {filter_by!r}{nearest(str(filter_by), _FILTERS)}")
    if not 0 <= frac_noise <= 1:
        raise InputError(f"`frac_noise` must lie in 0..1, found {frac_noise!r}")
    only = f"is for `filter_by` {', '.join(_PRUNING)}, found {filter_by!r}; omit it"
    if frac_noise != 1 and filter_by not in _PRUNING:
        raise InputError(f"`frac_noise` {only}")
    if joint is not None and filter_by not in _PRUNING:
        raise InputError(f"`confident_joint` {only}")
    if joint is not None and sites is not None:
        raise InputError("`confident_joint` cannot be combined with `sites`, which have a matrix each; omit one of them")
    if removed is not None and filter_by != "prune_by_class":
        raise InputError(f"`num_to_remove_per_class` is for `filter_by` 'prune_by_class', found {filter_by!r}")
    if unknown := set(rank_by_kwargs or {}) - {"adjust_pred_probs"}:
        raise InputError(f"`rank_by_kwargs` has the key {sorted(unknown)[0]!r}; only 'adjust_pred_probs' is known")


def _counts_by_given(joint, classes):
    """Return counts[true, given] (1, C, C) of a confident joint, which has given labels in rows."""
    joint = np.asarray(joint)
    if joint.shape != (classes, classes) or joint.dtype.kind not in "iuf":
        raise InputError(f"`confident_joint` must hold numbers of shape ({classes}, {classes}), found {joint.shape}")
    return joint.T[None]


def _pruning_counts(counts, least, frac_noise):
    """Return integer counts (S, C, C) with at least `least` on the diagonal and `frac_noise` of the other entries."""
    classes = np.arange(counts.shape[1])
    diagonal = counts[:, classes, classes]
    kept = np.maximum(diagonal, least)
    others = np.maximum(np.count_nonzero(counts, axis=1) - 1.0, 1.0)
    left = np.maximum(counts - ((kept - diagonal) / others)[:, None], 0)
    left[:, classes, classes] = kept
    fewer = left * frac_noise
    fewer[:, classes, classes] = kept
    fewer[:, classes, classes] = kept + (left - fewer).sum(1)
    return fewer.astype(np.int64)


def _prune_labels(labels, probs, offsets, counts, filter_by, least, removed):
    """Return the issues (n,) of the filters that prune a number of samples for each label of each site."""
    classes = probs.shape[1]
    if removed is not None and np.shape(removed) != (classes,):
        raise InputError(f"`num_to_remove_per_class` must have shape ({classes},), found {np.shape(removed)}")
    by_class, by_rate = np.zeros((2, len(labels)), bool)
    group = owners(offsets) * classes + labels
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        site, given = divmod(group[rows[0]], classes)
        if len(rows) <= least:
            continue
        own, numbers = probs[rows, given], counts[site, :, given]
        wrong = len(rows) - numbers[given] if removed is None else removed[given]
        by_class[rows[_smallest(own, wrong)]] = True
        for true in np.flatnonzero(numbers):
            if true != given and filter_by != "prune_by_class":
                by_rate[rows[_smallest(own - probs[rows, true], numbers[true])]] = True
    return {"prune_by_class": by_class, "prune_by_noise_rate": by_rate, "both": by_class & by_rate}[filter_by]


def _agree(labels, probs):
    """Return whether the label of each sample is the predicted class, up to a tolerance."""
    raised = probs.copy()
    raised[np.arange(len(labels)), labels] += _SLACK
    return raised.argmax(1) == labels


def _confident_issues(labels, probs, offsets, threads):
    """Return the samples (n,) for which the model is confident in another class than the label."""
    limits = class_thresholds(probs, labels, client_offsets=offsets, threads=threads)
    found = confident_class(probs, limits[owners(offsets)])
    return (found >= 0) & (found != labels) & ~_agree(labels, probs)


def _lowest(scores, issues, offsets):
    """Return the samples (n,) with the lowest scores of each site, as many as the site has issues."""
    found = np.zeros(len(scores), bool)
    for start, stop in zip(offsets[:-1], offsets[1:], strict=True):
        found[start + _smallest(scores[start:stop], issues[start:stop].sum())] = True
    return found


def _smallest(values, number):
    """Return the positions of the `number` smallest values (n,); of equal values, the first ones."""
    if not 0 < number < len(values):
        return np.arange(len(values) if number > 0 else 0)
    limit = np.partition(values, number - 1)[number - 1]
    below = np.flatnonzero(values < limit)
    return np.append(below, np.flatnonzero(values == limit)[: number - len(below)])
