"""Engine that trains the whole cohort at once.

Use it on a GPU, because a single small client leaves most of the device idle, or for small steps on a CPU.
"""

import contextlib
import traceback
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.federated.client.client import Part, read_ahead, sizes_of
from fnlkit.federated.client.failure import Failure, failure
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Network, predict
from fnlkit.federated.client.training import Fit, seeded, train_client
from fnlkit.federated.engines.graphs import Graphs
from fnlkit.federated.engines.sequential import Sequential, one_thread
from fnlkit.federated.engines.stacked_training import StackedTraining
from fnlkit.federated.engines.visit import Visit, begin_visits
from fnlkit.federated.server.clients import Ask


class Stacked(Sequential):
    """Clients of a cohort train together, with a leading axis K on all tensors.

    Parameters
    ----------
    at_once : int
        Largest number of stacked clients. 0 means the whole cohort, or as many clients as fit into half of the free memory.
    """

    _score, numerics = staticmethod(predict), "stacked"

    def __init__(self, *args, at_once=0, **settings):
        super().__init__(*args, **settings)
        self.at_once = at_once
        self._alone = set()
        self._needs = {}
        sizes = sizes_of(self.members)
        self.graphs, self.room = Graphs(self.note), int(sizes.max(initial=0))
        self.pool, self.offsets = None, np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Run a request; see `Engine.run`."""
        replies: list[Any] = [None] * len(request.ids)
        with one_thread(), on_device(self.network.device):
            for group in groups_of(self.sizes[request.ids], self.at_once):
                visits = begin_visits(self, request.part(group), self._score)
                for j, reply in zip(group, self._visit_together(visits, request.steps, set(request.scatter)), strict=True):
                    replies[j] = reply
        return replies

    def _visit_together(self, visits, steps, scattered):
        try:
            for visit in visits:
                visit.guard(visit.client.arrive)
            for step in steps:
                alive = [v for v in visits if v.error is None]
                if isinstance(step, Fit):
                    self._fit(alive, step, scattered)
                else:
                    self._do_all(alive, step)
        finally:
            for visit in visits:
                visit.client.leave()
        return [v.outcome for v in visits]

    def _do_all(self, alive, step):
        for visit in alive:
            visit.do(step)

    def _fit(self, alive, fit, scattered):
        self._make_twin([fit])
        if self.pool is None and self._resident():
            self.pool = torch.cat(
                [c.samples.gather() if isinstance(c.samples, Part) else c.x for c in read_ahead(self.members)]
            )
            self.pool = self.pool.to(self.network.device)
        alike = {}
        for visit in alive:
            visit.guard(partial(visit.plan, fit, self.seed, visit.round))
        for visit in (v for v in alive if v.error is None):
            alike.setdefault(_memory(visit.client), []).append(visit)
        for group in alike.values():
            group.sort(key=lambda v: -len(v.client))
            size = self._fitting(group, fit)
            for i in range(0, len(group), size):
                self._together(group[i : i + size], fit, scattered)

    def _resident(self):
        """Whether the samples of all clients stay on the device.

        This is true on a GPU if the samples need at most half of the free memory.
        """
        device = self.network.device
        if not self.graphs.usable(device):
            return False
        first = self.members[0].x
        whole = int(sizes_of(self.members).sum()) * first[:1].numel() * first.element_size()
        return 2 * whole <= free_memory(device)

    def _samples(self, clients):
        """Join the samples of clients on the device, and compute the offset of each client."""
        if self.pool is not None:
            return self.pool, self.offsets[[c.id for c in clients]]
        if self.graphs.usable(self.network.device):  # a recording fixes sizes: use the largest client's size
            x = torch.zeros((len(clients), self.room, *clients[0].x.shape[1:]), dtype=clients[0].x.dtype)
            for place, client in zip(x, read_ahead(clients), strict=True):
                place[: len(client)] = client.x
            return x.flatten(0, 1).to(self.network.device), np.arange(len(clients)) * self.room
        x = torch.cat([c.x for c in read_ahead(clients)]).to(self.network.device)
        return x, np.concatenate([[0], np.cumsum([len(c) for c in clients])[:-1]])

    def _together(self, part, fit, scattered):
        """Train some clients at once, or one by one if stacking fails."""
        name = _describe_steps(fit)
        if name in self._alone:
            return self._one_by_one(part, fit)
        streams = [v.client.rng.bit_generator.state for v in part]
        halve = False
        try:
            weights = self._train_stack(part, fit, scattered)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a client fails, or the network cannot be stacked
            for visit, state in zip(part, streams, strict=True):
                visit.client.rng.bit_generator.state = state
            if isinstance(error, torch.OutOfMemoryError) and len(part) > 1:
                self.note(f"stacked: {len(part)} clients at once do not fit into memory; trying {len(part) // 2}")
                halve = True
            weights, reason = None, failure(error, part[0].client.id, part[0].round).name  # an error text can contain samples
            # Not before halves are tried: the frames of the traceback would keep their tensors once they were read.
            cause = name if halve else _layer(error, self.network.module) or name
        if halve:  # here, because the traceback of the error would keep the tensors that did not fit
            self._together(part[: len(part) // 2], fit, scattered)
            return self._together(part[len(part) // 2 :], fit, scattered)
        if weights is None:
            self._one_by_one(part, fit)
            if all(v.error is None for v in part):
                self._alone.add(name)
                self.note(f"stacked: {cause} cannot be stacked ({reason}); its clients are trained one by one")
            return None
        for visit, w in zip(part, weights.unbind(0), strict=True):
            visit.trained(w)

    def _train_stack(self, part, fit, scattered):
        """Train clients together: weights (K, P + Q)."""
        clients, twin = [v.client for v in part], self.twin if fit.teacher else None
        room = self.room if self.graphs.usable(self.network.device) else 0
        starts = torch.stack([v.model.weights for v in part])
        plans = [v.draws for v in part]
        received = [v.received for v in part]
        arguments = self.network, twin, clients, starts, fit, plans, received, scattered, *self._samples(clients)
        training = StackedTraining(*arguments, room)
        with seeded(training.key):
            return self.graphs.train(training)

    def _one_by_one(self, part, fit):
        twin = self.twin if fit.teacher else None
        for visit in part:

            def train(visit: Visit = visit) -> None:
                arguments: Any = self.network, visit.client, visit.model.weights, fit, visit.draws, visit.received, twin
                visit.trained(train_client(*arguments))

            visit.guard(train)

    def _fitting(self, group, fit):
        """Number of clients that are trained at once."""
        if len(group) == 1:
            return 1
        need, free = self._need(group[0].client, fit), free_memory(self.network.device)
        wanted = min(self.at_once or len(group), len(group))
        if wanted * need <= free / 2:
            return wanted
        fitting = max(1, int(free / 2 / need))
        if self.at_once:
            if wanted * need > free:
                self.note(
                    f"stacked: {wanted} clients at once need about {_size(wanted * need)}, but {_size(free)} are free; "
                    f"write `at_once={fitting}`"
                )
            return wanted
        self.note(f"stacked: {fitting} clients at once instead of {wanted}, because each needs about {_size(need)}")
        return min(fitting, wanted)

    def _need(self, client, fit):
        """Measure `bytes_needed` of a client once for equal settings."""
        fit = fit.changed(batch_size=min(fit.batch_size, len(client)))
        key = (fit.views * fit.batch_size, fit.features, fit.optimizer, bool(fit.corrections or fit.clip))
        if key not in self._needs:
            self._needs[key] = bytes_needed(self.network, client.inputs, client.x[:1], fit)
        return self._needs[key]


def bytes_needed(network: Network, inputs: Inputs, x: torch.Tensor, fit: Fit) -> int:
    """Estimate the bytes that a client needs in local training.

    Parameters
    ----------
    network : fnlkit.federated.client.network.Network
    inputs : fnlkit.federated.client.inputs.Inputs
    x : Tensor (1, ...)
        A raw sample.
    fit : fnlkit.federated.client.training.Fit
    """
    vectors = 6 if fit.optimizer == "adam" else 5  # start, weights, gradient, momentum, a temporary
    vectors += 2 * bool(fit.corrections or fit.clip) + (network.precision == "bf16")
    stored = _activations(network, inputs.plain(x), fit.views * fit.batch_size)
    return vectors * network.size * network.flat.element_size() + stored


def groups_of(sizes: np.ndarray, at_once: int) -> list[list[int]]:
    """Group the positions of clients that train together: the largest clients first, `at_once` in each list.

    The groups do not depend on the number of devices. A stack of another size can round differently.

    Parameters
    ----------
    sizes : int64 (K,)
        Numbers of samples.
    at_once : int
        0 means a single group.
    """
    order = np.argsort(-sizes, kind="stable")
    size = at_once or len(order)
    return [sorted(order[i : i + size].tolist()) for i in range(0, len(order), size)]


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the current CUDA device within a context. It has no effect for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def _activations(network, x, size):
    """Measure the bytes that autograd stores for a step, times two.

    Gradients and temporary tensors need about the same amount as the stored tensors.
    """
    stored = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    weights_start = network.flat.untyped_storage().data_ptr()
    network.module.eval()
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        network.module(x.expand(size, *[-1] * (x.dim() - 1)))
    stored.pop(weights_start, None)
    return 2 * sum(stored.values())


def free_memory(device: torch.device) -> int:
    """Free bytes of a device."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 2**33


def _memory(client):
    """List the names, shapes and types of a client's memory.

    Two clients can be stacked only if these are equal.
    """
    rows = tuple((name, value.dtype, value.shape[1:]) for name, value in sorted(client.rows.items()))
    return rows, tuple(sorted(client.state)), client.samples.dtype, client.samples.shape[1:]


def _layer(error, network):
    """Name the innermost layer of the network in which an error arose; None if there is none."""
    layers = set(network.modules())
    frames = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    chain = [layer for layer in frames if isinstance(layer, torch.nn.Module) and layer in layers]
    return f"{type(chain[-1]).__name__} of the network {type(network).__name__}" if chain else None


def _describe_steps(fit):
    parts = [getattr(f, "func", f) for f in (fit.loss, *fit.corrections)]
    return " with ".join(getattr(f, "__name__", type(f).__name__) for f in parts)


def _size(count):
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
