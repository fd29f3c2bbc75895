"""Judge labels of annotators who share samples, by models that saw no label of the judged sample.

The models of other sites, with which an audit usually judges labels, have learned the labels that other annotators gave to
the same samples, also the wrong ones.  Here samples are divided into folds by their content, the same at every client, and a
sample is judged by the labels of the other folds.  The classifier is that of fnlkit.methods.fedem, with its expectation
maximization; the ridge maximizes the likelihood of the judged labels.
"""

import zlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from fnlkit.audits.site import points_of
from fnlkit.components.declarations import Sent
from fnlkit.methods.label_inference import PRIOR, gaussian_head, normalize_rows

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.estimators.federated import ClientSession


# Candidate ridges, in units of the mean variance.
RIDGES = (0.3, 1.0, 3.0, 10.0)
FOLDS, PASSES, STEPS = 5, 5, 3
# Share of right labels that the first common matrix assumes, and labels per class of the shrinkage to the common matrix.
RIGHT, STRENGTH = 0.6, 3.0
# More features than this are projected to this number by random directions.
WIDTH = 512
SENDS = {
    "feature_sums": Sent("number, sums and sums of squares of the features", "annotators: once", (3, "features")),
    "moments": Sent("sums of products of scaled features by fold", "annotators: once", ("folds", "features", "features")),
    "class_features": Sent("sums of scaled features by ridge, fold and inferred class", "annotators: each pass",
                           ("ridges", "folds", "C", "features")),
    "fold_counts": Sent("inferred numbers of samples by ridge, fold, true and given class", "annotators: each pass",
                        ("ridges", "folds", "C", "C"), low=0),
    "fits": Sent("log likelihood of the judged labels under each ridge", "annotators: each pass", ("ridges",)),
}  # fmt: skip


# ---- at a site; private names, because a real site must not send sums of the values of few samples (fnlkit.sites.allowed)
def _describe_features(client, model, received):
    """Keep the folds and the features; reply the number, the sums and the sums of squares of the features."""
    x = client.x
    same = client.rows.get("input/group", x)  # all votes on a sample or on samples of a group are in one fold
    codes = [zlib.crc32(np.ascontiguousarray(each.numpy()).tobytes()) for each in same]
    client.rows["crowd/fold"] = torch.tensor([code % FOLDS for code in codes])
    points = torch.from_numpy(points_of(client))
    if points.shape[1] > WIDTH:
        directions = np.random.default_rng(0).normal(size=(points.shape[1], WIDTH)) / np.sqrt(WIDTH)
        points = points @ torch.from_numpy(directions)
    client.rows["crowd/features"] = points
    return {
        "feature_sums": torch.stack([torch.full(points.shape[1:], len(points)).double(), points.sum(0), (points**2).sum(0)])
    }


def _infer_across(client, model, received):
    """Infer the labels under each ridge, each sample by the classifier of the other folds; reply sums and likelihoods."""
    x = (client.rows["crowd/features"] - received["center"]) / received["spread"]
    fold, y, classes = client.rows["crowd/fold"], client.y, client.classes
    given, common = torch.nn.functional.one_hot(y, classes).double(), received["common"]
    mine = torch.nn.functional.one_hot(fold, FOLDS).double()
    reply, kept = {"fits": torch.zeros(len(RIDGES), dtype=torch.float64)}, []
    if "heads" in received:
        heads = received["heads"]  # (ridges, folds, D + 1, C)
        scores = torch.einsum("nd,rkdc,nk->rnc", x, heads[:, :, :-1], mine) + torch.einsum("rkc,nk->rnc", heads[:, :, -1], mine)
        p, q = scores.softmax(-1), normalize_rows(scores.softmax(-1) * common[:, :, y].movedim(1, 2))
        for _ in range(STEPS):
            counts = by_fold(q, given, mine)
            q = normalize_rows(p * shrunk(counts.sum(1), common, STRENGTH)[:, :, y].movedim(1, 2))
        counts = by_fold(q, given, mine)
        # The matrix with which a label is judged comes from the other folds too.
        apart = shrunk(counts.sum(1, keepdim=True) - counts, common[:, None], STRENGTH)  # (ridges, folds, C, C)
        column = torch.einsum("rkzg,nk,ng->rnz", apart, mine, given)
        reply["fits"] = (p * column).sum(-1).clamp_min(1e-12).log().sum(-1)
        kept = p.movedim(0, 1)
    else:
        q = normalize_rows(common[:, :, y].movedim(1, 2))
        reply["moments"] = torch.stack([x.T @ (x * mine[:, k, None]) for k in range(FOLDS)])
        counts, kept = by_fold(q, given, mine), q.movedim(0, 1)
    client.rows["crowd/probabilities"] = kept.contiguous()
    return reply | {"fold_counts": counts, "class_features": torch.einsum("rnc,nk,nd->rkcd", q, mine, x)}


