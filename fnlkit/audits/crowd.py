"""Judge labels of annotators who share samples, by models that saw no label of the judged sample.

The sums of other sites, by which an audit usually judges labels, contain the labels that other annotators gave to the same
samples, also the wrong ones.  Here samples are divided into folds by their content, the same at every client, and a sample is
judged by the labels of the other folds.  The classifier is that of fnlkit.methods.fedem, with its expectation maximization; the
ridge maximizes the likelihood of the judged labels.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.audits.site.samples import Samples, values_of
from fnlkit.evidence.gaussian import gaussian_head, softmax

# Candidate ridges, in units of the mean variance.
RIDGES = (0.3, 1.0, 3.0, 10.0)
FOLDS, PASSES, STEPS = 5, 5, 3
# Share of right labels that the first common matrix assumes, and labels per class of the shrinkage to the common matrix.
RIGHT, STRENGTH = 0.6, 3.0
# Right labels of each class that are added to the sum of all annotators (as in fnlkit.methods.fedem).
PRIOR = 0.5
# More features than this are projected to this number by random directions.
WIDTH = 512


def judge_together(sites: Sequence[Samples]) -> list[np.ndarray]:
    """Predict for each client the probabilities (n, C) of its samples, by the labels of the samples of other folds.

    The clients are in one process: sums of folds describe few samples, and must not leave a real site.

    Parameters
    ----------
    sites : list of Samples
    """
    classes = sites[0].classes
    folds, points = zip(*map(_features, sites), strict=True)
    every = np.concatenate(points)
    spread = every.std(0)
    points = [(x - every.mean(0)) / np.where(spread > 1e-9, spread, 1.0) for x in points]
    given = [np.eye(classes)[site.y] for site in sites]
    mine = [np.eye(FOLDS)[fold] for fold in folds]
    common = np.broadcast_to(RIGHT * np.eye(classes) + (1 - RIGHT) / classes, (len(RIDGES), classes, classes))
    moments = sum(np.einsum("nk,nd,ne->kde", m, x, x, optimize=True) for m, x in zip(mine, points, strict=True))
    inferred: list[tuple[np.ndarray, np.ndarray, Any]] = []
    for site in sites:
        q = np.moveaxis(common[:, :, site.y], 1, 2)
        inferred.append((_rows(q), q, 0.0))
    for _ in range(PASSES):
        counts = sum(_by_fold(q, g, m) for (q, _, _), g, m in zip(inferred, given, mine, strict=True))
        sums = sum(
            np.einsum("rnc,nk,nd->rkcd", q, m, x, optimize=True) for (q, _, _), m, x in zip(inferred, mine, points, strict=True)
        )
        heads = np.array(
            [[_without(moments, sums[r], counts[r], k, ridge) for k in range(FOLDS)] for r, ridge in enumerate(RIDGES)]
        )
        inferred = [_infer(x, s.y, g, m, heads, common) for x, s, g, m in zip(points, sites, given, mine, strict=True)]
        counts = sum(_by_fold(q, g, m) for (q, _, _), g, m in zip(inferred, given, mine, strict=True))
        common = _rows(counts.sum(1) + PRIOR * np.eye(classes) + 0.01)
    best = int(np.argmax(sum(fit for _, _, fit in inferred)))
    return [p[best] for _, p, _ in inferred]


def _features(site):
    """Compute (fold (n,), features (n, D)); all votes on a sample or on samples of a group are in one fold."""
    same = site.x if site.groups is None else site.groups
    fold = np.array([zlib.crc32(np.ascontiguousarray(each).tobytes()) % FOLDS for each in same])
    points = values_of(site)
    if points.shape[1] > WIDTH:
        points = points @ (np.random.default_rng(0).normal(size=(points.shape[1], WIDTH)) / np.sqrt(WIDTH))
    return fold, points


def _infer(x, y, given, mine, heads, common):
    """Infer labels q (ridges, n, C), probabilities of the classifier (ridges, n, C) and log likelihoods (ridges,)."""
    scores = np.einsum("nd,rkdc,nk->rnc", x, heads[:, :, :-1], mine, optimize=True)
    p = np.stack([softmax(part) for part in scores + np.einsum("rkc,nk->rnc", heads[:, :, -1], mine)])
    q = _rows(p * np.moveaxis(common[:, :, y], 1, 2))
    for _ in range(STEPS):
        counts = _by_fold(q, given, mine)
        q = _rows(p * np.moveaxis(_rows(counts.sum(1) + STRENGTH * common)[:, :, y], 1, 2))
    counts = _by_fold(q, given, mine)
    # The matrix with which a label is judged comes from the other folds too.
    apart = _rows(counts.sum(1, keepdims=True) - counts + STRENGTH * common[:, None])
    column = np.einsum("rkzg,nk,ng->rnz", apart, mine, given, optimize=True)
    return q, p, np.log(np.maximum((p * column).sum(-1), 1e-12)).sum(-1)


def _rows(values):
    """Scale rows (..., C) to sum to 1."""
    return values / np.maximum(values.sum(-1, keepdims=True), 1e-300)


def _by_fold(q, given, mine):
    """Count inferred labels (ridges, folds, C, C) by true and given class."""
    return np.einsum("rnz,ng,nk->rkzg", q, given, mine, optimize=True)


def _without(moments, sums, counts, fold, ridge):
    """Fit the linear discriminant analysis (D + 1, C) of all folds but one, with a ridge in units of the mean variance."""
    others = np.arange(FOLDS) != fold
    moments, sums, counts = moments[others].sum(0), sums[others].sum(0), counts[others].sum((0, 2))
    return gaussian_head(counts, sums, moments, ridge, prior=1.0)  # a class that nobody has is at the origin


def count_shared(federation: Federation) -> tuple[int, int]:
    """Count the samples that belong to several clients, and all samples."""
    if "sample_of" not in federation.extra:
        return 0, len(federation.given)
    whole = federation.whole()
    owner = np.repeat(np.arange(len(whole)), np.diff(whole.client_offsets))
    pairs = np.unique(np.stack([whole.extra["sample_of"][whole.client_indices], owner]), axis=1)
    count = np.unique(pairs[0], return_counts=True)[1]
    return int((count > 1).sum()), len(count)
