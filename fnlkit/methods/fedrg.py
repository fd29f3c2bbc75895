"""FedRG: directions of an embedding, not losses, decide which labels are noisy.

Wen, Yang, Zhang, Jiang, Peng, Wang, Han. FedRG: Unleashing the representation geometry for federated learning with noisy
clients. CVPR 2026, arXiv:2603.19722.  Source of all values: the authors' public code Tianjoker/FedRG, commit 9fd93e7.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Automatic, NotNegative, Positive, Range, Share, check_arguments
from fnlkit.federated.client.losses.absorbing import absorbing
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.mixture import gaussians
from fnlkit.methods.fedavg import Round

# Values of the public code: pseudo-counts of the mixture and of the map, first concentration and background share, range of
# concentrations and of the background share.
PRIOR, SMOOTHING, FIRST, BACKGROUND = 5.0, 0.5, 5.0, 0.05
CONCENTRATIONS, SHARES = (0.5, 100.0), (1e-3, 0.2)
MIXTURE = ("directions", "concentrations", "shares", "background", "map")  # names of its arrays


# ---- on the client
def start_mixture(groups: int, classes: int, width: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Start with a mixture of `groups` random directions with equal shares, and an even map from classes to groups.

    Keys: ``directions`` (G, D), ``concentrations`` (G,), ``shares`` (G,), ``background`` (), ``map`` (C, G).
    """
    return {
        "directions": _unit(rng.normal(size=(groups, width))),
        "concentrations": np.full(groups, FIRST),
        "shares": np.full(groups, 1 / groups),
        "background": np.array(BACKGROUND),
        "map": np.full((classes, groups), 1 / classes),
    }


def _unit(rows):
    return rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-8)


