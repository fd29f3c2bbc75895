"""cleanlab's filter of wrong labels, with sites: `from fnlkit.cleanlab.filter import find_label_issues`."""

import warnings
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.cleanlab.rank import (
    Method,
    class_pairs,
    get_label_quality_scores,
    joint_scores,
    own_and_other,
    read_class_lists,
    read_labels,
    rows_of_sites,
)
from fnlkit.core.errors import MOST_NAMES, InputError, list_names, nearest
from fnlkit.kernels import checks, class_thresholds, count_matrix
from fnlkit.kernels.counting import confident_class, round_rows

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
PRUNING = _FILTERS[:3]
# Filters that return the lowest scores, and the score.
_LOWEST: dict[str, Method] = {"low_normalized_margin": "normalized_margin", "low_self_confidence": "self_confidence"}


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
    """Find labels that are likely wrong, as a mask or indices.

    With `sites`, thresholds, counts and numbers of issues are computed for each site separately, without data of the other
    sites.

    Parameters
    ----------
    labels : array (n,) of int
        Given labels, 0..C-1; with `multi_label`, a list of the classes of each sample.
    pred_probs : array (n, C)
        Out-of-sample class probabilities; rows sum to 1 within 0.01, unless `multi_label`.
    sites : array (n,), optional
        Site of each sample. Default: all samples are at one site, as in cleanlab.
    return_indices_ranked_by : str, optional
        Method of `get_label_quality_scores`: return indices of the issues, lowest score first. Default: a mask.
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
    num_to_remove_per_class : int or array (C,) of int, optional
        For the first three filters, at each site. ``prune_by_class``: number of issues of each label; in other filters,
        the counts of each other class are scaled to this sum, as in cleanlab. With `multi_label`, an array: number of
        samples without the class.
    min_examples_per_class : int
        Labels with at most this number of samples (at a site) have no issues; for the first three filters.
    confident_joint : array (C, C), optional
        Counts with given labels in rows, for the first three filters without `sites`; (C, 2, 2) with `multi_label`.
        Default: the calibrated `count_matrix`.
    n_jobs : int, optional
        Number of threads. Default: `fnlkit.kernels.get_threads()`.
    verbose : bool
        Print the number of issues.
    multi_label : bool
        Each sample can have several classes or none. A sample is an issue if one of its classes or missing classes is.

    Returns
    -------
    ndarray (n,) bool, or (m,) int64 with `return_indices_ranked_by`

    Raises
    ------
    InputError
        As `get_label_quality_scores`, and for options that are unknown or do not apply.

    Warns
    -----
    UserWarning
        Once for all classes without labels or with too few labels for issues, and for options that `filter_by` ignores.

    Notes
    -----
    Equal to ``cleanlab.filter.find_label_issues`` of cleanlab 2.9; with `sites`, to its calls on the samples of each site. Ties
    are resolved by position, in cleanlab by an unstable sort.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.1, 0.9]]
    >>> find_label_issues([0, 0, 0, 1, 1], probs)
    array([False, False,  True, False, False])
    >>> find_label_issues([0, 0, 0, 1, 1], probs, return_indices_ranked_by="self_confidence")
    array([2])
    """
    least = checks.positive(min_examples_per_class, "min_examples_per_class", 0)
    _check_options(filter_by, frac_noise, num_to_remove_per_class, confident_joint, least, sites, rank_by_kwargs)
    threads = None if n_jobs is None else checks.positive(n_jobs, "n_jobs")
    options = {"filter_by": filter_by, "frac_noise": frac_noise, "least": least, "threads": threads}
    if multi_label:
        warnings.warn("cleanlab will remove `multi_label`; fnlkit keeps it", DeprecationWarning, stacklevel=2)
        labels, probs = read_class_lists(labels, pred_probs)
        find, score = _issues_of_lists, joint_scores
    else:
        labels, probs = read_labels(labels, pred_probs)
        find, score = _issues, get_label_quality_scores
    mask, sizes = np.zeros(len(probs), bool), []
    for rows in rows_of_sites(sites, len(probs)):
        mask[rows] = find(labels[rows], probs[rows], removed=num_to_remove_per_class, joint=confident_joint, **options)
        sizes.append(labels[rows].sum(0) if multi_label else np.bincount(labels[rows], minlength=probs.shape[1]))
    if filter_by != "predicted_neq_given":  # does not depend on other labels
        _warn_of_small_classes(np.array(sizes), sites, 0 if multi_label or filter_by not in PRUNING else least)
    if verbose:
        print(f"label issues: {mask.sum():,} of {len(mask):,} samples")
    if return_indices_ranked_by is None:
        return mask
    scores = score(labels, probs, method=return_indices_ranked_by, sites=sites, **(rank_by_kwargs or {}))
    issues = np.flatnonzero(mask)
    return issues[np.argsort(scores[issues], kind="stable")]