def shrunk(counts: torch.Tensor, common: torch.Tensor, strength: float) -> "torch.Tensor":
    """Return T (..., C, C) of counts and `strength` samples of the common matrix per true class."""
    return normalize_rows(counts + strength * common)


def by_fold(q: torch.Tensor, given: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
    """Return inferred counts (ridges, folds, C, C) by true and given class."""
    return torch.einsum("rnz,ng,nk->rkzg", q, given, mine)


def _keep_best(client, model, received):
    """Keep the probabilities of the best ridge as those by which the labels are judged."""
    client.rows["audit/tried"] = client.rows.pop("crowd/probabilities")[:, int(received["best"])][:, None].contiguous()
    client.rows.pop("crowd/features")


# ---- the server
def judge_at_clients(session: "ClientSession", classes: int) -> None:
    """Let all clients judge each label by the labels of other samples; the probabilities stay at the clients."""
    number, total, squares = session.ask(_describe_features)["feature_sums"].sum(0)
    center = total / number
    spread = (squares / number - center**2).clamp_min(0).sqrt()
    told = {"center": center, "spread": torch.where(spread > 1e-9, spread, 1.0)}
    common = (RIGHT * torch.eye(classes).double() + (1 - RIGHT) / classes).expand(len(RIDGES), -1, -1)
    replies = session.ask(_infer_across, broadcast={"common": common, **told})
    moments = replies["moments"].sum(0)
    for _ in range(PASSES):
        counts, sums = replies["fold_counts"].sum(0), replies["class_features"].sum(0)
        heads = [[_without(moments, sums[r], counts[r], k, ridge) for k in range(FOLDS)] for r, ridge in enumerate(RIDGES)]
        heads = torch.stack([torch.stack(each) for each in heads])
        replies = session.ask(_infer_across, broadcast={"common": common, "heads": heads, **told})
        common = normalize_rows(replies["fold_counts"].sum((0, 2)) + PRIOR * torch.eye(classes) + 0.01)
    session.ask(_keep_best, broadcast={"best": replies["fits"].sum(0).argmax()})


def _without(moments, sums, counts, fold, ridge):
    """Return the classifier (D + 1, C) of all folds but one."""
    others = torch.arange(FOLDS) != fold
    return gaussian_head(moments[others].sum(0), sums[others].sum(0), counts[others].sum((0, 2)), ridge)


def count_shared(federation: "Federation") -> tuple[int, int]:
    """Return (number of samples that belong to several clients, number of samples)."""
    if "sample_of" not in federation.extra:
        return 0, len(federation.given)
    whole = federation.whole()
    owner = np.repeat(np.arange(len(whole)), np.diff(whole.client_offsets))
    pairs = np.unique(np.stack([whole.extra["sample_of"][whole.client_indices], owner]), axis=1)
    count = np.unique(pairs[0], return_counts=True)[1]
    return int((count > 1).sum()), len(count)
