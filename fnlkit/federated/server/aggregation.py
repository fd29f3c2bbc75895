"""Aggregators: functions from stacked weights (K, P) and client weights (K,) to one vector (P,).

An aggregator can have further keyword-only arguments, which are passed by name: `start` (P,), the model that the clients
received; `slots`, the tensors of a vector as (name, start, end, shape); `trainable`, the number of trainable entries, which
come before the buffers of batch norm; `ids` (K,), the clients; and `memory`, the state of the server that is saved with a run.

Sums are computed in float64.  Results have the number type of floating-point vectors, and are float64 for others.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import torch

from fnlkit.core.declarations import declaration, declare, resolve
from fnlkit.core.parameters import Range, arguments_of, check_arguments


@declare(sums=True, cite="McMahan 2017")
def mean(stacked: "torch.Tensor", weights: "torch.Tensor") -> "torch.Tensor":
    """Average the models, weighted by their numbers of samples, as in FedAvg.

    Return the weighted mean (P,) of K vectors; sums are in float64 and in client order on every engine.

    Parameters
    ----------
    stacked : Tensor (K, P)
    weights : Tensor (K,) > 0
        Need not sum to 1.

    Notes
    -----
    Source: McMahan 2017, Algorithm 1.
    """
    shares = (weights.double() / weights.double().sum()).tolist()
    total = torch.zeros(stacked.shape[1], dtype=torch.float64, device=stacked.device)
    for vector, share in zip(stacked, shares, strict=True):
        total.add_(vector, alpha=share)  # in float64
    return as_result(total, stacked)


def as_result(values: "torch.Tensor", stacked: "torch.Tensor") -> "torch.Tensor":
    """Convert values to the number type of the aggregated vectors, if these are floating-point numbers."""
    return values.to(stacked.dtype) if stacked.is_floating_point() else values


def finite_rows(stacked: "torch.Tensor") -> "torch.Tensor":
    """Mask (K,) of vectors without NaN and infinity; all True if no vector is finite."""
    mask = stacked.isfinite().all(1)
    return mask if mask.any() else torch.ones_like(mask)


@declare(cohort=(1, 3), cite="Yin 2018")
@check_arguments
def median(stacked: "torch.Tensor", weights: "torch.Tensor", *, even: Literal["mean", "lower"] = "mean") -> "torch.Tensor":
    """Take the median of each coordinate, which fewer than half of the clients cannot move far (Yin 2018).

    Return the coordinate-wise median (P,); client weights are not used (Yin 2018).  NaN counts as the largest value.

    Parameters
    ----------
    even : "mean" or "lower"
        Median of an even number of values: the mean of the middle two, or the lower one as in torch and FNBench.
    """
    ordered = stacked.sort(0).values
    k = len(stacked)
    low = ordered[(k - 1) // 2].double()
    return as_result(low if even == "lower" else (low + ordered[k // 2].double()) / 2, stacked)


# From the second size on, at least one client is dropped.
@declare(cohort=lambda share: (1, next((k for k in range(3, 10_000) if int(share * k)), 10_000)), cite="Yin 2018")
@check_arguments
def trimmed_mean(
    stacked: "torch.Tensor",
    weights: "torch.Tensor",
    *,
    share: Annotated[float, Range(0, 0.5, open_high=True)] = 0.1,
    by: Literal["coordinate", "distance"] = "coordinate",
) -> "torch.Tensor":
    """Average each coordinate without its smallest and largest values.

    Return the coordinate-wise mean (P,) without the floor(share K) smallest and largest values (Yin 2018).  NaN counts as the
    largest value.

    Parameters
    ----------
    share : float in [0, 0.5)
        Share of the clients whose values are dropped at each end.
    by : "coordinate" or "distance"
        ``distance`` is the variant of the public benchmark FNBench: the mean of the K - 2 floor(share K) whole vectors whose
        sum of squared distances to all vectors is nearest to the lower median of these sums.
    """
    k = len(stacked)
    cut = int(share * k)
    if by == "distance":
        sums = squared_distances(stacked).sum(1)
        near = (sums - sums.sort().values[(k - 1) // 2]).abs().argsort(stable=True)[: k - 2 * cut]
        return mean(stacked[near.sort().values], torch.ones(len(near)))
    return as_result(stacked.sort(0).values[cut : k - cut].double().mean(0), stacked)


def squared_distances(stacked: "torch.Tensor") -> "torch.Tensor":
    """Squared Euclidean distances (K, K) between vectors, in float64."""
    distances = torch.zeros(len(stacked), len(stacked), dtype=torch.float64)
    for i in range(len(stacked)):
        for j in range(i):
            distances[i, j] = distances[j, i] = (stacked[i].double() - stacked[j].double()).square().sum()
    return distances


def smallest_cohort(aggregate: Callable[..., Any]) -> tuple[int, int]:
    """Smallest cohort that an aggregator accepts, and the smallest cohort that can outvote a bad client."""
    return resolve(declaration(aggregate).cohort, arguments_of(aggregate))


def too_few(aggregate: Callable[..., Any], count: int) -> str | None:
    """Explain why rounds of `count` clients are too small for an aggregator; None if they are not."""
    least, _ = smallest_cohort(aggregate)
    if count >= least:
        return None
    return f"`aggregator` {_name_of(aggregate)} needs rounds of {least} clients or more, found {count}; raise `fraction`"


def outvotes_nobody(aggregate: Callable[..., Any], count: int) -> str | None:
    """Explain that a robust aggregator cannot withstand one bad client of `count`; None if it can.

    Parameters
    ----------
    aggregate : (K, P), (K,) -> (P,)
    count : int
        K.
    """
    least, safe = smallest_cohort(aggregate)
    if count >= safe:
        return None
    if least > 1:
        reason = f"is robust only in rounds of {safe} or more clients, found {count}"
    else:
        reason = f"cannot outvote a client in a round of {count}: it is the mean"
    return f"`aggregator` {_name_of(aggregate)} {reason}; raise `fraction` for larger rounds"


def _name_of(aggregate):
    return getattr(aggregate, "func", aggregate).__name__.replace("_", "-")
