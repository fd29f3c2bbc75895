"""FedExP: the server goes further than the mean where the clients' updates point in different directions.

Jhunjhunwala, Wang, Joshi. FedExP: Speeding up federated averaging via extrapolation. ICLR 2023.
"""

from functools import partial

import torch

from fnlkit.parameters import NotNegative, checked
from fnlkit.server.optimizers.optimizer import FedOpt


def extrapolation(updates, merged, epsilon):
    """Return eta_g = max(1, sum_k p_k ||d_k||^2 / (2 (||d||^2 + epsilon))) (eq. 8), d the merged update, p_k the weights."""
    shares = updates.weights / updates.weights.sum()
    squares = (updates.trained - updates.start).double().square().sum(1)
    length = (merged - updates.start).double().square().sum()
    return torch.clamp_min((shares.to(squares) * squares).sum() / (2 * (length + epsilon)), 1.0)


def extrapolate(updates, merged, *, epsilon):
    """Go eta_g times the merged update."""
    step = extrapolation(updates, merged, epsilon)
    return updates.start + step.to(merged) * (merged - updates.start)


@checked
def fedexp(fit, *, epsilon: NotNegative = 1e-3, **settings):
    """Let the server go further than the mean where clients disagree.

    Return FedExP (Jhunjhunwala 2023, Algorithm 1), the clients weighted as in FedAvg; with equal weights it is theirs.

    The paper evaluates the mean of the last two models; here it is the last one.

    Parameters
    ----------
    epsilon : float >= 0
        Added to the merged update's squared length; 1e-3 in the public benchmark FNBench, tuned in the paper.
    """
    return FedOpt(fit, server=partial(extrapolate, epsilon=epsilon), **settings)
