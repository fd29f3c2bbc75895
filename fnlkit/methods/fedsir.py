"""FedSIR: singular vectors of class features find clean clients, whose vectors relabel the samples of noisy clients.

Gholami, Ali, Haghighi, Arafa, Alam. FedSIR: Spectral client identification and relabeling for federated learning with noisy
labels. CVPR 2026, arXiv:2604.20825.  Source of all values: the public code sinagh72/FedSIR, commit bebb316.
"""

import math
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, method
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Count, Natural, NotNegative, Patience, Positive, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.adjusted import partly_distilled
from fnlkit.federated.server.aggregation import mean
from fnlkit.federated.server.selection import cohort_size
from fnlkit.federated.types import Client, Clients, FedOpt, Fit, LocalModel, Model, Received, Replies
from fnlkit.kernels.subspaces import class_similarity, class_subspaces, classify_by_subspaces, lower_group, merge_subspaces
from fnlkit.methods.fedavg import Round
from fnlkit.methods.noisy_clients import aware_of_distance, teachers_weight

RESIDUAL = 12  # residual vectors of a class
SIMILARITY = {"similarity": Sent.share("mean and mean square similarity of classes", "once, after the identification", (2,))}
SUBSPACES = {
    "subspaces": Sent(
        "singular vectors of the features by class", "each relabeling, clean clients", ("C", 1 + RESIDUAL, "d"), low=-1, high=1
    ),
    "spectra": Sent("samples, gap and share of the largest singular value by class", "with the vectors", ("C", 3), low=0),
}


# ---- on the client
def score_similarity(client: Client, model: LocalModel, received: Received, *, least: int) -> dict[str, torch.Tensor]:
    """Reply how similar the first singular vectors of the classes are under the trained model."""
    directions, _, spectra = class_subspaces(_features(client, model), client.y.cpu().numpy(), client.classes)
    return {"similarity": torch.tensor(class_similarity(directions, spectra[:, 0], least=least), dtype=torch.float64)}


def reply_subspaces(client: Client, model: LocalModel, received: Received) -> dict[str, torch.Tensor]:
    """Reply the singular vectors of the features of each class under the received model, and their spectra."""
    labels = client.y.cpu().numpy()
    directions, residuals, spectra = class_subspaces(_features(client, model), labels, client.classes, residual=RESIDUAL)
    return {
        "subspaces": torch.from_numpy(np.concatenate([directions[:, None], residuals], 1)),
        "spectra": torch.from_numpy(spectra),
    }


def relabel_by_subspaces(client: Client, model: LocalModel, received: Received) -> None:
    """Relabel samples whose class by direction and class by residuals agree; the others keep the given label."""
    subspaces = received["subspaces"].double().cpu().numpy()
    along, away = classify_by_subspaces(_features(client, model), subspaces[:, 0], subspaces[:, 1:])
    agree = torch.from_numpy((along == away) & (along >= 0))
    client.y.copy_(torch.where(agree, torch.from_numpy(along), client.given.cpu()))
    client.rows["distilled"] = ~agree


def _features(client, model):
    return model.features(client.x).double().cpu().numpy()


# ---- the server
def stages(rounds: int, interval: int, begin: int, end: int) -> tuple[int, int, int]:
    """Numbers of rounds between relabelings, and the rounds in which the teacher's weight starts and stops to rise.

    Default: 20, 2 and 49 of 100 rounds, as in the public code.
    """
    interval = interval if interval > 0 else max(1, round(0.2 * rounds))
    return interval, begin if begin >= 0 else round(0.02 * rounds), end if end >= 0 else round(0.49 * rounds)


def identify(clients: Clients, model: Model, fit: Fit, *, least: int) -> tuple[Model, Replies, np.ndarray]:
    """Train all clients from the same model; return the mean of the clean clients' models, the replies and clean (N,) bool.

    A client without a reply counts as noisy.
    """
    everyone = np.arange(len(clients))
    replies = clients.round(everyone, model, fit, partial(score_similarity, least=least), expect=("similarity",))
    clean = np.zeros(len(clients), bool)
    if len(replies.ids):
        clean[replies.ids] = lower_group(replies["similarity"].numpy())
    return average_clean(clients, model, replies, clean if clean.any() else ~clean), replies, clean


def average_clean(clients: Clients, model: Model, replies: Replies, clean: np.ndarray) -> Model:
    """Average the clean clients' models of a round; `model` if there is none."""
    if clients.replaying:
        return model.with_weights(None)
    chosen = clean[replies.ids]
    if "weights" not in replies or not chosen.any():
        return model
    return model.with_weights(mean(replies["weights"][torch.from_numpy(chosen)], clients.sizes[replies.ids[chosen]]))


def relabel(clients: Clients, teacher: Model, clean: np.ndarray, *, least: int, agreement: float) -> None:
    """Send the consensus of the clean clients' singular vectors to the noisy clients, which relabel their samples."""
    replies = clients.round(np.flatnonzero(clean), teacher, reply_subspaces, expect=tuple(SUBSPACES), optional=True)
    if len(replies.ids):
        vectors, spectra = replies["subspaces"].double().numpy(), replies["spectra"].double().numpy()
        first, others = merge_subspaces(vectors[:, :, 0], vectors[:, :, 1:], spectra, least=least, strength=agreement)
        sent = {"subspaces": torch.from_numpy(np.concatenate([first[:, None], others], 1))}
        clients.round(np.flatnonzero(~clean), teacher, relabel_by_subspaces, broadcast=sent, expect=(), optional=True)


