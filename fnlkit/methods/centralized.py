"""Reference: all data on one client, the upper bound without federation."""

from dataclasses import replace

from fnlkit.components.declarations import method
from fnlkit.components.parameters import checked
from fnlkit.methods.fedavg import fedavg


@method(
    needs=("pooled",),
    loss="usual",
    schedule=lambda rounds, usual=fedavg: None if usual is fedavg else rounds,  # `usual` runs for a share of the rounds
)
@checked
def centralized(clients, model, opt, select, *, rounds, usual=fedavg):
    """Train on all data in one place, with as many passes over the samples as FedAvg.

    FedAvg passes over the share `fraction` of the clients in each round.  The single client here therefore trains in
    fraction x rounds rounds (at least 1) with the same number of epochs, and the total decay of the learning rate is equal.

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg.
    usual : method
        The method that trains, for example ``dividemix(warmup=10)``.  With ``--fraction 1 --epochs 1`` its rounds are epochs.
    """
    passes = visits(rounds, getattr(select, "fraction", 1.0))
    slower = replace(opt, decay=opt.decay ** (rounds / passes))
    return (yield from usual(clients, model, slower, select, rounds=passes))


def visits(rounds, fraction):
    """Return the number of rounds in which the single client trains."""
    return max(1, round(rounds * fraction))
