"""Local training of K clients with a compiled network and a loss in PyTorch.

In each step, the forward passes of all clients are compiled, the loss of all logits (K, B, C) is one call of PyTorch, and the
backward passes are compiled.  Only clients with equal batch sizes take a step together (`timetable`), so that batches are never
padded and a loss can combine the samples of a batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.training import loss_values
from fnlkit.federated.engines.cohort_memory import BatchRows, PooledRows, StackedValues
from fnlkit.federated.engines.descent import Descent
from fnlkit.federated.engines.stacked_training import Group, timetable
from fnlkit.kernels.fused import FusedAugment, FusedCohort, FusedSteps, single_network, widths_of

if TYPE_CHECKING:
    from fnlkit.federated.client.network import Network
    from fnlkit.federated.client.training import Fit
    from fnlkit.federated.engines.visit import Visit

# Multiplications of a step from which threads pay, and those of a sample for each weight.
_LARGE, _USES = 4_000_000, {"mlp": 1, "lenet5": 7}


class Lockstep:
    """K clients in local training.

    Parameters
    ----------
    net : tuple
        Description of the network for fnlkit.kernels.fused.
    network : fnlkit.federated.client.network.Network
    visits : list of Visit
        In decreasing order of size, with a plan. Rows and state must have the same names.
    fit : Fit
    scattered : set of str
        Names of `received` that differ from client to client.
    drift : dict or None
        Drift terms as keywords of FusedSteps; None computes corrections and clipping in PyTorch, on all gradients.
    threads : ThreadPoolExecutor
    workers : int
        Number of threads.
    """

    def __init__(
        self,
        net: tuple[Any, ...],
        network: Network,
        visits: list[Visit],
        fit: Fit,
        scattered: set[str],
        drift: dict[str, Any] | None,
        threads: ThreadPoolExecutor,
        workers: int,
    ):
        self.network, self.fit, self.drift = network, fit, drift
        clients, inputs = [v.client for v in visits], visits[0].client.inputs
        sizes = [len(client) for client in clients]
        self.room = max(sizes)
        self.groups = list(timetable([fit.views * n for n in sizes], fit.views * fit.batch_size, fit.epochs))
        self.draws = {name: _join([getattr(v.draws, name) for v in visits], name) for name in _DRAWS}
        self.starts = torch.stack([v.model.weights for v in visits])
        choices = {name: self.draws[name] for name in ("shift", "flip", "center", "partner", "share")}
        width = widths_of(single_network(net))[-2] if fit.features and net[0] != "pair" else 0
        work = _USES[single_network(net)[0]] * network.parameters_count * fit.views * fit.batch_size * len(visits)
        self.cohort = FusedCohort(
            net,
            self.starts.numpy(),
            np.concatenate([inputs.stored(client.x) for client in clients]),
            self.draws["order"],
            descent_of(fit, [v.draws for v in visits], drift),
            offset=np.cumsum([0, *sizes[:-1]]),
            augment=FusedAugment(pad=fit.augment.pad, side=fit.augment.cutout, **choices),
            width=width,
            threads=threads if work > _LARGE and workers > 1 else None,
            workers=workers,
            **inputs.normal,
        )
        self.pair, self.hidden = net[0] == "pair", width > 0
        self.optimizer = Descent(fit, [self.starts]) if drift is None else None
        self.rows = PooledRows(clients, network.device, self.room)
        self.y = self.rows.join([client.y for client in clients]).numpy()
        self.places = self.draws["order"] + np.arange(len(clients))[:, None, None] * self.room  # in joined rows
        self.first = torch.tensor([[False], [True]])
        self.state = StackedValues([client.state for client in clients], network.device)
        shared = visits[0].received
        self.broadcast = {name: value for name, value in shared.items() if name not in scattered}
        self.scatter = StackedValues([{name: v.received[name] for name in scattered} for v in visits], network.device)

    def train(self) -> torch.Tensor:
        """Train locally: weights (K, P); rows are written back to the clients."""
        for group in self.groups:
            self._step(group)
        self.rows.write_back()
        return torch.from_numpy(self.cohort.weights)

    def _step(self, group: Group) -> None:
        who = group.who
        at = group.step
        size = group.size
        fit = self.fit
        g = len(group.who)
        pick = slice(0, g) if who[-1] == g - 1 else torch.from_numpy(who)
        places = self.places[who, at, :size]
        index = torch.from_numpy(places)
        batch = Batch(
            y=torch.from_numpy(self.y[places]),
            rows=BatchRows(self.rows, index),
            state=self.state.at(pick),
            received={**self.broadcast, **self.scatter.at(pick)},
            uniform=self._drawn("uniform", who, at, size),
            first=self.first[int(group.first)].expand(g),
        )
        share, partner = self._drawn("share", who, at), self._drawn("partner", who, at, size)
        unmixed = share is not None and fit.unmixed
        if fit.teacher:
            batch.teacher = self._outputs(pick, *self.cohort.forward(who, at, size, mixed=not unmixed, start=True))[0]
        if unmixed:
            batch.share, batch.partner = share.to(self.network.dtype), partner
            batch.unmixed, batch.unmixed_features = self._outputs(pick, *self.cohort.forward(who, at, size, mixed=False))
        results = self.cohort.forward(who, at, size)
        leaves = [torch.from_numpy(part).requires_grad_() for part in results[: 1 + self.hidden]]
        if self.cohort.extra:
            leaves.append(self._head(pick).requires_grad_())
        logits, batch.features = self._outputs(pick, *leaves)
        values, rows = loss_values(fit.loss, logits, batch)
        if share is not None and not fit.mixes:
            other, _ = loss_values(fit.loss, logits, replace(batch, y=batch.y.gather(1, partner)))
            weight = share.to(values.dtype)[:, None], (1 - share).to(values.dtype)[:, None]
            values = weight[0] * values + weight[1] * other
        if fit.penalty is not None:
            values = values + fit.penalty(batch.features, batch)[:, None]
        # Of the sum of the mean losses of all clients.
        gradients = torch.autograd.grad(
            values, leaves, torch.full_like(values, 1 / size), allow_unused=True, materialize_grads=True
        )
        slopes = [part.contiguous().numpy() for part in gradients]
        hidden, extra = slopes[1] if self.hidden else None, slopes[-1] if self.cohort.extra else None
        self.cohort.backward(who, at, slopes[0], hidden, extra)
        if self.optimizer is not None:
            self._descend(pick, batch)
        for name, new in rows.items():
            pool = self.rows.changed(name)
            pool[index] = new.detach().to(pool)

    def _drawn(self, name, who, at, *size):
        """Select the random choices of a step; None if there are none."""
        drawn = self.draws[name]
        return None if drawn is None else torch.from_numpy(drawn[(who, at, *map(slice, size))])

    def _outputs(self, pick, logits, hidden=None, head=None):
        """Split the results of the compiled networks into logits and features (g, B, ...) of the module."""
        logits = torch.as_tensor(logits)
        if self.pair:
            features = torch.cat(logits.unflatten(0, (-1, 2)).unbind(1), -1)
            return self.network.module.classify(features), features
        if not self.fit.features:
            return logits, None
        hidden = torch.as_tensor(hidden)
        if self.cohort.extra:
            if head is None:
                head = self._head(pick)
            hidden = self.network.module.append_head(hidden, head)
        return logits, hidden

    def _head(self, pick):
        """The weights (g, H) that follow those of the network; `backward` changes them after their last use."""
        return torch.from_numpy(self.cohort.weights[:, -self.cohort.extra :])[pick].detach()

    def _descend(self, pick, batch):
        """Take a step with the gradients that the kernel wrote, after corrections and clipping."""
        fit, weights = self.fit, torch.from_numpy(self.cohort.weights)[pick]
        gradients = torch.from_numpy(self.cohort.gradients)[pick]
        for correction in fit.corrections:
            gradients = gradients + correction(weights, self.starts[pick], batch)
        if fit.clip:
            gradients = gradients * (fit.clip / gradients.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)
        weights = weights.contiguous()
        self.optimizer.step([weights], [gradients], pick, isinstance(pick, slice))
        self.cohort.replace_weights(pick, weights.numpy())


_DRAWS = ("order", "shift", "flip", "center", "share", "partner", "uniform")


def _join(arrays, name):
    """Join the random choices (K, steps, ...) of all clients, padded to equal length; None if there are none."""
    if arrays[0] is None:
        return None
    shape = np.max([a.shape for a in arrays], 0)
    joined = np.full((len(arrays), *shape), -1 if name == "order" else 0, arrays[0].dtype)
    for place, a in zip(joined, arrays, strict=True):
        place[tuple(map(slice, a.shape))] = a
    return joined


def descent_of(fit: Fit, plans: list[Any], drift: dict[str, Any] | None) -> FusedSteps:
    """Choose the optimizer of a Fit for the kernels; without `drift`, steps that only write the gradients."""
    if drift is None:
        return FusedSteps(0.0)
    return FusedSteps(
        fit.lr,
        momentum=fit.momentum,
        weight_decay=fit.weight_decay,
        optimizer=fit.optimizer,
        epoch_steps=[max(1, len(each) // max(fit.epochs, 1)) for each in plans],
        **drift,
    )
