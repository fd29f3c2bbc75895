"""Aggregators: stacked weights (K, P), client weights (K,) -> one vector (P,)."""

from typing import Annotated

import torch

from fnlkit.parameters import Range, checked


def mean(stacked, weights):
    """Return the mean (P,) of K vectors, weighted; sums in float64 and in client order, whatever the engine.

    Parameters
    ----------
    stacked : Tensor (K, P)
    weights : Tensor (K,) > 0
        Need not sum to 1.

    Source: McMahan 2017, Algorithm 1.
    """
    shares = (weights.double() / weights.double().sum()).tolist()
    total = torch.zeros(stacked.shape[1], dtype=torch.float64, device=stacked.device)
    for vector, share in zip(stacked, shares, strict=True):
        total.add_(vector, alpha=share)  # in float64
    return total.to(stacked.dtype)


def median(stacked, weights):
    """Return the coordinate-wise median (P,), the mean of the middle two for even K; weights have no say (Yin 2018)."""
    ordered = stacked.sort(0).values
    k = len(stacked)
    return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2


@checked
def trimmed_mean(stacked, weights, *, share: Annotated[float, Range(0, 0.5, open_high=True)] = 0.1):
    """Return the coordinate-wise mean (P,) without the floor(share K) smallest and largest values (Yin 2018).

    Parameters
    ----------
    share : float in [0, 0.5)

    Raises
    ------
    InputError
        When nothing would be left.
    """
    k = len(stacked)
    cut = int(share * k)
    return stacked.sort(0).values[cut : k - cut].double().mean(0).to(stacked.dtype)


def outvotes_nobody(aggregate, count):
    """Return a sentence where median or trimmed mean cannot outvote a single one of `count` clients, else None.

    Parameters
    ----------
    aggregate : (K, P), (K,) -> (P,)
    count : int
        K.
    """
    function = getattr(aggregate, "func", aggregate)
    if function not in (median, trimmed_mean):
        return None
    one_away = torch.zeros(count, 1, dtype=torch.float64)
    one_away[-1] = 1
    if not aggregate(one_away, torch.ones(count)).item():
        return None
    name = function.__name__.replace("_", "-")
    return f"--aggregator {name} outvotes nobody in a round of {count}: it is their mean; raise --fraction for larger rounds"
