"""Memorization of wrong labels by the global model and the cohort's local models; requires true labels."""

from collections.abc import Sequence

import numpy as np
import torch

from fnlkit.federated.client.client import read_ahead
from fnlkit.federated.server.clients import Clients
from fnlkit.kernels.scores import memorization


def local_memorization(
    clients: Clients, ids: np.ndarray, weights: torch.Tensor, truth: Sequence[np.ndarray]
) -> dict[str, float]:
    """Measure the memorization of each client's local model on the client's samples, pooled over a cohort.

    Parameters
    ----------
    clients : fnlkit.federated.server.clients.Clients
    ids : int (K,)
    weights : Tensor (K, P + Q)
    truth : list of int (n_k,)
        True labels of every client's samples.
    """
    predicted, given, true = [], [], []
    for client, vector in zip(ids.tolist(), weights, strict=True):
        member = clients.members[client]
        predicted.append(clients.predict(vector, member.x).argmax(-1).cpu().numpy())
        member.leave()
        given.append(member.given.numpy())
        true.append(truth[client])
    return memorization(*(np.concatenate(v) for v in (predicted, given, true)))


def global_memorization(clients: Clients, weights: torch.Tensor, truth: Sequence[np.ndarray]) -> dict[str, float]:
    """Measure the memorization of the global model on all clients' samples."""
    predicted, members = [], clients.members
    for client in read_ahead(members):
        predicted.append(clients.predict(weights, client.x).argmax(-1).cpu().numpy())
        client.leave()
    return memorization(np.concatenate(predicted), members.given.numpy(), np.concatenate(truth))
