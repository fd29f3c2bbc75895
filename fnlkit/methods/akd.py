"""AKD: noisy clients also learn from an embedding or from the global model.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import Sent, method
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import NotNegative, Positive, Share, arguments_of, check_arguments, passes_on
from fnlkit.federated.client.losses.distillation import embedding_distilled, logit_distilled
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods import energy_levels
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.missed import complete_levels
from fnlkit.methods.na_fedavg import na_fedavg
from fnlkit.methods.neighbor_votes import limit_neighbors, vote
from fnlkit.methods.nnc import nnc

# Parameters of the estimates, as in NNC and NA-FedAvg.
VOTES, ENERGY = ("k", "include_self"), ("at", "percentile", "score")
# A client describes its embeddings with at least this many samples: the mean of a single one is the embedding itself.
LEAST = 5


def needs(source: str, level: str) -> tuple[Any, ...]:
    """List the inputs that a run must provide."""
    if source == "embeddings":
        return ("embedding", "head")
    return ("embedding",) if level == "neighbors" else ()


def schedule(rounds: int, source: str, level: float, at: int) -> int | None:
    """Round of the estimation if the method estimates by energy scores, else None."""
    energy = level == "energy" or (level == "auto" and source == "logits")
    return energy_levels.round_of_estimation(at, rounds) if energy else None


# ---- on the client
def measure_square(client: Client, model: LocalModel, received: Received) -> dict[str, Any]:
    """Reply the mean square of the client's embeddings."""
    return {"embedding_square": client.rows["input/embedding"].double().square().mean().cpu()}


def measure_moments(client: Client, model: LocalModel, received: Received) -> dict[str, Any]:
    """Reply the mean and the mean square of each dimension of the client's embeddings, (2, D), or zeros."""
    x = client.rows["input/embedding"].double()
    moments = torch.stack([x.mean(0), x.square().mean(0)]).cpu()
    return {"teacher_moments": moments if len(x) >= LEAST else torch.zeros_like(moments)}


