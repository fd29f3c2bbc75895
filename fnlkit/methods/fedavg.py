"""FedAvg: the training loop that the other methods reuse.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from decentralized
data. AISTATS 2017.
"""

import inspect
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from fnlkit.core.declarations import method
from fnlkit.federated.client.network import Model
from fnlkit.federated.server.rounds import Round as Round
from fnlkit.federated.types import Clients, FedOpt


def follows_schedule(method: Callable[..., Any]) -> bool:
    """Whether another method can run this method as a stage.

    A method qualifies if it accepts `stage`, `schedule` and further keywords of local training.

    Parameters
    ----------
    method : callable
    """
    return {"stage", "schedule"} <= set(inspect.signature(method).parameters)


@method(cite="McMahan 2017")
def fedavg(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    among: np.ndarray | None = None,
    stage: str = "training",
    schedule: Callable[..., Any] | None = None,
    **step: Any,
) -> Generator[Round, None, Model]:
    """Average the clients' models without treating wrong labels; the common baseline.

    Yield `rounds` rounds of local training and averaging; return the last model.

    Parameters
    ----------
    clients : Clients
    model : Model
    opt : FedOpt
    select : Selector
    rounds : int
    among : bool (N,) or None
        The clients that can be selected.
    stage : str
    schedule : callable or None
        r -> (keywords, report): keywords of local training in round r in addition to `step`, and values to report.
    **step
        Passed to FedOpt.round: loss, before, after, weights, broadcast, ...
    """
    for r in range(rounds):
        more, report = schedule(r) if schedule else ({}, {})
        ids = select(clients, model, among)
        model, replies = opt.round(clients, ids, model, **step, **more)
        yield Round(model, stage, replies, report)
    return model
