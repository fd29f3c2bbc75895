"""cleanlab's summaries of classes, with sites: `from fnlkit.dataset import health_summary`.

Give `labels` and `pred_probs`, or `joint` and `num_examples`, or `confident_joint`. With `sites` (n,), which needs the first,
each site is judged alone: tables have a first column "Site", and numbers become arrays (S,), sites in sorted order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts.display import frame
from fnlkit.cleanlab.count import estimate_joint, num_label_issues
from fnlkit.errors import InputError


class Inputs(TypedDict, total=False):
    """Joints with labels in rows: probabilities (C, C), or counts (C, C) of `fnlkit.count`; and sites (n,)."""

    num_examples: int | None
    joint: ArrayLike | None
    confident_joint: ArrayLike | None
    multi_label: bool
    sites: ArrayLike | None


def rank_classes_by_label_quality(
    labels: Any = None, pred_probs: Any = None, *, class_names: Any = None, **inputs: Unpack[Inputs]
) -> Any:
    """Return a DataFrame with a row per class, lowest quality first.

    Columns: Label Issues, samples with the label and another true class; Inverse Label Issues, samples of the class with
    another label; Label Noise and Inverse Label Noise, their shares; Label Quality Score, 1 - Label Noise, and 1 for a class
    without labels.
    """
    tables = []
    for site, joint, n in _joints(labels, pred_probs, **inputs):
        right, given, true = joint.diagonal(), joint.sum(1), joint.sum(0)
        wrong = [np.divide(total - right, total, out=np.zeros(len(right)), where=total > 0) for total in (given, true)]
        table = {
            "Class Index": np.arange(len(right)),
            "Label Issues": _whole((given - right) * n),
            "Inverse Label Issues": _whole((true - right) * n),
            "Label Noise": wrong[0],
            "Inverse Label Noise": wrong[1],
            "Label Quality Score": 1 - wrong[0],
        }
        tables.append(_sort(site, table, "Label Quality Score", False, class_names))
    return _join(tables)


def find_overlapping_classes(
    labels: Any = None, pred_probs: Any = None, *, asymmetric: bool = False, class_names: Any = None, **inputs: Unpack[Inputs]
) -> Any:
    """Return a DataFrame with a row per pair of classes, largest overlap first.

    Columns: Num Overlapping Examples, samples with one class as the label and the other one as the true class; Joint
    Probability, their share of all samples. With `asymmetric`, A is the label and B the true class.
    """
    tables = []
    for site, joint, n in _joints(labels, pred_probs, **inputs):
        first, second = np.nonzero(~np.eye(len(joint), dtype=bool)) if asymmetric else np.triu_indices(len(joint), 1)
        share = joint[first, second] if asymmetric else (joint + joint.T)[first, second]
        table = {
            "Class Index A": first,
            "Class Index B": second,
            "Num Overlapping Examples": _whole(share * n),
            "Joint Probability": share,
        }
        tables.append(_sort(site, table, "Joint Probability", True, class_names))
    return _join(tables)


def overall_label_health_score(
    labels: Any = None, pred_probs: Any = None, *, verbose: bool = True, **inputs: Unpack[Inputs]
) -> Any:
    """Return the estimated share of right labels, 0..1.

    From `labels` and `pred_probs`, 1 - `fnlkit.count.num_label_issues` / n; else the sum of the diagonal of the joint.
    """
    sites = inputs.get("sites")
    names, joints, sizes = zip(*_joints(labels, pred_probs, **inputs), strict=True)
    score = np.trace(joints, axis1=1, axis2=2)
    if labels is not None and pred_probs is not None and inputs.get("joint") is None:
        score = 1 - np.atleast_1d(num_label_issues(labels, pred_probs, sites=sites)) / sizes
    for name, one, n in zip(names, score, sizes, strict=True) if verbose else ():
        print(f"{name or 'all'}: {round((1 - one) * n):,} of {n:,} labels may be wrong; label health score {one:.2f}")
    return float(score[0]) if sites is None else score


def health_summary(
    labels: Any = None,
    pred_probs: Any = None,
    *,
    asymmetric: bool = False,
    class_names: Any = None,
    verbose: bool = True,
    **inputs: Unpack[Inputs],
) -> dict[str, Any]:
    """Return a dict of overall_label_health_score, joint, classes_by_label_quality and overlapping_classes."""
    joints = [joint for _, joint, _ in _joints(labels, pred_probs, **inputs)]
    classes = rank_classes_by_label_quality(labels, pred_probs, class_names=class_names, **inputs)
    pairs = find_overlapping_classes(labels, pred_probs, asymmetric=asymmetric, class_names=class_names, **inputs)
    score = overall_label_health_score(labels, pred_probs, verbose=verbose, **inputs)
    if verbose:
        print(f"\n{classes.head(10).to_string(index=False)}\n\n{pairs.head(10).to_string(index=False)}")
    return {
        "overall_label_health_score": score,
        "joint": joints[0] if inputs.get("sites") is None else np.array(joints),
        "classes_by_label_quality": classes,
        "overlapping_classes": pairs,
    }


def _joints(
    labels: Any,
    pred_probs: Any,
    num_examples: Any = None,
    joint: Any = None,
    confident_joint: Any = None,
    multi_label: bool = False,
    sites: Any = None,
) -> Iterator[tuple[Any, np.ndarray, int]]:
    """Yield site, joint distribution (C, C) and number of samples of each site."""
    if multi_label:
        raise InputError("`multi_label=True` is not supported here; use fnlkit.filter or fnlkit.count")
    if sites is not None:
        if labels is None or pred_probs is None or joint is not None or confident_joint is not None:
            raise InputError("`sites` needs `labels` and `pred_probs`, without `joint` and `confident_joint`")
        names, sizes = np.unique(np.asarray(sites), return_counts=True)
        yield from zip(names, estimate_joint(labels, pred_probs, sites=sites), sizes.tolist(), strict=True)
        return
    if joint is None and confident_joint is None and (labels is None or pred_probs is None):
        raise InputError("give `labels` and `pred_probs`, or `joint` and `num_examples`, or `confident_joint`")
    if num_examples is None and labels is not None:
        num_examples = np.size(labels)
    if num_examples is None and confident_joint is not None:
        num_examples = int(np.sum(confident_joint))
    if num_examples is None:
        raise InputError("`joint` needs `num_examples` or `labels`")
    if joint is None and labels is not None and pred_probs is not None:
        joint = estimate_joint(labels, pred_probs, confident_joint=confident_joint)
    elif joint is None:
        joint = np.asarray(confident_joint) / max(np.sum(confident_joint), 1)
    yield None, np.asarray(joint, np.float64), num_examples


def _whole(numbers):
    return np.rint(numbers).astype(np.int64)


def _sort(site, table, column, descending, class_names):
    """Return the columns of a table sorted by one of them, with names of classes and the site before them."""
    order = np.argsort(-table[column] if descending else table[column], kind="stable")
    table = {name: values[order] for name, values in table.items()}
    if class_names is not None:
        names = np.array(list(class_names), object)
        for name in [name for name in table if name.startswith("Class Index")][::-1]:
            table = {name.replace("Index", "Name"): names[table[name]], **table}
    return table if site is None else {"Site": np.full(len(order), site), **table}


def _join(tables):
    return frame({name: np.concatenate([table[name] for table in tables]) for name in tables[0]})
