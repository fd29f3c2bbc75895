"""Local training of K clients at once: a leading K on parameters, buffers, momentum and rows.

Clients never wait for each other's short batches: an epoch is walked in slots, first the full batches, then the short
ones that end it, and in each slot only clients with equally many samples are stacked.  So no sample is ever padded,
whatever the network does across its batch, and a client that is done is left out.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, vmap

from fnlkit.client.client import Batch
from fnlkit.client.training import loss_values
from fnlkit.models.dropout import Dropout2d

BETAS, EPS = (0.9, 0.999), 1e-8  # torch.optim.Adam's


class Group(NamedTuple):
    """Clients that take a step together.

    Attributes
    ----------
    who : int64 (g,)
        Places in the cohort, ascending; 0..g-1 where that is possible.
    step : int64 (g,)
        Each one's own step.
    size : int
        Samples in each one's batch.
    first : bool
        First step of an epoch.
    """

    who: np.ndarray
    step: np.ndarray
    size: int
    first: bool


def timetable(sizes, batch_size, epochs):
    """Yield the Groups of local training; with clients sorted by falling size, full batches concern the first g.

    Parameters
    ----------
    sizes : sequence of int (K,)
        Falling.
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
            # Whether a short step is an epoch's first differs, so that clients with no full batch go apart.
            for alone in (False, True):
                who = np.flatnonzero((rest == size) & ((full == 0) == alone))
                if len(who):
                    yield Group(who, epoch * steps[who] + full[who], size, alone)


class Both(nn.Module):
    """Calls a network, or its two halves where the loss wants to see what is between them."""

    def __init__(self, net, features):
        super().__init__()
        self.net, self.halves = net, features

    def forward(self, x):
        if not self.halves:
            return self.net(x)
        features = self.net.features(x)
        return self.net.classify(features), features


class Gathered(Mapping):
    """Rows of the batch at hand, each fetched when it is asked for."""

    def __init__(self, pools, index):
        self.pools, self.index, self.fetched = pools, index, {}

    def __getitem__(self, name):
        if name not in self.fetched:
            self.fetched[name] = self.pools[name][self.index]
        return self.fetched[name]

    def __iter__(self):
        return iter(self.pools)

    def __len__(self):
        return len(self.pools)


class Stack(Mapping):
    """One entry of each client's memory, stacked when it is asked for; `pick` chooses clients."""

    def __init__(self, memories, device, pick=None, made=None):
        self.memories, self.device, self.pick, self.made = memories, device, pick, {} if made is None else made

    def __getitem__(self, name):
        if name not in self.made:
            self.made[name] = torch.stack([torch.as_tensor(m[name]).to(self.device) for m in self.memories])
        return self.made[name] if self.pick is None else self.made[name][self.pick]

    def __iter__(self):
        return iter(self.memories[0])

    def __len__(self):
        return len(self.memories[0])

    def whole(self):
        """Return the names whose values have one shape."""
        shapes = {name: {torch.as_tensor(m[name]).shape for m in self.memories} for name in self}
        return [name for name, found in shapes.items() if len(found) == 1]

    def at(self, pick):
        return Stack(self.memories, self.device, pick, self.made)


