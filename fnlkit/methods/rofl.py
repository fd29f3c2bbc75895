"""RoFL: class centroids, exchanged with the server, select trustworthy labels.

Yang, Park, Byun, Kim. Robust federated learning with noisy labels. IEEE Intelligent Systems 2022.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any

import torch

from fnlkit.core.declarations import Sent, declare, method
from fnlkit.core.parameters import Count, NotNegative, Range, Rounds, check_arguments
from fnlkit.federated.client.losses.centroids import cosines, near_centroids
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round
from fnlkit.methods.warmup import forgotten


# ---- on the client
def take_centroids(client: Client, model: LocalModel, received: Received) -> None:
    """Store the received centroids and the classes predicted by the received model.

    In the first round the centroids are the client's.
    """
    if "centroids" in received:
        client.state["centroids"] = received["centroids"].to(model.weights)
    else:
        client.state["centroids"] = class_means(model.features(client.x), client.y, client.classes)[0].to(model.weights)
    client.rows["pseudo_label"] = model(client.x).argmax(-1).cpu()


@declare(scheduled=("forget",))
def move_centroids(client: Client, model: LocalModel, received: Received, *, forget: float) -> dict[str, torch.Tensor]:
    """Reply centroids moved towards the class means of small-loss samples.

    f <- (1 - c^2) f + c^2 f^, where f^ are the class means and c is the cosine between f and f^.
    """
    losses = sample_losses(model(client.x).cpu().double(), client.y.cpu())
    small = losses.argsort(stable=True)[: max(1, int((1 - forget) * len(losses) + 1e-9))]
    means, seen = class_means(model.features(client.x)[small], client.y[small], client.classes)
    before = client.state["centroids"].cpu().double()
    moved = cosines(before, means).square()[:, None] * seen[:, None]
    moved = torch.where((before == 0).all(1, keepdim=True), seen[:, None].double(), moved)  # first samples of a class
    return {"centroids": (1 - moved) * before + moved * means}


def class_means(features: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Average features by label: (C, d) float64, and the present classes (C,) bool.

    Means of absent classes are 0.
    """
    features, labels = features.cpu().double(), labels.cpu()
    counts = torch.bincount(labels, minlength=classes)
    sums = torch.zeros(classes, features.shape[1], dtype=torch.float64).index_add_(0, labels, features)
    return sums / counts.clamp_min(1)[:, None], counts > 0


# ---- the server
def merge_centroids(centroids: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """Average the clients' centroids, weighted by cosine: the global centroids (C, d).

    Negative cosines count as 0, since weights of both signs can cancel.  The centroid of a class with only zero weights does
    not change.

    Parameters
    ----------
    centroids : Tensor (K, C, d)
    before : Tensor (C, d) or None
        None, in the first round, gives the plain mean over the clients that have the class.
    """
    has = (centroids != 0).any(-1).double()
    weights = has if before is None else cosines(centroids, before).clamp_min(0)
    if before is not None:
        weights = torch.where((before == 0).all(-1), has, weights)
    total = weights.sum(0)[:, None]
    mean = (weights[..., None] * centroids).sum(0) / total.clamp_min(1e-300)
    return torch.where(total > 0, mean, torch.zeros_like(mean) if before is None else before)


def pseudo_from(rounds: int, start: int) -> int:
    """Choose T_pl: `start`; if `start` is -1, 100, but at most half of the rounds.

    FedCorr's comparison uses 100 of 1,000 rounds.
    """
    return start if start >= 0 else min(100, rounds // 2)


@method(
    sends={"centroids": Sent("mean features of small-loss samples by class", "each round", ("C", "d"))},
    loss="own",
    schedule=pseudo_from,
    cite="Yang 2022",
)
@check_arguments
def rofl(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    start: Rounds = -1,
    forget: Annotated[float, Range(0, 1, open_high=True)] = 0.2,
    ramp: Count = 10,
    pull: NotNegative = 1.0,
    entropy: NotNegative = 0.8,
) -> Generator[Round, None, Model]:
    """Train on small-loss samples and relabel samples that features contradict.

    The new label is the class predicted by the global model.

    Parameters
    ----------
    rounds : int
    start : int >= 0, or -1
        T_pl: the first round with global pseudo labels, and the number of rounds over which `pull` rises.  Default: -1, which
        is 100 (FedCorr, appendix B, of 1,000 rounds), but at most half of the rounds.  The default is not a tenth of the
        budget, because an untrained model predicts few classes and would then be trained on these pseudo labels.  On frozen
        features with pseudo labels from round 6 of 60, the model predicts a single class until round 14.  With all labels
        right it ends 5.0 points behind FedAvg; with pseudo labels from round 30 on, 1.2 points (docs/league.md of commit
        4d89694f).
    forget, ramp : float in [0, 1), int >= 1
        tau and T_k of the small-loss selection, as in `coteaching`.
    pull, entropy : float >= 0
        lambda_cen and lambda_e; 1 and 0.8 in the public code, which computes no gradient of the features, so that lambda_cen
        has no effect.  Here this gradient is computed, and L_cen is the mean over features, so that it does not grow with the
        network's width.

    Notes
    -----
    A client moves its centroids once a visit, with its trained model; in the public code, in every batch.

    Cosines below 0 count as 0 in the mean over clients, because weights of both signs can cancel.  A visit has two additional
    passes without gradient.

    Reports
    -------
    forget_rate each round.
    """
    opt.fit.refuse_mixup("rofl")
    start, centroids = pseudo_from(rounds, start), None
    for r in range(rounds):
        rate = forgotten(r, forget=forget, ramp=ramp)
        strength = pull * min(1.0, r / start) if start else pull
        loss = partial(near_centroids, forget=rate, pull=strength, entropy=entropy, pseudo=r >= start)
        sent: dict[str, Any] = {} if centroids is None else {"broadcast": {"centroids": centroids}}
        steps: dict[str, Any] = {
            "before": (take_centroids,),
            "after": (partial(move_centroids, forget=rate),),
            "expect": ("centroids",),
        }
        model, replies = opt.round(clients, select(clients, model), model, loss=loss, **steps, **sent)
        if len(replies.ids):
            centroids = merge_centroids(replies["centroids"], centroids)
        yield Round(model, "training", replies, {"forget_rate": rate})
    return model
