"""Reference: all data on one client, what federated learning would be without the need for it."""

from dataclasses import replace

from fnlkit.methods.fedavg import fedavg
from fnlkit.parameters import checked

SENDS = {}


def needs(**parameters):
    """Return what a run must have: ``pooled`` makes the federation one client that holds all samples."""
    return ("pooled",)


@checked
def centralized(clients, model, opt, select, *, rounds):
    """What training on all data in one place reaches: as many passes over the samples as FedAvg takes in its rounds.

    FedAvg passes over the share `fraction` of the clients in each round, so that the one client here trains in fraction x
    rounds rounds, at least one, of as many epochs; the learning rate decays as much over them.

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg.
    """
    passes = visits(rounds, getattr(select, "fraction", 1.0))
    slower = replace(opt, decay=opt.decay ** (rounds / passes))
    return (yield from fedavg(clients, model, slower, select, rounds=passes))


def visits(rounds, fraction):
    """Return how often the one client trains."""
    return max(1, round(rounds * fraction))
