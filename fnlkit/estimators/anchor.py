"""Anchor points: the prediction on the most typical sample of a class estimates this class's row of T.

Patrini, Rozza, Menon, Nock, Qu. Making deep neural networks robust to label noise: A loss correction approach.
CVPR 2017, Section 4.3, eqs. 12 and 13.
"""

import math
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.parameters import Percentile, check_arguments
from fnlkit.estimators import federated
from fnlkit.estimators.federated import ClientSession
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.intervals import bootstrap
from fnlkit.estimators.judgment import Judgment, sums, transitions
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.kernels import apply_inverse, project_to_simplex
from fnlkit.kernels.scores import anchor_transition, transition

# Prevents the inverse of a nearly singular transition from amplifying rounding errors of softmax.
RIDGE = 1e-3
BINS = 64


@declare(
    sends=federated.PREDICTED
    | federated.RELABELED
    | {
        "typical": Sent("largest probabilities of each class, without the samples", "once", ("C", "top"), low=0),
        "anchors": Sent(
            "sums of predictions at or above each class's anchor", "once, of clients with anchors", ("C", "C"), low=0
        ),
        "anchor_numbers": Sent.counts("numbers of predictions in `anchors`", "once, of clients with anchors", ("C",)),
        "histogram": Sent.counts("numbers of samples by issue score, in 64 bins", "once", (BINS,)),
        "bin_sums": Sent("sums of the issue scores in each bin", "once", (BINS,)),
        "level": Sent("mean issue score", "once", ()),
    },
    cite="Patrini 2017",
)
@check_arguments
def anchor(evidence: EstimatorInputs, *, percentile: Percentile = 97.0, average: bool = False) -> Judgment:
    """Estimate T from anchor points, then the probability that a label is wrong.

    Given p(given | x) and T, the true class has the distribution p(given | x) T^-1, projected to the simplex. Bayes' rule
    gives the issue score 1 - P(true = given | x, given). The level of a client is the mean issue score of its samples.
    A client has too few samples for separate anchor points, so its transition counts the most probable true classes.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses given probabilities, a given run, or a short warm-up on all clients.
    percentile, average : float in [0, 100], bool
        As in `fnlkit.kernels.scores.anchor_transition`.
    """
    evidence.refuse("anchor", embeddings="write `probabilities`, or omit both for a warm-up")
    if evidence.federated:
        session = federated.with_predictions(evidence)
        return by_clients(evidence, session, anchors_of(session, len(evidence.labels), percentile, average))
    probabilities, labels, offsets = evidence.predicted().astype(np.float64), evidence.labels, evidence.offsets
    evidence.weigh(probabilities.argmax(1), "predictions")
    T = anchor_transition(probabilities, percentile=percentile, average=average)
    true = true_posterior(probabilities, labels, T)
    issue, guess = 1 - true[np.arange(len(labels)), labels], true.argmax(1)
    level = sums(issue, offsets) / np.diff(offsets)
    _, client_T = transitions(guess, labels, offsets, evidence.classes)
    interval = mean_interval(issue, offsets, evidence.seed, evidence.independence)
    return Judgment(level, *interval, level, issue, guess != labels, guess, T, client_T)


def true_posterior(probabilities: np.ndarray, labels: np.ndarray, T: np.ndarray) -> np.ndarray:
    """Compute P(true | x, given) (m, C) by Bayes' rule; P(true | x) if the label is impossible under T."""
    true = project_to_simplex(apply_inverse(T, probabilities, ridge=RIDGE))
    weighted = true * T[:, labels].T
    total = weighted.sum(1, keepdims=True)
    return np.where(total > 1e-12, weighted / np.maximum(total, 1e-12), true)


