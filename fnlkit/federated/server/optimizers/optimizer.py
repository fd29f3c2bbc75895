"""FedOpt: one communication round, with additions of an optimizer on client and server."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from fnlkit.core import own
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.core.parameters import select_accepted
from fnlkit.federated.client.losses.parts import needs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.aggregation import mean, outvotes_nobody, smallest_cohort
from fnlkit.federated.server.clients import Ask, Clients, Replies
from fnlkit.federated.server.protection import NotSummed, Summed

# Arguments that an aggregator can have in addition to the weights, see fnlkit.federated.server.aggregation.
_CONTEXT = ("start", "slots", "trainable", "ids", "memory")


@dataclass(frozen=True)
class Request:
    """Input of an optimizer before a round.

    Attributes
    ----------
    ids : sequence of int (K,)
    model : Model
        The global model that is sent to the cohort.
    fit : Fit
        Local training of this round, including the learning rate and changes by the method.
    sizes : float64 Tensor (N,)
        Samples of each client.
    memory : dict of Tensor
        State of the server (`Clients.memory`).
    """

    ids: Sequence[int] | np.ndarray
    model: Model
    fit: Fit
    sizes: torch.Tensor
    memory: dict[str, Any]


@dataclass(frozen=True)
class Additions:
    """Additions of an optimizer to a round.

    Attributes
    ----------
    before, after : tuple of client steps
        Run directly before and after local training; `before` runs after the method's steps.  A Fit is also a step.
    corrections : tuple
        Gradient terms, see fnlkit.federated.client.drift.
    broadcast, scatter : dict
        Sent to the cohort, as in Clients.round.
    """

    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    corrections: tuple[Any, ...] = ()
    broadcast: dict[str, Any] = field(default_factory=dict)
    scatter: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Updates:
    """Input of an optimizer after a round: the local models of the K clients with accepted replies.

    Attributes
    ----------
    start : Tensor (P,)
        Trainable parameters of the global model that the cohort received.
    trained : Tensor (K, P)
        Trainable parameters of the local models.
    ids : int64 (K,)
    weights : float64 Tensor (K,) > 0
        Aggregation weights; they need not sum to 1.
    replies : Replies
        All replies, including those of clients that were rejected afterwards; ``replies.ids`` are their clients.
    fit : Fit
        The local training of the round.
    sizes : float64 Tensor (N,)
        Samples of each client.
    memory : dict of Tensor
        State of the server (`Clients.memory`), saved and restored with a run.
    """

    start: torch.Tensor
    trained: torch.Tensor
    ids: np.ndarray
    weights: torch.Tensor
    replies: dict[str, Any]
    fit: Fit
    sizes: torch.Tensor
    memory: dict[str, Any]

    @property
    def share(self) -> float:
        """K / N."""
        return len(self.ids) / len(self.sizes)


def local_steps(sizes: torch.Tensor, fit: Fit) -> torch.Tensor:
    """Number of local steps, float64 (...,), for numbers of samples (...)."""
    return fit.epochs * torch.ceil(torch.as_tensor(sizes, dtype=torch.float64) / fit.batch_size)


def gradient_weight(sizes: torch.Tensor, fit: Fit) -> torch.Tensor:
    """Total weight of a client's gradients in local training, ||a||_1 of FedNova (eq. 13), (...,).

    It is tau for tau steps without momentum.  With momentum rho, a gradient acts in all later steps, and the sum is
    (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho); for rho = 1 it is tau (tau + 1) / 2.  A step of Adam counts as one.

    Parameters
    ----------
    sizes : Tensor (...)
        Numbers of samples.
    fit : Fit
    """
    steps, momentum = local_steps(sizes, fit), fit.momentum if fit.optimizer == "sgd" else 0.0
    if momentum == 1:
        return steps * (steps + 1) / 2
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def add_nothing(request: Request) -> Additions:
    """Add nothing: plain local training."""
    return Additions()


def as_trained(updates: Updates) -> torch.Tensor:
    """Aggregate the local models (K, P) unchanged."""
    return updates.trained


def takes_any(network: Network) -> None:
    """Accept every network."""


def unchanged(done: float) -> float:
    """Keep the learning rate: the factor 1."""
    return 1.0


def take(updates: Updates, merged: torch.Tensor) -> torch.Tensor:
    """Take the aggregate (P,) as the next model."""
    return merged


@dataclass
class FedOpt:
    """Local training with the additions of an optimizer; the aggregator is a separate component.

    Attributes
    ----------
    fit : Fit
    aggregate : (K, P + Q), (K,) -> (P + Q,)
    corrections, before, after : tuple
        Gradient terms and client steps of the optimizer, the same in every round.
    prepare : Request -> Additions
        Additions for this round: client steps and values to send.
    rescale : Updates -> (K, P)
        Vectors to aggregate in place of the local models' trainable parameters.
    server : (Updates, merged (P,)) -> (P,)
        Server step on trainable parameters; buffers are aggregated without it.
    suits : Network -> None
        Raises InputError before training if the optimizer has no effect on the network.
    schedule : int -> float
        Factor on the learning rate after this number of rounds.
    uniform_weights : bool
        Weight clients equally, as in FedDyn, instead of by their number of samples.
    drawn_by_size : bool
        The selector draws larger clients more often, so that they are weighted equally
        (`fnlkit.federated.server.selection.average_for`).
    protect : fnlkit.federated.server.protection.Secret or None
        With a Secret, each client replies the weighted mean of all models.
    """

    fit: Fit = Fit()
    aggregate: Callable[..., Any] = mean
    corrections: tuple[Any, ...] = ()
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    prepare: Callable[..., Any] = add_nothing
    rescale: Callable[..., Any] = as_trained
    server: Callable[..., Any] = take
    suits: Callable[..., Any] = takes_any
    schedule: Callable[[float], float] = unchanged
    uniform_weights: bool = False
    drawn_by_size: bool = False
    protect: Any = None
    rounds: int = 0

    def round(
        self,
        clients: Clients,
        ids: Sequence[int] | np.ndarray,
        model: Model,
        *,
        before: tuple[Any, ...] = (),
        after: tuple[Any, ...] = (),
        corrections: tuple[Any, ...] = (),
        weights: Callable[..., Any] | None = None,
        expect: Sequence[str] | None = None,
        broadcast: Any = None,
        scatter: Any = None,
        **fit,
    ) -> tuple[Model, Replies]:
        """Run one communication round and return the next Model and the replies.

        Parameters
        ----------
        clients : Clients
        ids : sequence of int (K,)
        model : Model
        before, after : tuple of client steps
            Run before and after local training on each client.
        corrections : tuple
            Additional gradient terms.
        weights : (N,) > 0, or Replies -> (N,)
            Aggregation weights of all clients. Default: their numbers of samples.  A client whose weight is not a positive
            number is rejected.
        expect, broadcast, scatter
            As in Clients.round.
        **fit
            Fields of Fit that the method changes, for example ``loss``.

        Raises
        ------
        TooManyLost
            As Clients.round, and if too many aggregation weights are not positive numbers.
        """
        if "loss" in fit and not self.rounds and self.fit.loss is not Fit.loss:
            raise InputError(": the method has a built-in loss; remove `loss`", parameter="loss")
        local = self.fit.changed(lr=self.fit.lr * self.schedule(self.rounds), **fit)
        if clients.replaying:  # the optimizer is skipped: the log stores no weights, and a run stores only the last model
            self.rounds += 1
            replies = clients.round(ids, model)
            return model if not len(replies.ids) and self.protect is None else model.with_weights(None), replies
        wanted, remember = self._needs if local.loss is self.fit.loss else needs(local.loss)
        local = local.changed(**dict.fromkeys(wanted, True))
        more = self.prepare(Request(ids, model, local, clients.sizes, clients.memory))
        local = local.changed(corrections=(*self.corrections, *more.corrections, *corrections))
        self.rounds += 1
        if self.protect is not None and weights is not None:
            raise InputError(
                ": the method sets client weights, which no protection covers; remove `protect`", parameter="protect"
            )
        ask = Ask(
            ids,
            model,
            (*remember, *self.before, *before, *more.before, local, *self.after, *more.after, *after),
            expect=expect,
            broadcast=_together(broadcast, more.broadcast),
            scatter=_together(scatter, more.scatter),
            protection=None if self.protect is None else (self.protect.clip, None if self.equal_weights else clients.sizes),
        )
        replies = clients.round(ask)
        if "weights" not in replies:  # no client replied
            return model, replies
        accepted, chosen = self._counted(clients, replies, weights)
        if not accepted:
            return model, replies
        return model.with_weights(self._next(clients, model, replies, accepted, chosen, local)), replies

    # Bound once, because they are the same in all rounds.
    @cached_property
    def _needs(self):
        return needs(self.fit.loss)

    @cached_property
    def _safe_cohort(self):
        return smallest_cohort(self.aggregate)[1]

    @cached_property
    def _accepted_names(self):
        return tuple(select_accepted(self.aggregate, dict.fromkeys(_CONTEXT)))

    def reads_each(self) -> bool:
        """True if the server step reads models of single clients; found by a trial call with a sum."""
        if self.rescale is not as_trained:
            return True
        start = torch.zeros(2, dtype=torch.float64)
        try:
            self.server(Summed(start, self.fit, torch.ones(2, dtype=torch.float64), {}, 0.5), start.clone())
        except NotSummed:
            return True
        return False

    @property
    def equal_weights(self) -> bool:
        """True if all clients of a cohort have the same weight, unless the method weights them."""
        return self.uniform_weights or self.drawn_by_size

    def _counts(self, clients):
        """Default weight of each client, float64 (N,)."""
        return torch.ones(len(clients), dtype=torch.float64) if self.equal_weights else clients.sizes

    def _counted(self, clients, replies, weights):
        """Reject clients without a positive weight; return the positions of the others and their weights (K,)."""
        weights = weights(replies) if callable(weights) else weights
        chosen = (self._counts(clients) if weights is None else torch.as_tensor(weights, dtype=torch.float64))[replies.ids]
        bad = [None if math.isfinite(v) and v > 0 else f"its aggregation weight is {v:g}" for v in chosen.tolist()]
        accepted = clients.refuse(clients.rounds - 1, replies.ids, bad)
        return accepted, chosen[accepted]

    def _next(self, clients, model, replies, kept, weights, local):
        """Aggregate the local models and apply the server step; return the next weights (P + Q,)."""
        stacked = replies["weights"] if len(kept) == len(replies.ids) else replies["weights"][kept]
        p = model.network.parameters_count
        start, trained, sizes = model.weights[:p], stacked[:, :p], clients.sizes
        updates = Updates(start, trained, replies.ids[kept], weights, replies, local, sizes, clients.memory)
        scaled = self.rescale(updates)
        if scaled is not updates.trained:
            stacked = torch.cat([scaled.to(stacked), stacked[:, p:]], 1)
        if len(stacked) < self._safe_cohort:
            clients.note(outvotes_nobody(self.aggregate, len(stacked)))
        context = model.weights, model.network.slots, p, updates.ids, clients.memory
        context = dict(zip(_CONTEXT, context, strict=True))
        merged = self.aggregate(stacked, weights, **{name: context[name] for name in self._accepted_names})
        _must_be_vector(self.aggregate, merged, model.weights)
        stepped = self.server(updates, merged[:p])
        _must_be_vector(self.server, stepped, start)
        merged[:p] = stepped
        return merged


def _must_be_vector(part, vector, like):
    """Raise unless an aggregator or a server step returned a finite vector, so that clients are not blamed for its result."""
    if not isinstance(vector, torch.Tensor) or vector.shape != like.shape:
        kind = tuple(vector.shape) if isinstance(vector, torch.Tensor) else type(vector).__name__
        raise InputError(f"{own.describe_place(part)}: returned {kind}; expected one vector {tuple(like.shape)}")
    if not vector.isfinite().all():
        raise WorkStopped(
            f"{own.describe_place(part)}: returned NaN or infinite entries for finite models; if training diverged, lower the "
            "learning rate"
        )


def _together(asked, added):
    """Join the values that method and optimizer send; raise if both use the same name."""
    asked = asked or {}
    if twice := sorted(set(asked) & set(added)):
        raise InputError(f"optimizer and method cannot be combined: both send {twice[0]!r} to the clients; change `optimizer`")
    return {**asked, **added}
