"""Client steps of an audit; only their replies leave a site."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.audits import cells, copies, shifts
from fnlkit.audits.designs import GROUPS
from fnlkit.audits.small_sites import hidden, hide_few
from fnlkit.client.network import predict
from fnlkit.components.declarations import Sent
from fnlkit.datasets.groups import effective_size
from fnlkit.estimators import aum, em, federated
from fnlkit.kernels import class_thresholds, knn_vote
from fnlkit.kernels.counting import confident_class
from fnlkit.kernels.streams import stream
from fnlkit.methods.neighbor_votes import neighbors_for

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel


# A model of the site itself is trained on at most this many samples, with inputs reduced to this many principal components.
MOST_SAMPLES, COMPONENTS = 4000, 40
# Images are averaged to at most this many pixels a side for the site's own model.
SIDE = 16
FOLDS = 5
# Share of the samples that count as those of which a model is most certain.
CERTAIN = 1 / 3
SENDS = {
    "class_counts": Sent.counts("numbers of samples of each given label", "once", ("C",), total="n"),
    "observations": Sent.counts("number of independent samples: a group, such as a patient, counts as one", "once"),
    "review_counts": Sent.counts("last review with a guarantee: right, wrong, listed and other candidates by group of 5 ranks "
                                 "or more", "once", (GROUPS, 4)),
    "review_terms": Sent.share("last review with a guarantee: its share and its confidence", "once", (2,)),
    **shifts.SENDS,
    **shifts.EMBEDDED,
    **hidden({
        "agreeing": Sent.counts("predictions that equal the given label, for each tried change of the inputs", "once",
                                ("tried",)),
        **federated.PREDICTED,
        "within": Sent.counts("as predicted, by a cross-validated model of the site itself", "once", ("C", "C"), total="n"),
        "doubted": Sent.counts("samples for which both models predict the same other class, by this class and given label",
                               "once", ("C", "C")),
        "supported": Sent.counts("samples for which only the site's own model predicts the given label", "once"),
        "certain": Sent.counts("samples of which the site's own model is most certain: other predictions, all", "once", (2,)),
        **em.JUDGED,
        "detected": Sent.counts("numbers of samples that each detector flags", "once", ("detectors",)),
        "agreed": Sent.counts("numbers of samples by the number of detectors that flag them", "once", ("numbers",), total="n"),
    }),
    **copies.SENDS,
    **cells.SENDS,
}  # fmt: skip


def describe(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Reply the number of samples of each given label (C,), of independent samples, and the counts of the last review with a
    guarantee.
    """
    counts, terms = client.last_review or (torch.zeros((GROUPS, 4), dtype=torch.int64), torch.zeros(2, dtype=torch.float64))
    labels = torch.bincount(client.y, minlength=client.classes)
    groups = federated.groups_of(client)
    number = len(client) if groups is None else max(1, round(effective_size(groups)))
    return {"class_counts": labels, "observations": torch.tensor(number), "review_counts": counts, "review_terms": terms}


def try_changes(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, changes: Sequence[Sequence[str]]
) -> "dict[str, torch.Tensor]":
    """Keep the received model's probabilities under each change (turn, tone); reply how many agree with the labels.

    With embeddings, the model judges by them. Unused places among the `tried` changes, which have the number -1, count as 0.
    """
    scale = {name: tuple(received[name].tolist()) for name in ("mean", "std") if name in received}
    embedded = client.rows.get("input/embedding")
    x = client.x if embedded is None else embedded
    inputs, found = replace(client.inputs, image=client.inputs.image and embedded is None, **scale), []
    changes = [shifts.Change(*each) for each in changes]
    for number in received["tried"].tolist():
        if number < 0:
            break
        parts = x.split(shifts.BLOCK) if changes[number] else [x]
        change = partial(shifts.apply_change, client, change=changes[number], received=received) if changes[number] else None
        logits = [predict(model.network, model.weights, change(part) if change else part, inputs) for part in parts]
        found.append(torch.softmax(torch.cat(logits).double(), -1).cpu())
    client.rows["audit/tried"] = torch.stack(found, 1)
    agreeing = torch.zeros(len(received["tried"]), dtype=torch.int64)
    agreeing[: len(found)] = (client.rows["audit/tried"].argmax(-1) == client.y[:, None]).sum(0)
    return hide_few(client, {"agreeing": agreeing})


def use_given_probabilities(client: "Client", model: "LocalModel | None", received: dict[str, torch.Tensor]) -> None:
    """Judge labels by the given probabilities of the user's model instead of a received model."""
    client.rows["audit/tried"] = client.rows.pop("input/probabilities")[:, None]


