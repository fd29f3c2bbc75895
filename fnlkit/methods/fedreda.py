"""FedReDA: clean samples by averaged losses and agreement, distillation from the mean model of the other clients.

FedReDA: Federated reliability-aware dual adapters for noisy-label learning on vision foundation models.  No paper was found;
source of all values: the public code gist-ailab/FedReDA, commit aa87020 (2025), FedReDA.py.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, method
from fnlkit.core.parameters import Count, Natural, NotNegative, Positive, Share, check_arguments
from fnlkit.federated.client.drift import proximal
from fnlkit.federated.client.losses.reliable import prior_adjusted, reliable
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.mixture import gaussians
from fnlkit.methods.fedavg import Round

# Classes with fewer samples at a client have no mixture: all of their samples count as clean.
FEWEST = 20


# ---- on the client
def predict_as_teacher(client: Client, model: LocalModel, received: Received) -> None:
    """Write the teacher's logits (n, C), and allocate the rows of the loss at the first visit."""
    teacher, kind = received["teacher"].to(model.weights), model.weights.dtype
    client.rows["reda_teacher"] = model.score(model.network, teacher, client.x, client.inputs).cpu().to(kind)
    client.rows["reda_uses"] = torch.zeros(len(client), dtype=kind)
    if "reda_loss" not in client.rows:
        client.rows["reda_loss"] = torch.full((len(client),), -1, dtype=kind)
        client.rows["reda_clean"] = torch.ones(len(client), dtype=kind)


def judge_samples(
    client: Client, model: LocalModel, received: Received, *, judge: bool, momentum: float, epochs: int
) -> dict[str, torch.Tensor]:
    """Move the probabilities of being clean towards the smaller losses of each class; reply the share of clean uses."""
    if judge:
        clean = find_small_losses(client.rows["reda_loss"].numpy(), client.y.cpu().numpy())
        before = client.rows["reda_clean"]
        client.rows["reda_clean"] = momentum * before + (1 - momentum) * torch.from_numpy(clean).to(before)
    del client.rows["reda_teacher"]
    return {"clean_share": (client.rows.pop("reda_uses").double().mean() / epochs).clamp(0, 1)}


