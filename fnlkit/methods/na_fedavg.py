"""NA-FedAvg: reduce the weight of noisy clients, found by energy scores.

Tsouvalas, Saeed, Ozcelebi, Meratnia. Labeling chaos to learning harmony: Federated learning with noisy labels. ACM
TIST 2024.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from fnlkit.core.declarations import Sent, method
from fnlkit.core.parameters import Percentile, Range, check_arguments
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.energy_levels import SCORED, RoundNumber, estimation_round, round_of_estimation, when_to_estimate
from fnlkit.methods.fedavg import Round, fedavg


def noise_aware_weights(sizes: np.ndarray, levels: np.ndarray, *, weighting: str = "paper", least: float = 0.01) -> np.ndarray:
    """Compute aggregation weights (N,).

    Parameters
    ----------
    sizes, levels : (N,)
    weighting : "paper" or "public"
        ``paper``: (1 - level) N_m.  ``public``, as in the authors' code: N_m for levels under 0.15, else min(0.1 N_m,
        (1 - level) N_m).
    least : float in (0, 1)
        Smallest share of N_m that remains for every client, so that each round has positive total weight.
    """
    sizes, levels = np.asarray(sizes, np.float64), np.asarray(levels, np.float64)
    weights = (1 - levels) * sizes
    if weighting == "public":
        weights = np.where(levels < 0.15, sizes, np.minimum(0.1 * sizes, weights))
    return np.maximum(weights, least * sizes)


@method(
    sends={**SCORED, "noise_level": Sent.share("estimated noise level", "instead of the scores, with threshold=own")},
    schedule=round_of_estimation,
    cite="Tsouvalas 2024",
)
@check_arguments
def na_fedavg(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    at: RoundNumber = -1,
    percentile: Percentile = 75.0,
    score: Literal["energy", "softmax"] = "energy",
    threshold: Literal["pooled", "own"] = "pooled",
    side: Literal["below", "above"] = "below",
    weighting: Literal["paper", "public"] = "paper",
    least: Annotated[float, Range(0, 1, open_low=True)] = 0.01,
) -> Generator[Round, None, Model]:
    """Reduce the weight of noisy clients, whose noise levels are estimated once.

    Estimate every client's noise level in round R_w, then weight client m with (1 - level_m) N_m (Algorithm 1, line
    17).

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg; R_w, in which all clients take part, costs 1 / fraction rounds.
    at : int >= 1, or -1
        R_w; the first round is 1.  Default: -1, which is 30, but at most 0.15 of the rounds (published: 30 of 200).
    percentile : float in [0, 100]
        v of the threshold.
    score : "energy" or "softmax"
        logsumexp of the logits, or the largest softmax probability (FedLN's Table 2).
    threshold : "pooled" or "own"
        ``pooled``: from the scores of all clients, which are sent to the server (the paper).  ``own``: from the scores of each
        client alone; the client then sends only the level.
    side : "below" or "above"
        Scores that count as noisy; ``above`` as in the public code.
    weighting : "paper" or "public"
        See `noise_aware_weights`.
    least : float in (0, 1]
        Smallest share of a client's weight that remains.

    Notes
    -----
    The paper's 200 rounds include a round of all clients.  Here this round is charged at full cost, so that the run has up to
    two rounds fewer.

    Reports
    -------
    noise_level (N,), aggregation_weights (N,) and energy_threshold in round R_w.
    """
    before, after = when_to_estimate(rounds, clients, select, at, "na-fedavg")
    weigh = partial(noise_aware_weights, clients.sizes.numpy(), weighting=weighting, least=least)
    model = yield from fedavg(clients, model, opt, select, rounds=before, stage="before estimation")
    model, replies, levels, tau = estimation_round(
        clients, model, opt, percentile=percentile, side=side, threshold=threshold, score=score, weigh=weigh
    )
    report = {"noise_level": levels, "aggregation_weights": weigh(levels)}
    if np.isfinite(tau):
        report["energy_threshold"] = tau
    yield Round(model, "estimation", replies, report)
    return (yield from fedavg(clients, model, opt, select, rounds=after, stage="noise-aware", weights=weigh(levels)))
