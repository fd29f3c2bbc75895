"""The network of a task, which the site and the server build alike."""

from typing import Any

from fnlkit.experiment.network import build_network
from fnlkit.federated.client.network import Network
from fnlkit.sites.project import Task


def network_of(task: Task, shape: tuple[int, ...]) -> Network:
    """Build the network of a task with initial weights.

    Parameters
    ----------
    task : fnlkit.sites.project.Task
    shape : tuple of int
        Shape of a network's input.
    """
    settings, about = task.settings, task.project
    facts: dict[str, Any] = {
        "input_shape": shape,
        "classes": len(about.classes),
        "kind": about.kind,
        "pair": "pair" in task.plan.needs,
    }
    return build_network(settings.model, **facts, seed=settings.seed, precision=settings.precision)