def choose_change(client: "Client", model: "LocalModel | None", received: dict[str, torch.Tensor]) -> "dict[str, torch.Tensor]":
    """Keep the probabilities under the chosen change; reply the table of predictions.

    Classes that the model has not seen cannot be judged: their labels count as predicted. If the class shares of the site
    differ, the probabilities are adapted to the site (Saerens, Latinne, Decaestecker 2002).
    """
    p = client.rows.pop("audit/tried")[:, int(received["chosen"])].numpy()
    known, labels = received["known"].numpy(), client.y.numpy()
    seen = known[labels]
    p[seen] = np.where(known, p[seen], 1e-12)
    p[~seen] = np.eye(client.classes)[labels[~seen]]
    p /= p.sum(1, keepdims=True)
    # Before the adaptation, the shares of predictions within a given label can be compared between sites.
    reply = {"predicted": federated.table_of(p.argmax(1), client.y, client.classes)}
    if received["adapt"] and seen.any():
        p[seen] = adapt_probabilities(p[seen], received["trained_shares"].numpy() * known)
    client.rows["estimate/probabilities"] = torch.from_numpy(p)
    return hide_few(client, reply)


def adapt_probabilities(probabilities: np.ndarray, trained_shares: np.ndarray, steps: int = 50) -> np.ndarray:
    """Return probabilities (n, C) for the class shares of these samples, which are estimated from the probabilities.

    Parameters
    ----------
    probabilities : (n, C)
    trained_shares : (C,)
        Class shares of the model's training data.
    steps : int
    """
    trained = np.asarray(trained_shares, np.float64)
    trained, seen = np.maximum(trained, 1e-6), trained > 1e-6
    shares, out = trained / trained.sum(), probabilities
    for _ in range(steps):
        out = probabilities * np.where(seen, shares / trained, 1.0)
        out = out / np.maximum(out.sum(1, keepdims=True), 1e-300)
        shares = np.maximum(out.mean(0), 1e-6)
    return out


def judge_within(
    client: "Client", model: "LocalModel | None", received: dict[str, torch.Tensor], *, seed: int
) -> "dict[str, torch.Tensor]":
    """Compare the site's labels with a cross-validated model of the site itself, and with the model of the others."""
    labels = client.y.numpy()
    rng = stream(seed, "within", client=client.id)
    p = within_probabilities(points_of(client), labels, client.classes, rng, federated.groups_of(client))
    client.rows["audit/within"] = torch.from_numpy(p)
    own, others = p.argmax(1), federated.predictions(client).argmax(1)
    ordered = np.sort(p, 1)
    margin = ordered[:, -1] - ordered[:, -2] if client.classes > 1 else ordered[:, -1]
    certain = np.argsort(-margin, kind="stable")[: max(1, round(CERTAIN * len(labels)))]
    both = (own == others) & (own != labels)
    reply = {
        "within": federated.table_of(own, client.y, client.classes),
        "doubted": federated.table_of(own[both], client.y[torch.from_numpy(both)], client.classes),
        "supported": torch.tensor(int(((own == labels) & (others != labels)).sum())),
        "certain": torch.tensor([int((own != labels)[certain].sum()), len(certain)]),
    }
    return hide_few(client, reply)


def judge_labels(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, prior: float, seed: int
) -> "dict[str, torch.Tensor]":
    """Reply the range of the number of wrong labels and the expected counts; keep the judgment of each sample."""
    return hide_few(client, em.judge_at_home(client, model, received, prior=prior, seed=seed))


