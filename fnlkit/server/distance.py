"""Distance-aware aggregation (DaAgg): noisy clients count less the further they are from the nearest clean one.

Wu, Yu, Jiang, Cheng, Yan. FedNoRo: Towards noise-robust federated learning by addressing class imbalance and label noise
heterogeneity. IJCAI 2023.
"""

import numpy as np
import torch

from fnlkit.parameters import checked
from fnlkit.server.aggregation import mean


def distance_aware_weights(stacked, weights, clean, slots):
    """Return aggregation weights (K,) that sum to 1: n_k exp(-d_k), d_k the distance over the largest (eqs. 9 and 10).

    d_k is 0 for clean clients, for noisy ones the distance from the nearest clean one; of two models it is the sum over
    tensors of Euclidean distances.  Without any of either kind, or without distance, they are the weights given.

    Parameters
    ----------
    stacked : Tensor (K, P)
    weights : Tensor (K,) > 0
    clean : bool (K,)
    slots : list of (name, start, end, shape)
        The tensors of a vector, as in fnlkit.client.network.Network.
    """
    clean = torch.as_tensor(np.asarray(clean, bool))
    shares = weights.double().cpu() / weights.double().cpu().sum()
    if clean.all() or not clean.any():
        return shares
    away = torch.zeros(len(stacked), dtype=torch.float64)
    trusted = stacked[clean].double()
    for k in torch.nonzero(~clean).flatten().tolist():
        apart = sum((trusted[:, a:b] - stacked[k, a:b].double()).norm(dim=1) for _, a, b, _ in slots)
        away[k] = apart.min()
    if away.max() > 0:
        shares = shares * torch.exp(-away / away.max())
    return shares / shares.sum()


@checked
def daagg(stacked, weights, *, slots, ids, clean=()):
    """Let models count less the further they lie from those of clients that you trust by name.

    Return the mean (P,) with `distance_aware_weights`, for clients that are trusted by name (Wu 2023: FedNoRo).

    FedNoRo itself finds its clean clients; a round without any of them is FedAvg's.

    Parameters
    ----------
    slots, ids
        The tensors of a vector and the round's clients (K,); the round supplies them.
    clean : list of int
        Clients whose labels are trusted, ``clean=[0, 4, 7]``.
    """
    trusted = np.isin(ids, np.asarray(clean, np.int64))
    return mean(stacked, distance_aware_weights(stacked, weights, trusted, slots))