def _issues(labels, probs, *, filter_by, frac_noise, least, removed, joint, threads):
    """Find the issues (n,) of the samples of a site; see `find_label_issues`."""
    classes = probs.shape[1]
    own, other, agrees = own_and_other(probs, labels)
    if filter_by == "predicted_neq_given":
        return ~agrees
    if filter_by not in PRUNING:
        confident = confident_class(probs, class_thresholds(probs, labels, threads=threads))
        issues = ~agrees & (confident >= 0) & (confident != labels)
        if filter_by == "confident_learning":
            return issues
        return _lowest(own if filter_by == "low_self_confidence" else own - other, issues.sum())
    sizes = np.bincount(labels, minlength=classes)
    if joint is None:
        counts = count_matrix(probs, labels, calibrate=True, threads=threads)
    else:
        counts = read_joint(joint, (classes, classes)).T
    counts = _pruning_counts(counts, least, frac_noise)
    wrong = sizes - counts.diagonal()
    if removed is not None:
        wrong = _numbers(removed, classes)
        counts = _scale_counts(counts, sizes, wrong)
    large, small = np.zeros(len(labels), bool), np.zeros(len(labels), bool)
    for label in np.flatnonzero(sizes > least):
        rows = np.flatnonzero(labels == label)
        small[rows] = _lowest(own[rows], wrong[label])
        for true in np.flatnonzero(counts[:, label] > 0):
            if true != label:
                large[rows] |= _lowest(own[rows] - probs[rows, true], counts[true, label])
    chosen = {"prune_by_noise_rate": large, "prune_by_class": small, "both": large & small}
    return chosen[filter_by] & ~agrees


def _issues_of_lists(has, probs, *, filter_by, removed, joint, **options):
    """Find samples (n,) of a site for which a class (n, C) or its absence is an issue."""
    classes = has.shape[1]
    if joint is not None and np.shape(joint) == (classes, classes) and classes > 2:
        warnings.warn("`confident_joint` of shape (C, C) is ignored with `multi_label`; give (C, 2, 2)", stacklevel=3)
        joint = None
    if joint is not None:
        joint = read_joint(joint, (classes, 2, 2))
    if removed is not None and np.shape(removed) != (classes,):
        raise InputError(f"`num_to_remove_per_class` must have shape ({classes},), found {np.shape(removed)}")
    low = filter_by in _LOWEST
    any_class = np.zeros(len(has), bool)
    find = partial(_issues, filter_by="confident_learning" if low else filter_by, **options)
    for c, (labels, pairs) in enumerate(class_pairs(has, probs)):
        of_class = {"joint": None if joint is None else joint[c], "removed": None if removed is None else [removed[c], 0]}
        any_class |= find(labels, pairs, **of_class)
    return _lowest(joint_scores(has, probs, method=_LOWEST[filter_by]), any_class.sum()) if low else any_class


def _warn_of_small_classes(sizes, sites, least):
    """Warn once of all classes with at most `least` of `sizes` (S, C) labels."""
    small = sizes <= least
    if not small.any():
        return
    sites = [""] if sites is None else [f"{site}: " for site in np.unique(np.asarray(sites))]
    parts = [site + list_names(np.flatnonzero(row)) for site, row in zip(sites, small, strict=True) if row.any()]
    more = f"; and {len(parts) - MOST_NAMES:,} more sites" if len(parts) > MOST_NAMES else ""
    few = f"no issues in classes with at most {least} labels (`min_examples_per_class`)" if least else "classes without labels"
    warnings.warn(f"{few}: {'; '.join(parts[:MOST_NAMES])}{more}", stacklevel=3)


