"""FedExP: extrapolate the mean update if the clients' updates have different directions.

Jhunjhunwala, Wang, Joshi. FedExP: Speeding up federated averaging via extrapolation. ICLR 2023.
"""

from functools import partial

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import NotNegative, check_arguments
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt, Updates


def extrapolation(updates: Updates, merged: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Server step eta_g = max(1, sum_k p_k ||d_k||^2 / (2 (||d||^2 + epsilon))) (eq. 8), d the mean update, p_k the weights."""
    shares = updates.weights / updates.weights.sum()
    squares = (updates.trained - updates.start).double().square().sum(1)
    length = (merged - updates.start).double().square().sum()
    return torch.clamp_min((shares.to(squares) * squares).sum() / (2 * (length + epsilon)), 1.0)


def extrapolate(updates: Updates, merged: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """Add eta_g times the mean update."""
    step = extrapolation(updates, merged, epsilon)
    return updates.start + step.to(merged) * (merged - updates.start)


@declare(cite="Jhunjhunwala 2023")
@check_arguments
def fedexp(fit: Fit, *, epsilon: NotNegative = 1e-3, **settings) -> FedOpt:
    """Make a server step longer than the mean update if clients disagree.

    Return FedExP (Jhunjhunwala 2023, Algorithm 1), with clients weighted as in FedAvg; equal weights give the paper's version.

    The paper evaluates the mean of the last two models; here the last model is evaluated.

    Parameters
    ----------
    epsilon : float >= 0
        Added to the squared length of the mean update; 1e-3 in the public benchmark FNBench, tuned in the paper.
    """
    return FedOpt(fit, server=partial(extrapolate, epsilon=epsilon), **settings)
