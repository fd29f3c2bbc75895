"""Labels inferred by a Gaussian classifier on features and a transition matrix of each client."""

from typing import Any

import torch

from fnlkit.core.declarations import Sent
from fnlkit.evidence.gaussian import triangle
from fnlkit.federated.types import Client, Clients, LocalModel, Model, Received
from fnlkit.kernels.annotator import fit_annotator

# Right labels of each class that are added to the sum of all clients.
PRIOR = 0.5
# Features of all clients that need more bytes are computed anew in each pass.
MOST = 2**30
# The share of right labels of an annotator is shrunk to the expected share by this number of labels.
LEVEL = 3.0
PASS = "all clients, each pass after the warm-up"
SUMS: dict[str, Any] = {"summed": True, "sum_only": True}
SENDS = {
    "products": Sent("upper triangle of the sum of f f' over samples, f features", PASS, ("d(d+1)/2",), "float32", **SUMS),
    "class_features": Sent("sum of features by inferred class", PASS, ("C", "d"), **SUMS),
    "counts": Sent("inferred numbers of samples by true and given class", PASS, ("C", "C"), low=0, high="n", **SUMS),
}
VOTES = {
    "votes": Sent("log likelihood of the given labels by sample and true class", f"{PASS}, if clients share samples",
                  ("shared", "C"), high=0, **SUMS),
}  # fmt: skip


# A private name: a server of real sites must not request these sums (fnlkit.sites.site.allowed).
def _infer_labels(client, model, received, *, steps, last=False, keep=False):
    """Infer q(z) ~ p(z|x) T[z, y] of all samples, with T of this client; reply sums over the samples.

    p is the classifier `received["head"]` (d + 1, C) on the features of the model.  Without it, in the first pass, q depends
    on the given label and the common matrix alone.  The `last` pass replies counts only.  With `keep`, the next pass with the
    same weights uses these features.

    If clients share samples, `received["votes"]` (samples, C) has the log likelihoods of all labels of a sample, and q is
    proportional to the product over these labels.
    """
    features = features_of(client, model, keep)
    p = torch.ones(len(client), client.classes)
    settings = {"steps": 0}
    if "head" not in received:
        client.state.pop("inferred_counts", None)
    common, counts = received["common"].cpu(), client.state.get("inferred_counts")
    if "head" in received:
        head = received["head"].double().cpu()
        logits = features @ head[:-1] + head[-1]
        if "votes" in received:
            logits = logits + votes_of_others(client, received["votes"].cpu(), bool(received["included"]))
            common = match_level(common, counts)
        p = logits.softmax(-1)
        settings: dict[str, Any] = {"steps": steps, "counts": counts}
    annotator = fit_annotator(p, client.y.cpu(), common, strength=float(received["strength"]), **settings)
    if "head" in received:
        client.state["inferred_counts"] = torch.from_numpy(annotator.before)
        client.state["transition"] = torch.from_numpy(annotator.transition)
    q, reply = torch.from_numpy(annotator.inferred), {"counts": torch.from_numpy(annotator.counts)}
    client.rows["inferred"] = q.to(model.weights.dtype)
    if not last:
        reply |= {
            "products": torch.from_numpy(triangle((features.T @ features).numpy())).float(),
            "class_features": q.T @ features,
        }
        if "shared" in received:
            likelihood = torch.from_numpy(annotator.transition)[:, client.y.cpu()].T.clamp_min(1e-12).log()
            client.rows["votes"] = likelihood
            samples = client.rows["input/sample"]
            reply["votes"] = likelihood.new_zeros(int(received["shared"]), client.classes).index_add(0, samples, likelihood)
    return reply


def votes_of_others(client: Client, votes: torch.Tensor, included: bool) -> torch.Tensor:
    """Compute the log likelihood (n, C) of the other labels of each sample.

    Parameters
    ----------
    votes : (samples, C)
        Sums over the labels of all clients that replied.
    included : bool
        Whether they include the labels of this client.
    """
    others = votes[client.rows["input/sample"]]
    return others - client.rows["votes"] if included else others


def match_level(common: torch.Tensor, counts: torch.Tensor | None, level: float = LEVEL) -> torch.Tensor:
    """Multiply the odds of right labels in the common matrix (C, C) by a factor of this annotator.

    The factor compares the share of right labels in `counts`, shrunk by `level` labels, with the share that the common matrix
    expects for the same classes.  It needs fewer labels than a matrix: annotators differ first of all in their skill.

    Parameters
    ----------
    counts : (C, C) or None
        Inferred numbers of samples by true and given class.
    """
    if counts is None or not counts.any():
        return common
    right, total = common.diagonal(), float(counts.sum())
    expected = float(counts.sum(1) @ right) / total
    reached = (float(counts.trace()) + level * expected) / (total + level)
    odds = right * (reached * (1 - expected) / max((1 - reached) * expected, 1e-12))
    scaled_matrix = common / (odds + 1 - right).clamp_min(1e-12)[:, None]
    scaled_matrix.diagonal().mul_(odds / right.clamp_min(1e-12))
    return scaled_matrix


def features_of(client: Client, model: LocalModel, keep: bool) -> torch.Tensor:
    """Compute the features (n, d) of the samples, or reuse those of the previous pass; `keep` stores them."""
    # The sum identifies the weights: a client that missed the last pass has the features of an earlier model.
    weights = model.weights.double().sum().cpu()
    features, before = client.rows.pop("features", None), client.state.pop("features_of", None)
    if features is None or before != weights:
        features = model.features(client.x).cpu()
    if keep:
        client.rows["features"], client.state["features_of"] = features, weights
    return features.double()


def keep_given(client: Client, model: LocalModel, received: Received) -> None:
    """Use the given labels at a client that no pass has reached."""
    if "inferred" not in client.rows:
        one_hot_labels = torch.nn.functional.one_hot(client.y.cpu(), client.classes)
        client.rows["inferred"] = one_hot_labels.to(model.weights.dtype).cpu()


def normalize_rows(values: torch.Tensor) -> torch.Tensor:
    """Scale rows (..., C) to sum to 1."""
    return values / values.sum(-1, keepdim=True).clamp_min(1e-300)


def can_keep_features(clients: Clients, model: Model) -> bool:
    """Whether the features of all clients need at most `MOST` bytes, so that a pass can store them for the next one."""
    width = getattr(model.network.module, "width", float("inf"))  # a network of a user may not state it
    return float(clients.sizes.sum()) * width * model.network.dtype.itemsize <= MOST
