"""FedAdam and FedYogi: an adaptive optimizer on the server uses the mean update as gradient.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan. Adaptive federated optimization. ICLR 2021.
"""

from functools import partial
from typing import Annotated

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Positive, Range, check_arguments
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt, Updates

Rate = Annotated[float, Range(0, 1, open_high=True)]


def adapt(
    updates: Updates, merged: torch.Tensor, *, rule: str, server_lr: float, beta1: float, beta2: float, tau: float
) -> torch.Tensor:
    """Step to w + eta m / (sqrt(v) + tau), m <- b1 m + (1 - b1) d, v by the rule (Algorithm 2, no bias correction)."""
    memory, step = updates.memory, merged - updates.start
    first = beta1 * memory.get("first", torch.zeros_like(step)) + (1 - beta1) * step
    second = memory.get("second", torch.full_like(step, tau**2))
    square = step * step
    if rule == "adam":
        second = beta2 * second + (1 - beta2) * square
    else:
        second = second - (1 - beta2) * square * torch.sign(second - square)
    memory["first"], memory["second"] = first, second
    return updates.start + server_lr * first / (second.sqrt() + tau)


@declare(cite="Reddi 2021")
@check_arguments
def fedadam(
    fit: Fit, *, server_lr: Positive = 0.01, beta1: Rate = 0.9, beta2: Rate = 0.99, tau: Positive = 1e-3, **settings
) -> FedOpt:
    """Use the mean update as gradient of Adam on the server, with momentum and a step size for each weight.

    Return FedAdam (Reddi 2021, Algorithm 2): v <- b2 v + (1 - b2) d^2.

    Parameters
    ----------
    server_lr : float > 0
        eta; 0.01 with tau 1e-3 is among the paper's best on CIFAR-10.
    beta1, beta2 : float in [0, 1)
        Decay of the running mean of updates, and of their squares.
    tau : float > 0
        Degree of adaptivity; v starts at tau^2.
    """
    settings["server"] = partial(adapt, rule="adam", server_lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    return FedOpt(fit, **settings)


@declare(cite="Reddi 2021")
@check_arguments
def fedyogi(
    fit: Fit, *, server_lr: Positive = 0.01, beta1: Rate = 0.9, beta2: Rate = 0.99, tau: Positive = 1e-3, **settings
) -> FedOpt:
    """Use an adaptive optimizer on the server like FedAdam, with step sizes that change more slowly.

    Return FedYogi (Reddi 2021, Algorithm 2): v <- v - (1 - b2) d^2 sign(v - d^2); parameters as in `fedadam`.

    Parameters
    ----------
    server_lr, beta1, beta2, tau : float
        As in `fedadam`.
    """
    settings["server"] = partial(adapt, rule="yogi", server_lr=server_lr, beta1=beta1, beta2=beta2, tau=tau)
    return FedOpt(fit, **settings)
