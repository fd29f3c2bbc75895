"""Federated optimisers: how one communication round turns local training into the next global model."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch

from fnlkit.client.training import Fit
from fnlkit.parameters import NotNegative, Positive, checked
from fnlkit.server.aggregation import mean


def take(old, merged, memory, share):
    """The plain server step: the aggregate is the next model."""
    return merged


@dataclass
class FedOpt:
    """Local training plus what a drift-aware optimiser adds on either side.

    Attributes
    ----------
    fit : Fit
    aggregate : (K, P + Q), (K,) -> (P + Q,)
    corrections, before, after : tuple
        Gradient terms and client steps of the optimiser itself.
    server : (old (P,), merged (P,), memory, share of clients in the cohort) -> (P,)
        Acts on trainable parameters; buffers are aggregated and taken.
    decay : float
        Factor on the learning rate after every round.
    uniform_weights : bool
        Clients count alike, as in FedDyn, instead of by their number of samples.
    memory : dict of Tensor
        The server's memory; a run saves and restores it.
    """

    fit: Fit = Fit()
    aggregate: Callable = mean
    corrections: tuple = ()
    before: tuple = ()
    after: tuple = ()
    server: Callable = take
    decay: float = 1.0
    uniform_weights: bool = False
    memory: dict = field(default_factory=dict)
    rounds: int = 0

    def round(
        self, clients, ids, model, *, before=(), after=(), corrections=(), weights=None, broadcast=None, scatter=None, **fit
    ):
        """Return the next Model and the replies of one communication round.

        Parameters
        ----------
        clients : Clients
        ids : sequence of int (K,)
        model : Model
        before, after : tuple of client steps
            Run around local training on each client.
        corrections : tuple
            More gradient terms.
        weights : (N,) > 0, or Replies -> (N,)
            Aggregation weights of all clients; their numbers of samples by default.  A client whose weight is not a
            positive number is left out and recorded as refused.
        broadcast, scatter : dict
            As in Clients.round.
        **fit
            Fields of Fit that the method changes, for example ``loss``.

        Raises
        ------
        TooManyLost
            As Clients.round, and when too many aggregation weights are not positive numbers.
        """
        local = self.fit.changed(lr=self.fit.lr * self.decay**self.rounds, **fit)
        local = local.changed(corrections=(*self.corrections, *corrections))
        self.rounds += 1
        said = clients.round(
            ids, model, *self.before, *before, local, *self.after, *after, broadcast=broadcast, scatter=scatter
        )
        if "weights" not in said:  # a replayed round: the model that the run ended with is put in place afterwards
            return model, said
        weights = weights(said) if callable(weights) else weights
        counts = torch.ones(len(clients), dtype=torch.float64) if self.uniform_weights else clients.sizes
        chosen = (counts if weights is None else torch.as_tensor(weights, dtype=torch.float64))[said.ids]
        bad = [None if math.isfinite(v) and v > 0 else f"its aggregation weight is {v:g}" for v in chosen.tolist()]
        kept = clients.refuse(clients.rounds - 1, said.ids, bad)
        merged, share = self.aggregate(said["weights"][kept], chosen[kept]), len(kept) / len(clients)
        p = model.network.parameters_count
        merged[:p] = self.server(model.weights[:p], merged[:p], self.memory, share)
        return model.with_weights(merged), said


def fedavg(fit, **settings):
    """Return FedAvg (McMahan 2017): local SGD, mean weighted by the number of samples."""
    return FedOpt(fit, **settings)


def _proximal(w, w_start, batch, *, mu):
    return mu * (w - w_start)


@checked
def fedprox(fit, *, mu: NotNegative = 0.001, **settings):
    """Return FedProx (Li 2020): the local loss gains mu/2 ||w - w_global||^2.

    Parameters
    ----------
    mu : float >= 0
        1 in FedCorr's comparison, 0.001 in FLR's.
    """
    return FedOpt(fit, corrections=(partial(_proximal, mu=mu),), **settings)


def _recall_dual(client, model, received):
    if "dual" not in client.state:
        p = model.network.parameters_count
        client.state["dual"] = torch.zeros(p, dtype=model.weights.dtype, device=model.weights.device)


def _dynamic(w, w_start, batch, *, alpha):
    return alpha * (w - w_start) - batch.state["dual"]


def _update_dual(client, model, received, *, alpha):
    p = model.network.parameters_count
    client.state["dual"] = client.state["dual"] - alpha * (model.weights[:p] - model.start[:p])


def _subtract_dual(old, merged, memory, share, *, alpha):
    memory["dual_mean"] = memory.get("dual_mean", torch.zeros_like(old)) - alpha * share * (merged - old)
    return merged - memory["dual_mean"] / alpha


@checked
def feddyn(fit, *, alpha: Positive = 0.01, **settings):
    """Return FedDyn (Acar 2021, Algorithm 1).

    Client: minimise the local loss - <g_k, w> + alpha/2 ||w - w_global||^2, then g_k <- g_k - alpha (w_k - w_global).
    Server: h <- h - alpha/N sum_k (w_k - w_global); w <- mean_k(w_k) - h / alpha, the mean over the cohort unweighted.

    Parameters
    ----------
    alpha : float > 0
        0.01 in FedCorr's comparison, with lr 0.1 decaying by 0.998 a round.
    """
    return FedOpt(
        fit,
        corrections=(partial(_dynamic, alpha=alpha),),
        before=(_recall_dual,),
        after=(partial(_update_dual, alpha=alpha),),
        server=partial(_subtract_dual, alpha=alpha),
        uniform_weights=True,
        **settings,
    )
