"""A client's visit in a round, step by step.

It is for engines that run each step on many clients before the next step.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from fnlkit.federated.client.client import Client, LocalModel, run_step
from fnlkit.federated.client.failure import Failure, failure
from fnlkit.federated.client.network import predict
from fnlkit.federated.client.training import Fit, Plan, plan
from fnlkit.federated.engines.engine import Engine
from fnlkit.federated.server.clients import Ask


@dataclass
class Visit:
    """State of a client's visit.

    Attributes
    ----------
    client : Client
    model : LocalModel
    received : dict
    reply : dict
    round : int
    error : Failure or None
        Error that stopped this client. The other clients continue.
    fit : Fit or None
        The current local training.
    draws : Plan or None
        Random draws of the current local training.
    """

    client: Client
    model: LocalModel
    received: dict[str, Any]
    round: int = 0
    reply: dict[str, Any] = field(default_factory=dict)
    error: Failure | None = None
    fit: Fit | None = None
    draws: Plan | None = None

    def do(self, step: Callable[..., Any]) -> None:
        """Run a client step. If it raises, the reply of this client is lost."""
        self.guard(lambda: self.reply.update(run_step(step, self.client, self.model, self.received)))

    def guard(self, action: Callable[[], object]) -> None:
        try:
            action()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no error of a client may stop the other clients
            self.error = failure(error, self.client.id, self.round)

    def trained(self, weights: torch.Tensor) -> None:
        """Store the weights after local training."""
        self.model.weights = self.reply["weights"] = weights

    def plan(self, fit: Fit, seed: int, round: int) -> None:
        """Make all random draws of this client's local training and store them in `draws`."""
        client, self.fit = self.client, fit
        image = tuple(client.samples.shape[1:3]) if client.inputs.image else None
        self.draws = plan(len(client), fit, seed=seed, round=round, client=client.id, image=image)

    @property
    def outcome(self) -> dict[str, torch.Tensor] | Failure:
        return self.reply if self.error is None else self.error


def begin_visits(engine: Engine, request: Ask, score: Callable[..., torch.Tensor] = predict) -> list[Visit]:
    """Begin a Visit for each client of a request, with its random streams for this round.

    Parameters
    ----------
    engine : fnlkit.federated.engines.engine.Engine
    request : fnlkit.federated.server.clients.Ask
    score : callable
        Function that scores a client's samples inside steps, like fnlkit.federated.client.network.predict.
    """
    visits = []
    for j, i in enumerate(request.ids.tolist()):
        client = engine.members[i]
        client.begin_round(engine.seed, request.round)
        model = LocalModel(engine.network, request.weights, request.weights, client.inputs, score)
        visits.append(Visit(client, model, request.received(j), request.round))
    return visits
