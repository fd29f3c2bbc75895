"""Two groups of losses: early in training, wrong labels still have a large loss and right labels a small loss.

Arpit et al. 2017 (memorization); Li, Socher, Hoi. DivideMix. ICLR 2020; Xu et al. FedCorr. CVPR 2022, Section 3.2.
"""

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.parameters import check_arguments
from fnlkit.estimators import federated
from fnlkit.estimators.federated import ClientSession
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment, sums, transitions
from fnlkit.kernels.mixture import two_components
from fnlkit.kernels.scores import transition

if TYPE_CHECKING:
    import torch

    from fnlkit.federated.types import Client, LocalModel, Received, Replies


FLAGGED = {"flagged": Sent.counts("number of labels judged wrong", "once")}
# Gaussians far narrower than the data make every posterior 0 or 1.
_LEAST_VARIANCE = 1e-12


@declare(
    sends=federated.PREDICTED
    | federated.RELABELED
    | FLAGGED
    | {
        "losses": Sent("the loss of each sample", "once, with scope=pooled", ("n",)),
        "mean_loss": Sent("mean loss", "once", (), low=0),
    },
    cite="Arpit 2017",
)
@check_arguments
def loss(evidence: EstimatorInputs, *, scope: Literal["pooled", "client"] = "pooled") -> Judgment:
    """Judge labels by a mixture of two Gaussians on their cross entropies.

    The level is the share of samples in the component with the larger mean. The issue score is the probability of that
    component.  A mixture always has two components, so that samples are flagged even without noise.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses given probabilities, a given run, or a short warm-up on all clients (in sample, as in DivideMix).
    scope : "pooled" or "client"
        "pooled" fits one mixture for all clients, as DivideMix does for a whole data set. It requires the losses, or the sums
        of expectation maximization, in one place.  "client" fits a mixture per client, as FedCorr does for clients that it
        already judged noisy. Without this previous step, it also splits clean clients, and a clean sample can rank above a
        mislabeled sample of a noisy client.
    """
    evidence.refuse("loss", embeddings="write `probabilities`, or omit both for a warm-up")
    if evidence.federated:
        return by_clients(evidence, federated.with_predictions(evidence), scope)
    offsets, labels = evidence.offsets, evidence.labels
    probabilities = evidence.predicted()
    evidence.weigh(probabilities.argmax(1), "predictions")
    losses = cross_entropies(probabilities, labels)
    groups = offsets if scope == "client" else np.array([0, len(labels)])
    issue, flagged = split(losses, groups, evidence.seed)
    sizes, guess = np.diff(offsets), probabilities.argmax(1)
    wrong = sums(flagged, offsets)
    T, client_T = transitions(np.where(flagged, guess, labels), labels, offsets, evidence.classes)
    level = wrong / sizes
    return Judgment(level, *evidence.interval(wrong), sums(losses, offsets) / sizes, issue, flagged, guess, T, client_T)


def by_clients(evidence: EstimatorInputs, session: ClientSession, scope: str) -> Judgment:
    """Judge labels in the federated form; with scope=pooled, the server fits the mixture to all losses."""
    mixture = None
    if scope == "pooled":
        replies = session.ask(reply_losses)
        fitted = two_components(np.concatenate([np.asarray(part) for part in replies["losses"]]), seed=evidence.seed)
        mixture = {"mixture": np.stack([fitted.means, fitted.variances, fitted.shares])}
    replies = session.ask(federated.reply_predicted, partial(split_losses, seed=evidence.seed), broadcast=mixture)
    evidence.weigh_counts(replies["predicted"].sum(0), "predictions")
    return of_counts(evidence, session, replies, replies["mean_loss"].numpy())


def of_counts(evidence: EstimatorInputs, session: ClientSession, replies: "Replies", score: np.ndarray) -> Judgment:
    """Make the Judgment of clients that replied ``flagged`` and ``relabeled``, given their scores (N,)."""
    wrong = replies["flagged"].numpy()
    sizes = np.diff(evidence.offsets)
    counts = replies["relabeled"].numpy()
    issue, flagged, guess = (session.kept(name) for name in ("issue", "flagged", "guess"))
    return Judgment(
        wrong / sizes, *evidence.interval(wrong), score, issue, flagged, guess, transition=transition(counts.sum(0)),
        client_transition=transition(counts),
    )  # fmt: skip


def reply_losses(client: "Client", model: "LocalModel", received: "Received") -> "dict[str, torch.Tensor]":
    """Reply the cross entropy (n,) of each sample."""
    import torch

    return {"losses": torch.from_numpy(cross_entropies(federated.predictions(client), client.y.numpy()))}


def split_losses(client: "Client", model: "LocalModel", received: "Received", *, seed: int) -> dict[str, Any]:
    """Reply the number and the mean of losses in the upper Gaussian.

    The mixture is the received one if there is one, otherwise the client's.
    """
    import torch

    p, labels = federated.predictions(client), client.y.numpy()
    losses = cross_entropies(p, labels)
    if "mixture" in received:
        mixture = received["mixture"].numpy()
        issue, flagged = upper_probability(losses, *mixture), in_upper(losses, *mixture)
    else:
        issue, flagged = split(losses, np.array([0, len(losses)]), seed)
    reply = federated.keep_judgment(client, issue, flagged, p.argmax(1))
    reply["flagged"] = torch.tensor(int(flagged.sum()))
    return reply | {"mean_loss": torch.tensor(losses.mean(), dtype=torch.float64)}


def cross_entropies(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Compute -log of the probability of each label (m,), in nats; at most 69 if the probability is 0."""
    return -np.log(np.maximum(probabilities[np.arange(len(labels)), labels].astype(np.float64), 1e-30))


def split(values: np.ndarray, offsets: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split values by two Gaussians fitted to each group: (probability (m,), mask (m,)) of the upper one."""
    probability, mask = np.zeros(len(values)), np.zeros(len(values), bool)
    for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        mask[a:b], means, variances, shares = two_components(values[a:b], seed=seed)
        probability[a:b] = upper_probability(values[a:b], means, variances, shares)
    return probability, mask


def upper_probability(values: np.ndarray, means: np.ndarray, variances: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Compute the posterior (m,) of the component with the larger mean.

    The posterior never decreases as a value grows. Outside the two means, where the wider Gaussian would dominate on both
    sides, the posterior of the nearer mean is used.
    """
    if means[0] == means[1]:
        return np.zeros(len(values))
    logs = _log_densities(np.clip(np.asarray(values, np.float64), *means), means, variances, shares)
    return 1 / (1 + np.exp(np.clip(logs[:, 0] - logs[:, 1], -700, 700)))


def in_upper(values: np.ndarray, means: np.ndarray, variances: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Read `two_components`' mask (m,): values that more likely belong to the component with the larger mean."""
    logs = _log_densities(np.asarray(values, np.float64), means, variances, shares)
    return (logs[:, 1] > logs[:, 0]) & (means[0] != means[1])


def _log_densities(values, means, variances, shares):
    variances = np.maximum(variances, _LEAST_VARIANCE)
    with np.errstate(divide="ignore"):
        return np.log(shares) - np.log(variances) / 2 - (values[:, None] - means) ** 2 / (2 * variances)
