"""Steps of SGD and Adam for K clients at once, equal to torch.optim for each client."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from fnlkit.federated.client.training import BETAS, EPS
from fnlkit.federated.engines.products import kernels_for

LARGE = 2**18  # weights of a tensor for which a kernel of its own pays


class Descent:
    """Optimizer of local training with a separate state for each client.

    Parameters
    ----------
    fit : fnlkit.federated.client.training.Fit
    parameters : list of Tensor (K, ...)

    Attributes
    ----------
    velocity, second : list of Tensor (K, ...)
        Momentum of SGD, or the two moments of Adam. `second` is empty for SGD.
    steps : Tensor (K,)
        Number of Adam steps so far.
    rate : Tensor ()
    """

    def __init__(self, fit, parameters):
        first = parameters[0]
        self.fit = fit
        self.velocity = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters] if fit.optimizer == "adam" else []
        self.steps = torch.zeros(len(first), dtype=first.dtype, device=first.device)
        self.rate = torch.tensor(fit.lr, dtype=first.dtype, device=first.device)
        self._taken = set()

    @property
    def memory(self) -> list[torch.Tensor]:
        """All tensors that a step changes."""
        return [*self.velocity, *self.second, self.steps]

    def step(
        self,
        weights: list[torch.Tensor],
        gradients: list[torch.Tensor],
        pick: slice | torch.Tensor,
        leading: bool,
        by_client: bool = False,
        low: Sequence[torch.Tensor | None] = (),
    ) -> None:
        """Update `weights` in place.

        Parameters
        ----------
        weights : list of Tensor (g, ...)
        gradients : list of Tensor (g, ...)
            With `by_client`, list of Tensor (...): those of the first client, then those of the second client, and so on. Type
            and memory layout can differ from the weights.
        pick : slice or int64 Tensor (g,)
            Positions of these clients among the K clients.
        leading : bool
            Whether they are the first g clients, so that indexing returns a view of the optimizer's state.
        by_client : bool
            Only for SGD: read the gradients where backpropagation wrote them, which saves a copy of all gradients.
        low : list of Tensor (g, ...) or None
            Copies of the weights in a lower precision, which are updated too; None if layers read the weights themselves.
        """
        if self.fit.optimizer == "adam":
            self._adam(weights, gradients, pick)
        else:
            velocity = [v[pick] for v in self.velocity] if self.fit.momentum else []
            views = (_by_client(weights), _by_client(velocity)) if by_client else (weights, velocity)
            if self.rate.device.type == "cuda" and self.rate.dtype != torch.float32:
                self._plain_sgd(views[0], gradients, views[1])
            elif low and kernels_for(self.rate.device) is not None:
                low = self._low_sgd(weights, gradients, velocity, low)
            else:
                self._fused_sgd(views[0], alike(gradients, views[0]), views[1])
            if not leading:
                for store, v in zip(self.velocity, velocity, strict=False):
                    store[pick] = v
        stale = [(part, w) for part, w in zip(low, weights, strict=False) if part is not None]
        if stale:
            torch._foreach_copy_([part for part, _ in stale], [w for _, w in stale])

    def start(
        self,
        leaves: list[torch.Tensor],
        weights: list[torch.Tensor],
        low: Sequence[torch.Tensor | None],
        beside: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        """Let large tensors take their step of SGD during backpropagation, as soon as their gradient is complete.

        The step reads and writes memory while the products of other layers compute. Arguments as in `step`, for the first g
        clients.

        Parameters
        ----------
        leaves : list of Tensor (g, ...)
            Leaves of the autograd graph.
        beside : callable
            Returns a context of a second stream, which the caller joins before `step`.
        """
        self._taken.clear()
        if kernels_for(self.rate.device) is None or self.fit.optimizer != "sgd":
            return
        for i, (leaf, w, part) in enumerate(zip(leaves, weights, low, strict=True)):
            if part is not None and w.numel() >= LARGE:
                leaf.register_hook(partial(self._take, i, w, part, beside))

    def _take(self, i, w, part, beside, g):
        velocity = self.velocity[i][: len(w)] if self.fit.momentum else None
        if _fits_kernel(w, g):
            with beside():
                kernels_for(w.device).descend(w, g, velocity, part, self.rate, self.fit.momentum, self.fit.weight_decay)
            self._taken.add(i)

    def _low_sgd(self, weights, gradients, velocity, low):
        """Update large tensors by a kernel that writes the copies too; return the other copies, None for these."""
        rest, left = [], list(low)
        for i, (w, g, v) in enumerate(zip(weights, gradients, velocity or [None] * len(weights), strict=True)):
            kernel = low[i] is not None and w.numel() >= LARGE and _fits_kernel(w, g)
            if kernel:
                left[i] = None
            if kernel and i not in self._taken:
                kernels_for(w.device).descend(w, g, v, low[i], self.rate, self.fit.momentum, self.fit.weight_decay)
            if not kernel:
                rest.append((w, g, v))
        self._taken.clear()
        if rest:
            weights, gradients, velocity = map(list, zip(*rest, strict=True))
            self._fused_sgd(weights, alike(gradients, weights), velocity if self.fit.momentum else [])
        return left

    def _plain_sgd(self, weights, gradients, velocity):
        """Update `weights` operation by operation, without the fused optimizer.

        On a GPU the fused optimizer reads the learning rate as float32, which would round it.
        """
        if self.fit.weight_decay:
            gradients = torch._foreach_add(gradients, weights, alpha=self.fit.weight_decay)
        if self.fit.momentum:
            torch._foreach_mul_(velocity, self.fit.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_sub_(weights, torch._foreach_mul(gradients, self.rate))

    def _fused_sgd(self, weights, gradients, velocity):
        torch._fused_sgd_(
            weights,
            gradients,
            velocity,
            weight_decay=self.fit.weight_decay,
            momentum=self.fit.momentum,
            lr=self.rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def _adam(self, weights, gradients, pick):
        if self.fit.weight_decay:
            gradients = torch._foreach_add(gradients, weights, alpha=self.fit.weight_decay)
        self.steps[pick] += 1
        taken = self.steps[pick]
        rate, correction = self.rate / (1 - BETAS[0] ** taken), (1 - BETAS[1] ** taken).sqrt()
        for w, g, first, second in zip(weights, gradients, self.velocity, self.second, strict=True):
            wide = (slice(None), *[None] * (w.dim() - 1))
            m, v = first[pick].lerp(g, 1 - BETAS[0]), second[pick] * BETAS[1] + (1 - BETAS[1]) * g * g
            first[pick], second[pick] = m, v
            w -= rate[wide] * m / (v.sqrt() / correction[wide] + EPS)


def _by_client(tensors):
    """View tensors (g, ...) by client: all of the first client, then all of the second client, and so on."""
    return [part for client in zip(*(t.unbind() for t in tensors), strict=True) for part in client]


def _fits_kernel(w, g):
    """Whether a kernel can read weights and gradient in the order of memory."""
    return w.stride() == g.stride() and w.stride(0) * len(w) == w.numel() < 2**31


def alike(gradients, weights):
    """Bring gradients into the type and memory layout of the weights; those that differ are copied, all at once.

    The fused step reads memory in storage order.
    """
    aligned = list(gradients)
    pairs = enumerate(zip(gradients, weights, strict=True))
    differing = [i for i, (g, w) in pairs if g.dtype != w.dtype or g.stride() != w.stride()]
    copies = [torch.empty_like(weights[i]) for i in differing]
    if differing:
        torch._foreach_copy_(copies, [gradients[i] for i in differing])
    for i, copy in zip(differing, copies, strict=True):
        aligned[i] = copy
    return aligned
