"""Selectors: (clients, model, among) -> ids of the cohort, ascending."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Count
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.federated.server.clients import Clients
from fnlkit.federated.server.optimizers.optimizer import FedOpt
from fnlkit.kernels.streams import stream


def cohort_size(clients: Clients, fraction: float) -> int:
    """Number of clients in a cohort: round(fraction N), at least 1."""
    return max(1, round(fraction * len(clients)))


def _pool(clients, among):
    pool = np.arange(len(clients)) if among is None else np.flatnonzero(among)
    if not len(pool):
        raise InputError("no client is left to select from; relax the method's threshold")
    return pool


def _draws(clients):
    """Generator of this round's cohort."""
    return stream(clients.seed, "selection", clients.rounds)


@dataclass(frozen=True, kw_only=True)
class Uniform:
    """Draw each cohort uniformly without replacement.

    Attributes
    ----------
    fraction : float in (0, 1]
        Share of the clients in each round.
    """

    fraction: float = 0.1
    sampling = "fixed"  # the draw depends on no reply

    def __call__(self, clients, model, among=None):
        """Select ids (K,) from the boolean mask `among` (N,), or from all clients."""
        pool = _pool(clients, among)
        rng = _draws(clients)
        return np.sort(rng.choice(pool, min(cohort_size(clients, self.fraction), len(pool)), replace=False))


@declare(cite="Abadi 2016")
@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Draw each client independently, so that cohort sizes vary.

    Poisson sampling (Abadi 2016): a round can be empty.

    Attributes
    ----------
    fraction : float in (0, 1]
        Probability of each client to take part.
    """

    fraction: float = 0.1
    sampling = "poisson"

    def __call__(self, clients, model, among=None):
        """Select ids (K,) from the boolean mask `among` (N,), or from all clients; K is random."""
        pool = _pool(clients, among)
        return pool[_draws(clients).random(len(pool)) < self.fraction]


def average_for(select: Callable[..., Any], opt: FedOpt) -> None:
    """Weight the clients of each cohort equally if the selector declares it (``uniform_weights``)."""
    opt.drawn_by_size = getattr(select, "uniform_weights", False)


def local_loss(client: Client, model: LocalModel, received: Received) -> dict[str, torch.Tensor]:
    """Client step: the mean loss of the received model on the client's samples."""
    return {"local_loss": sample_losses(model(client.x), client.y.to(model.weights.device)).double().mean().cpu()}


@declare(
    sends={
        "local_loss": Sent("mean loss of the received model on the client's samples", "each round, candidates", (), low=0),
    },
    cite="Cho 2020",
)
@dataclass(frozen=True, kw_only=True)
class PowerOfChoice:
    """Prefer clients with the largest loss of the current model.

    Power-of-Choice (Cho 2020): d candidates are drawn by size, and the m candidates with the largest local loss train.

    Attributes
    ----------
    fraction : float in (0, 1]
        m / N, the share of the clients in each round.
    d : int
        Number of candidates (30 in FedCorr's comparison).
    weights : "equal" or "samples"
        Weights in the average of the cohort.  ``equal``: 1 / m each, as in the authors' code, since candidates are already
        drawn by size; ``samples``: by size in addition.
    """

    fraction: float = 0.1
    d: Count = 30
    weights: Literal["equal", "samples"] = "equal"

    @property
    def uniform_weights(self) -> bool:
        """True if the models of the cohort have equal weights, see `average_for`."""
        return self.weights == "equal"

    def __call__(self, clients, model, among=None):
        """Select ids (m,) from the boolean mask `among` (N,), or from all clients; requests the candidates' losses."""
        pool = _pool(clients, among)
        m = min(cohort_size(clients, self.fraction), len(pool))
        sizes = clients.sizes.numpy()[pool]
        rng = stream(clients.seed, "selection", clients.rounds)
        d = min(max(self.d, m), len(pool))
        candidates = np.sort(rng.choice(pool, d, replace=False, p=sizes / sizes.sum()))
        replies = clients.round(candidates, model, local_loss, expect=("local_loss",))
        worst = np.argsort(-replies["local_loss"].numpy(), kind="stable")[:m]
        return np.sort(replies.ids[worst])
