"""Prepare a federation for baselines that pool samples, use true labels or test one model per client."""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.federation import ESTIMATES, Federation
from fnlkit.core.errors import InputError

if TYPE_CHECKING:
    import torch


def arrange(federation: Federation, wanted: Collection[str], method: str) -> tuple[Federation, dict[str, Any]]:
    """Prepare the federation that a run trains on, and additional rows for its clients.

    Parameters
    ----------
    federation : fnlkit.artifacts.federation.Federation
    wanted : set of str
        Needs of the method: ``pooled`` puts all samples on one client, ``truth`` provides the true labels and drops the
        samples of no class.
    method : str
        Name of the method in messages.

    Raises
    ------
    InputError
        If the method requires true labels and none are declared, or if all samples of a client have no class.
    """
    rows = {}
    if "truth" in wanted:
        if federation.true is None:
            raise InputError(
                f"{method} trains on true labels, but {federation.dataset} declares none; {_remedy(federation)}",
                parameter="method",
            )
        rows["input/true"] = np.asarray(federation.true, np.int64)
    if "pooled" in wanted:
        federation = _pool_clients(federation)
    return federation, rows


def _remedy(federation):
    """Suggest how to declare true labels, given the noise of a federation."""
    if federation.meta.get("noise"):
        return (
            "labels from a file replaced labels that were not declared true: if the replaced labels are true, start with "
            "`fnlkit.partition(labels='true')`, or declare them as y_train_true in the data set"
        )
    return "declare them (y_train_true in the data set), or create wrong labels with `fnlkit inject-noise`"


def _pool_clients(federation):
    """Move all samples to one client, and drop the metadata of single clients."""
    positions = np.sort(np.asarray(federation.client_indices, np.int64))
    extra = {name: array for name, array in federation.extra.items() if name not in ESTIMATES}
    if "holdout_client" in extra:
        extra["holdout_client"] = np.minimum(extra["holdout_client"], 0)
    transition = federation.noise_transition
    return replace(
        federation,
        client_offsets=np.array([0, len(positions)]),
        client_indices=positions,
        extra=extra,
        meta={name: value for name, value in federation.meta.items() if name not in ("client_names", "client_unlabeled")},
        noise_client_level=None,
        noise_client_noisy=None,
        noise_transition=transition if transition is None or transition.ndim == 2 else None,
    )


class OwnScores:
    """Test scores of client models that are never averaged.

    A client's score is computed again after the client trained.

    Parameters
    ----------
    clients : fnlkit.federated.server.clients.Clients
        Their ``state["own"]`` (P + Q,) is tested, or the common initial weights if a client has none yet.
    score : callable
        Weights (P + Q,) -> dict of floats.
    """

    def __init__(self, clients, score):
        self.clients, self.score, self._known = clients, score, {}

    def trained(self, ids: np.ndarray) -> None:
        """Discard the scores of clients (K,) that trained."""
        for i in ids.tolist():
            self._known.pop(i, None)

    def mean(self, start: "torch.Tensor") -> dict[str, float]:
        """Average each score over all clients."""
        fresh = None
        for i in range(len(self.clients)):
            client_model = self.clients.members[i].state.get("own")
            if client_model is None:
                fresh = fresh or self.score(start)
            elif i not in self._known:
                self._known[i] = self.score(client_model)
        every = [self._known.get(i, fresh) for i in range(len(self.clients))]
        return {name: float(np.mean([scores[name] for scores in every])) for name in every[0]}
