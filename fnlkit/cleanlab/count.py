"""cleanlab's counts of labels and true classes, with sites: `from fnlkit.cleanlab.count import compute_confident_joint`.

Arguments are those of cleanlab 2.9 and `sites` (n,). With `sites`, each site is counted alone, and results have a first axis of
S sites in sorted order. Joints have given labels in rows. With `multi_label`, labels are lists of classes, and a result has an
axis of C classes with joints (2, 2), in which class 0 is the absence of the class.
"""

import warnings
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.cleanlab.filter import find_label_issues, read_joint
from fnlkit.cleanlab.rank import class_pairs, class_table, read_class_lists, read_labels, rows_of_sites
from fnlkit.core.errors import InputError
from fnlkit.kernels import checks, class_thresholds, count_matrix
from fnlkit.kernels.counting import calibrate_counts, confident_class

Estimation = Literal["off_diagonal", "off_diagonal_calibrated", "off_diagonal_custom"]
Prior = Literal["cnt", "eqn", "marginal", "marginal_ps"]


def get_confident_thresholds(
    labels: Any, pred_probs: ArrayLike, multi_label: bool = False, *, sites: ArrayLike | None = None
) -> NDArray[np.float64]:
    """Class thresholds (C,), or (C, 2) with `multi_label`; see `fnlkit.class_thresholds`.

    Examples
    --------
    >>> get_confident_thresholds([0, 0, 1], [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    array([0.75, 0.8 ])
    """
    if multi_label:
        return np.stack([get_confident_thresholds(*pair, sites=sites) for pair in _pairs(labels, pred_probs)], -2)
    labels, probs = read_labels(labels, pred_probs)
    return _stack([class_thresholds(probs[rows], labels[rows]) for rows in rows_of_sites(sites, len(labels))], sites)


def compute_confident_joint(
    labels: Any,
    pred_probs: ArrayLike,
    *,
    thresholds: ArrayLike | None = None,
    calibrate: bool = True,
    multi_label: bool = False,
    return_indices_of_off_diagonals: bool = False,
    sites: ArrayLike | None = None,
) -> Any:
    """Count the confident joint (C, C) int64: the transposed `fnlkit.count_matrix`.

    `thresholds` (C,) are those of all sites. With `return_indices_of_off_diagonals`, also return the positions of samples that
    are confident in another class than the label: an array, with `multi_label` one a class, with `sites` one a site.

    Examples
    --------
    >>> compute_confident_joint([0, 0, 0, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.1, 0.9]])
    array([[2, 1],
           [0, 1]])
    """
    options = {"calibrate": calibrate, "return_indices_of_off_diagonals": return_indices_of_off_diagonals, "sites": sites}
    if multi_label:
        pairs = list(_pairs(labels, pred_probs))
        limits: Any = [None] * len(pairs) if thresholds is None else checks.array(thresholds, "thresholds")
        if np.shape(limits) not in ((len(pairs),), (len(pairs), 2)):
            raise InputError(f"`thresholds` must have shape ({len(pairs)}, 2) with `multi_label`, found {np.shape(limits)}")
        joints = [
            compute_confident_joint(*pair, thresholds=limit, **options) for pair, limit in zip(pairs, limits, strict=True)
        ]
        if return_indices_of_off_diagonals:
            return np.stack([joint for joint, _ in joints], -3), [indices for _, indices in joints]
        return np.stack(joints, -3)
    labels, probs = read_labels(labels, pred_probs)
    fixed = None if thresholds is None else checks.array(thresholds, "thresholds", np.float64).reshape(-1)
    joints, indices = [], []
    for rows in rows_of_sites(sites, len(labels)):
        y, p = labels[rows], probs[rows]
        joints.append(count_matrix(p, y, thresholds=fixed, calibrate=calibrate).T)
        if return_indices_of_off_diagonals:
            true = confident_class(p, class_thresholds(p, y) if fixed is None else fixed)
            indices.append(np.arange(len(labels))[rows][(true >= 0) & (true != y)])
    joint = _stack(joints, sites)
    if not return_indices_of_off_diagonals:
        return joint
    return joint, indices[0] if sites is None else indices


def calibrate_confident_joint(
    confident_joint: ArrayLike, labels: Any, *, multi_label: bool = False, sites: ArrayLike | None = None
) -> NDArray[np.int64]:
    """Scale the joint so that each row sums to the number of samples with the label, in whole numbers."""
    joint = checks.array(confident_joint, "confident_joint")
    if joint.ndim < 2 + bool(multi_label) or (multi_label and joint.shape[-2:] != (2, 2)):
        form = "(..., C, 2, 2) with `multi_label`" if multi_label else "(..., C, C)"
        raise InputError(f"`confident_joint` must have shape {form}, found {joint.shape}")
    if multi_label:
        tables = class_table(labels, joint.shape[-3]).T.astype(np.int64)
        parts = zip(np.moveaxis(joint, -3, 0), tables, strict=True)
        return np.stack([calibrate_confident_joint(part, has, sites=sites) for part, has in parts], -3)
    classes = joint.shape[-1]
    labels = checks.integers(labels, "labels", np.size(labels), "sample")
    if not len(labels):
        raise InputError("is empty; give at least one sample", parameter="labels")
    checks.check_range(labels, "labels", classes)
    rows = rows_of_sites(sites, len(labels))
    shape = (len(rows), classes, classes)
    joint = read_joint(joint, shape[sites is None :])
    members = np.array([np.bincount(labels[here], minlength=classes) for here in rows])
    return _stack(calibrate_counts(joint.reshape(shape).swapaxes(1, 2), members).swapaxes(1, 2), sites)


