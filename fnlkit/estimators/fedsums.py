"""Estimate wrong labels by the label model of the method `fedsums`, from sums over all clients."""

from typing import TYPE_CHECKING

import numpy as np

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import check_arguments
from fnlkit.estimators.judgment import Judgment, sums, transitions
from fnlkit.evidence.linear import Head, Scaling
from fnlkit.experiment.solved import Session, compute_head

if TYPE_CHECKING:
    from fnlkit.estimators.inputs import EstimatorInputs


@declare(cite="")
@check_arguments
def fedsums(evidence: "EstimatorInputs") -> Judgment:
    """Judge labels by a Gaussian classifier and transition matrices that are solved from sums over all clients.

    The issue score is 1 - q of the given label, with the class probabilities q of `fedsums`; the level is their mean. Nothing
    is trained, and torch is not needed.

    Parameters
    ----------
    evidence : fnlkit.estimators.inputs.EstimatorInputs
        Uses the embeddings.
    """
    evidence.refuse("fedsums", probabilities="write `embeddings`", run="write `embeddings`")
    vectors = np.asarray(evidence.embed(), np.float32)
    session = Session(evidence.offsets, np.arange(len(vectors)), evidence.labels, evidence.classes, vectors, Scaling(False))
    compute_head("fedsums", session, Head())
    q = np.concatenate([block.rows["inferred"] for block in session.blocks]).astype(np.float64)
    guess, rows = q.argmax(1), np.arange(len(q))
    issue = 1 - q[rows, evidence.labels]
    evidence.weigh(guess, "class probabilities")
    wrong, sizes = sums(issue, evidence.offsets), np.diff(evidence.offsets)
    T, client_T = transitions(guess, evidence.labels, evidence.offsets, evidence.classes)
    level = wrong / np.maximum(sizes, 1)
    return Judgment(
        level, *evidence.interval(wrong), score=level, issue=issue, flagged=guess != evidence.labels, guess=guess, transition=T,
        client_transition=client_T, confidence=q.max(1),
    )  # fmt: skip