# ---- the server
def weigh_moments(moments: torch.Tensor, sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Pool the embeddings of all clients: their mean (D,), and the variance averaged over the dimensions.

    Parameters
    ----------
    moments : (K, 2, D)
        Replies of `measure_moments`.
    sizes : (K,)
        Numbers of samples.

    Raises
    ------
    InputError
        If no client has `LEAST` samples.
    """
    weights = sizes * (sizes >= LEAST)
    if not weights.any():
        raise InputError(f"`akd(scale=standard)` needs a client with {LEAST} samples or more; write scale=rms")
    mean, square = torch.tensordot(weights / weights.sum(), moments, 1)
    return mean, (square - mean.square()).mean()


@method(
    sends={
        "noise_level": Sent.share("share of labels outvoted by nearest neighbors", "once, before training, with embeddings"),
        "teacher_moments": Sent(
            "mean and mean square of each dimension of the embeddings, of 5 samples or more",
            "once, before training, with embeddings",
            (2, "D"),
            fewest=LEAST,
        ),
        "embedding_square": Sent("mean square of the embeddings", "once, before training, with scale=rms", (), low=0),
        **{
            name: sent._replace(when="once, in the estimation round, with logits")
            for name, sent in energy_levels.SCORED.items()
        },
    },
    loss="own",
    needs=needs,
    schedule=schedule,
    cite="Tsouvalas 2024",
)
@check_arguments
@passes_on(nnc, *VOTES)
@passes_on(na_fedavg, *ENERGY)
def akd(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    source: Literal["embeddings", "logits"] = "embeddings",
    strength: NotNegative = 10.0,
    temperature: Positive = 2.0,
    above: Share = 0.0,
    level: Literal["auto", "neighbors", "energy", "all"] = "auto",
    towards: Literal["teacher", "student"] = "teacher",
    distance: Literal["norm", "absolute"] = "norm",
    scale: Literal["standard", "rms", "given"] = "standard",
    **of_levels,
) -> Generator[Round, None, Model]:
    """Distill noisy clients from a teacher that was not trained on their labels.

    The loss of each client is the cross entropy + strength x [level_m > above] x KD (eq. 9).

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg.
    source : "embeddings" or "logits"
        The teacher: KD = |e - ê| with a pretrained embedding, or T^2 KL with the round's global model.
    strength, temperature : float >= 0, float > 0
        beta and T; the paper fixes 10 and 2 for both teachers (Section 4.3.2).
    above : float in [0, 1]
        epsilon: clients with a higher estimated noise level are distilled.  The paper allows 0; the public code uses 0.15.
    level : "auto", "neighbors", "energy" or "all"
        Estimate of the noise level.  ``neighbors``: votes of nearest neighbors before training (auto with embeddings).
        ``energy``: energy scores in one round of all clients (auto with logits); no client is distilled before that round.
        ``all``: no estimate; all clients are distilled.
    k, include_self : int >= 1 or -1, bool
        Parameters of the votes, as in NNC.
    at, percentile, score : int >= 1 or -1, float in [0, 100], str
        Parameters of the energy scores, as in NA-FedAvg; 30 and 75 in the paper (Sections 5.2, 5.3.1).
    towards : "teacher" or "student"
        Direction of KL with logits; see `fnlkit.federated.client.losses.logit_distilled`.
    distance : "norm" or "absolute"
        |e - ê| of two vectors (eq. 9): the Euclidean norm over the root of the dimension, or the mean of the absolute
        differences, as in the public code and in the text, which calls eq. 9 a mean absolute error.
    scale : "standard", "rms" or "given"
        The teacher's embeddings: with a mean of 0 in each dimension and a mean square of 1 over the federation; only divided
        to a mean square of 1; or unchanged, as eq. 9 is printed.  Each client with 5 samples or more sends mean and mean square
        of each dimension once for ``standard``, and each client the mean square of all dimensions for ``rms``.

    Notes
    -----
    The teacher helps if it represents samples better than the network can learn to: +5 points on CIFAR-10 and +10 on EuroSAT
    in FedLN, which trains on images with CLIP as the teacher.  On frozen features the embedding
    contains the same information as the network's input, so that the teacher does not help.

    ``distance=absolute, scale=given`` is the loss of the public code.  With embeddings of length 1, whose values are near 0, a
    strength of 10 pulls all features of the student to 0: LeNet-5 and ResNet-20 on CIFAR-10 then predict one class, so that it
    cannot have given the published tables with such embeddings.  The paper uses CLIP, whose embeddings are outputs of a linear
    layer, with both signs in each dimension.  Pooled features after ReLU are not negative and skewed: most differences have
    the same sign, and the mean absolute difference pulls all features of the student in one direction.  ``standard`` alone does
    not prevent this, because the mean is not the median; the norm weighs differences by their size.  On CIFAR-10 with LeNet-5
    and five seeds, the default ends 13 points ahead of FedAvg (benchmarks/results/regimes-images.txt).

    If the widths of student and teacher differ, the student gets a linear head (fnlkit.models.head).  The head is trained
    and averaged with the model; in the public code it stays on the client, and the paper does not specify this.

    Reports
    -------
    noise_level (N,), once; energy_threshold with energy scores; embedding_scale unless scale=given.
    """
    if level == "auto":
        level = "neighbors" if source == "embeddings" else "energy"
    votes = {name: of_levels.get(name, arguments_of(nnc)[name]) for name in VOTES}
    energy = {name: of_levels.get(name, arguments_of(na_fedavg)[name]) for name in ENERGY}
    everyone = np.arange(len(clients))
    report: dict[str, Any] = {}
    sent: dict[str, torch.Tensor] = {}
    levels = np.full(len(clients), np.inf if level == "all" else 0.0)
    steps: list[Any] = []
    expect: list[str] = []
    if level == "neighbors":
        votes["k"] = limit_neighbors(clients, votes["k"], "akd")
        steps.append(partial(vote, **votes, ties="random", correct=False, least=0.0))
        expect.append("noise_level")
    if source == "embeddings" and scale != "given":
        steps.append(measure_moments if scale == "standard" else measure_square)
        expect.append("teacher_moments" if scale == "standard" else "embedding_square")
    replies: Any = clients.round(everyone, model, *steps, expect=expect) if steps else {}
    if "noise_level" in replies:
        levels[replies.ids] = replies["noise_level"].numpy()
        levels = complete_levels(levels, replies.ids)
        report["noise_level"] = levels
    factor = 1.0
    if source == "embeddings" and scale != "given":
        sizes = clients.sizes[replies.ids]
        if scale == "standard":
            mean, square = weigh_moments(replies["teacher_moments"], sizes)
            sent = {"embedding_mean": mean.float()}
        else:
            square = sizes @ replies["embedding_square"] / sizes.sum()
        report["embedding_scale"] = factor = max(1e-24, square.item()) ** -0.5
    if level == "energy":
        before, rounds = energy_levels.when_to_estimate(rounds, clients, select, energy.pop("at"), "akd")
        model = yield from fedavg(clients, model, opt, select, rounds=before, stage="before estimation")
        model, replies, levels, tau = energy_levels.estimation_round(
            clients, model, opt, side="below", threshold="pooled", **energy
        )
        threshold = {"energy_threshold": tau} if np.isfinite(tau) else {}
        yield Round(model, "estimation", replies, {"noise_level": levels, **threshold})
    if source == "embeddings":
        step: dict[str, Any] = {
            "loss": partial(embedding_distilled, strength=strength, scale=factor, distance=distance),
            "features": True,
        }
    else:
        loss = partial(logit_distilled, strength=strength, temperature=temperature, towards=towards)
        step = {"loss": loss, "teacher": True}
    distil = (levels > above).astype(np.float64)
    for _ in range(rounds):
        ids = select(clients, model)
        model, replies = opt.round(clients, ids, model, broadcast=sent, scatter={"distil": distil[ids]}, **step)
        yield Round(model, "distillation", replies, {"distilled_clients": int(distil[ids].sum()), **report})
        report = {}
    return model
