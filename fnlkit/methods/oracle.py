"""Reference: training on the true labels, the upper bound of label correction."""

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import check_arguments
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.missed import catching_up


# ---- on the client
def take_truth(client: Client, model: LocalModel, received: Received) -> None:
    """Replace the working labels by the true labels, then delete the copy; later calls have no effect."""
    truth = client.rows.pop("input/true", None)
    if "took_truth" not in client.state:  # a resumed run provides the row again
        client.y.copy_(truth)
        client.state["took_truth"] = torch.ones((), dtype=torch.bool)


# ---- the server
@method(loss="usual", needs=("truth",))
@check_arguments
def oracle(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    usual: Callable[..., Any] = fedavg,
) -> Generator[Round, None, Model]:
    """Give every client its true labels, then train as usual.

    Without declared true labels the run is refused.

    Parameters
    ----------
    rounds : int
    usual : method
        Method that trains on the true labels.
    """
    replies = clients.round(np.arange(len(clients)), model, take_truth, expect=())
    opt = catching_up(opt, clients, replies, take_truth)
    return (yield from usual(clients, model, opt, select, rounds=rounds))
