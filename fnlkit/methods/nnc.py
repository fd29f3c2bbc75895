"""NNC: once, before training, every label is replaced by the majority label of its nearest neighbours in an embedding.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024.
"""

from functools import partial
from typing import Literal

import numpy as np
import torch

from fnlkit.errors import InputError
from fnlkit.kernels import knn_vote
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.sends import Sent
from fnlkit.parameters import Count, Share, checked

LOSS = "usual"
SENDS = {"noise_level": Sent("share of its labels that its neighbours outvote", "once, before training")}


def needs(**parameters):
    """Return what a run must give the clients: ``embedding`` is put into rows["input/embedding"] (n, D)."""
    return ("embedding",)


# ---- on the client
def vote(client, model, received, *, k, include_self, ties, correct, least):
    """Reply the share of labels that their k nearest neighbours outvote (Section 4.2); replace labels by the votes.

    Labels are replaced when `correct` and the share is at least `least`.  The share of disagreeing neighbours, a
    score for each label, stays on the client as rows["neighbour_disagreement"].
    """
    if "input/embedding" not in client.rows:
        raise InputError("nnc and akd compare samples by an embedding but the clients hold none; give one")
    points, labels = client.rows["input/embedding"].cpu().numpy(), client.y.cpu().numpy()
    seed = int(client.rng.integers(2**62))
    votes, share = knn_vote(points, labels, k=k, classes=client.classes, seed=seed, include_self=include_self, ties=ties)
    level = float(np.mean(votes != labels))
    client.rows["neighbour_disagreement"] = torch.from_numpy(share.astype(np.float32))
    if correct:
        if level >= least:
            client.y.copy_(torch.from_numpy(votes))
        del client.rows["input/embedding"]  # training does not need it
    return {"noise_level": torch.tensor(level, dtype=torch.float64)}


# ---- the server
@checked
def nnc(
    clients,
    model,
    opt,
    select,
    *,
    rounds,
    k: Count = 100,
    least: Share = 0.0,
    include_self=False,
    ties: Literal["random", "lowest"] = "random",
    usual=fedavg,
):
    """Let each client replace its labels by its neighbours' votes (eq. 7), then train as usual.

    Parameters
    ----------
    rounds : int
    k : int >= 1
        Neighbours within the client.
    least : float in [0, 1]
        A client whose estimated level is lower keeps its labels; 0.15 in the public code.
    include_self : bool
        Count a sample as its own neighbour (public code).
    ties : "random" or "lowest"
        How equal votes are broken; the lowest class in the public code.
    usual : method
        What trains on the corrected labels.

    Reports
    -------
    noise_level (N,), once.
    """
    step = partial(vote, k=k, include_self=include_self, ties=ties, correct=True, least=least)
    said = clients.round(np.arange(len(clients)), model, step)
    levels = np.zeros(len(clients))
    levels[said.ids] = said["noise_level"].numpy()
    report = {"noise_level": levels}
    program = usual(clients, model, opt, select, rounds=rounds)
    while True:  # the first round of what follows carries the report
        try:
            step = next(program)
        except StopIteration as end:
            return end.value
        yield Round(step.model, step.stage, step.replies, {**step.report, **report})
        report = {}
