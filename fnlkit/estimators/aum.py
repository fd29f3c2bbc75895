"""Area under the margin: find labels whose logit stays below the logit of another class during training.

Pleiss, Zhang, Elenberg, Weinberger. Identifying mislabeled data using the area under the margin ranking. NeurIPS 2020.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, declare
from fnlkit.core.parameters import Count, Percentile, check_arguments
from fnlkit.estimators import federated
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.federated.client.training import Adam
from fnlkit.kernels.scores import transition
from fnlkit.kernels.streams import stream

# Hidden units, batch size and learning rate (Adam) of the network that each client trains.
HIDDEN, BATCH, RATE = 100, 64, 0.003
# Number of trainings; in each training, different samples have the additional class.
TRAININGS = 2
# With more than WIDE values per sample, the network memorizes wrong labels at once.  Principal components are used instead, at
# most COMPONENTS and one for every PER_COMPONENT samples.
WIDE, COMPONENTS, PER_COMPONENT = 64, 40, 15


@declare(
    sends={
        "margined": Sent.counts(
            "numbers of samples by class of the mean logits and given label, if the training did not see the label",
            "once",
            ("C", "C"),
        ),
        **federated.RELABELED,
    },
    cite="Pleiss 2020",
)
@check_arguments
def aum(evidence: EstimatorInputs, *, epochs: Count = 10, percentile: Percentile = 99.0) -> Judgment:
    """Judge labels by the margin of the given label, averaged over the epochs of a local training.

    The margin is the logit of the given label minus the largest other logit. Each client trains a network with a hidden layer
    on the standardized embeddings of the local samples, so no model is exchanged. A random part of the samples (or groups)
    gets an additional class. The margins of these samples show how wrong labels behave: samples with a margin below their
    percentile are flagged. A second training with another part judges the samples of the first part. Flagged samples have an
    issue score above 0.5.  A note states if the networks predict the given labels of the samples with the additional class only
    by chance: these are the labels that they did not see.

    Deviations from the paper: a small network on embeddings (above 64 values: their principal components) and Adam instead of
    a ResNet and SGD; a sample is flagged only if another class has the largest mean logit.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses the embeddings.
    epochs : int >= 1
        Epochs of the local training; the margins are averaged over them.
    percentile : float in [0, 100]
        Percentile of the average margins of the samples with the additional class (paper: 99).
    """
    evidence.refuse("aum", probabilities="write `embeddings`", run="write `embeddings`")
    session = federated.with_rows(evidence, embedding=evidence.embed())
    replies = session.ask(partial(judge_margins, epochs=epochs, percentile=percentile, seed=evidence.seed))
    evidence.weigh_counts(replies["margined"].numpy().sum(0), "mean logits")
    counts = replies["relabeled"].numpy()
    sizes = counts.sum((1, 2))
    wrong = sizes - counts.trace(axis1=1, axis2=2)
    issue, flagged, guess = (session.kept(name) for name in ("issue", "flagged", "guess"))
    level, T = wrong / sizes, (transition(counts.sum(0)), transition(counts))
    return Judgment(level, *evidence.interval(wrong), level, issue, flagged, guess, *T)


def judge_margins(
    client: Client, model: LocalModel, received: Received, *, epochs: int, percentile: float, seed: int
) -> dict[str, Any]:
    """Reply counts by guessed and given label; keep the judgment of each sample."""
    points, labels = client.rows["input/embedding"].numpy(), client.y.numpy()
    rng, groups = stream(seed, "aum", client=client.id), federated.groups_of(client)
    margin, guess, unseen = margins(points, labels, client.classes, rng, epochs, percentile, groups)
    flagged = (margin < 0) & (guess != labels)
    reply = federated.keep_judgment(client, 1 / (1 + np.exp(np.clip(margin, -700, 700))), flagged, guess)
    return reply | {"margined": federated.table_of(unseen[unseen >= 0], labels[unseen >= 0], client.classes)}


def margins(
    points: np.ndarray,
    labels: np.ndarray,
    classes: int,
    rng: np.random.Generator,
    epochs: int = 10,
    percentile: float = 99.0,
    groups: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average the margins (n,) above the threshold, and find the classes (n,) of the mean logits.

    The third array (n,) has the class of the mean logits of a sample with the additional class, -1 for other samples.

    Parameters
    ----------
    points : (n, D)
    labels : int (n,)
    classes : int
    rng : numpy.random.Generator
    epochs : int
    percentile : float
    groups : int (n,), optional
        Whole groups get the additional class.
    """
    from sklearn.decomposition import PCA

    if len(labels) < TRAININGS:
        return np.zeros(len(labels)), np.array(labels), np.full(len(labels), -1)
    points = np.asarray(points, np.float32)
    spread = points.std(0)
    points = ((points - points.mean(0)) / np.where(spread > 1e-9, spread, 1))[:, spread > 1e-9]
    if not points.shape[1]:
        return np.zeros(len(labels)), np.array(labels), np.full(len(labels), -1)
    if points.shape[1] > WIDE:
        most = min(COMPONENTS, max(10, len(points) // PER_COMPONENT), *points.shape)
        points = PCA(most, svd_solver="full").fit_transform(points)
        points /= max(1e-9, points[:, 0].std())
    group = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    count = int(group.max()) + 1
    if count < TRAININGS:
        return np.zeros(len(labels)), np.array(labels), np.full(len(labels), -1)
    size = max(1, count // (classes + 1))
    drawn = rng.permutation(count)[: TRAININGS * size].reshape(TRAININGS, size)
    parts = list(drawn) if groups is None else [np.flatnonzero(np.isin(group, part)) for part in drawn]
    total, seen, logits = np.zeros(len(labels)), np.zeros(len(labels)), np.zeros((len(labels), classes))
    unseen = np.full(len(labels), -1)
    for part in parts:
        replaced_labels = np.array(labels)
        replaced_labels[part] = classes
        mean_margin, mean_logits = _train(points, replaced_labels, classes + 1, rng, epochs)
        others = np.setdiff1d(np.arange(len(labels)), part)
        total[others] += mean_margin[others] - np.percentile(mean_margin[part], percentile)
        seen[others] += 1
        logits[others] += mean_logits[others, :classes]
        unseen[part] = mean_logits[part, :classes].argmax(1)
    return total / np.maximum(seen, 1), logits.argmax(1), unseen


def _train(points, labels, classes, rng, epochs):
    """Train a head; return the margins (n,) and logits (n, classes) after each epoch, averaged over the epochs."""
    x, y = torch.from_numpy(points), torch.from_numpy(np.asarray(labels, np.int64))
    width, weights = x.shape[1], []
    for rows, columns in ((width, HIDDEN), (HIDDEN, classes)):
        start = (rng.standard_normal((rows, columns)) * np.sqrt(2 / rows)).astype(np.float32)
        weights += [torch.from_numpy(start).requires_grad_(), torch.zeros(columns, requires_grad=True)]
    forward = lambda x: torch.relu(x @ weights[0] + weights[1]) @ weights[2] + weights[3]  # noqa: E731
    optimizers, total = [Adam(part, RATE) for part in weights], torch.zeros(len(x), classes, dtype=torch.float64)
    margin = torch.zeros(len(x), dtype=torch.float64)
    for _ in range(epochs):
        for batch in torch.from_numpy(rng.permutation(len(x))).split(BATCH):
            gradients = torch.autograd.grad(torch.nn.functional.cross_entropy(forward(x[batch]), y[batch]), weights)
            with torch.no_grad():
                for optimizer, gradient in zip(optimizers, gradients, strict=True):
                    optimizer.step(gradient)
        with torch.no_grad():
            logits = forward(x).double()
        total += logits
        own = logits.gather(1, y[:, None])[:, 0]
        margin += own - logits.scatter(1, y[:, None], -torch.inf).max(1).values
    return (margin / epochs).numpy(), (total / epochs).numpy()
