"""Replies that a site can send in a task: names, types and shapes."""

import math
from collections.abc import Mapping

from fnlkit.core.declarations import Sent
from fnlkit.core.spec import parse
from fnlkit.federated.client import private_counts, scaling
from fnlkit.federated.client.network import Network
from fnlkit.models import cosines_of
from fnlkit.sites import scale
from fnlkit.sites.audit import sends
from fnlkit.sites.project import Task
from fnlkit.sites.site import audit


def replies_of(task: Task) -> Mapping[str, Sent]:
    """Declare {name: Sent} of all replies of a task beyond ``weights``.

    Parameters
    ----------
    task : fnlkit.sites.project.Task
    """
    if task.name == "train":
        return task.plan.sends
    return {"audit": sends(task), "evaluate": private_counts.SENDS, scale.TASK: scaling.SENDS}[task.name]


def open_sides(task: Task) -> dict[str, int]:
    """Largest number of each side of a reply that no declaration fixes."""
    about = task.project
    values = math.prod(about.shape)
    network = parse(task.settings.model)
    wide = values + 1 + (cosines_of(network.parameters) if network.name == "fourier" else 0)
    products = wide * (wide + 1) // 2
    sides = {"groups": len(about.classes) + 1, "features": values, "M(M+1)/2": products, "m(m+1)/2": products}
    return sides | audit.open_sides(about) if task.name == "audit" else sides


def declared_arrays(task: Task, network: Network, samples: int) -> dict[str, tuple[str, tuple[int | str, ...]]]:
    """Declare {name: (type, shape)} of all arrays that a site can send.

    Parameters
    ----------
    task : fnlkit.sites.project.Task
    network : fnlkit.federated.client.network.Network
    samples : int
        Number of samples of the site.
    """
    known = {"classes": len(task.project.classes), "samples": samples, "width": getattr(network.module, "width", 0)}
    declared = {name: (sent.dtype, sent.sides(**known, size=network.size)) for name, sent in replies_of(task).items()}
    return {**declared, "weights": (str(network.dtype).removeprefix("torch."), (network.size,))}
