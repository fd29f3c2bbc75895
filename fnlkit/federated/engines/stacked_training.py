"""Local training of K clients at once.

Parameters, buffers, momentum and rows have a leading axis K.  An epoch consists of slots: first the full batches, then the
short batches at the end of the epoch.  In each slot only clients with equal batch sizes are stacked.  Batches are therefore
never padded, which is safe for networks that mix the samples of a batch.  A client that has finished is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.training import loss_values
from fnlkit.federated.engines.cohort_memory import BatchRows, PooledRows, StackedValues
from fnlkit.federated.engines.descent import Descent, alike
from fnlkit.federated.engines.forward import Forward
from fnlkit.models.dropout import Dropout


class StackedTraining:
    """K clients in local training.

    Parameters
    ----------
    network : fnlkit.federated.client.network.Network
    twin : Network or None
        Contains the received model if the loss needs a teacher.
    clients : list of Client
        Clients in decreasing order of size. Their rows and state must have the same names.
    starts : Tensor (K, P + Q)
    fit : Fit
    plans : list of Plan
    received : list of dict
        `broadcast` and `scatter` of each client.
    scattered : set of str
        Names of `received` that differ from client to client.
    pool, offsets : Tensor (m, ...), int64 (K,)
        Samples that include the samples of these clients, and the offset of each client.
    room : int
        Number of samples to reserve for each client, so that other clients can reuse the memory. Default: the largest size.
    """

    def __init__(self, network, twin, clients, starts, fit, plans, received, scattered, pool, offsets, room=0):
        self.network = network
        self.twin = twin
        self.clients = clients
        self.fit = fit
        self.pool = pool
        device, k = network.device, len(clients)
        self.device = device
        self.shared_start = bool((starts == starts[0]).all())
        self.starts = starts.clone()
        self.parameters, self.buffers = {}, {}
        for name, a, b, shape in network.slots:
            part = network.lay_out_weights(starts[:, a:b].reshape(k, *shape).clone())
            (self.parameters if b <= network.parameters_count else self.buffers)[f"net.{name}"] = part
        self._other_buffers()
        self.forward = Forward(network, twin, fit.features, list(self.parameters))
        self.descent = Descent(fit, list(self.parameters.values()))
        self._copy_low()
        sizes = [len(c) for c in clients]
        self.room = max(room, *sizes)
        self._join_draws(plans, fit.epochs * -(-self.room // fit.batch_size))
        self.groups = list(timetable([fit.views * n for n in sizes], fit.views * fit.batch_size, fit.epochs))
        self._lay_down(fit.epochs * (self.room // fit.batch_size + k))
        self.offset = torch.from_numpy(np.asarray(offsets)).to(device)
        self.rows = PooledRows(clients, device, self.room)
        self.y = self.rows.join([c.y for c in clients])
        self.state = StackedValues([c.state for c in clients], device)
        shared = received[0].items()
        self.broadcast = {n: v.to(device, copy=True) for n, v in shared if n not in scattered}
        self.scatter = StackedValues([{n: r[n] for n in scattered} for r in received], device)

    def _other_buffers(self):
        """Set the buffers that are not part of the model vector.

        Counters start with the values of the network, and dropout keys come from a client's random stream.
        """
        k, module = len(self.clients), self.network.module
        draws = [int(c.rng.integers(2**62)) for c in self.clients]
        self.key, keys = draws[0], torch.tensor(draws, device=self.device)
        for name, buffer in module.named_buffers():
            if not buffer.is_floating_point():
                self.buffers[f"net.{name}"] = buffer.expand(k, *buffer.shape).clone()
        for name, part in module.named_modules():
            if isinstance(part, Dropout):
                self.buffers[f"net.{name}.key" if name else "net.key"] = keys.clone()

    def _copy_low(self):
        """Copy the weights in the type of the layers, where it differs. Steps of the form "products" keep the copies equal."""
        weights = list(self.parameters.values())
        low = self.network.lower_precision(list(self.parameters), weights)
        self.low = [None if part is w else part for part, w in zip(low, weights, strict=True)]

    def _join_draws(self, plans, steps):
        """Join the plans, padded to equal length. The padding is never read."""

        def join(name: str) -> torch.Tensor | None:
            arrays = [getattr(p, name) for p in plans]
            if arrays[0] is None:
                return None
            batch = () if arrays[0].ndim == 1 else (self.fit.views * min(self.fit.batch_size, self.room), *arrays[0].shape[2:])
            shape = (steps, *batch)
            joined = np.zeros((len(arrays), *shape), arrays[0].dtype)
            for place, a in zip(joined, arrays, strict=True):
                place[tuple(map(slice, a.shape))] = a
            return torch.from_numpy(joined).to(self.device)

        self.order, self.partner = join("order"), join("partner")
        self.shift, self.flip, self.center = join("shift"), join("flip"), join("center")
        self.uniform = join("uniform")
        share = join("share")
        # Compute 1 - share in float64 before rounding either number, like the reference engine.
        self.share = None if share is None else (share.to(self.network.dtype), (1 - share).to(self.network.dtype))

    def _lay_down(self, places):
        """Store all groups on the device, where each step reads the current group.

        A copy from the host would make each step wait.
        """
        table, begins = np.zeros((places, 2, len(self.clients)), np.int64), np.zeros((places, 1), bool)
        for row, begin, group in zip(table, begins, self.groups, strict=False):
            row[0, : len(group.who)], row[1, : len(group.who)], begin[0] = group.who, group.step, group.first
        # For each group: the positions of the clients, their step numbers, and whether an epoch starts. Then the index of the
        # current group.
        self.table, self.begins = torch.from_numpy(table).to(self.device), torch.from_numpy(begins).to(self.device)
        self.turn = torch.zeros(1, dtype=torch.int64, device=self.device)

    def train(self, step: Callable[[int, int, bool], None] | None = None) -> torch.Tensor:
        """Train locally: weights (K, P + Q).

        Rows are written back to the clients.

        Parameters
        ----------
        step : (g, size, leading) -> None
            Function that replaces `self.step`.
        """
        self.network.module.train()
        if self.twin is not None:
            self.twin.load(self.starts[0])
            self.twin.module.eval()
        try:
            for group in self.groups:
                g = len(group.who)
                (step or self.step)(g, group.size, bool((group.who == np.arange(g)).all()))
        finally:
            self.network.module.eval()
        self.rows.write_back()
        return self.weights()

    def weights(self) -> torch.Tensor:
        """Model vectors of the clients (K, P + Q)."""
        tensors = {**self.parameters, **self.buffers}
        travelling = [tensors[f"net.{name}"].reshape(len(self.clients), -1) for name, *_ in self.network.slots]
        return torch.cat(travelling, 1)

    def step(self, g: int, size: int, leading: bool) -> None:
        """Execute the current step of g clients with `size` samples each.

        `leading` is true if they are the first g clients.
        """
        who, at = self.table[self.turn][0, :, :g]
        # The first g clients are a view, which a step can change in place. Other clients are copied and written back.
        pick = slice(0, g) if leading else who
        weights = [p[pick] for p in self.parameters.values()]
        buffers = {name: b[pick] for name, b in self.buffers.items()}
        low = [part if part is None else part[pick] for part in self.low] if self.forward.form == "products" else []
        batch, gradients = self._gradients(pick, who, at, size, weights, buffers, low, leading)
        self.turn += 1
        with torch.no_grad():
            gradients = self._correct(gradients, weights, pick, batch)
            by_client = self.forward.form == "branches" and self._as_computed()
            self.descent.step(weights, gradients, pick, leading, by_client, low)
            if not leading:
                for store, new in zip((*self.parameters.values(), *self.low), (*weights, *low), strict=False):
                    if store is not None:
                        store[who] = new
                for name, value in buffers.items():
                    self.buffers[name][who] = value

    def _gradients(self, pick, who, at, size, weights, buffers, low, leading):
        """Compute the Batch and the gradient of each parameter tensor.

        Rows that the loss returns are written to the clients' rows.
        """
        fit, order = self.fit, self.order[who, at, :size]
        parameters = [w if part is None else part for w, part in zip(weights, low, strict=True)] if low else weights
        index = order + who[:, None] * self.room
        batch = Batch(
            y=self.y[index],
            rows=BatchRows(self.rows, index),
            state=self.state.at(pick),
            received={**self.broadcast, **self.scatter.at(pick)},
            uniform=None if self.uniform is None else self.uniform[who, at, :size],
            first=self.begins[self.turn][0].expand(len(who)),
        )
        x, mix = self._inputs(order, who, at, size), None
        plain = x
        if self.share is not None:
            x, mix = self._mix(batch, x, who, at, size, parameters, buffers)
        if self.twin is not None:
            starts = None if self.shared_start else self.starts[pick]
            batch.teacher = self.forward.of_teacher(plain if fit.unmixed else x, starts)
        leaves, outputs = self.forward(parameters, buffers, x)
        logits, batch.features = outputs if fit.features else (outputs, None)
        values, rows = loss_values(fit.loss, logits, batch)
        if mix is not None and not fit.mixes:
            share, rest, partner = mix
            other, _ = loss_values(fit.loss, logits, replace(batch, y=batch.y.gather(1, partner)))
            values = share[:, None] * values + rest[:, None] * other
        if fit.penalty is not None:
            values = values + fit.penalty(batch.features, batch)[:, None]
        if low and leading and self._as_computed():
            self.descent.start(leaves, weights, low, self.forward.beside)
        gradients = torch.autograd.grad(values.mean(-1).sum(), leaves, allow_unused=True)
        self.forward.beside.join()
        gradients = [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, leaves, strict=True)]
        if not self._as_computed():
            gradients = match_layout(gradients, weights) if self.forward.form == "branches" else alike(gradients, weights)
        for name, new in rows.items():
            pool = self.rows.changed(name)
            pool[index] = new.detach().to(pool)
        return batch, gradients

    def _as_computed(self):
        """Whether gradients keep their layout and type, because no operation before the step combines them."""
        return self.fit.optimizer == "sgd" and not (self.fit.corrections or self.fit.clip)

    def _inputs(self, order, who, at, size):
        """Augment the current samples as network input (g, B, ...)."""
        x = self.pool[order + self.offset[who, None]]
        inputs = self.clients[0].inputs
        augment = self.fit.augment
        if not augment:
            return inputs.plain(x)
        draws = (None if v is None else v[who, at, :size] for v in (self.shift, self.flip, self.center))
        return inputs.augment_images(x, augment, *draws)

    def _mix(self, batch, x, who, at, size, weights, buffers):
        """Mix the input: mixed input, and (share, 1 - share, partner) of mixup.

        The data for a loss on unmixed samples is added to the batch.
        """
        share, rest = (part[who, at] for part in self.share)
        partner = self.partner[who, at, :size]
        if self.fit.unmixed:
            batch.share, batch.partner = share, partner
            batch.unmixed, batch.unmixed_features = self.forward.evaluated(weights, buffers, x)
        wide = (slice(None), *[None] * (x.dim() - 1))
        along = partner.reshape(*partner.shape, *[1] * (x.dim() - 2)).expand(x.shape)
        return share[wide] * x + rest[wide] * x.gather(1, along), (share, rest, partner)

    def _correct(self, gradients, weights, pick, batch):
        """Add the corrections to the gradients and clip them, client by client."""
        fit = self.fit
        if not (fit.corrections or fit.clip):
            return gradients
        g = len(gradients[0])
        flat = torch.cat([v.reshape(g, -1) for v in gradients], 1)
        if fit.corrections:
            w = torch.cat([part.reshape(g, -1) for part in weights], 1)
            w0 = self.starts[pick, : self.network.parameters_count]
            for correction in fit.corrections:
                flat += correction(w, w0, batch)
        if fit.clip:
            flat *= (fit.clip / flat.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        parts = flat.split([v[0].numel() for v in gradients], 1)
        return [part.reshape(v.shape) for part, v in zip(parts, gradients, strict=True)]


def match_layout(parts: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Bring gradients (g, ...) into the memory layout and type of parameters (g, ...).

    Parameters
    ----------
    parts : list of Tensor (...)
        Gradients of the first client's parameters, then of the second client's parameters, and so on.
    weights : list of Tensor (g, ...)
    """
    matched = [torch.empty_like(w) for w in weights]
    torch._foreach_copy_([o[k] for k in range(len(weights[0])) for o in matched], list(parts))
    return matched


