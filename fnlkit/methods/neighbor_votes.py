"""Votes of nearest neighbors on the labels of a client (FedLN, Section 4.2)."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from fnlkit.core.errors import InputError
from fnlkit.kernels import knn_vote

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.types import Client, Clients, LocalModel, Received


# Smallest and largest number of neighbors; the largest is the paper's.
LEAST, MOST = 5, 100


def neighbors_for(sizes: np.ndarray | int, classes: int) -> np.ndarray:
    """Choose the number of neighbors (N,) for clients of these sizes.

    It is 0.6 times the samples per class, from 5 to 100.
    """
    return np.clip(np.rint(0.6 * np.asarray(sizes) / classes), LEAST, MOST).astype(np.int64)


def limit_neighbors(clients: "Clients", k: int, name: str) -> int:
    """Limit the number of neighbors for `vote` to the samples per class.

    Beyond that number most neighbors belong to other classes even if all labels are right, and votes turn right
    labels into wrong labels.

    Parameters
    ----------
    clients : Clients
    k : int
        -1 selects `neighbors_for` of each client's size.
    name : str
        Name of the method for the note.

    Returns
    -------
    int
        0 if each client uses `neighbors_for` its size.  If `k` exceeds the mean number of samples per class and
        client, the result is that mean (at least 5), and a note states both numbers.
    """
    if k < 0:
        per_client = neighbors_for(clients.sizes.numpy(), clients.classes)
        if per_client.min() < MOST:
            clients.note(
                f"{name}: k = {per_client.min()} to {per_client.max()} neighbors vote, 0.6 times a client's samples per class "
                "(the paper uses 100 with 167 samples per class)"
            )
        return 0
    per_class = clients.sizes.mean().item() / clients.classes
    most = max(LEAST, int(per_class))
    if k > most:
        clients.note(
            f"{name}: k is reduced from {k} to {most}, because a client has {per_class:.0f} samples of a class on average; "
            "more neighbors would belong to other classes"
        )
    return min(k, most)


def vote(
    client: "Client",
    model: "LocalModel",
    received: "Received",
    *,
    k: int,
    include_self: bool,
    ties: Literal["random", "lowest"],
    correct: bool,
    least: float,
    discard: bool = False,
    missed: bool = False,
) -> "dict[str, torch.Tensor] | None":
    """Reply the share of labels outvoted by k nearest neighbors (Section 4.2); neighbors of the same group do not vote.

    If `correct`, labels are replaced by the votes if the share is at least `least`, and the share of disagreeing neighbors, a
    score for each label, stays on the client as rows["neighbor_disagreement"].  `discard` deletes the embedding, which training
    then does not read.  With `missed`, only a client that missed the round of the votes votes, and nothing is replied.
    """
    import torch

    if missed and "neighbor_disagreement" in client.rows:  # a vote leaves this row, also in a run that is resumed
        return None
    if "input/embedding" not in client.rows:
        raise InputError("nnc and akd compare samples by an embedding but the clients have none; pass `embeddings='EMB.npz'`")
    points, labels = client.rows["input/embedding"].cpu().numpy(), client.y.cpu().numpy()
    seed = int(client.rng.integers(2**62))
    k = k or int(neighbors_for(len(labels), client.classes))
    groups = client.rows["input/group"].cpu().numpy() if "input/group" in client.rows else None
    votes, share = knn_vote(
        points, labels, k=k, groups=groups, classes=client.classes, seed=seed, include_self=include_self, ties=ties
    )
    level = float(np.mean(votes != labels))
    if correct:  # the vote of akd in a later stage is not that of nnc
        client.rows["neighbor_disagreement"] = torch.from_numpy(share.astype(np.float32))
    if correct and level >= least:
        client.y.copy_(torch.from_numpy(votes))
    if discard:
        del client.rows["input/embedding"]
    return None if missed else {"noise_level": torch.tensor(level, dtype=torch.float64)}
