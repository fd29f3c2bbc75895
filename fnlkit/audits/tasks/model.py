"""Federated linear models on nonlinear features, fitted from sums that the clients send.

Inputs are centered and scaled by the moments of all clients, reduced to principal components if there are many, and expanded
by random cosines (Rahimi, Recht 2007).  Robust least squares (Huber 1964) need a few weighted sums.  Logistic models
need a sum of gradients per round and use the bound of Böhning 1992 instead of a new Hessian.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.audits.site import points_of
from fnlkit.components.declarations import Sent
from fnlkit.estimators.federated import groups_of
from fnlkit.kernels.streams import stream

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.estimators.federated import ClientSession
    from fnlkit.server.clients import Replies


MOST, COSINES = 64, 200
# Weight of the cosines relative to the scaled inputs, and penalty of squared weights.
AMPLITUDE, PENALTY = 2.0, 1.0
ROUNDS, FOLDS = 40, 5
# Rounds of least squares with Huber's weights: a residual beyond HUBER robust deviations of the site counts less.
REWEIGHTED, HUBER, LEAST = 4, 1.345, 0.01
RANKS = 81  # bins of predicted log odds
_ANY: dict[str, Any] = {"low": -1e200, "high": 1e200}  # inputs and targets can be in any unit
SENDS = {
    "input_sums": Sent("sums of the inputs", "once", ("D",), **_ANY),
    "target_sums": Sent("sums of the targets", "once", ("K",), **_ANY),
    "products": Sent("sums of products of two centered inputs", "once", ("D", "D"), **_ANY),
    "squares": Sent("sums of squares of centered targets", "once", ("K",), low=0, high=1e200),
    "gram": Sent("sums of products of two features", "once", ("F", "F")),
    "cross": Sent("sums of products of features and targets", "once", ("F", "K")),
    "weighted_gram": Sent(
        "sums of weighted products of two features of each model, with weights below 1 for large residuals",
        f"{REWEIGHTED} times",
        ("folds", "F", "F"),
    ),
    "weighted_cross": Sent(
        "sums of weighted products of features and targets of each model", f"{REWEIGHTED} times", ("folds", "F", "K")
    ),
    "gradient": Sent("sums of gradients of each model", f"{ROUNDS} times", ("folds", "F", "K")),
    "losses": Sent(
        "sums of the scaled errors of a constant, of the reductions by two models, and of squared reductions", "once", (5, "L")
    ),
    "ranked": Sent.counts("numbers of samples by model, output, target and predicted log odds", "once", (2, "K", 2, RANKS)),
}


def outputs(scores: np.ndarray, link: str) -> np.ndarray:
    """Return predictions from linear scores (..., K): ``identity``, ``sigmoid`` or ``softmax``."""
    if link == "identity":
        return scores
    if link == "sigmoid":
        return 0.5 * (1 + np.tanh(scores / 2))
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


def solve(gram: np.ndarray, cross: np.ndarray, link: str, gradients: Callable[..., Any]) -> np.ndarray:
    """Return weights (folds, F, K) from sums of products.

    Parameters
    ----------
    gram, cross : (folds, F, F), (folds, F, K)
    link : str
    gradients : callable
        (weights (folds, F, K)) -> sums (folds, F, K) of features times (target - output); not used by ``identity``.
    """
    penalty = np.full(gram.shape[1], PENALTY)
    penalty[0] = 1e-6  # the constant is not shrunk
    if link == "identity":
        return np.linalg.solve(gram + np.diag(penalty), cross)
    bound = np.linalg.inv((0.25 if link == "sigmoid" else 0.5) * gram + np.diag(penalty))
    weights = ahead = np.zeros_like(cross)
    for step in range(ROUNDS):
        new = ahead + bound @ (gradients(ahead) - penalty[:, None] * ahead)
        ahead, weights = new + step / (step + 3) * (new - weights), new
    return weights


def fit(session: "ClientSession", groups: np.ndarray, link: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (weights (folds, F, K), deviation of the targets (K,)): a model per group of clients, fitted on all others.

    The clients keep their features as the row ``task/features``.

    Parameters
    ----------
    session : fnlkit.estimators.federated.ClientSession
    groups : int (N,)
    """
    count = int(session.clients.sizes.sum())
    told = session.ask(add)
    means = {name: told[f"{name}_sums"].sum(0) / count for name in ("input", "target")}
    told = session.ask(add_products, broadcast=means)
    mean, center = means["input"].numpy(), means["target"].numpy()
    scale = np.sqrt(np.maximum(told["squares"].sum(0).numpy() / count, 1e-12))
    center, spread = (center, scale) if link == "identity" else (np.zeros_like(center), np.ones_like(scale))
    basis = _basis(told["products"].sum(0).numpy() / count)
    rng = stream(seed, "cosines")
    frequencies = rng.normal(size=(basis.shape[1], COSINES)) / np.sqrt(max(1, basis.shape[1]))
    sent = {"mean": mean, "basis": basis, "frequencies": frequencies, "phases": rng.random(COSINES) * 2 * np.pi,
            "center": center, "spread": spread}  # fmt: skip
    told = session.ask(prepare, broadcast={name: torch.from_numpy(np.asarray(values)) for name, values in sent.items()})
    out = np.arange(groups.max() + 1)[:, None] != groups  # (folds, N): clients that fit each model
    gram, cross = (np.einsum("fn,nij->fij", out.astype(float), told[name].numpy()) for name in ("gram", "cross"))

    def gradients(weights: np.ndarray) -> np.ndarray:
        found = session.ask(partial(gradient, link=link), broadcast={"weights": torch.from_numpy(weights)})["gradient"]
        return np.einsum("fn,nfij->fij", out.astype(float), found.numpy())

    weights = solve(gram, cross, link, gradients)
    for _ in range(REWEIGHTED if link == "identity" else 0):
        told = session.ask(reweight, broadcast={"weights": torch.from_numpy(weights)})
        gram, cross = (np.einsum("fn,nfij->fij", out.astype(float), told[f"weighted_{n}"].numpy()) for n in ("gram", "cross"))
        weights = solve(gram, cross, link, gradients)
    return weights, scale


