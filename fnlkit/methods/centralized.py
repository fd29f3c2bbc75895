"""Reference: all data on one client, the upper bound without federation."""

from collections.abc import Callable, Generator
from typing import Any

from fnlkit.core.declarations import method
from fnlkit.core.parameters import check_arguments
from fnlkit.federated.server.schedules import pooled_rounds, stretch
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round, fedavg


@method(
    needs=("pooled",),
    loss="usual",
    schedule=lambda rounds, usual=fedavg: None if usual is fedavg else rounds,  # `usual` runs for a share of the rounds
)
@check_arguments
def centralized(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    usual: Callable[..., Any] = fedavg,
) -> Generator[Round, None, Model]:
    """Train on all data in one place, with as many passes over the samples as FedAvg.

    FedAvg passes over the share `fraction` of the clients in each round.  The single client here therefore trains in
    fraction x rounds rounds (at least 1) with the same number of epochs.  Each of them
    advances the schedule of the learning rate by 1 / fraction rounds.

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg.
    usual : method
        The method that trains, for example ``dividemix(warmup=10)``.  With ``--fraction 1 --epochs 1`` its rounds are epochs.
    """
    fraction = getattr(select, "fraction", 1.0)
    passes = pooled_rounds(rounds, fraction)
    return (yield from usual(clients, model, stretch(opt, 1 / fraction), select, rounds=passes))