def find_small_losses(losses: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Select samples (n,) bool of the lower of two Gaussians, fitted to the losses of each class.

    Samples of classes with fewer than FEWEST samples, or with equal losses, all do.

    Parameters
    ----------
    losses : (n,)
    labels : (n,) int
    """
    clean = np.ones(len(losses), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        values = losses[members].astype(np.float64)
        if len(members) < FEWEST or not np.ptp(values) > 0:
            continue
        share = gaussians(((values - values.mean()) / (values.std() + 1e-8))[:, None])[0]
        group = share.argmax(1)
        means = [values[group == k].mean() if (group == k).any() else np.inf for k in range(2)]
        clean[members] = group == np.argmin(means)
    return clean


# ---- the server
def teachers_of(ids: np.ndarray, model: Model, memory: dict[str, torch.Tensor], count: int) -> torch.Tensor:
    """Choose the teachers (K, P + Q): the mean of the last models of all other clients, or the global model."""
    known = {j: memory[f"fedreda/{j}"] for j in range(count) if f"fedreda/{j}" in memory}
    total = sum(weights.double() for weights in known.values())
    teachers = model.weights.new_empty(len(ids), len(model.weights))
    for row, i in enumerate(np.asarray(ids).tolist()):
        others = len(known) - (i in known)
        mine = known[i].double() if i in known else 0.0
        teachers[row] = (total - mine) / others if others else model.weights
    return teachers


@method(
    sends={
        "clean_share": Sent.share(
            "share of the uses of samples in training that counted as clean", "each round after the warm-up"
        )
    },
    loss="own",
    cite="gist-ailab 2025",
)
@check_arguments
def fedreda(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Natural = 1,
    threshold: Share = 0.6,
    agreement: Share = 0.7,
    momentum: Share = 0.8,
    every: Count = 2,
    rate: Share = 0.9,
    prior: NotNegative = 0.5,
    smoothing: Share = 0.05,
    distil: NotNegative = 1.0,
    temperature: Positive = 3.0,
    pull: NotNegative = 5e-4,
    equal: Natural = 3,
) -> Generator[Round, None, Model]:
    """Train on clean samples, and distill the mean model of the other clients on the rest.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0
        Rounds of cross entropy with adjusted logits, in which all clients have the same weight.
    threshold : float in [0, 1]
        Least probability of being clean.  A sample also counts as clean while local model and teacher agree.
    agreement : float in [0, 1]
        Least probability that both models give the common class.
    momentum, every : float in [0, 1], int >= 1
        Weight of the earlier probability of being clean, and the number of rounds between its changes.
    rate : float in [0, 1]
        Weight of the earlier losses in a sample's average loss.
    prior : float >= 0
        Factor of the logarithms of the client's class shares, which are added to all logits in training.
    smoothing : float in [0, 1]
        Label smoothing on clean samples.
    distil, temperature : float
        Weight and temperature of the distillation.
    pull : float >= 0
        Weight of the squared distance from the received model.
    equal : int >= 0
        Rounds after the warm-up in which all clients have the same weight; later the weight is the share of clean uses.

    Notes
    -----
    The public code trains two adapters in a frozen DINOv2 network, the student and the teacher.  Here all trainable weights
    take the place of an adapter: use the method on features of a frozen network (`--backbone`) for the original setting.  The
    code trains with AdamW and a learning rate of 3e-4, without which `--client-optimizer adam --lr 0.0003` comes closest.
    Differences: warm-up rounds are aggregated; teachers predict samples without augmentation, once per visit; the distance also
    counts the last layer; clients that are not selected keep their last model in the mean.

    Losses, average losses and the split by class equal the public code (tests/golden/fedreda.npz).

    A class has a mixture of losses only if the client has 20 samples of it.  At smaller clients all samples stay clean, and the
    method is close to FedAvg.

    The server stores the last model of every client in the run's memory.  A client's teacher is the last model of another
    client if only that one was visited before.

    Reports
    -------
    clean_share (N,) each round after the warm-up, of the clients visited so far.
    """
    opt.fit.refuse_mixup("fedreda")
    shares, ones = np.ones(len(clients)), torch.ones(len(clients), dtype=torch.float64)
    settings: dict[str, Any] = {"threshold": threshold, "agreement": agreement, "smoothing": smoothing, "rate": rate}
    loss = partial(reliable, prior=prior, distil=distil, temperature=temperature, **settings)

    def weigh(replies):
        weights = ones.clone()
        weights[replies.ids] = replies["clean_share"].double().clamp_min(1e-8)
        return weights

    for r in range(rounds):
        ids, late = np.sort(select(clients, model)), r - warmup
        step: dict[str, Any] = {"loss": partial(prior_adjusted, prior=prior), "weights": ones}
        if late >= 0:
            judge = partial(judge_samples, judge=late % every == 0, momentum=momentum, epochs=opt.fit.epochs)
            step = {
                "loss": loss,
                "before": (predict_as_teacher,),
                "after": (judge,),
                "corrections": (partial(proximal, mu=2 * pull),),
                "weights": ones if late < equal else weigh,
                "expect": ("clean_share",),
            }
            if not clients.replaying:
                step["scatter"] = {"teacher": teachers_of(ids, model, clients.memory, len(clients))}
        model, replies = opt.round(clients, ids, model, **step)
        for i, weights in zip(replies.ids.tolist(), replies.get("weights", ()), strict=False):
            clients.memory[f"fedreda/{i}"] = weights.clone()
        if late >= 0 and len(replies.ids):
            shares[replies.ids] = replies["clean_share"].numpy()
        yield Round(
            model, "warm-up" if late < 0 else "reliability", replies, {"clean_share": shares.copy()} if late >= 0 else {}
        )
    return model