def _basis(covariance):
    """Return (D, d): scaled inputs, or scaled principal components if there are many."""
    spread = np.sqrt(np.maximum(np.diag(covariance), 0))
    if len(spread) <= MOST:
        kept = spread > 1e-9
        return np.diag(1 / np.where(kept, spread, 1))[:, kept]
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = np.sqrt(np.maximum(values[::-1][:MOST], 0)), vectors[:, ::-1][:, :MOST]
    return vectors / np.maximum(values, max(0.1 * values[0], 1e-9))


# ---- at the client
def add(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Keep the inputs; reply sums of inputs and targets."""
    client.rows["task/points"] = torch.from_numpy(points_of(client))
    return {"input_sums": client.rows["task/points"].sum(0), "target_sums": client.rows["input/target"].sum(0)}


def add_products(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reply sums of products of inputs and of squares of targets, both centered."""
    x, y = client.rows["task/points"] - received["input"], client.rows["input/target"] - received["target"]
    return {"products": x.T @ x, "squares": (y**2).sum(0)}


def prepare(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keep the features and scaled targets; reply their sums of products."""
    said = {name: values.numpy() for name, values in received.items()}
    z = (client.rows["task/points"].numpy() - said["mean"]) @ said["basis"]
    cosines = AMPLITUDE * np.sqrt(2 / COSINES) * np.cos(z @ said["frequencies"] + said["phases"])
    features = np.concatenate([np.ones((len(z), 1)), z, cosines], 1)
    targets = (client.rows["input/target"].numpy() - said["center"]) / said["spread"]
    client.rows["task/features"], client.rows["task/targets"] = torch.from_numpy(features), torch.from_numpy(targets)
    client.state["task/scale"] = torch.from_numpy(np.stack([said["center"], said["spread"]]))
    return {"gram": torch.from_numpy(features.T @ features), "cross": torch.from_numpy(features.T @ targets)}


def reweight(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Reply weighted sums of products for each model (Huber 1964)."""
    features, targets = (client.rows[f"task/{name}"].numpy() for name in ("features", "targets"))
    sums = [_weigh_equations(features, targets, weights) for weights in received["weights"].numpy()]
    return {
        name: torch.from_numpy(np.stack(each))
        for name, each in zip(("weighted_gram", "weighted_cross"), zip(*sums, strict=True), strict=True)
    }


def _weigh_equations(features, targets, weights):
    away = np.abs(targets - features @ weights)
    limit = HUBER * np.maximum(1.4826 * np.median(away), LEAST)
    weighted = features * np.minimum(1, limit / np.maximum(away, 1e-12))
    return weighted.T @ features, weighted.T @ targets


def gradient(client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, link: str) -> dict[str, torch.Tensor]:
    """Reply the sum of the gradients of each model."""
    features, targets = (client.rows[f"task/{name}"].numpy() for name in ("features", "targets"))
    return {"gradient": torch.from_numpy(_gradients(features, targets, received["weights"].numpy(), link))}


def _gradients(features, targets, weights, link):
    return np.stack([features.T @ (targets - outputs(features @ each, link)) for each in weights])


def predict(
    client: "Client", model: "LocalModel", received: dict[str, torch.Tensor], *, link: str, seed: int
) -> dict[str, torch.Tensor]:
    """Keep predictions (n, 2, K) of the model of the others and of a cross-validated own model; reply losses."""
    features, targets = (client.rows[f"task/{name}"].numpy() for name in ("features", "targets"))
    center, spread = client.state["task/scale"].numpy()
    groups = groups_of(client)
    group = np.arange(len(targets)) if groups is None else np.unique(groups, return_inverse=True)[1]
    fold = (stream(seed, "within", client=client.id).permutation(int(group.max()) + 1) % FOLDS)[group]
    own = np.tile(targets.mean(0), (len(targets), 1))
    for each in range(min(FOLDS, len(targets))):
        here, there = fold == each, fold != each
        if here.any() and there.any():
            own[here] = outputs(features[here] @ _fit_alone(features[there], targets[there], link), link)
    found = np.stack([outputs(features @ received["weights"].numpy(), link), own], 1)
    client.rows["task/predicted"] = torch.from_numpy(found * spread + center)
    if link != "identity":
        return {"ranked": torch.from_numpy(count_ranks(found, targets))}
    base = np.abs(targets - np.median(targets, 0))
    gains = base[:, None] - np.abs(targets[:, None] - found)
    return {"losses": torch.from_numpy(np.stack([base.sum(0), *gains.sum(0), *(gains**2).sum(0)]))}


def _fit_alone(x, y, link):
    weights = solve((x.T @ x)[None], (x.T @ y)[None], link, lambda w: _gradients(x, y, w, link))[0]
    for _ in range(REWEIGHTED if link == "identity" else 0):
        gram, cross = _weigh_equations(x, y, weights)
        weights = solve(gram[None], cross[None], link, None)[0]
    return weights


def count_ranks(predicted: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return counts (2, K, 2, RANKS) of probabilities (n, 2, K) in bins of the log odds, by model, output and target."""
    p = np.clip(predicted, 1e-9, 1 - 1e-9)
    place = np.clip(np.rint(4 * np.log(p / (1 - p))), -(RANKS // 2), RANKS // 2).astype(np.int64) + RANKS // 2
    out = np.zeros((2, predicted.shape[2], 2, RANKS), np.int64)
    for m in range(2):
        for j in range(predicted.shape[2]):
            np.add.at(out[m, j], (targets[:, j].astype(np.int64), place[:, m, j]), 1)
    return out


# ---- at the server
def skills(replies: "Replies", link: str, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (skill, standard errors above no skill), each (N, 2, L), of the models of the others and of the site itself.

    For numbers, the skill is the share by which a model reduces the absolute error of the site's median.  For labels, it is the
    Gini coefficient 2 AUC - 1, which wrong labels reduce but do not reverse; tags are averaged with the class frequencies.
    """
    if link == "identity":
        losses = replies["losses"].numpy()
        base, gains, squares, sizes = losses[:, :1], losses[:, 1:3], losses[:, 3:5], sizes[:, None, None]
        error = np.sqrt(np.maximum(squares / sizes - (gains / sizes) ** 2, 1e-30) / sizes)
        return np.divide(gains, base, out=np.zeros_like(gains), where=base > 1e-9), gains / sizes / error
    counts = replies["ranked"].numpy().astype(np.float64)  # (N, 2, K, 2, RANKS)
    without, with_it = counts[..., 0, :], counts[..., 1, :]
    below = np.cumsum(without, -1) - without / 2
    negatives, positives = without.sum(-1), with_it.sum(-1)
    pairs = np.maximum(negatives * positives, 1)
    gini = np.where(negatives * positives > 0, 2 * (with_it * below).sum(-1) / pairs - 1, 0)
    error = np.sqrt((negatives + positives + 1) / (3 * pairs))
    if link == "softmax":
        share = positives / np.maximum(positives.sum(-1, keepdims=True), 1)
        gini, error = ((share * gini).sum(-1, keepdims=True), np.sqrt((share**2 * error**2).sum(-1, keepdims=True)))
    return gini, gini / error
