"""Base class of engines: an engine runs the requests of a session on clients."""

from functools import partial
from typing import Any

import torch

from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import in_blocks, sizes_of
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.network import predict
from fnlkit.federated.server.clients import Ask


class Engine:
    """Runs steps on clients; the session (`fnlkit.federated.server.clients.Clients`) does everything else.

    Parameters
    ----------
    members : ClientList or list of Client
    network : fnlkit.federated.client.network.Network
    inputs : fnlkit.federated.client.inputs.Inputs
    seed : int

    Attributes
    ----------
    name : str
        Name of the engine in `fnlkit.federated.engines.ENGINES`.
    numerics : str
        Engines with equal numerics give equal bytes.
    sizes : sequence of int (N,)
        Number of samples of each client.
    notes : list of str
        Messages to the user, each at most once, for example a choice or a fallback to a slower method.
    foreign : bool
        Whether each client belongs to another owner: a single reply then says nothing about the method.
    """

    name, numerics, foreign = "", "sequential", False

    def __init__(self, members, network, inputs, *, seed=0):
        self.members = members
        self.network = network
        self.inputs = inputs
        self.seed = seed
        self.sizes, self.notes = sizes_of(members), []

    def note(self, text: str) -> None:
        """Add a message to the user, at most once."""
        if text not in self.notes:
            self.notes.append(text)

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Run a request: one reply per client, in its order, a dict of arrays or a Failure."""
        raise NotImplementedError("use an engine of fnlkit.federated.engines")

    def run_secretly(self, request: Ask, secret: Any) -> tuple[list[dict[str, torch.Tensor] | Failure], int]:
        """Run as `run`, with the mean of the cohort instead of each client's reply; count the bytes of the protocol.

        Parameters
        ----------
        request : Ask
        secret : (float, float64 Tensor (N,) or None), or MaskedSums
            `Ask.protection`.

        Raises
        ------
        InputError
            If the engine does not support it.
        """
        raise InputError(
            "`protect='secagg'` is only for real sites (fnlkit flower-app), because a simulation runs server and clients in "
            "one place; remove it"
        )

    def predict(self, weights: torch.Tensor, x: Any) -> torch.Tensor:
        """Predict logits (n, C) of raw samples on the server, for example of the test set.

        Parameters
        ----------
        weights : Tensor (P + Q,)
        x : Tensor or array (n, ...)
            An array of rows that does not fit into memory is read in blocks.
        """
        return in_blocks(partial(self._predict, weights), x)

    def _predict(self, weights, x):
        return predict(self.network, weights, x, self.inputs)

    def close(self) -> None:
        """Release processes and shared memory; an engine without them does nothing."""