def posteriors(mixture: dict[str, np.ndarray], z: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Compute probabilities of the groups (B, G) and of the background (B,) for unit vectors (B, D)."""
    groups = z @ mixture["directions"].T * mixture["concentrations"] + np.log(mixture["shares"] + 1e-12)
    both = np.column_stack([np.full(len(z), np.log(mixture["background"] + 1e-12)), groups]) / temperature
    both = np.exp(both - both.max(1, keepdims=True))
    both /= both.sum(1, keepdims=True)
    return both[:, 1:], both[:, 0]


def find_noisy(evidence: np.ndarray, threshold: float) -> np.ndarray:
    """Select the noisy samples (B,) bool of a batch: the group of small evidence of two Gaussians.

    With equal values, and with fewer than two samples, none is.
    """
    values = 1 - evidence
    if len(values) < 2 or not np.ptp(values) > 0:
        return np.zeros(len(values), bool)
    share, means, *_ = gaussians(values[:, None])
    return share[:, means[:, 0].argmin()] < threshold


def update_mixture(
    mixture: dict[str, np.ndarray], z: np.ndarray, labels: np.ndarray, group: np.ndarray, other: np.ndarray, clean: np.ndarray,
    rate: float,
) -> None:  # fmt: skip
    """Move the mixture and the map towards the estimates of one batch; only clean samples count for the map.

    Parameters
    ----------
    z, labels : (B, D), (B,)
    group, other : (B, G), (B,)
        Posteriors of groups and background.
    clean : (B,) bool
    rate : float
        Weight of the batch.
    """
    sums, counts, width = group.T @ z, group.sum(0), z.shape[1]

    def move(name, new):
        mixture[name] = (1 - rate) * mixture[name] + rate * new

    length = np.clip(np.linalg.norm(sums, axis=1) / (counts + 1e-8), 1e-6, 1 - 1e-6)
    move("directions", _unit(sums))
    mixture["directions"] = _unit(mixture["directions"])
    move("concentrations", np.clip(length * (width - length**2) / (1 - length**2), *CONCENTRATIONS))
    prior = PRIOR / len(counts)
    move("shares", (counts + prior) / (counts.sum() + PRIOR + 1e-12))
    total = counts.sum() + other.sum()
    move("background", (other.sum() + 0.1 * PRIOR) / (total + 0.1 * PRIOR + 1e-12))
    mixture["background"] = np.clip(mixture["background"], *SHARES)
    joint = np.zeros_like(mixture["map"])
    np.add.at(joint, labels[clean], group[clean])
    if joint.sum() > 0:
        move("map", (joint + SMOOTHING) / ((joint + SMOOTHING).sum(1, keepdims=True) + 1e-12))
        mixture["map"] /= mixture["map"].sum(1, keepdims=True) + 1e-12


def judge_by_geometry(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    groups: int,
    threshold: float,
    temperature: float,
    rate: float,
    batch_size: int,
) -> None:
    """Write rows["rg_noisy"], batch by batch: a label is noisy if the groups of its class do not contain the sample."""
    z = _unit(client.rows["input/embedding"].cpu().double().numpy())
    labels, classes = client.y.cpu().numpy(), client.classes
    if "rg_map" not in client.state:
        mixture = start_mixture(groups if groups > 0 else classes, classes, z.shape[1], client.rng)
        client.state["rg_absorption"] = torch.eye(classes, dtype=torch.float64)
    else:
        mixture = {name: client.state[f"rg_{name}"].numpy() for name in MIXTURE}
    noisy = np.zeros(len(client), bool)
    for batch in np.array_split(client.rng.permutation(len(client)), max(1, round(len(client) / batch_size))):
        group, other = posteriors(mixture, z[batch], temperature)
        noisy[batch] = find_noisy((mixture["map"][labels[batch]] * group).sum(1), threshold)
        update_mixture(mixture, z[batch], labels[batch], group, other, ~noisy[batch], rate)
    client.state |= {f"rg_{name}": torch.from_numpy(np.asarray(value)) for name, value in mixture.items()}
    client.rows["rg_noisy"] = torch.from_numpy(noisy).to(model.weights.dtype)


def learn_absorption(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    lr: float,
    momentum: float,
    absorb: float,
    epochs: int,
) -> None:
    """Learn T by gradient descent on the noisy samples, with the trained model's predictions; rows sum to 1 after each step."""
    noisy = client.rows.pop("rg_noisy").bool()
    if not noisy.any():
        return
    p, labels = model(client.x)[noisy].cpu().double().softmax(-1), client.y.cpu()[noisy]
    matrix, velocity = client.state["rg_absorption"].double(), torch.zeros(client.classes, client.classes, dtype=torch.float64)
    for _ in range(epochs):
        inside = (p @ matrix).gather(1, labels[:, None]) + 1e-12
        gradient = torch.zeros_like(matrix).index_add_(1, labels, (-absorb * p / inside).T / len(p))
        velocity = momentum * velocity + gradient
        matrix = (matrix - lr * velocity).clamp_min(1e-6)
        matrix = matrix / matrix.sum(1, keepdim=True)
    client.state["rg_absorption"] = matrix


# ---- the server
@method(loss="own", needs=("embedding",), cite="Wen 2026")  # mixture and matrix stay on the client
@check_arguments
def fedrg(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    groups: Annotated[int, Range(1), Automatic()] = -1,
    threshold: Share = 0.5,
    temperature: Positive = 2.0,
    rate: Share = 0.1,
    robust: NotNegative = 0.4,
    absorb: NotNegative = 1.0,
    lr: NotNegative = 0.01,
) -> Generator[Round, None, Model]:
    """Judge labels by a mixture of directions of an embedding, and absorb noisy ones with a matrix for each client.

    A sample's evidence is the probability of the groups of directions that its class usually has.  Noisy labels have the
    smaller evidence of two Gaussians.

    Parameters
    ----------
    rounds : int
    groups : int >= 1, or -1
        Number of directions.  Default: -1, the number of classes (public code: 10 on CIFAR-10 and SVHN, 50 on CIFAR-100).
    threshold : float in [0, 1]
        Least probability of the Gaussian with more evidence for a clean label.
    temperature : float > 0
        Divides the logarithms of the posteriors of groups.
    rate : float in [0, 1]
        Weight of a batch in the mixture and in the map from classes to groups.
    robust, absorb : float >= 0
        Weights of the symmetric cross entropy and of the term with the matrix.
    lr : float >= 0
        Learning rate of the matrix; its momentum is that of local training.

    Notes
    -----
    Evidence, mixture, map and loss equal the public code for two equal views (tests/golden/fedrg.npz).  Only the abstract and
    the public code were available, not the paper's equations.

    Differences from the public code: directions are those of an embedding (`--embeddings`), in place of 150
    rounds of SimCLR, whose encoder local training then continues.  Without a second view, all samples are equally certain.
    The mixture is updated batch by batch before local training, in one pass per visit, and T after it, with one step for each
    epoch.

    The rule of the public code flags most wrong labels, and many right ones: a class of which no sample was judged clean keeps
    an even row in the map, so that its samples stay flagged.  Even on well separated classes with a third of wrong labels,
    more than 90 % of the wrong labels are flagged, but less than 70 % of the flagged labels are wrong.
    """
    opt.fit.refuse_mixup("fedrg")
    settings: dict[str, Any] = {"groups": groups, "threshold": threshold, "temperature": temperature, "rate": rate}
    judge = partial(judge_by_geometry, batch_size=opt.fit.batch_size, **settings)
    learn = partial(learn_absorption, lr=lr, momentum=opt.fit.momentum, absorb=absorb, epochs=opt.fit.epochs)
    loss = partial(absorbing, robust=robust, absorb=absorb)
    for _ in range(rounds):
        model, replies = opt.round(clients, select(clients, model), model, before=(judge,), after=(learn,), loss=loss)
        yield Round(model, "training", replies)
    return model