def use_own_model(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> None:
    """Judge labels by the model of the site itself instead of the model of the other sites."""
    client.rows["estimate/probabilities"] = client.rows["audit/within"]


def withhold(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> None:
    """Flag no sample, because no model can judge the labels here; the scores remain as an order for a review.

    Each score is the mean of two scores: by the models of the other sites, and by the model of the site itself.
    """
    own = 1 - client.rows["audit/within"].gather(1, client.y[:, None])[:, 0]
    client.rows["estimate/issue"] = (client.rows["estimate/issue"] + own) / 2
    client.rows["estimate/flagged"] = torch.zeros(len(client), dtype=torch.bool)
    client.rows["estimate/confidence"] = 1 - client.rows["estimate/issue"]


def detect(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, detectors: Sequence[str], seed: int
) -> "dict[str, torch.Tensor]":
    """Keep which samples each detector flags; reply the counts of each detector and of their agreement.

    Parameters
    ----------
    detectors : tuple of str
        Names in fnlkit.estimators.DETECTORS; `em` comes first and has judged the labels before.
    """
    labels = client.y.numpy()
    needed = bool({"knn", "aum"} & set(detectors))
    points = points_of(client) if needed else np.zeros((len(labels), 0))
    if needed and "input/embedding" not in client.rows:
        spread = points.std(0)
        points = (points - points.mean(0)) / np.where(spread > 1e-12, spread, 1.0)
    flags, groups = [client.rows["estimate/flagged"].numpy()], federated.groups_of(client)
    for name in detectors:
        found = labels
        if name == "confident":
            p = federated.predictions(client)
            found = confident_class(p, class_thresholds(p, labels))
            found = np.where(found < 0, labels, found)
        elif name == "knn" and len(labels) > 1:
            k = min(int(neighbors_for(np.array([len(labels)]), client.classes)[0]), len(labels) - 1)
            draws = stream(seed, "knn", client=client.id)
            found, _ = knn_vote(points, labels, k=k, groups=groups, classes=client.classes, seed=draws)
        elif name == "aum":
            margin, guess = aum.margins(points, labels, client.classes, stream(seed, "aum", client=client.id), groups=groups)
            found = np.where(margin < 0, guess, labels)
        flags.append(found != labels)
    flags = np.stack(flags)
    for name, each in zip(("em", *detectors), flags, strict=True):
        client.rows[f"audit/by_{name}"] = torch.from_numpy(each)
    agreed = np.bincount(flags.sum(0), minlength=len(flags) + 1)
    return hide_few(client, {"detected": torch.from_numpy(flags.sum(1)), "agreed": torch.from_numpy(agreed)})


def points_of(client: "Client") -> np.ndarray:
    """Return the inputs (n, D) of the model of the site itself: embeddings if available, otherwise values or small images."""
    if "input/embedding" in client.rows:
        return client.rows["input/embedding"].numpy().astype(np.float64)
    if client.inputs.image:
        small = min(client.x.shape[1], SIDE), min(client.x.shape[2], SIDE)
        parts = [shifts.plain(part).movedim(-1, 1) for part in client.x.split(shifts.BLOCK)]
        x = torch.cat([torch.nn.functional.adaptive_avg_pool2d(part, small) for part in parts])
    elif client.x.ndim > 2:  # spectrograms: mean and deviation over time
        x = torch.cat([client.x.mean(-1), client.x.std(-1, correction=0)], -1)
    else:
        x = shifts.plain(client.x)
    return x.reshape(len(x), -1).numpy().astype(np.float64)


def within_probabilities(
    points: np.ndarray, labels: np.ndarray, classes: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return probabilities (n, C) of a model of these samples, each predicted without the sample itself or its group.

    The model is logistic regression or a vote of neighbors, whichever predicts more labels.

    Parameters
    ----------
    points : (n, D)
    labels : int (n,)
    classes : int
    rng : numpy.random.Generator
    groups : int (n,), optional
    """
    from sklearn.decomposition import PCA
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.neighbors import KNeighborsClassifier

    spread = points.std(0)
    points = ((points - points.mean(0)) / np.where(spread > 1e-12, spread, 1.0))[:, spread > 1e-12]
    held = np.bincount(labels, minlength=classes) / len(labels)
    if not points.shape[1] or len(labels) < 2 * FOLDS:
        return np.tile(held, (len(labels), 1))
    if points.shape[1] > COMPONENTS:
        points = PCA(min(COMPONENTS, len(points) - 1), svd_solver="full").fit_transform(points)
        points /= np.maximum(points.std(0), 0.1 * points.std(0).max())
    group = np.arange(len(labels)) if groups is None else np.unique(groups, return_inverse=True)[1]
    fold = (rng.permutation(int(group.max()) + 1) % FOLDS)[group]
    out = np.tile(held, (2, len(labels), 1))
    for each in range(FOLDS):
        here, there = np.flatnonzero(fold == each), np.flatnonzero(fold != each)
        there = rng.permutation(there)[:MOST_SAMPLES]
        if not len(here) or len(np.unique(labels[there])) < 2:
            continue
        nearest = min(10, len(there))
        for i, made in enumerate((LogisticRegression(C=0.3, max_iter=200), KNeighborsClassifier(nearest, weights="distance"))):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                made.fit(points[there], labels[there])
            out[i, here] = 0
            out[i][np.ix_(here, made.classes_)] = made.predict_proba(points[here])
    return out[np.argmax((out.argmax(2) == labels).sum(1))]
