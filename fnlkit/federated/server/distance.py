"""Distance-aware aggregation (DaAgg): the weight of a noisy client decreases with the distance from the nearest clean client.

Wu, Yu, Jiang, Cheng, Yan. FedNoRo: Towards noise-robust federated learning by addressing class imbalance and label noise
heterogeneity. IJCAI 2023.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import check_arguments
from fnlkit.federated.server.aggregation import mean


def distance_aware_weights(
    stacked: "torch.Tensor", weights: "torch.Tensor", clean: np.ndarray, slots: list[tuple[str, int, int, tuple[int, ...]]]
) -> "torch.Tensor":
    """Aggregation weights (K,) that sum to 1: n_k exp(-d_k), d_k divided by the largest distance (eqs. 9 and 10).

    d_k is 0 for a clean client, and for a noisy client the distance from the nearest clean client.  The distance of two models
    is the sum over tensors of Euclidean distances.  If there are no clean clients, no noisy clients, or no distances, the given
    weights are returned.

    Parameters
    ----------
    stacked : Tensor (K, P)
    weights : Tensor (K,) > 0
    clean : bool (K,)
    slots : list of (name, start, end, shape)
        The tensors of a vector, as in fnlkit.federated.client.network.Network.
    """
    clean = torch.as_tensor(np.asarray(clean, bool))
    shares = weights.double().cpu() / weights.double().cpu().sum()
    if clean.all() or not clean.any():
        return shares
    away = torch.zeros(len(stacked), dtype=torch.float64)
    trusted = stacked[clean].double()
    for k in torch.nonzero(~clean).flatten().tolist():
        distance: Any = sum((trusted[:, a:b] - stacked[k, a:b].double()).norm(dim=1) for _, a, b, _ in slots)
        away[k] = distance.min()
    if away.max() > 0:
        shares = shares * torch.exp(-away / away.max())
    return shares / shares.sum()


@declare(cite="Wu 2023")
@check_arguments
def daagg(
    stacked: "torch.Tensor",
    weights: "torch.Tensor",
    *,
    slots: list[tuple[str, int, int, tuple[int, ...]]],
    ids: np.ndarray,
    clean: Sequence[int] = (),
) -> "torch.Tensor":
    """Reduce the weight of models that are far from the models of trusted clients.

    Return the mean (P,) with `distance_aware_weights`, for a list of trusted clients (Wu 2023: FedNoRo).

    FedNoRo itself detects the clean clients.  A round without trusted clients is a round of FedAvg.

    Parameters
    ----------
    slots, ids
        The tensors of a vector and the clients of the round (K,); passed by the round.
    clean : list of int
        Clients with trusted labels, ``clean=[0, 4, 7]``.
    """
    trusted = np.isin(ids, np.asarray(clean, np.int64))
    return mean(stacked, distance_aware_weights(stacked, weights, trusted, slots))
