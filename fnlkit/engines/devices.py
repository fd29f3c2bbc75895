"""The stacked engine spread over GPUs, with a process for each device.

A process trains a group of clients with the engine `make_stacked`. The groups follow from the cohort and `--at-once`
(`fnlkit.engines.stacked.groups_of`), so the number of devices does not change the results. Tasks and replies are sent
through the pipes of `fnlkit.engines.workers`, which repeats the task of a process that died. A message contains only weights,
labels and client state, once per round. A communication library such as gloo would add a second set of processes and failures.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from fnlkit.engines.stacked import Stacked, groups_of
from fnlkit.engines.workers import Workers

if TYPE_CHECKING:
    from fnlkit.client.client import Client
    from fnlkit.client.inputs import Inputs
    from fnlkit.client.network import Network


def make_stacked(
    clients: Sequence[Client], network: Network, inputs: Inputs, *, at_once: int = 0, **settings: Any
) -> Stacked | Devices:
    """Return the engine that trains the clients of a cohort together, on all devices that torch can use.

    Parameters
    ----------
    clients, network, inputs, **settings
        As for `fnlkit.engines.engine.Engine`.
    at_once : int
        Largest number of stacked clients. 0 means the whole cohort, or as many clients as fit into half of the free memory.
        Several devices are used only if this number is given, because each device trains a group of this size.
    """
    names = visible(network.device)
    if len(names) > 1 and at_once:
        return Devices(clients, network, inputs, names=names, at_once=at_once, **settings)
    engine = Stacked(clients, network, inputs, at_once=at_once, **settings)
    if len(names) > 1:
        engine.note(f"stacked: a single device of {len(names)} is used; `at_once=N` trains N clients on each device")
    return engine


def visible(device: torch.device) -> list[str]:
    """Return the values of CUDA_VISIBLE_DEVICES that select each device for `device`: all devices if it has no index."""
    if device.type != "cuda" or device.index is not None:
        return [""]
    names = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return [names[k] if names else str(k) for k in range(torch.cuda.device_count())]


class Devices(Workers):
    """Train groups of clients at once in processes, each on a separate device.

    The results equal the results of Stacked with the same `at_once` on a device of the same model, bit for bit.

    Parameters
    ----------
    names : list of str
        The value of CUDA_VISIBLE_DEVICES of each process.
    at_once : int
        Number of clients in a group.
    """

    inside, on, hint, numerics = Stacked, ("cpu", "cuda"), "", "stacked"

    def __init__(self, *args, names, at_once, **settings):
        super().__init__(*args, workers=len(names), **settings)
        self.names, self.options = names, {"at_once": at_once}
        if self.network.device.type == "cuda":
            self.note(f"stacked: {len(names)} devices, each with up to {at_once} clients at once")

    def _groups(self, ids):
        return groups_of(self.sizes[ids], self.options["at_once"])

    def _environment(self, k):
        return {"CUDA_VISIBLE_DEVICES": self.names[k]}  # within the process, this device is the first one