class Cohort:
    """K clients in local training.

    Parameters
    ----------
    network : fnlkit.client.network.Network
    twin : Network or None
        Holds the received model when the loss asks for a teacher.
    clients : list of Client
        By falling size; with rows and state of the same names.
    starts : Tensor (K, P + Q)
    fit : Fit
    plans : list of Plan
    received : list of dict
        The client's own `broadcast` and `scatter`.
    scattered : set of str
        Names of `received` that differ from client to client.
    pool, offsets : Tensor (m, ...), int64 (K,)
        Samples of these clients, maybe among those of others, and where each client's begin.
    room : int
        Samples to keep place for on each client, so that other clients can take it over; the largest's by default.

    Attributes
    ----------
    branched : bool
        Clients pass the network one by one, beside each other on a GPU, instead of as one stack.
    """

    def __init__(self, network, twin, clients, starts, fit, plans, received, scattered, pool, offsets, room=0):
        self.network, self.twin, self.clients, self.fit, self.pool = network, twin, clients, fit, pool
        device, k = network.device, len(clients)
        self.device, self.shared_start, self.branched = device, bool((starts == starts[0]).all()), False
        self.both = Both(network.module, fit.features)
        self.starts = starts.clone()
        self.parameters, self.buffers = {}, {}
        for name, a, b, shape in network.slots:
            part = starts[:, a:b].reshape(k, *shape).clone()
            (self.parameters if b <= network.parameters_count else self.buffers)[f"net.{name}"] = part
        self._other_buffers()
        self.velocity = [torch.zeros_like(p) for p in self.parameters.values()]
        self.second = [torch.zeros_like(p) for p in self.velocity] if fit.optimizer == "adam" else []
        self.steps = torch.zeros(k, dtype=network.dtype, device=device)
        self.rate = torch.tensor(fit.lr, dtype=network.dtype, device=device)
        self.sizes = [len(c) for c in clients]
        self.room = max(room, *self.sizes)
        self._draws(plans, fit.epochs * -(-self.room // fit.batch_size))
        # What a step is told: its clients (g,), their own steps, whether an epoch begins.
        self.everyone = torch.arange(k, device=device)
        self.who, self.at = self.everyone.clone(), self.everyone.clone()
        self.first = torch.zeros(k, dtype=torch.bool, device=device)
        self.offset = torch.from_numpy(np.asarray(offsets)).to(device)
        self.local = self.everyone * self.room
        self.rows = Pools(clients, device, self.room)
        self.y = self.rows.joined([c.y for c in clients])
        self.state = Stack([c.state for c in clients], device)
        shared = received[0].items()
        self.broadcast = {n: v.to(device, copy=True) for n, v in shared if n not in scattered}
        self.scatter = Stack([{n: r[n] for n in scattered} for r in received], device)

    def _other_buffers(self):
        """Buffers that do not travel: counters start as the network holds them, dropout keys from a client's stream."""
        k, module = len(self.clients), self.network.module
        keys = torch.tensor([int(c.rng.integers(2**62)) for c in self.clients], device=self.device)
        for name, buffer in module.named_buffers():
            if not buffer.is_floating_point():
                self.buffers[f"net.{name}"] = buffer.expand(k, *buffer.shape).clone()
        for name, part in module.named_modules():
            if isinstance(part, Dropout2d):
                self.buffers[f"net.{name}.key" if name else "net.key"] = keys.clone()

    def _draws(self, plans, steps):
        """Join the plans, padded to one length; the padding is never read."""

        def joined(name):
            arrays = [getattr(p, name) for p in plans]
            if arrays[0] is None:
                return None
            batch = () if arrays[0].ndim == 1 else (min(self.fit.batch_size, self.room), *arrays[0].shape[2:])
            shape = (steps, *batch)
            out = np.zeros((len(arrays), *shape), arrays[0].dtype)
            for place, a in zip(out, arrays, strict=True):
                place[tuple(map(slice, a.shape))] = a
            return torch.from_numpy(out).to(self.device)

        self.order, self.partner = joined("order"), joined("partner")
        self.shift, self.flip, self.centre = joined("shift"), joined("flip"), joined("centre")
        self.uniform = joined("uniform")
        share = joined("share")
        # 1 - share in float64, as the specification has it, before either is rounded.
        self.share = None if share is None else (share.to(self.network.dtype), (1 - share).to(self.network.dtype))

    def train(self, step=None):
        """Return the weights (K, P + Q) after local training; rows are written back to the clients.

        Parameters
        ----------
        step : (g, size, front) -> None
            Does a step in place of `self.step`.
        """
        self.network.module.train()
        if self.twin is not None:
            self.twin.load(self.starts[0])
            self.twin.module.eval()
        try:
            for group in timetable(self.sizes, self.fit.batch_size, self.fit.epochs):
                (step or self.step)(*self.told(group))
        finally:
            self.network.module.eval()
        self.rows.write_back()
        return self.weights()

    def told(self, group):
        """Write down which clients take which step next; return what a step's shapes depend on: (g, size, front)."""
        g = len(group.who)
        self.who[:g] = torch.from_numpy(group.who)
        self.at[:g] = torch.from_numpy(group.step)
        self.first[:g] = group.first
        return g, group.size, bool((group.who == np.arange(g)).all())

    def weights(self):
        travelling = [f"net.{name}" for name, *_ in self.network.slots]
        both = {**self.parameters, **self.buffers}
        return torch.cat([both[name].reshape(len(self.clients), -1) for name in travelling], 1)

    def step(self, g, size, front):
        """One step of the g clients told, with `size` samples each; `front` when they are the first g."""
        who, at = self.who[:g], self.at[:g]
        # The first g clients are a view, which a step may change in place; others are taken out and put back.
        pick = slice(0, g) if front else who
        weights = [p[pick] for p in self.parameters.values()]
        buffers = {name: b[pick] for name, b in self.buffers.items()}
        batch, gradients = self._gradients(pick, who, at, size, weights, buffers)
        with torch.no_grad():
            gradients = self._corrected(gradients, weights, pick, batch)
            self._descend(weights, gradients, pick, front)
            if not front:
                for store, new in zip(self.parameters.values(), weights, strict=True):
                    store[who] = new
                for name, value in buffers.items():
                    self.buffers[name][who] = value

    def _gradients(self, pick, who, at, size, weights, buffers):
        """Return the Batch and the gradient of each parameter tensor; rows that the loss hands back are written."""
        fit, inputs = self.fit, self.clients[0].inputs

        def drawn(values):
            return None if values is None else values[who, at, :size]

        order = drawn(self.order)
        x = self.pool[order + self.offset[who, None]]
        if fit.augment:
            x = inputs.augmented(x, fit.augment, drawn(self.shift), drawn(self.flip), drawn(self.centre))
        else:
            x = inputs.plain(x)
        index = order + self.local[who, None]
        batch = Batch(
            y=self.y[index],
            rows=Gathered(self.rows, index),
            state=self.state.at(pick),
            received={**self.broadcast, **self.scatter.at(pick)},
            uniform=drawn(self.uniform),
            first=self.first[: len(who)],
        )
        plain = None
        if self.share is not None:
            share, rest = (part[who, at] for part in self.share)
            partner = drawn(self.partner)
            if fit.unmixed:
                plain, batch.share, batch.partner = x, share, partner
                batch.unmixed = self._judged(weights, buffers, x)
            wide = (slice(None), *[None] * (x.dim() - 1))
            along = partner.reshape(*partner.shape, *[1] * (x.dim() - 2)).expand(x.shape)
            x = share[wide] * x + rest[wide] * x.gather(1, along)
        if self.twin is not None:
            with torch.no_grad():
                batch.teacher = self._teach(x if plain is None else plain, pick)
        leaves, out = (self._branches if self.branched else self._stack)(weights, buffers, x)
        logits, batch.features = out if fit.features else (out, None)
        values, rows = loss_values(fit.loss, logits, batch)
        if self.share is not None:
            other, _ = loss_values(fit.loss, logits, replace(batch, y=batch.y.gather(1, partner)))
            values = share[:, None] * values + rest[:, None] * other
        gradients = torch.autograd.grad(values.mean(-1).sum(), leaves, allow_unused=True)
        gradients = [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, leaves, strict=True)]
        if self.branched:
            gradients = [torch.stack(gradients[i :: len(weights)]) for i in range(len(weights))]
        for name, new in rows.items():
            pool = self.rows.changed(name)
            pool[index] = new.detach().to(pool)
        return batch, gradients

    def _stack(self, weights, buffers, x):
        """Return the leaves of the graph of derivatives, and what the network says to all clients at once."""
        leaves = [w.detach().requires_grad_() for w in weights]
        tensors = dict(zip(self.parameters, leaves, strict=True))
        return leaves, vmap(self._call, randomness="different")(tensors, buffers, x)

    def _branches(self, weights, buffers, x):
        """The same client by client, each on a stream of its own where there are any."""
        leaves, outs, streams = [], [], self._streams(len(x))
        for k, stream in enumerate(streams):
            with stream:
                own = [w[k].detach().requires_grad_() for w in weights]
                tensors = dict(zip(self.parameters, own, strict=True))
                outs.append(self._call(tensors, {n: b[k] for n, b in buffers.items()}, self.network.laid_out(x[k])))
                leaves += own
        joined = [torch.stack(part) for part in zip(*outs, strict=True)] if self.fit.features else torch.stack(outs)
        return leaves, joined

    def _judged(self, weights, buffers, x):
        """Return what the clients' models as they stand say to samples, in evaluation mode and without gradient."""
        self.network.module.eval()
        try:
            with torch.no_grad():
                out = (self._branches if self.branched else self._stack)(weights, buffers, x)[1]
        finally:
            self.network.module.train()
        return out[0] if self.fit.features else out

    def _streams(self, count):
        """Yield a context for each branch; streams start after what is queued so far, and are waited for at the end."""
        if self.device.type != "cuda":
            yield from (contextlib.nullcontext() for _ in range(count))
            return
        main, streams = torch.cuda.current_stream(), self.__dict__.setdefault("_side", [])
        streams += [torch.cuda.Stream() for _ in range(count - len(streams))]
        for stream in streams[:count]:
            stream.wait_stream(main)
            yield torch.cuda.stream(stream)
        for stream in streams[:count]:
            main.wait_stream(stream)

    def _call(self, parameters, buffers, x):
        def network(x):
            return functional_call(self.both, {**parameters, **buffers}, (x,))

        return self.network.computed(network, x)

    def _teach(self, x, pick):
        if self.shared_start:
            return self.network.computed(self.twin.module, x.flatten(0, 1)).unflatten(0, x.shape[:2])
        tensors = {n: self.starts[pick, a:b].reshape(len(x), *shape) for n, a, b, shape in self.network.slots}

        def teach(tensors, x):
            return self.network.computed(lambda v: functional_call(self.twin.module, tensors, (v,)), x)

        return vmap(teach)(tensors, x)

    def _corrected(self, gradients, weights, pick, batch):
        """Return the gradients with the corrections added and clipped, client by client."""
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

    def _descend(self, weights, gradients, pick, front):
        """Move `weights` in place, as torch.optim's SGD and Adam do."""
        fit = self.fit
        if fit.optimizer == "adam":
            if fit.weight_decay:
                gradients = torch._foreach_add(gradients, weights, alpha=fit.weight_decay)
            return self._adam(weights, gradients, pick)
        velocity = [v[pick] for v in self.velocity] if fit.momentum else []
        torch._fused_sgd_(
            weights,
            [g.contiguous() for g in gradients],  # it reads memory as it lies
            velocity,
            weight_decay=fit.weight_decay,
            momentum=fit.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        if not front:
            for store, v in zip(self.velocity, velocity, strict=False):
                store[pick] = v

    def _adam(self, weights, gradients, pick):
        self.steps[pick] += 1
        taken = self.steps[pick]
        rate, correction = self.rate / (1 - BETAS[0] ** taken), (1 - BETAS[1] ** taken).sqrt()
        for w, g, first, second in zip(weights, gradients, self.velocity, self.second, strict=True):
            wide = (slice(None), *[None] * (w.dim() - 1))
            m, v = first[pick].lerp(g, 1 - BETAS[0]), second[pick] * BETAS[1] + (1 - BETAS[1]) * g * g
            first[pick], second[pick] = m, v
            w -= rate[wide] * m / (v.sqrt() / correction[wide] + EPS)


class Pools(Mapping):
    """Rows of all clients of a cohort in one tensor a name, made when asked for and written back if changed.

    Each client has `room` places, of which it fills the first.
    """

    def __init__(self, clients, device, room):
        self.clients, self.device, self.room, self.made, self.written = clients, device, room, {}, set()

    def __getitem__(self, name):
        if name not in self.made:
            self.made[name] = self.joined([c.rows[name] for c in self.clients])
        return self.made[name]

    def joined(self, parts):
        """Return tensors (n, ...) of all clients in one (K room, ...)."""
        out = parts[0].new_zeros((len(parts), self.room, *parts[0].shape[1:]))
        for place, part in zip(out, parts, strict=True):
            place[: len(part)] = part
        return out.flatten(0, 1).to(self.device)

    def __iter__(self):
        return iter(self.clients[0].rows)

    def __len__(self):
        return len(self.clients[0].rows)

    def changed(self, name):
        """Return the tensor of a row to write into."""
        self.written.add(name)
        return self[name]

    def write_back(self):
        for name in self.written:
            parts = self.made[name].split(self.room)
            for client, part in zip(self.clients, parts, strict=True):
                client.rows[name].copy_(part[: len(client)])