class Group(NamedTuple):
    """Clients that take a step together.

    Attributes
    ----------
    who : int64 (g,)
        Positions in the cohort, ascending; 0..g-1 if possible.
    step : int64 (g,)
        Step number of each client.
    size : int
        Batch size of each client.
    first : bool
        Whether this is the first step of an epoch.
    """

    who: np.ndarray
    step: np.ndarray
    size: int
    first: bool


def timetable(sizes: Sequence[int], batch_size: int, epochs: int) -> Iterator[Group]:
    """Yield the Groups of local training.

    Because clients are sorted by decreasing size, full batches belong to the first g clients.

    Parameters
    ----------
    sizes : sequence of int (K,)
        Numbers of samples in decreasing order.
    batch_size, epochs : int
    """
    sizes = np.asarray(sizes)
    full, rest = sizes // batch_size, sizes % batch_size
    steps = full + (rest > 0)
    for epoch in range(epochs):
        for slot in range(full.max(initial=0)):
            who = np.flatnonzero(full > slot)
            yield Group(who, epoch * steps[who] + slot, batch_size, slot == 0)
        for size in sorted(set(rest[rest > 0].tolist()), reverse=True):
            # For clients without a full batch, the short step is the first step of the epoch. They form a separate group.
            for alone in (False, True):
                who = np.flatnonzero((rest == size) & ((full == 0) == alone))
                if len(who):
                    yield Group(who, epoch * steps[who] + full[who], size, alone)
