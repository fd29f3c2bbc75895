"""FedRN: k reliable neighbors help to select a client's clean samples.

Kim, Shin, Jang, Song, Yun. FedRN: Exploiting k-reliable neighbors towards robust federated learning. CIKM 2022.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, method
from fnlkit.core.parameters import Count, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.cross_entropy import kept_cross_entropy
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.federated.types import Client, Clients, FedOpt, Inputs, LocalModel, Model, Received
from fnlkit.kernels.mixture import lower_probability
from fnlkit.kernels.streams import stream
from fnlkit.methods.fedavg import Round
from fnlkit.methods.warmup import warmup_rounds


# ---- on the client
def reply_reliability(client: Client, model: LocalModel, received: Received, *, seed: int) -> dict[str, Any]:
    """Reply the local model's accuracy and its logits for a common noise sample."""
    hits = (model(client.x).argmax(-1).cpu() == client.y.cpu()).double()
    noise = model(noise_like(client.x[:1], client.inputs, seed))[0].double().cpu()
    return {"expertise": hits.mean(), "noise_output": noise}


def noise_like(x: torch.Tensor, inputs: Inputs, seed: int) -> torch.Tensor:
    """Draw one raw sample of Gaussian noise.

    After the normalization of the inputs, mean and standard deviation are 0 and 1, or close to these values.
    """
    draws = torch.from_numpy(stream(seed, "fedrn-noise").normal(size=tuple(x.shape)))
    if inputs.mean and not inputs.image:
        draws = torch.tensor(inputs.mean) + draws * torch.tensor(inputs.std)
    elif inputs.image:
        draws = (0.5 + 0.25 * draws).clamp(0, 1) * (255 if x.dtype == torch.uint8 else 1)
    return draws.to(x.dtype)


def select_clean(client: Client, model: LocalModel, received: Received, *, threshold: float, seed: int) -> None:
    """Write rows["keep"]: n / kept for samples that the models consider clean, else 0.

    The probability of being clean is the mean over the models, weighted by reliability.
    """
    total, labels = np.zeros(len(client)), client.y.cpu()
    for weights, share in zip(received["judges"], received["reliability"].tolist(), strict=True):
        if share:
            logits = model.score(model.network, weights.to(model.weights), client.x, client.inputs)
            total += share * lower_probability(sample_losses(logits.cpu().double(), labels).numpy(), seed=seed, steps=100)
    clean = torch.from_numpy(total > threshold)
    clean = clean if clean.any() else ~clean
    client.rows["keep"] = (clean * (len(client) / clean.sum())).to(model.weights.dtype)


# ---- the server
def reliabilities(
    i: int, expertise: np.ndarray, outputs: np.ndarray, known: np.ndarray, *, k: int, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Choose and weigh the judges of client i: itself and its k best known neighbors.

    Weights sum to 1.  The score of a neighbor is share x expertise + (1 - share) x similarity, both scaled to [0, 1] over the
    known clients.  Similarity is the cosine between the two models' logits for noise; it is 1 for the client itself.

    Parameters
    ----------
    expertise, outputs, known : (N,), (N, C), bool (N,)
    k : int
    share : float in [0, 1]
    """
    ids = np.flatnonzero(known)
    if not known[i]:
        return np.zeros(0, np.int64), np.zeros(0)
    length = np.linalg.norm(outputs[ids], axis=1) * np.linalg.norm(outputs[i])
    similar = outputs[ids] @ outputs[i] / np.maximum(length, 1e-12)
    similar[ids == i] = 1.0
    score = share * _normalize(expertise[ids]) + (1 - share) * _normalize(similar)
    others = np.flatnonzero(ids != i)
    best = others[np.argsort(-score[others], kind="stable")[:k]]
    chosen = np.r_[np.flatnonzero(ids == i), best]
    total = score[chosen].sum()
    return ids[chosen], score[chosen] / total if total > 0 else np.full(len(chosen), 1 / len(chosen))


def _normalize(values):
    spread = np.ptp(values)
    return (values - values.min()) / spread if spread > 0 else np.ones(len(values))


def judges_for(
    ids: np.ndarray, model: Model, memory: dict[str, torch.Tensor], chosen: list[tuple[np.ndarray, np.ndarray]], width: int
) -> dict[str, Any]:
    """Collect the local models (K, 1 + k, P + Q) to scatter, and their weights (K, 1 + k).

    Missing models are 0.
    """
    judges = model.weights.new_zeros(len(ids), width, len(model.weights))
    weights = torch.zeros(len(ids), width, dtype=torch.float64)
    for row, (who, share) in enumerate(chosen):
        for place, j in enumerate(who.tolist()):
            judges[row, place] = memory[f"fedrn/{j}"]
            weights[row, place] = share[place]
        if not len(who):  # a client without a visit so far is judged by the global model
            judges[row, 0], weights[row, 0] = model.weights, 1.0
    return {"judges": judges, "reliability": weights}


@method(
    sends={
        "expertise": Sent.share("accuracy of the trained model on the client's labels", "each round"),
        "noise_output": Sent("logits of the trained model for a common noise sample", "each round", ("C",)),
    },
    loss="own",
    schedule=warmup_rounds,
    cite="Kim 2022",
)
@check_arguments
def fedrn(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    k: Count = 2,
    share: Share = 0.6,
    threshold: Share = 0.5,
) -> Generator[Round, None, Model]:
    """Train on samples that a client and its k most reliable neighbors consider clean.

    Parameters
    ----------
    rounds : int
        After the warm-up a client receives 1 + k local models in addition to the global model, and scores its samples with
        each model.
    warmup : int >= 0, or -1
        Rounds on all samples, at least 1.  Default: -1, a fifth of all rounds (public code: 100 of 500).
    k : int >= 1
        Neighbors; 2 in the public code's runs.
    share : float in [0, 1]
        alpha, weight of expertise against similarity; 0.6 in the paper's benchmark, 0.5 in the first public version.
    threshold : float in [0, 1]
        Least mean probability of being clean.

    Notes
    -----
    The server stores the last model of every client in the run's memory.  The paper tunes a neighbor's classifier on the
    client's clean samples before scoring; here the neighbor's model is not tuned.

    Reports
    -------
    expertise (N,) each round, of the clients visited so far.
    """
    opt.fit.refuse_mixup("fedrn")
    warmup, count = max(1, warmup_rounds(warmup, rounds)), len(clients)  # a model must be trained once before it scores samples
    expertise, known, outputs = np.zeros(count), np.zeros(count, bool), np.zeros((count, clients.classes))
    reply = partial(reply_reliability, seed=clients.seed)
    for r in range(rounds):
        ids, step = np.sort(select(clients, model)), dict[str, Any]()
        if r >= warmup:
            step = {"loss": kept_cross_entropy, "before": (partial(select_clean, threshold=threshold, seed=clients.seed),)}
            if not clients.replaying:
                chosen = [reliabilities(i, expertise, outputs, known, k=k, share=share) for i in ids.tolist()]
                step["scatter"] = judges_for(ids, model, clients.memory, chosen, 1 + k)
        model, replies = opt.round(clients, ids, model, after=(reply,), expect=("expertise", "noise_output"), **step)
        if len(replies.ids):
            expertise[replies.ids], outputs[replies.ids] = replies["expertise"].numpy(), replies["noise_output"].numpy()
            known[replies.ids] = True
        for i, weights in zip(replies.ids.tolist(), replies.get("weights", ()), strict=False):
            clients.memory[f"fedrn/{i}"] = weights.clone()
        yield Round(model, "warm-up" if r < warmup else "neighbors", replies, {"expertise": expertise.copy()})
    return model
