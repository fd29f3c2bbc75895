"""FedEM: expectation maximization with a transition matrix for each client, for labels of different annotators.

A method of this project (docs/annotators.md).  The model of the noise is that of Dawid, Skene 1979, with a classifier in place
of the class shares as in Raykar et al., Learning from crowds, JMLR 2010.  The classifier of the E step is a Gaussian
distribution of each class with a common covariance, on features of the network, as in Lee et al., Robust inference via
generative classifiers, ICML 2019: it has too few parameters to learn wrong labels by heart.
"""

from collections.abc import Callable, Generator
from functools import partial
from math import isqrt
from typing import TYPE_CHECKING, Any

import torch

from fnlkit.client.losses import soft_cross_entropy
from fnlkit.components.declarations import Sent, method
from fnlkit.components.parameters import Count, Positive, Rounds, Share, check_arguments
from fnlkit.errors import InputError
from fnlkit.kernels.annotator import fit_annotator
from fnlkit.methods.fedavg import Round, fedavg, refuse_mixup
from fnlkit.methods.warmup import warmup_sixth

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients
    from fnlkit.server.optimizers.optimizer import FedOpt


# Right labels of each class that are added to the sum of all clients.
PRIOR = 0.5
# Features of all clients that need more bytes are computed anew in each pass.
MOST = 2**30
PASS = "all clients, each pass after the warm-up"
SUMS: dict[str, Any] = {"summed": True, "sum_only": True}
SENDS = {
    "products": Sent("upper triangle of the sum of f f' over samples, f features", PASS, ("d(d+1)/2",), "float32", **SUMS),
    "class_features": Sent("sum of features by inferred class", PASS, ("C", "d"), **SUMS),
    "counts": Sent("inferred numbers of samples by true and given class", PASS, ("C", "C"), low=0, high="n", **SUMS),
}


# ---- on the client
# A private name: a server of real sites must not request these sums (fnlkit.deploy.allowed).
def _infer_labels(client, model, received, *, steps, last=False, keep=False):
    """Infer q(z) ~ p(z|x) T[z, y] of all samples, with T of this client; reply sums over the samples.

    p is the classifier `received["head"]` (d + 1, C) on the features of the model.  Without it, in the first pass, q depends
    on the given label and the common matrix alone.  The `last` pass replies counts only.  With `keep`, the next pass with the
    same weights uses these features.
    """
    features, p, settings = features_of(client, model, keep), torch.ones(len(client), client.classes), {"steps": 0}
    if "head" in received:
        head = received["head"].double().cpu()
        p = (features @ head[:-1] + head[-1]).softmax(-1)
        settings: dict[str, Any] = {"steps": steps, "counts": client.state.get("inferred_counts")}
    common, strength = received["common"].cpu(), float(received["strength"])
    found = fit_annotator(p, client.y.cpu(), common, strength=strength, **settings)
    if "head" in received:
        client.state["inferred_counts"] = torch.from_numpy(found.before)
        client.state["transition"] = torch.from_numpy(found.transition)
    q, reply = torch.from_numpy(found.inferred), {"counts": torch.from_numpy(found.counts)}
    client.rows["inferred"] = q.to(model.weights.dtype)
    if not last:
        reply |= {"products": triangle(features.T @ features).float(), "class_features": q.T @ features}
    return reply


def features_of(client: "Client", model: "LocalModel", keep: bool) -> "torch.Tensor":
    """Return the features (n, d) of the samples, stored by the previous pass or computed; store the features with `keep`."""
    # The sum identifies the weights: a client that missed the last pass has the features of an earlier model.
    weights = model.weights.double().sum().cpu()
    features, before = client.rows.pop("features", None), client.state.pop("features_of", None)
    if features is None or before != weights:
        features = model.features(client.x).cpu()
    if keep:
        client.rows["features"], client.state["features_of"] = features, weights
    return features.double()


