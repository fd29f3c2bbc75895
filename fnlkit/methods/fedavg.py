"""FedAvg: the loop that every other method reuses.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-efficient learning of deep networks from decentralized
data. AISTATS 2017.
"""

import inspect
from typing import NamedTuple

from fnlkit.client.network import Model
from fnlkit.errors import InputError

SENDS = {}


def follows_schedule(method):
    """Return whether another method may take this one in: it accepts `stage`, `schedule` and more of local training.

    Parameters
    ----------
    method : callable
    """
    return {"stage", "schedule"} <= set(inspect.signature(method).parameters)


def refuse_mixup(opt, name):
    """Raise where a run mixes samples and a method's loss knows labels of its own, which belong to no mixture.

    Raises
    ------
    InputError
    """
    if opt.fit.mixup:
        raise InputError(
            f"--mixup {opt.fit.mixup:g}: {name} trains on labels of its own, which are not mixed; leave --mixup out"
        )


class Round(NamedTuple):
    """What a method yields after each communication round.

    Attributes
    ----------
    model : Model
        The global model now.
    stage : str
    replies : Replies
        What the cohort (`replies.ids`) sent.
    report : dict
        Numbers and arrays to record: scalars go to metrics.jsonl, arrays into the run.
    """

    model: Model
    stage: str
    replies: object
    report: dict = {}


def fedavg(clients, model, opt, select, *, rounds, among=None, stage="training", schedule=None, **step):
    """Do nothing about wrong labels: average the clients' models, round by round; the yardstick for all others.

    Yield `rounds` rounds of local training and averaging; return the last model.

    Parameters
    ----------
    clients : Clients
    model : Model
    opt : FedOpt
    select : Selector
    rounds : int
    among : bool (N,) or None
        The clients that may take part.
    stage : str
    schedule : callable or None
        r -> (keywords, report): what local training takes beside `step` in round r, and what to report of it.
    **step
        Passed to FedOpt.round: loss, before, after, weights, broadcast, ...
    """
    for r in range(rounds):
        more, report = schedule(r) if schedule else ({}, {})
        ids = select(clients, model, among)
        model, said = opt.round(clients, ids, model, **step, **more)
        yield Round(model, stage, said, report)
    return model
