"""FedGR: a mixture of all clients' losses and the global model revise labels; local averages are teachers.

Tian, Yang, Zhou, Wang, Ye, Liu, Niu, Lv. Learning locally, revising globally: Global reviser for federated learning with noisy
labels. ICML 2026, arXiv:2412.00452.  Source of all values: the authors' public code slyviacassell/FedGR, commit a552bca.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, method
from fnlkit.core.parameters import NotNegative, Positive, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.filtered import filter_weight
from fnlkit.federated.client.losses.revised import revised
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.mixture import gaussians
from fnlkit.methods.fedavg import Round

# Clients count losses in BINS bins of width WIDTH; the last bin has all larger losses.
BINS, WIDTH = 400, 0.05


# ---- on the client
def revise_labels(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    revising: bool,
    silent: bool,
    confidence: float,
    limit: float,
    coverage: float,
    keep: float,
    temperature: float,
) -> None:
    """Write the targets of the loss: weights of labels, predictions of the averaged local model, global features.

    A sample's probability of being clean is that of the mixture that the server fitted after the client's last visit; it is 1
    at the first visit.
    """
    rows, labels, logits = client.rows, client.y.cpu(), model(client.x).cpu().double()
    visits = int(client.state.get("gr_visits", 0))
    if not visits:
        rows["gr_loss"] = torch.zeros(len(client), dtype=torch.float64)
        rows["gr_label"] = torch.full((len(client),), -1)
    clean = filter_weight(rows["gr_loss"], received["mixture"].cpu()) if visits else torch.ones_like(rows["gr_loss"])
    noisy_share = (clean < 0.5).double().mean()
    if revising:
        rows["gr_label"] = relabel(rows["gr_label"], labels, clean, logits, confidence)
    rows["gr_loss"] = rows["gr_loss"] + (sample_losses(logits, labels) - rows["gr_loss"]) / (visits + 1)
    client.state["gr_visits"] = torch.tensor(visits + 1)

    dtype = model.weights.dtype
    one_hot_labels, weight = torch.nn.functional.one_hot(labels, client.classes).double(), clean[:, None]
    rows["gr_target"] = one_hot_labels.to(dtype)
    if revising:
        revised_rows = rows["gr_label"] >= 0
        guess = torch.nn.functional.one_hot(rows["gr_label"].clamp_min(0), client.classes).double() * revised_rows[:, None]
        rows["gr_target"] = (weight * one_hot_labels + (1 - weight) * guess if noisy_share < limit else guess).to(dtype)
    restart = noisy_share > limit and (rows["gr_label"] >= 0).sum() < coverage * len(client)
    if silent or restart or "gr_average" not in client.state:
        client.state["gr_average"] = model.weights.clone()
    else:
        client.state["gr_average"] = keep * client.state["gr_average"].to(model.weights) + (1 - keep) * model.weights
    teacher = model.score(model.network, client.state["gr_average"], client.x, client.inputs).cpu().double()
    rows["gr_teacher"] = (teacher / temperature).softmax(-1).to(dtype)
    rows["gr_global"] = (model.features(client.x).cpu().double() / temperature).softmax(-1).to(dtype)


def relabel(
    before: torch.Tensor, labels: torch.Tensor, clean: torch.Tensor, logits: torch.Tensor, confidence: float
) -> torch.Tensor:
    """Revise labels (n,) int64, -1 for none: a clean sample keeps its given label, others get a confident prediction.

    A noisy sample without a confident prediction keeps its revised label of an earlier visit.

    Parameters
    ----------
    before : int64 Tensor (n,)
    labels : int64 Tensor (n,)
    clean : Tensor (n,)
        Probabilities; a sample counts as clean from 0.5 on.
    logits : Tensor (n, C)
        Of the received model.
    confidence : float
    """
    top, guess = logits.softmax(-1).max(-1)
    return torch.where(clean >= 0.5, labels, torch.where(top > confidence, guess, before))


def average_and_count(
    client: Client, model: LocalModel, received: Received, *, beta: float, epochs: int, batch_size: int
) -> dict[str, torch.Tensor]:
    """Move the averaged model along the local training, and reply the numbers of samples by mean loss."""
    steps = epochs * -(-len(client) // min(batch_size, len(client)))
    kept, first, last = path_weights(steps, beta)
    average = client.state["gr_average"].to(model.weights)
    client.state["gr_average"] = kept * average + first * model.start + last * model.weights
    for name in ("gr_target", "gr_teacher", "gr_global"):
        del client.rows[name]
    bins = (client.rows["gr_loss"] / WIDTH).long().clamp(0, BINS - 1)
    return {"losses": torch.bincount(bins, minlength=BINS)}


def path_weights(steps: int, beta: float) -> tuple[float, float, float]:
    """Weigh (average, first model, last model) in an average over the steps of a straight path.

    The average a <- beta a + (1 - beta) w_t of all w_t = w_0 + (t / steps) (w - w_0), t = 1, ..., steps.
    """
    t = np.arange(1, steps + 1)
    weights = (1 - beta) * beta ** (steps - t)
    last = float((weights * t / steps).sum())
    return beta**steps, float(weights.sum()) - last, last


# ---- the server
def stages(rounds: int, sniffing: int, silent: int) -> tuple[int, int]:
    """Numbers of rounds before labels are revised, and before the averaged model teaches.  Default: a fifth each."""
    return sniffing if sniffing >= 0 else round(rounds / 5), silent if silent >= 0 else round(rounds / 5)


def fit_losses(counts: np.ndarray) -> np.ndarray:
    """Fit two Gaussians to counted losses (BINS,): (3, 2) means, variances and shares, the smaller mean first.

    If all losses are in one bin, all samples are clean.
    """
    values = np.repeat((np.arange(BINS) + 0.5) * WIDTH, np.rint(counts).astype(np.int64))
    if not np.ptp(values) > 0:
        return np.array([[values[0]] * 2, [1.0, 1.0], [1.0, 0.0]])
    _, means, variances, shares = gaussians(values[:, None], steps=50, tolerance=1e-2, ridge=5e-4)
    order = np.argsort(means[:, 0], kind="stable")
    return np.stack([means[order, 0], variances[order, 0, 0], shares[order]])


@method(
    sends={
        "losses": Sent.counts(
            f"numbers of samples by mean loss of the received models, in {BINS} bins",
            "every round",
            (BINS,),
            summed=True,
            total="n",
        )
    },
    loss="own",
    schedule=stages,
    cite="Tian 2026",
)
@check_arguments
def fedgr(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    sniffing: Rounds = -1,
    silent: Rounds = -1,
    confidence: Share = 0.9,
    limit: Share = 0.8,
    coverage: Share = 0.5,
    distil: NotNegative = 1.0,
    represent: NotNegative = 0.1,
    keep: Share = 0.9,
    beta: Share = 0.99,
    temperature: Positive = 0.5,
) -> Generator[Round, None, Model]:
    """Revise labels with the global model, and distill each client's averaged model.

    Each round the server fits two Gaussians to the losses of the cohort's samples.  A client weights each given label with the
    probability of the Gaussian with smaller losses, and a confident global prediction with the rest.

    Parameters
    ----------
    rounds : int
    sniffing : int >= 0, or -1
        Rounds of cross entropy in which losses are only collected.  Default: -1, a fifth of all rounds (public code: 10 visits
        of each client, 100 of 500 rounds).
    silent : int >= 0, or -1
        Rounds in which the averaged model restarts at the global model and does not teach.  Default: -1, a fifth.
    confidence : float in [0, 1]
        A noisy sample gets the global model's class if its probability is larger.
    limit, coverage : float in [0, 1]
        A client with at least this share of noisy samples trains on revised labels only.  With a larger share, and with
        revised labels for less than `coverage` of its samples, its averaged model restarts at the global model.
    distil, represent : float >= 0
        Weights of the divergence from the averaged model's predictions, and from the global model's features.
    keep : float in [0, 1]
        Weight of the averaged model when the global model revises it at the start of a visit.
    beta : float in [0, 1]
        Rate of the average over local steps.
    temperature : float > 0
        Of both divergences.

    Notes
    -----
    Label term, divergences and mixture equal the public code (tests/golden/fedgr.npz), with one exception: its weights of
    labels have the shape (B, 1) and its losses (B,), so that every sample of a batch gets the mean weight of the batch.  Here
    each sample has its own weight.  Only the abstract and the public code were available, not the paper's equations.

    Differences from the public code: clients send a histogram of their mean losses instead of the losses themselves, and apply
    the mixture themselves.  The average over the local steps is that of a straight path from the received to the trained model,
    because no engine keeps the models between.  The average is updated once per step and revised once per visit; the public
    code registers the update twice.  Both divergences compare with predictions for samples without augmentation, and local
    training uses the run's augmentation instead of RandAugment.  Cohorts are those of `--selector`; the public code lets all
    clients take turns in the first stage.

    Reports
    -------
    loss_means, loss_shares (2,) each round: of the clean and the noisy Gaussian.
    """
    opt.fit.refuse_mixup("fedgr")
    sniffing, silent = stages(rounds, sniffing, silent)
    mixtures = np.zeros((len(clients), 3, 2))
    limits: dict[str, Any] = {"confidence": confidence, "limit": limit, "coverage": coverage, "keep": keep}
    follow = partial(average_and_count, beta=beta, epochs=opt.fit.epochs, batch_size=opt.fit.batch_size)
    for r in range(rounds):
        ids, quiet = select(clients, model), r < silent
        revise = partial(revise_labels, revising=r >= sniffing, silent=quiet, temperature=temperature, **limits)
        step: dict[str, Any] = {
            "before": (revise,),
            "after": (follow,),
            "loss": partial(revised, distil=0.0 if quiet else distil, represent=represent, temperature=temperature),
            "scatter": {"mixture": torch.from_numpy(mixtures[ids])},
        }
        model, replies = opt.round(clients, ids, model, expect=("losses",), **step)
        report = {}
        if len(replies.ids):
            mixtures[replies.ids] = mixture = fit_losses(replies["losses"].numpy().sum(0))
            report = {"loss_means": mixture[0], "loss_shares": mixture[2]}
        yield Round(model, "sniffing" if r < sniffing else "revision", replies, report)
    return model
