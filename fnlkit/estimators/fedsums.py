"""Estimate wrong labels by the label model of the method `fedsums`, from sums over all clients."""

import numpy as np

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import check_arguments
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.judgment import Judgment, sums, transitions
from fnlkit.evidence.gaussian import gaussian_head
from fnlkit.evidence.linear import Head, Scaling
from fnlkit.experiment.solved import Session, compute_head
from fnlkit.federated.client.scaling import moments, pool_moments
from fnlkit.kernels.streams import stream
from fnlkit.methods.fedsums import SHRINKAGE


@declare(cite="")
@check_arguments
def fedsums(evidence: EstimatorInputs) -> Judgment:
    """Judge labels by a Gaussian classifier and transition matrices that are solved from sums over all clients.

    The issue score is 1 - q of the given label, with the class probabilities q of `fedsums`; the level is their mean. Nothing
    is trained, and torch is not needed.  A note states if a Gaussian classifier of half of the samples, in units of the
    standard deviations of all samples, predicts the given labels of the other half only by chance.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses the embeddings.
    """
    evidence.refuse("fedsums", probabilities="write `embeddings`", run="write `embeddings`")
    vectors = np.asarray(evidence.embed(), np.float32)
    # The method takes inputs of a very small deviation as constant, and vectors can have any unit.
    mean, std = pool_moments(moments(part) for part in np.split(vectors, evidence.offsets[1:-1]) if len(part))
    scaling = Scaling(False, tuple(mean.tolist()), tuple(std.tolist()))
    session = Session(evidence.offsets, np.arange(len(vectors)), evidence.labels, evidence.classes, vectors, scaling)
    compute_head("fedsums", session, Head())
    q = np.concatenate([block.rows["inferred"] for block in session.blocks]).astype(np.float64)
    guess, rows = q.argmax(1), np.arange(len(q))
    issue = 1 - q[rows, evidence.labels]
    evidence.weigh(predict_halves(vectors, evidence), "predictions for the other half of the samples")
    wrong, sizes = sums(issue, evidence.offsets), np.diff(evidence.offsets)
    T, client_T = transitions(guess, evidence.labels, evidence.offsets, evidence.classes)
    level = wrong / np.maximum(sizes, 1)
    return Judgment(
        level, *evidence.interval(wrong), score=level, issue=issue, flagged=guess != evidence.labels, guess=guess, transition=T,
        client_transition=client_T, confidence=q.max(1),
    )  # fmt: skip


def predict_halves(x: np.ndarray, evidence: EstimatorInputs) -> np.ndarray:
    """Predict the given labels (n,) of vectors (n, d) by a Gaussian classifier of the other half; -1 if there is one group."""
    units = np.arange(len(x)) if evidence.groups is None else np.unique(evidence.groups, return_inverse=True)[1]
    half = stream(evidence.seed, "halves").permutation(int(units.max()) + 1)[units] % 2
    if half.max() == 0:
        return np.full(len(x), -1)
    x, guess = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6), np.empty(len(x), np.int64)
    for part in (0, 1):
        known, one_hot = x[half == part], np.eye(evidence.classes)[evidence.labels[half == part]]
        head = gaussian_head(one_hot.sum(0), one_hot.T @ known, known.T @ known, SHRINKAGE, prior=1.0)
        guess[half != part] = (x[half != part] @ head[:-1] + head[-1]).argmax(1)
    return guess
