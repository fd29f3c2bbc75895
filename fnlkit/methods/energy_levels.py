"""Noise levels of all clients from energy scores in one round (FedLN, Section 4.1)."""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import Automatic, Range
from fnlkit.federated.client.scoring import confidence, energy
from fnlkit.federated.server.selection import cohort_size
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received, Replies
from fnlkit.methods.missed import complete_levels

# A round number that starts at 1, as in the paper.
RoundNumber = Annotated[int, Range(1), Automatic()]
SCORES = {"energy": energy, "softmax": confidence}
SCORED = {
    "scores_global": Sent("energy of each sample under the received model", "once, in the estimation round", ("n",)),
    "scores_local": Sent("energy of each sample under the trained model", "once, in the estimation round", ("n",)),
}


@declare(choices={"name": ("scores_global", "scores_local")})
def score_samples(
    client: Client, model: LocalModel, received: Received, *, name: str, score: str, keep: bool = False
) -> dict[str, Any]:
    """Reply scores (n,) of the samples by the current model.

    Before training these are S_G of the paper, after training S_m.

    With `keep` the scores also stay on the client.
    """
    scores = SCORES[score](model(client.x)).double().cpu()
    if keep:
        client.rows[name] = scores
    return {name: scores}


def keep_scores(client: Client, model: LocalModel, received: Received, *, score: str) -> None:
    """Store the scores of the received model instead of sending them."""
    client.rows["scores_global"] = SCORES[score](model(client.x)).double().cpu()


def estimate_own_level(
    client: Client, model: LocalModel, received: Received, *, percentile: float, side: str, score: str
) -> dict[str, torch.Tensor]:
    """Reply only the noise level, with a threshold from the scores of the client."""
    before = client.rows.pop("scores_global").numpy()
    after = SCORES[score](model(client.x)).double().cpu().numpy()
    level = share_beyond(after, np.percentile(before, percentile), side)
    return {"noise_level": torch.tensor(level, dtype=torch.float64)}


def share_beyond(scores: np.ndarray, threshold: float, side: str) -> float:
    """Share of the scores below the threshold, or not below it."""
    return float(np.mean(scores < threshold if side == "below" else scores >= threshold))


def estimate_levels(replies: Replies, count: int, *, percentile: float = 75.0, side: str = "below") -> tuple[np.ndarray, Any]:
    """Estimate the noise levels (N,) and the threshold tau (eq. 6).

    Clients without scores count as the noisiest of the others.

    Parameters
    ----------
    replies : Replies
        scores_global and scores_local, or noise_level.
    count : int
        N.
    percentile : float
        v, over the received model's scores of all clients together: a common threshold for all clients.
    side : "below" or "above"
        Scores that count as noisy: low scores in the paper's text, high scores in the paper's Heaviside function and in the
        public code.
    """
    levels = np.zeros(count)
    if "noise_level" in replies:
        levels[replies.ids] = replies["noise_level"].numpy()
        return complete_levels(levels, replies.ids), np.nan
    if not len(replies.ids):
        return np.ones(count), np.nan
    threshold = np.percentile(np.concatenate([np.asarray(s) for s in replies["scores_global"]]), percentile)
    for i, scores in zip(replies.ids.tolist(), replies["scores_local"], strict=True):
        levels[i] = share_beyond(np.asarray(scores), threshold, side)
    return complete_levels(levels, replies.ids), threshold


def estimation_round(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    *,
    percentile: float,
    side: str,
    threshold: str,
    score: str = "energy",
    weigh: Callable[..., Any] | None = None,
    keep: bool = False,
) -> tuple[Any, ...]:
    """Run round R_w with all clients: (model, replies, levels (N,), tau).

    Parameters
    ----------
    keep : bool
        Clients that send the scores of the trained model also store them as rows["scores_local"].
    weigh : levels (N,) -> weights (N,), or None
        Aggregation weights of this round from the estimated levels (Algorithm 1, lines 15 and 17).
    """
    if threshold == "own":
        steps = {
            "before": (partial(keep_scores, score=score),),
            "after": (partial(estimate_own_level, percentile=percentile, side=side, score=score),),
            "expect": ("noise_level",),
        }
    else:
        steps = {
            "before": (partial(score_samples, name="scores_global", score=score),),
            "after": (partial(score_samples, name="scores_local", score=score, keep=keep),),
            "expect": ("scores_global", "scores_local"),
        }

    def levels_of(replies: Replies) -> tuple[np.ndarray, Any]:
        return estimate_levels(replies, len(clients), percentile=percentile, side=side)

    weights = None if weigh is None else lambda replies: weigh(levels_of(replies)[0])
    model, replies = opt.round(clients, np.arange(len(clients)), model, weights=weights, **steps)
    return model, replies, *levels_of(replies)


def round_of_estimation(at: int, rounds: int) -> int:
    """Choose R_w: `at`; if `at` is -1, 30, but at most 0.15 of the rounds."""
    return at if at >= 1 else min(30, max(1, round(0.15 * rounds)))


def when_to_estimate(rounds: int, clients: Clients, select: Callable[..., Any], at: int, name: str) -> tuple[int, int]:
    """Divide `rounds` rounds into the rounds before R_w and the rounds after it.

    R_w, in which all N clients take part, costs N / m rounds for cohorts of m.

    Parameters
    ----------
    at : int >= 1, or -1
        R_w; the first round is 1.
    """
    at = round_of_estimation(at, rounds)
    cost = len(clients) / cohort_size(clients, getattr(select, "fraction", 0.1))
    after = math.floor(rounds - (at - 1) - cost)
    if after < 0:
        raise InputError(
            f"{name}: the round in which all clients take part costs {cost:.3g} of {rounds} rounds, and {at - 1} rounds "
            f"precede it; raise `rounds` or `fraction`, or lower `at`"
        )
    return at - 1, after
