"""Reference: every client trains alone, without averaging."""

from collections.abc import Callable, Generator
from typing import Any

from fnlkit.core.declarations import Sent, method
from fnlkit.core.parameters import check_arguments
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round


# ---- on the client
def take_own(client: Client, model: LocalModel, received: Received) -> None:
    """Continue with the client's local model; on the first visit, the received model."""
    model.weights = client.state.get("own", model.start).clone()


def keep_own(client: Client, model: LocalModel, received: Received) -> None:
    client.state["own"] = model.weights.clone()


# ---- the server
@method(
    sends={
        "weights": Sent("local model, which is only tested and not sent to other clients", "every round", ("P",), "float32"),
    },
    needs=("own",),
)
@check_arguments
def local(
    clients: Clients, model: Model, opt: FedOpt, select: Callable[..., Any], *, rounds: int
) -> Generator[Round, None, Model]:
    """Train a separate model on each client in the rounds in which it is selected.

    The accuracy of a run is the mean over all clients of the local models' accuracy on the common test set.  Clients that
    were not selected yet count with the common initial model.

    Parameters
    ----------
    rounds : int
    """
    for _ in range(rounds):
        _, replies = opt.round(clients, select(clients, model), model, before=(take_own,), after=(keep_own,))
        yield Round(model, "training", replies)
    return model
