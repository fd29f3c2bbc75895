"""Replies that a site can send in a task: names, types and shapes."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fnlkit.audits import audit, shifts, summaries
from fnlkit.client import scaling, testing
from fnlkit.sites import scale
from fnlkit.sites.terms import Task, estimator_of

if TYPE_CHECKING:
    from fnlkit.components.declarations import Sent
    from fnlkit.experiment.plan import Plan


def replies_of(task: Task, plan: "Plan") -> "Mapping[str, Sent]":
    """Return {name: Sent} of all replies of the task of a run beyond ``weights``.

    Parameters
    ----------
    task : fnlkit.sites.terms.Task
    plan : fnlkit.experiment.plan.Plan
        Its components count in the task ``train`` only.
    """
    if task.name == "train":
        return plan.sends
    if task.name == scale.TASK:
        return scaling.SENDS
    if task.name == "audit":
        return {name: sent for name, sent in audit.SENDS.items() if name not in scaling.SENDS}
    if task.name == "evaluate":
        return testing.SENDS
    return estimator_of(task.judging.estimator)[1]


def open_sides(task: Task) -> dict[str, int]:
    """Return the largest number of each side of a reply that no declaration fixes."""
    image = task.kind == "image"
    columns = 1 if image else min(math.prod(task.shape), shifts.MOST_COLUMNS)
    means = shifts.GRID**2 + 1 if image else min(math.prod(task.shape), shifts.MOST_FEATURES)
    changes = len(shifts.possible(task.kind, task.shape))
    means = math.prod(task.shape) if task.name == scale.TASK else 2 * means
    out = {"columns": columns, "features": means, "changes": changes, "summed": summaries.SIZES[-1]}
    return out | {"groups": len(task.classes) + 1}


def declared_arrays(
    replies: "Mapping[str, Sent]", *, classes: int, samples: int, width: int, size: int, dtype: str
) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Return {name: (type, shape)} of all arrays that a site can send.

    Parameters
    ----------
    replies : dict of str to Sent
        As returned by `replies_of`.
    classes, samples, width, size : int
        Number of classes, samples of the site, features of the network, and length of the weight vector.
    dtype : str
        Type of the weights.
    """
    out: dict[str, tuple[str, tuple[int | str, ...]]] = {"weights": (dtype, (size,))}
    known = {"classes": classes, "samples": samples, "width": width, "size": size}
    for name, sent in replies.items():
        out.setdefault(name, (sent.dtype, sent.sides(**known)))
    return out
