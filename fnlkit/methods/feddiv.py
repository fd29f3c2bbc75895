"""FedDiv: filter samples by a federated loss mixture and relabel confident ones.

Li, Li, Cheng, Liao, Yu. FedDiv: Collaborative noise filtering for federated learning with noisy labels. AAAI 2024.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import LARGEST, Sent, method
from fnlkit.core.parameters import NotNegative, Positive, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.filtered import consistent, debias_logits, filter_weight
from fnlkit.federated.client.scoring import double_softmax_losses, sample_losses
from fnlkit.federated.server.selection import cohort_size
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.mixture import fit_from
from fnlkit.methods.fedavg import Round


# ---- on the client
def filter_losses(logits: torch.Tensor, labels: torch.Tensor, losses: str) -> torch.Tensor:
    """Compute the losses (n,) float64 to which the filter is fitted and applied.

    Parameters
    ----------
    logits : Tensor (n, C)
    labels : int64 Tensor (n,)
    losses : "scaled" or "plain"
        ``scaled``: cross entropies of a second softmax, scaled to [0, 1] over the client's samples; ``plain``: eq. 2.
    """
    logits = logits.double()
    if losses == "plain":
        return sample_losses(logits, labels)
    values = double_softmax_losses(logits, labels)
    low, high = values.min(), values.max()
    return (values - low) / (high - low) if high > low else torch.zeros_like(values)


def filter_samples(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    level: float,
    relabel_level: float,
    confidence: float,
    losses: str,
    clean_visits: int,
) -> None:
    """Select the training samples and their labels (eqs. 6 to 11).

    The selection uses the global filter and the received model.
    """
    labels, logits = client.y.cpu(), model(client.x).cpu()
    top, guess = logits.softmax(-1).max(-1)
    values = filter_losses(logits, labels, losses)
    # In the first filtered round there is no global filter yet, so the client fits a filter to the received model.
    shared = received["filter"].cpu() if "filter" in received else torch.from_numpy(fit_from(values.numpy()))
    clean = filter_weight(values, shared) >= 0.5
    noisy_share = (~clean).double().mean()
    visits = int(client.state.get("filter_visits", 0))
    noisy, early = bool(noisy_share >= level), visits < clean_visits
    relabeled = ~clean & (top >= confidence) & (noisy_share >= relabel_level) & (not early)
    client.rows["filter_keep"] = clean | relabeled | (not noisy)
    client.rows["filter_label"] = torch.where(relabeled & noisy, guess, labels)
    client.rows["filter_global"] = guess
    client.state["filter_agree"] = torch.tensor(int(noisy and not early))
    client.state["filter_visits"] = torch.tensor(visits + 1)
    if "filter_bias" not in client.state:
        client.state["filter_bias"] = torch.full((client.classes,), 1 / client.classes).to(model.weights)


def fit_filter(client: Client, model: LocalModel, received: Received, *, losses: str) -> dict[str, torch.Tensor]:
    """Reply the mixture of the local model's losses (eq. 2).

    If there is a global mixture, the fit starts from it.
    """
    values = filter_losses(model(client.x).cpu(), client.y.cpu(), losses).numpy()
    start = received["filter"].cpu().numpy() if "filter" in received else None
    return {"filter": torch.from_numpy(fit_from(values, start))}


def update_bias(client: Client, model: LocalModel, received: Received, *, momentum: float, debias: float, sure: float) -> None:
    """Update the class bias b with the mean prediction on confident samples (eq. 12)."""
    logits, bias = model(client.x), client.state["filter_bias"]
    chosen = debias_logits(logits, bias.to(logits), debias).softmax(-1).amax(-1) >= sure
    if chosen.any():
        mean = logits[chosen].softmax(-1).mean(0)
        client.state["filter_bias"] = momentum * bias + (1 - momentum) * mean.to(bias)


# ---- the server
def warmup_rounds(warmup: int, rounds: int) -> int:
    """Number of warm-up rounds, at least 1.

    Default: 50, at most a quarter of all rounds.
    """
    return max(1, warmup if warmup >= 0 else min(50, rounds // 4))


def first_visits(clean_visits: int, visits: float) -> int:
    """Number of a client's first visits on clean samples only, of `visits` expected visits with the filter.

    Default: 5, at most a nineteenth of the visits: 5 of 95 in the published runs.
    """
    return clean_visits if clean_visits >= 0 else min(5, round(visits / 19))


def budget(rounds: int, warmup: int, clean_visits: int) -> tuple[int, int]:
    """Part of the schedule that depends on the number of rounds."""
    return warmup_rounds(warmup, rounds), clean_visits if clean_visits >= 0 else rounds


@method(
    sends={
        "filter": Sent(
            "means, variances and shares of two Gaussians fitted to the losses",
            "each round after the warm-up",
            (3, 2),
            low=((0,), (1e-9,), (0,)),
            high=((LARGEST,), (LARGEST,), (1,)),
        )
    },
    loss="own",
    schedule=budget,
    cite="Li 2024",
)
@check_arguments
def feddiv(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    level: Share = 0.1,
    relabel_level: Share = 0.2,
    confidence: Share = 0.75,
    debias: NotNegative = 0.5,
    momentum: Share = 0.2,
    sure: Share = 0.85,
    prior: NotNegative = 1.0,
    alpha: Positive = 1.0,
    losses: Literal["scaled", "plain"] = "scaled",
    clean_visits: Rounds = -1,
) -> Generator[Round, None, Model]:
    """Filter samples with a federated mixture and relabel confident ones (Section 3).

    A noisy client trains on the samples for which its model and the global model agree.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of cross entropy with mixup before the filter is used; at least 1.  Default: 50, or a quarter of the rounds
        in runs of fewer than 200.  The paper has 50 such rounds, and 950 with the filter.
    level : float in [0, 1]
        Clients with a smaller share of noisy samples train on all of their samples (eq. 11).
    relabel_level : float in [0, 1]
        Least share of noisy samples at which a client trains on relabeled samples; 0 in the paper, 0.2 in the public code.
    confidence : float in [0, 1]
        zeta: least global probability at which a noisy sample gets the predicted class (eq. 8).
    debias, momentum : float
        xi of eq. 9 and m of eq. 12; the public code's defaults are 0.2 and 0.5.
    sure : float in [0, 1]
        Least debiased local probability of the samples in the mean of eq. 12; 0 in the paper, 0.85 in the public code.
    prior : float >= 0
        eta of eq. 15: the paper sets 1 (the default) for clients with unequal classes (non-IID), and 0 for equal classes.
    alpha : float > 0
        Beta parameter of mixup.
    losses : "scaled" or "plain"
        Values that the filter separates.  ``scaled``: cross entropies after a second softmax, scaled to [0, 1] on each
        client, as in the public code.  ``plain``: cross entropies (eq. 2).
    clean_visits : int >= 0, or -1
        First visits after the warm-up in which a noisy client trains on its clean samples only, without relabeled samples
        and without the agreement of eq. 10; 0 in the paper, 5 in the public code, whose clients have 95 visits.  Default: -1,
        which is 5, or a nineteenth of the expected visits if that is less.

    Notes
    -----
    The defaults of `losses`, `clean_visits`, `relabel_level` and `sure` come from the public code; the paper omits these
    values.  ``feddiv(losses=plain, clean_visits=0, relabel_level=0, sure=0)`` is the printed method; it is worse than
    FedAvg in ten regimes of features (docs/league.md of commit 4d89694f).  Two other differences from the public code
    follow the paper.  Local predictions in eq. 10 are those of the model in training, not those at the end of the client's
    last visit.  Variances are averaged like means (eq. 5), not with squared shares.

    The global filter is the mean, weighted by client size, of the last filters of all visited clients (eq. 5).  Filters are
    fitted only after the warm-up (Algorithm 1), since models trained on all samples also fit wrong labels.  In the first
    filtered round each client fits a filter to the received model; the public code starts from random data.  Under mixup an
    unused sample is still mixed into others, but its label does not count.

    The filter divides the losses of clean clients as well.  A class with larger losses is then left out, and its losses rise
    further: on digits without noise, late accuracy falls from 96.8 % (FedAvg) to 71.4 % (20 clients, 60 rounds).  With half of
    the labels wrong it rises from 81.3 to 93.1 %.

    Reports
    -------
    filter_means, filter_variances, filter_shares (2,) each round after the warm-up.
    """
    opt.fit.refuse_mixup("feddiv", "alpha")
    warmup = warmup_rounds(warmup, rounds)
    filters, known = np.zeros((len(clients), 3, 2)), np.zeros(len(clients), bool)
    sizes, merged = clients.sizes.numpy(), None
    loss = partial(consistent, prior=prior, debias=debias)
    fit = partial(fit_filter, losses=losses)
    limits: dict[str, Any] = {"level": level, "relabel_level": relabel_level, "confidence": confidence}
    share = cohort_size(clients, getattr(select, "fraction", 1.0)) / len(clients)
    first = first_visits(clean_visits, (rounds - warmup) * share)
    select_samples = partial(filter_samples, losses=losses, clean_visits=first, **limits)
    for r in range(rounds):
        step: dict[str, Any] = {"mixup": alpha}
        if merged is not None:
            step["broadcast"] = {"filter": torch.from_numpy(merged)}
        if r >= warmup:
            step["expect"], step["before"] = ("filter",), (select_samples,)
            step["after"] = (fit, partial(update_bias, momentum=momentum, debias=debias, sure=sure))
            step["loss"] = loss
        model, replies = opt.round(clients, select(clients, model), model, **step)
        if r < warmup:
            yield Round(model, "warm-up", replies)
            continue
        if len(replies.ids):
            filters[replies.ids], known[replies.ids] = replies["filter"].numpy(), True
        report = {}
        if known.any():
            merged = np.average(filters[known], axis=0, weights=sizes[known])
            report = dict(zip(("filter_means", "filter_variances", "filter_shares"), merged, strict=True))
        yield Round(model, "training", replies, report)
    return model