def keep_given(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> None:
    """Use the given labels at a client that no pass has reached."""
    if "inferred" not in client.rows:
        given = torch.nn.functional.one_hot(client.y.cpu(), client.classes)
        client.rows["inferred"] = given.to(model.weights.dtype).cpu()


def normalize_rows(values: "torch.Tensor") -> "torch.Tensor":
    """Return rows (..., C) scaled to sum to 1."""
    return values / values.sum(-1, keepdim=True).clamp_min(1e-300)


def triangle(square: "torch.Tensor") -> "torch.Tensor":
    """Return the upper triangle (d (d + 1) / 2,) of a symmetric matrix (d, d)."""
    return square[tuple(torch.triu_indices(*square.shape))]


# ---- the server
def symmetric(upper: "torch.Tensor") -> "torch.Tensor":
    """Return the symmetric matrix (d, d) of an upper triangle (d (d + 1) / 2,)."""
    side = (isqrt(8 * len(upper) + 1) - 1) // 2
    out = upper.new_zeros(side, side)
    out[tuple(torch.triu_indices(side, side))] = upper
    return out + out.triu(1).T


def gaussian_head(
    moments: "torch.Tensor", class_features: "torch.Tensor", counts: "torch.Tensor", ridge: float
) -> "torch.Tensor":
    """Return the weights and biases (d + 1, C) of a linear discriminant analysis.

    Parameters
    ----------
    moments : (d, d)
        Sum of f f' over all samples.
    class_features : (C, d)
        Sum of features by class.
    counts : (C,)
        Samples of each class.
    ridge : float > 0
        Added to each variance, in units of the mean variance.

    Raises
    ------
    InputError
        If the covariance is not positive definite: the sums do not belong to the same samples.
    """
    number = counts + 1.0  # a class that nobody has is at the origin
    means = class_features / number[:, None]
    covariance = (moments - (means * number[:, None]).T @ means) / counts.sum()
    covariance.diagonal().add_(ridge * covariance.trace() / len(covariance) + 1e-12)
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if failed:
        raise InputError("the covariance of the clients' features is not positive definite; increase `ridge`")
    weights = torch.cholesky_solve(means.T, factor)
    return torch.cat([weights, ((number / number.sum()).log() - 0.5 * (means.T * weights).sum(0))[None]])


@method(sends=SENDS, loss="own", schedule=warmup_sixth)
@check_arguments
def fedem(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    passes: Count = 4,
    steps: Count = 3,
    right: Share = 0.6,
    strength: Positive = 3.0,
    ridge: Positive = 0.1,
) -> "Generator[Round, None, Model]":
    """Infer the true labels from a Gaussian classifier on features and a transition matrix for each client.

    After plain training, all clients infer their labels in some passes without training: q(z) ~ p(z|x) T[z, y], with a common
    classifier p and the client's matrix T.  The server computes p and a common matrix from sums; T is shrunk to the common
    matrix and stays at the client.  The remaining rounds train on q.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of plain training.  Default: -1, a sixth of all rounds.
    passes : int >= 1
        Updates of the classifier and of the matrices.
    steps : int >= 1
        Steps of expectation maximization at a client in a pass.
    right : float in [0, 1]
        Share of right labels that the first common matrix assumes.
    strength : float > 0
        Shrinkage to the common matrix, in labels per true class.
    ridge : float > 0
        Added to each variance of the classifier, in units of the mean variance.

    Notes
    -----
    The classifier has few parameters compared with a network, so that it does not learn single wrong labels by heart.  It sees
    the labels of all clients; if annotators labeled the same samples, they correct each other through it.

    The passes cost bytes and no client-round.  All sums of a pass come from the clients that replied to it, so that a client
    can miss any pass: it keeps the labels that it inferred last, or the given labels.

    **The sums of a single client reveal its samples** (docs/privacy.md): `products` contains the span of its features, and the
    sums by class of several passes together do as well.  The server needs only the sums over all clients; a run stores only
    these.  Real sites refuse the method, because no protection masks these sums.

    Without true labels T is known only up to the errors of the model. If errors follow the features, as those of weak
    labelers do, the model learns these errors and no matrix can correct it.

    Reports
    -------
    common_transition (C, C), once.
    """
    refuse_mixup(opt, "fedem")
    warmup = warmup_sixth(warmup, rounds)
    model = yield from fedavg(clients, model, opt, select, rounds=warmup, stage="warm-up")
    if warmup == rounds:
        return model
    settings: dict[str, Any] = {"passes": passes, "steps": steps, "strength": strength, "ridge": ridge}
    report = {"common_transition": infer_all(clients, model, right=right, **settings).numpy()}
    for _ in range(warmup, rounds):
        model, replies = opt.round(clients, select(clients, model), model, before=(keep_given,), loss=soft_cross_entropy)
        yield Round(model, "inferred labels", replies, report)
        report = {}
    return model


def can_keep_features(clients: "Clients", model: "Model") -> bool:
    """Return whether the features of all clients need at most `MOST` bytes, so that a pass can keep them for the next one."""
    width = getattr(model.network.module, "width", float("inf"))  # a network of a user may not state it
    return float(clients.sizes.sum()) * width * model.network.dtype.itemsize <= MOST


def infer_all(
    clients: "Clients",
    model: "Model",
    *,
    passes: int = 4,
    steps: int = 3,
    right: float = 0.6,
    strength: float = 3.0,
    ridge: float = 0.1,
) -> "torch.Tensor":
    """Let all clients infer their labels in passes without training, and return the common matrix (C, C)."""
    classes, small = clients.classes, can_keep_features(clients, model)
    common = right * torch.eye(classes, dtype=torch.float64) + (1 - right) / classes
    told = {"strength": torch.tensor(strength, dtype=torch.float64), "common": common}

    for i in range(passes + 1):
        last = i == passes
        infer = partial(_infer_labels, steps=steps, last=last, keep=small and not last)
        expect = ("counts",) if last else tuple(SENDS)
        replies = clients.round(range(len(clients)), model, infer, expect=expect, broadcast=told)
        counts = replies["counts"].sum(0)
        if "head" in told:
            told["common"] = normalize_rows(counts + PRIOR * torch.eye(classes) + 0.01)
        if not last:
            sums = replies["products"].sum(0, dtype=torch.float64), replies["class_features"].sum(0)
            told["head"] = gaussian_head(symmetric(sums[0]), sums[1], counts.sum(1), ridge)
    return told["common"]
