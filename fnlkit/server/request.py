"""Request of the session to an engine: the work of a round."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.exchange import Exchange


@dataclass
class CohortRequest:
    """Steps for the clients of a cohort.

    Attributes
    ----------
    ids : int64 (K,)
        The cohort, in ascending order.
    weights : Tensor (P + Q,)
        The model that each client receives.
    steps : sequence of Fit or (client, model, received) -> dict or None
    broadcast : dict of str to Tensor
        Sent to each client.
    scatter : dict of str to Tensor (K, ...)
        Each client receives its entry.
    round : int
        Number of the round, part of the key of each client's random streams.
    log, rejected : list
        Earlier rounds of the session, from which an engine on other machines finds the last visit of a client that counts.
    committed : int
        Number of rounds that cannot be undone.
    """

    ids: np.ndarray
    weights: "torch.Tensor"
    steps: Sequence[Any]
    broadcast: "dict[str, torch.Tensor]" = field(default_factory=dict)
    scatter: "dict[str, torch.Tensor]" = field(default_factory=dict)
    round: int = 0
    log: list[Exchange] = field(default_factory=list)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    committed: int = 0

    def part(self, places: Sequence[int]) -> "CohortRequest":
        """Return the request for the clients at some positions of the cohort."""
        scatter = {name: values[places] for name, values in self.scatter.items()}
        return replace(self, ids=self.ids[places], scatter=scatter)

    def received(self, place: int) -> "dict[str, torch.Tensor]":
        """Return the values that the client at a position of the cohort receives in addition to the weights."""
        return {**self.broadcast, **{name: values[place] for name, values in self.scatter.items()}}