def _check_options(filter_by, frac_noise, removed, joint, least, sites, rank_by_kwargs):
    """Raise for options that are unknown or do not apply to the filter."""
    if filter_by not in _FILTERS:
        raise InputError(f"`filter_by` must be {', '.join(_FILTERS)}, found {filter_by!r}{nearest(str(filter_by), _FILTERS)}")
    if not (isinstance(frac_noise, int | float | np.number) and 0 <= frac_noise <= 1):
        raise InputError(f"`frac_noise` must lie in 0..1, found {frac_noise!r}")
    if joint is not None and sites is not None:
        raise InputError("`confident_joint` cannot be combined with `sites`, which have a matrix each; omit one of them")
    if filter_by not in PRUNING:
        if removed is not None:
            raise InputError(f"`num_to_remove_per_class` is not supported for `filter_by` {filter_by!r}; use {PRUNING[1]!r}")
        for name, ignored in {
            "frac_noise": frac_noise != 1, "confident_joint": joint is not None, "min_examples_per_class": least != 1,
        }.items():  # fmt: skip
            if ignored:
                warnings.warn(f"`{name}` is ignored for `filter_by` {filter_by!r}", stacklevel=3)
    if unknown := set(rank_by_kwargs or {}) - {"adjust_pred_probs"}:
        raise InputError(f"`rank_by_kwargs` has the key {sorted(unknown)[0]!r}; only 'adjust_pred_probs' is known")


def read_joint(joint: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Check a confident joint of this shape, with given labels in rows."""
    joint = checks.array(joint, "confident_joint")
    if joint.shape != shape or joint.dtype.kind not in "iuf":
        raise InputError(f"`confident_joint` must have shape {shape} and hold numbers, found {joint.shape} of {joint.dtype}")
    checks.finite(joint, "confident_joint", "count it again with compute_confident_joint")
    if joint.min(initial=0) < 0:
        raise InputError(f"`confident_joint` must hold counts of at least 0, found {joint.min()}")
    return joint


def _pruning_counts(counts, least, frac_noise):
    """Compute integer counts (C, C) with at least `least` on the diagonal and `frac_noise` of the other entries."""
    diagonal = counts.diagonal()
    kept = np.maximum(diagonal, least)
    others = np.maximum(np.count_nonzero(counts, axis=0) - 1.0, 1.0)
    left = np.maximum(counts - (kept - diagonal) / others, 0)
    np.fill_diagonal(left, kept)
    fewer = left * frac_noise
    np.fill_diagonal(fewer, kept)
    np.fill_diagonal(fewer, kept + (left - fewer).sum(0))
    return fewer.astype(np.int64)


def _numbers(removed, classes):
    """Read numbers of issues (C,) from `num_to_remove_per_class`."""
    removed = np.asarray(removed)
    if removed.dtype.kind not in "iu" or removed.shape not in ((), (classes,)) or (removed < 0).any():
        raise InputError(
            f"`num_to_remove_per_class` must be a number or have shape ({classes},), with whole numbers of at least 0; "
            f"found {removed.dtype} of shape {removed.shape}"
        )
    return np.broadcast_to(removed, (classes,))


def _scale_counts(counts, sizes, removed):
    """Scale counts (C, C) so that entries off the diagonal sum to `removed` (C,) for each true class.

    Shares are those of cleanlab, which divides the counts of label k by the sum of the counts of true class k.
    """
    shares = counts / np.maximum(counts.sum(1), 1)
    scaled = shares * (removed / np.maximum(shares.sum(1) - shares.diagonal(), 1e-100))[:, None]
    np.fill_diagonal(scaled, sizes - removed)
    return round_rows(scaled)


def _lowest(scores, number):
    """Select the `number` lowest scores (n,) by a mask; of equal scores, the first ones."""
    mask = np.zeros(len(scores), bool)
    mask[np.argsort(scores, kind="stable")[: max(number, 0)]] = True
    return mask
