"""JointOpt: labels become the mean of a sample's past predictions.

Tanaka, Ikami, Yamasaki, Aizawa. Joint optimization framework for learning with noisy labels. CVPR 2018.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Count, NotNegative, Rounds, check_arguments
from fnlkit.federated.client.losses.refurbish import joint
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.warmup import warmup_rounds


# ---- on the client
def take_soft_labels(client: Client, model: LocalModel, received: Received) -> None:
    """Make the most probable class of each soft label the working label."""
    seen = client.rows["joint_seen"] > 0
    mean = client.rows["joint_history"].sum(1)
    client.y[seen] = mean.argmax(-1)[seen].to(client.y)


# ---- the server
@method(loss="own", schedule=warmup_rounds, cite="Tanaka 2018")  # soft labels stay on the client
@check_arguments
def jointopt(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    alpha: NotNegative = 1.2,
    beta: NotNegative = 0.8,
    length: Count = 10,
) -> Generator[Round, None, Model]:
    """Train on soft labels, the mean of a sample's last predictions (Tanaka 2018).

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds on the given labels, with both regularizers.  Default: -1, a fifth of all rounds (FedCorr's comparison: 20 of
        100; the paper: 70 of 200 epochs).
    alpha, beta : float >= 0
        alpha: weight of the divergence between a batch's mean prediction and uniform classes; the paper assumes that the class
        shares are known. beta: weight of the entropy. 1.2 and 0.8 for symmetric noise of 0.1 to 0.9 in the paper, which uses
        other values for other noise.
    length : int >= 1
        Number of averaged predictions: the last 10 epochs in the paper, here the last 10 passes over the sample on its client.

    Notes
    -----
    The paper's second stage, which trains a new model on the final labels, is left out, as in the comparisons of this field.
    On a client with few classes, alpha pulls predictions towards all classes.
    """
    opt.fit.refuse_mixup("jointopt")
    warmup, settings = warmup_rounds(warmup, rounds), {"alpha": alpha, "beta": beta, "length": length}

    def schedule(r: int) -> tuple[dict[str, Any], dict[str, Any]]:
        correct = (take_soft_labels,) if r >= warmup else ()
        return {"loss": partial(joint, given=r < warmup, **settings), "after": correct}, {}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))
