"""Local training of K clients with a compiled network and a loss in PyTorch.

In each step, the forward passes of all clients are compiled, the loss of all logits (K, B, C) is one call of PyTorch, and the
backward passes are compiled.  Only clients with equal batch sizes take a step together (`timetable`), so that batches are never
padded and a loss can combine the samples of a batch.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fnlkit.federated.client.client import Batch
from fnlkit.federated.client.network import Network
from fnlkit.federated.client.training import Fit, loss_values
from fnlkit.federated.engines.cohort_memory import BatchRows, PooledRows, StackedValues
from fnlkit.federated.engines.descent import Descent
from fnlkit.federated.engines.stacked_training import Group, timetable
from fnlkit.federated.engines.visit import Visit
from fnlkit.kernels.fused import FusedAugment, FusedCohort, FusedSteps, single_network, widths_of

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
        self.pair = net[0] == "pair"
        self.optimizer = Descent(fit, [self.starts]) if drift is None else None
        self.rows = PooledRows(clients, network.device, self.room)
        y = self.rows.join([client.y for client in clients])
        # Positions of the samples of each group in joined rows, and their labels, (g, B).
        places = self.draws["order"] + np.arange(len(clients))[:, None, None] * self.room
        self.index = [torch.from_numpy(places[group.who, group.step, : group.size]) for group in self.groups]
        self.y = [y[index] for index in self.index]
        self.first = torch.tensor([[False], [True]])
        self.state = StackedValues([client.state for client in clients], network.device)
        shared = visits[0].received
        self.broadcast = {name: value for name, value in shared.items() if name not in scattered}
        self.scatter = StackedValues([{name: v.received[name] for name in scattered} for v in visits], network.device)

    def train(self) -> torch.Tensor:
        """Train locally: weights (K, P); rows are written back to the clients."""
        results = self._forward(self.groups[0]) if self.groups else None
        following = [*self.groups[1:], None][: len(self.groups)]  # none without epochs
        for group, index, y, after in zip(self.groups, self.index, self.y, following, strict=True):
            results = self._step(group, index, y, results, after)
        self.rows.write_back()
        return torch.from_numpy(self.cohort.weights)

    def _forward(self, group):
        return self.cohort.forward(group.who, group.step, group.size)

    def _step(self, group: Group, index: torch.Tensor, y: torch.Tensor, results: Any, following: Group | None) -> Any:
        """Take a step from the results of its forward passes, and return the results of the following step."""
        who, at, size, fit, g = group.who, group.step, group.size, self.fit, len(group.who)
        pick = slice(0, g) if who[-1] == g - 1 else torch.from_numpy(who)
        batch = Batch(
            y=y,
            rows=BatchRows(self.rows, index),
            state=self.state.at(pick),
            received={**self.broadcast, **self.scatter.at(pick)},
            uniform=self._drawn("uniform", who, at, size),
            first=self.first[int(group.first)].expand(g),
        )
        share, partner = self._drawn("share", who, at), self._drawn("partner", who, at, size)
        unmixed = share is not None and fit.unmixed
        if fit.teacher:
            batch.teacher = self._plain(who, at, size, mixed=not unmixed, start=True)[0]
        if unmixed:
            batch.share, batch.partner = share.to(self.network.dtype), partner
            batch.unmixed, batch.unmixed_features = self._plain(who, at, size, mixed=False)
        leaves = [part.requires_grad_() for part in self._split(results)]
        logits, batch.features = self._outputs(*leaves)
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
        slopes = torch.cat(gradients, -1)
        if self.pair:
            slopes = slopes.unflatten(-1, (2, -1)).transpose(1, 2).flatten(0, 1)
        slopes = slopes.contiguous().numpy()
        if self.optimizer is None:
            results = self.cohort.backward(who, at, slopes, then=following and following[:3])
        else:
            self.cohort.backward(who, at, slopes)
            self._descend(pick, batch)
            results = following and self._forward(following)
        for name, new in rows.items():
            pool = self.rows.changed(name)
            pool[index] = new.detach().to(pool)
        return results

    def _drawn(self, name, who, at, *size):
        """Select the random choices of a step; None if there are none."""
        drawn = self.draws[name]
        return None if drawn is None else torch.from_numpy(drawn[(who, at, *map(slice, size))])

    def _plain(self, *step, **which):
        """Logits and features (g, B, ...) of another forward pass, without gradient."""
        return self._outputs(*self._split(self.cohort.forward(*step, **which)))

    def _split(self, results):
        """Results of the compiled networks: of a pair the features (g, B, 2 C), else features, if there are any, and logits."""
        results, classes = torch.from_numpy(results), self.cohort.classes
        if self.pair:
            return [results.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)]
        features, logits = results[..., :-classes], results[..., -classes:]
        return [features, logits] if features.shape[-1] else [logits]

    def _outputs(self, *parts):
        """Logits and features (g, B, ...) of the module from the results that `_split` returns."""
        if self.pair:
            return self.network.module.classify(parts[0]), parts[0]
        return parts[-1], parts[0] if self.fit.features else None

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