def mean_interval(
    values: np.ndarray, offsets: np.ndarray, seed: int, independence: ArrayLike = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap the interval of each client's mean of values in [0, 1], counted in bins of 1/64.

    `independence`: as for fnlkit.estimators.intervals.bootstrap.
    """
    parts = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return interval_of(np.stack([histogram(values[a:b])[0] for a, b in parts]), histogram(values)[1], seed, independence)


def histogram(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Count and sum values (n,) in [0, 1] in bins of equal width: two arrays (BINS,)."""
    place = np.minimum((values * BINS).astype(np.int64), BINS - 1)
    return np.bincount(place, minlength=BINS), np.bincount(place, values, BINS)


def interval_of(
    cells: np.ndarray, totals: np.ndarray, seed: int, independence: ArrayLike = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Bootstrap intervals of clients' means from binned values.

    Takes the counts (N, BINS) of each client and the sums (BINS,) over all clients. Each bin is represented by the mean of
    the values in the bin.
    """
    centers = totals / np.maximum(cells.sum(0), 1)
    return bootstrap(cells, lambda counts: counts @ centers / counts.sum(-1), seed=seed, independence=independence)


# ---- the federated form
def anchors_of(session: ClientSession, count: int, percentile: float, average: bool) -> np.ndarray:
    """Compute T (C, C) of `fnlkit.kernels.scores.anchor_transition` over `count` samples in two rounds.

    In the first round, each client sends its largest probabilities per class, without samples; the value at the
    percentile is among them. In the second round, only clients with an anchor send the prediction for this anchor. With
    `average`, clients send the sum of their predictions at or above the percentile.
    """
    above = count - math.ceil(percentile / 100 * (count - 1))  # number of values that are not below the percentile
    replies = session.ask(partial(reply_typical, top=above))
    values = [np.asarray(part) for part in replies["typical"]]
    limits = np.sort(np.concatenate(values, 1), axis=1)[:, -above]
    has = np.stack([(own.max(1) >= limits) if average else (own == limits[:, None]).any(1) for own in values])
    if not average:
        has &= np.cumsum(has, 0) == 1  # if anchors tie, the first client's
    ids = np.flatnonzero(has.any(1))
    step = partial(reply_anchors, average=average)
    replies = session.ask(step, ids=ids, broadcast={"limits": torch.from_numpy(limits)}, scatter={"wanted": has[ids]})
    return transition(replies["anchors"].sum(0).numpy() / replies["anchor_numbers"].sum(0).numpy()[:, None])


def by_clients(evidence: EstimatorInputs, session: ClientSession, T: np.ndarray) -> Judgment:
    """Judge labels in the federated form for a known T."""
    replies = session.ask(federated.reply_predicted, judge_at_home, broadcast={"T": torch.from_numpy(T)})
    evidence.weigh_counts(replies["predicted"].sum(0), "predictions")
    cells, totals = replies["histogram"].numpy(), replies["bin_sums"].sum(0).numpy()
    level, interval = replies["level"].numpy(), interval_of(cells, totals, evidence.seed, evidence.independence)
    issue, flagged, guess = (session.kept(name) for name in ("issue", "flagged", "guess"))
    return Judgment(level, *interval, level, issue, flagged, guess, T, transition(replies["relabeled"].numpy()))


def reply_typical(client: Client, model: LocalModel, received: Received, *, top: int) -> dict[str, torch.Tensor]:
    """Reply the `top` largest probabilities of each class (C, top), or all if there are fewer."""
    return {"typical": torch.from_numpy(np.sort(federated.predictions(client), 0)[-top:].T.copy())}


def reply_anchors(client: Client, model: LocalModel, received: Received, *, average: bool) -> dict[str, torch.Tensor]:
    """Reply the predictions (C, C) at the anchors of the wanted classes.

    Rows of other classes are 0. With averaging, a row is the sum of all predictions at or above the anchor's probability.
    """
    p, limits = federated.predictions(client), received["limits"].numpy()
    hits = (p >= limits if average else p == limits) & received["wanted"].numpy()
    if not average:
        hits &= np.cumsum(hits, 0) == 1
    numbers = torch.from_numpy(hits.sum(0))
    return {"anchors": torch.from_numpy(hits.T.astype(np.float64) @ p), "anchor_numbers": numbers}


def judge_at_home(client: Client, model: LocalModel, received: Received) -> dict[str, Any]:
    """Reply the mean and a histogram of the issue scores and the counts of relabeled classes; keep the judgment."""
    labels = client.y.numpy()
    true = true_posterior(federated.predictions(client), labels, received["T"].numpy())
    issue, guess = 1 - true[np.arange(len(labels)), labels], true.argmax(1)
    reply = federated.keep_judgment(client, issue, guess != labels, guess)
    cells, totals = map(torch.from_numpy, histogram(issue))
    return reply | {"histogram": cells, "bin_sums": totals, "level": torch.tensor(issue.mean(), dtype=torch.float64)}