def schedule(rounds: int, interval: int, begin: int, end: int) -> int | None:
    """All rounds, unless no stage depends on them: the rounds after the identification follow from the cohort's size."""
    return rounds if interval < 0 or min(begin, end) < 0 else None


@method(sends=SIMILARITY | SUBSPACES, loss="own", schedule=schedule, cite="Gholami 2026")
@check_arguments
def fedsir(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    identification_epochs: Count = 5,
    identification_rate: Positive = 1 / 6,
    identification_weight_decay: NotNegative = 0.05,
    interval: Patience = -1,
    begin: Rounds = -1,
    end: Rounds = -1,
    strength: Share = 0.2,
    temperature: Positive = 0.8,
    least_similar: Natural = 20,
    least_reference: Natural = 100,
    agreement: NotNegative = 0.03,
) -> Generator[Round, None, Model]:
    """Find clean clients by singular vectors of class features, and relabel the samples of the others with these vectors.

    1. All clients train from the same model.  Clients whose classes have similar first singular vectors count as noisy.
    2. Training starts with the mean of the clean clients' models.  Clients train with logits adjusted by class shares; noisy
    clients also learn from the received model, and weigh less the further their model is from clean clients.
    3. At intervals, clean clients send the singular vectors of each class under the mean of their last models.  Noisy clients
    relabel the samples for which the nearest first vector and the smallest residual, from 12 vectors, agree on a class.

    Parameters
    ----------
    rounds : int
        The identification visits all clients and costs 1 / fraction rounds.
    identification_epochs, identification_rate, identification_weight_decay : int >= 1, float > 0, float >= 0
        Local training of the identification: epochs, learning rate divided by that of training, weight decay.  Public code: 5,
        5e-5 / 3e-4 with Adam, and 0.05.
    interval : int >= 1, or -1
        R, rounds between relabelings.  Default: -1, a fifth of the rounds (20 of 100).
    begin, end : int >= 0, or -1
        Rounds in which the teacher's weight starts to rise and is full.  Default: -1, 0.02 and 0.49 of the rounds (2 and 49 of
        100).
    strength, temperature : float
        w_KD, the teacher's largest weight, and the temperature of its softmax; 0.2 and 0.8 in the public code.
    least_similar : int
        Samples that a class needs to be compared in the identification, unless fewer than two classes have them.
    least_reference : int
        Samples of a class that a client needs for a weight in the consensus.  If no client has them, the client with most
        samples of the class provides its vectors.
    agreement : float >= 0
        Least difference of the two largest eigenvalues of a consensus; below, the client with most samples is taken.

    Notes
    -----
    Singular vectors, similarities, consensus, relabeling, loss and clean clients equal the public code on recorded data
    (tests/golden/fedsir.npz).  Only the abstract and the public code were available, not the paper's equations.

    The public code trains ResNet-18 with ImageNet weights and Adam, all of 10 clients in each round.  The identification needs
    features that separate classes after few epochs; a network without pretraining has none.  The temperature in the
    configuration of the public code is 1, but the value is not read, and 0.8 is used.

    **The vectors of a class with a single sample reveal its features up to their length** (docs/privacy.md).

    Differences: a class that no clean client has is never predicted, whereas the public code stops.  Without clean clients, all
    train as noisy clients without relabeling.  A client with one class has no similarity and counts as clean.  Singular vectors
    of singular values that are zero up to rounding are left out.  With partial participation, the mean of the clean clients'
    models is that of a round.

    Reports
    -------
    noisy_clients (N,) once; teacher_weight each round.
    """
    opt.fit.refuse_mixup("fedsir")
    cost = math.ceil(len(clients) / cohort_size(clients, getattr(select, "fraction", 0.1)) - 1e-9)
    if cost > rounds:
        raise InputError(
            f"fedsir: the identification visits all clients and costs {cost} of {rounds} rounds; raise `rounds` or `fraction`"
        )
    rounds -= cost
    interval, begin, end = stages(rounds, interval, begin, end)
    fit = opt.fit.changed(
        epochs=identification_epochs, lr=identification_rate * opt.fit.lr, weight_decay=identification_weight_decay
    )
    model, replies, clean = identify(clients, model, fit, least=least_similar)
    yield Round(model, "identification", replies, {"noisy_clients": ~clean})
    weigh = aware_of_distance(clients, model.network, ~clean, "layers")
    loss = partial(partly_distilled, temperature=temperature)
    teacher = model
    for r in range(rounds):
        if r and r % interval == 0 and clean.any() and not clean.all():
            if not clients.replaying:
                teacher = teacher.with_weights(clients.memory.get("fedsir/clean", model.weights))
            relabel(clients, teacher, clean, least=least_reference, agreement=agreement)
        ids = select(clients, model)
        weight = teachers_weight(r, strength=strength, start=begin, end=end)
        scatter = {"distil": weight * ~clean[ids]}
        model, replies = opt.round(clients, ids, model, weights=weigh, loss=loss, scatter=scatter)
        if not clients.replaying and clean[replies.ids].any():
            clients.memory["fedsir/clean"] = average_clean(clients, model, replies, clean).weights
        yield Round(model, "noise-aware", replies, {"teacher_weight": weight})
    return model
