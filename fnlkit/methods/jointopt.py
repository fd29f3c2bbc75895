"""JointOpt: labels become the mean of a sample's own past predictions, under a prior that keeps all classes alive.

Tanaka, Ikami, Yamasaki, Aizawa. Joint optimization framework for learning with noisy labels. CVPR 2018.
"""

from functools import partial

from fnlkit.client.losses import joint
from fnlkit.methods.fedavg import fedavg, refuse_mixup
from fnlkit.methods.warmup import of_budget, warmup_rounds
from fnlkit.parameters import Count, NotNegative, Rounds, checked

__all__ = ["SENDS", "jointopt", "of_budget"]

LOSS = "own"
SENDS = {}  # soft labels stay on the client


# ---- on the client
def take_soft_labels(client, model, received):
    """Make the most probable class of each soft label the working label."""
    seen = client.rows["joint_seen"] > 0
    mean = client.rows["joint_history"].sum(1)
    client.y[seen] = mean.argmax(-1)[seen].to(client.y)


# ---- the server
@checked
def jointopt(
    clients,
    model,
    opt,
    select,
    *,
    rounds,
    warmup: Rounds = -1,
    alpha: NotNegative = 1.2,
    beta: NotNegative = 0.8,
    length: Count = 10,
):
    """Train on soft labels, each the mean of its sample's last predictions (Tanaka 2018).

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds on the given labels, with both regularisers; -1 is a fifth of all (FedCorr's comparison: 20 of 100; the
        paper: 70 of 200 epochs).
    alpha, beta : float >= 0
        Of the divergence of a batch's mean prediction from uniform classes, which the paper takes as known, and of the
        entropy; 1.2 and 0.8 for symmetric noise of 0.1 to 0.9 in the paper, its values for others differ.
    length : int >= 1
        Predictions averaged: the last 10 epochs in the paper, here the last 10 passes over the sample on its client.

    The paper's second stage, which starts a new model on the final labels, is left out, as in the comparisons of this field.
    A client whose classes are few is pulled towards all of them by alpha.
    """
    refuse_mixup(opt, "jointopt")
    warmup, settings = warmup_rounds(warmup, rounds), {"alpha": alpha, "beta": beta, "length": length}

    def schedule(r):
        correct = (take_soft_labels,) if r >= warmup else ()
        return {"loss": partial(joint, given=r < warmup, **settings), "after": correct}, {}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))