def estimate_joint(
    labels: Any,
    pred_probs: ArrayLike,
    *,
    confident_joint: ArrayLike | None = None,
    multi_label: bool = False,
    sites: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Divide the calibrated joint by its sum (C, C): P(label, true class)."""
    if confident_joint is None:
        joint = compute_confident_joint(labels, pred_probs, multi_label=multi_label, sites=sites)
    else:
        joint = calibrate_confident_joint(confident_joint, labels, multi_label=multi_label, sites=sites)
    return joint / joint.sum((-2, -1), keepdims=True)


def num_label_issues(
    labels: Any,
    pred_probs: ArrayLike,
    *,
    confident_joint: ArrayLike | None = None,
    estimation_method: Estimation = "off_diagonal",
    multi_label: bool = False,
    sites: ArrayLike | None = None,
) -> Any:
    """Count the label issues; with `sites`, an array (S,).

    `off_diagonal`: samples of the filter ``confident_learning``, always used with `multi_label`. ``off_diagonal_calibrated``:
    entries off the diagonal of the calibrated joint. ``off_diagonal_custom``: the same for `confident_joint`.
    """
    if estimation_method not in get_args(Estimation):
        known = ", ".join(get_args(Estimation))
        raise InputError(f"`estimation_method` {estimation_method!r} is not a valid estimation method; use {known}")
    custom = estimation_method == "off_diagonal_custom"
    if custom and confident_joint is None and not multi_label:
        raise InputError("`off_diagonal_custom`: you need to provide pre-calculated counts as `confident_joint`")
    if confident_joint is not None and not custom:
        warnings.warn("`confident_joint` is ignored unless `estimation_method` is 'off_diagonal_custom'", stacklevel=2)
    if multi_label or estimation_method == "off_diagonal":
        issues = find_label_issues(labels, pred_probs, filter_by="confident_learning", multi_label=multi_label, sites=sites)
        return _stack([issues[rows].sum() for rows in rows_of_sites(sites, len(issues))], sites)
    if custom:
        joint = calibrate_confident_joint(confident_joint, labels, sites=sites)
    else:
        joint = compute_confident_joint(labels, pred_probs, sites=sites)
    return joint.sum((-2, -1)) - np.trace(joint, axis1=-2, axis2=-1)


def estimate_py_and_noise_matrices_from_probabilities(
    labels: ArrayLike,
    pred_probs: ArrayLike,
    *,
    thresholds: ArrayLike | None = None,
    converge_latent_estimates: bool = True,
    py_method: Prior = "cnt",
    calibrate: bool = True,
    sites: ArrayLike | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Estimate P(true class) (C,), P(label | true class), P(true class | label) and the confident joint (C, C).

    The columns of both conditional matrices sum to 1; those of a class without samples are 0. `py_method`: ``cnt`` is
    P(label) times the ratio of diagonals, ``eqn`` the solution of P(label) = P(label | true class) P(true class), ``marginal``
    its counterpart with the other matrix, ``marginal_ps`` the sums of the joint. `converge_latent_estimates` computes the three
    estimates from one another, three times (Northcutt et al. 2021).
    """
    if py_method not in get_args(Prior):
        raise InputError(f"`py_method` must be {', '.join(get_args(Prior))}, found {py_method!r}")
    joint = compute_confident_joint(labels, pred_probs, thresholds=thresholds, calibrate=calibrate, sites=sites)
    labels = np.asarray(labels)
    joints = zip(joint[None] if sites is None else joint, rows_of_sites(sites, len(labels)), strict=True)
    latent = [_latent(one, labels[rows], py_method, converge_latent_estimates) for one, rows in joints]
    py, noise, inverse = (_stack(part, sites) for part in zip(*latent, strict=True))
    return py, noise, inverse, joint


def _latent(joint, labels, method, converge):
    """Compute P(true class), P(label | true class) and P(true class | label) of one site."""
    ps = np.bincount(labels, minlength=len(joint)) / len(labels)
    noise = joint / np.maximum(joint.sum(0), 1e-100)
    inverse = (joint / np.maximum(joint.sum(1, keepdims=True), 1e-100)).T
    if method == "eqn":
        present = ps > 0
        py = np.zeros(len(ps))
        py[present] = np.linalg.solve(noise[np.ix_(present, present)], ps[present])
    else:
        counted = {"marginal": inverse @ ps, "marginal_ps": joint.sum(0) / joint.sum()}
        py = counted.get(method, _prior(ps, noise, inverse))
    py = _normalize(py)
    for _ in range(3 if converge else 0):
        for _ in range(5):
            inverse = noise.T * py[:, None]
            inverse /= np.maximum(inverse.sum(0), 1e-100)
            py = _prior(ps, noise, inverse)
        noise = inverse.T * ps[:, None]
        noise /= np.maximum(noise.sum(0), 1e-100)
    return py, noise, inverse


def _prior(ps, noise, inverse):
    """Compute P(true class) as P(label) times the ratio of the diagonals; 0 becomes 1e-6."""
    diagonal = noise.diagonal()
    return _normalize(np.divide(inverse.diagonal() * ps, diagonal, out=np.zeros(len(ps)), where=diagonal > 0))


def _normalize(py):
    py = np.clip(py, 1e-6, 1)
    return py / py.sum()


def _pairs(labels, pred_probs):
    return class_pairs(*read_class_lists(labels, pred_probs))


def _stack(values, sites):
    """Stack the values of all sites (S, ...); the value of the only one if `sites` is None."""
    return values[0] if sites is None else np.array(values)
