"""Schedules of the learning rate over the rounds of a run, with the definitions of ``torch.optim.lr_scheduler``.

A schedule is a function ``NAME(done, total, *, parameters)`` of the finished rounds and of the rounds of the run, both without
warm-up rounds.  It returns the factor on the learning rate of the next round.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Count, NotNegative, check_arguments

if TYPE_CHECKING:
    from fnlkit.federated.server.optimizers.optimizer import FedOpt


@declare()
@check_arguments
def constant(done: float, total: int) -> float:
    """Train with the same learning rate in all rounds."""
    return 1.0


@declare()
@check_arguments
def exponential(done: float, total: int, *, factor: NotNegative = 1.0) -> float:
    """Multiply the learning rate by a factor after each round (torch's ExponentialLR).

    Parameters
    ----------
    factor : float >= 0
        Factor per round; ``--decay`` sets the same factor.
    """
    return factor**done


@declare()
@check_arguments
def step(done: float, total: int, *, every: Count = 10, factor: NotNegative = 0.1) -> float:
    """Multiply the learning rate by a factor after every few rounds (torch's StepLR).

    Parameters
    ----------
    every : int >= 1
        Rounds with the same learning rate.
    factor : float >= 0
    """
    return factor ** (done // every)


@declare(cite="Loshchilov 2017")
@check_arguments
def cosine(done: float, total: int, *, lowest: NotNegative = 0.0) -> float:
    """Lower the learning rate along half a cosine over all rounds (torch's CosineAnnealingLR).

    Loshchilov, Hutter. SGDR: Stochastic gradient descent with warm restarts. ICLR 2017, eq. 5 without restarts.

    Parameters
    ----------
    lowest : float >= 0
        Factor that the round after the last one would have.
    """
    return lowest + (1 - lowest) * (1 + math.cos(math.pi * min(done / total, 1))) / 2


def factor_of(done: float, *, schedule: Callable[[float, int], float], rounds: int, warmup_rounds: int = 0) -> float:
    """Factor on the learning rate after `done` of all rounds.

    In the warm-up it is (done + 1) / (warmup_rounds + 1), torch's LinearLR; the schedule follows as in torch's SequentialLR.
    """
    if done < warmup_rounds:
        return (done + 1) / (warmup_rounds + 1)
    return float(schedule(done - warmup_rounds, max(1, rounds - warmup_rounds)))


def pooled_rounds(rounds: int, fraction: float) -> int:
    """Number of rounds with as many passes over all samples as `rounds` that train a share of the clients."""
    return max(1, round(rounds * fraction))


def stretch(opt: "FedOpt", ratio: float) -> "FedOpt":
    """Make an optimizer whose calls of `round` each advance the schedule by `ratio` rounds."""
    return replace(opt, schedule=partial(_stretched, schedule=opt.schedule, ratio=ratio))


def _stretched(done, *, schedule, ratio):
    return schedule(done * ratio)
