"""The audit from sums over real sites: what a site and the server agree on."""

from typing import TYPE_CHECKING

import numpy as np

from fnlkit.audits import messages, private
from fnlkit.core.declarations import Sent

if TYPE_CHECKING:
    from fnlkit.sites.project import Project, Task

FIRST = ("counts", "withheld", "observations", "width", "sums", "moments", "columns", "class_columns")
TABLES = tuple(f"{name}{end}" for name in messages.TABLES for end in ("", "_wrong"))
SECOND = (*TABLES, "chosen", "supported", "certain", "class_means", "covariances", "low", "high")
NOISY_FIRST, NOISY_SECOND = ("counts", "sums", "moments"), ("agreement", "predicted")
# Arrays of a message of which each site receives its own entry.
SCATTERED = ("coefficients", "sizes", "offsets", "known", "shares", "differ", "fits")


def scale_of(project: "Project") -> tuple[np.ndarray, np.ndarray] | None:
    """Read (mean (d,), std (d,)) of the columns of a table, or None."""
    if project.kind != "vector" or project.backbone or not project.mean:
        return None
    return messages.scale_of(project.mean, project.std)


def sends(task: "Task") -> dict[str, Sent]:
    """Declare {name: Sent} of the replies of an audit."""
    return private.SENDS if task.project.sums_epsilon is not None else {name: messages.SENDS[name] for name in FIRST + SECOND}
