"""What the global and the cohort's local models memorize of wrong labels; a simulation's view, since it needs the truth."""

import numpy as np
import torch

from fnlkit.scores import memorization


def local_memorization(clients, ids, weights, truth):
    """Return memorization of each client's own local model on its own samples, pooled over a cohort.

    Parameters
    ----------
    clients : fnlkit.server.clients.Clients
    ids : int (K,)
    weights : Tensor (K, P + Q)
    truth : list of int (n_k,)
        True labels of every client's samples.
    """
    predicted, given, true = [], [], []
    for client, vector in zip(ids.tolist(), weights, strict=True):
        predicted.append(clients.predict(vector, clients.members[client].x).argmax(-1).cpu().numpy())
        given.append(clients.members[client].given.numpy())
        true.append(truth[client])
    return memorization(*(np.concatenate(v) for v in (predicted, given, true)))


def global_memorization(clients, weights, truth):
    """Return memorization of the global model on all clients' samples."""
    x = [c.x for c in clients.members]
    predicted = np.concatenate([clients.predict(weights, part).argmax(-1).cpu().numpy() for part in x if len(part)])
    given = torch.cat([c.given for c in clients.members]).numpy()
    return memorization(predicted, given, np.concatenate(truth))
