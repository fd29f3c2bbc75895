"""Held-out predictions: folds of the samples, and a model for each fold that never saw it.

The models are heads of the method `fedsums` where a head from sums learns the data; otherwise, networks of a short training.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fnlkit.artifacts.exchange import Traffic
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.stored import Chosen
from fnlkit.evidence.gaussian import softmax
from fnlkit.evidence.linear import Head, Scaling
from fnlkit.experiment.scale import scale_of
from fnlkit.experiment.solved import Session, compute_head, has_few_inputs
from fnlkit.kernels.streams import stream

# Number of Fourier features of a head.  With 1,000 it takes four times as long and finds as many wrong labels.
COSINES = 300
# Largest number of inputs of a head: its time grows with their third power.
MOST_INPUTS = 2048


def fold_of(offsets: np.ndarray, folds: int, by: str, seed: int, groups: np.ndarray | None = None) -> np.ndarray:
    """Choose the fold (m,) of each sample: whole clients, or equal parts of every client's samples, or of its groups (m,).

    A single client, or by="sample", is split by samples or groups.  Every fold has at least one sample.  With by="client",
    groups at several clients are divided.
    """
    sizes = np.diff(offsets)
    if by == "client" and len(sizes) > 1:
        order = stream(seed, "folds").permutation(len(sizes))
        return np.repeat(order % min(folds, len(sizes)), sizes)
    if groups is not None:
        _, first, group = np.unique(groups, return_index=True, return_inverse=True)
        owner = np.repeat(np.arange(len(sizes)), sizes)[first]  # a group at several clients counts for the first
        ends = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(sizes)))])
        fold = np.empty(len(first), np.int64)
        fold[np.argsort(owner, kind="stable")] = fold_of(ends, folds, "sample", seed)
        return fold[group]
    # The count continues from client to client, which spreads the samples of clients that are smaller than the number of folds.
    order = np.concatenate(
        [
            a + stream(seed, "folds", client=k).permutation(b - a)
            for k, (a, b) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
        ]
    )
    fold = np.empty(len(order), np.int64)
    fold[order] = np.arange(len(order)) % min(folds, len(order))
    return fold


def without(federation: Federation, left_out: np.ndarray) -> Federation:
    """Remove the samples of a mask (m,) from a federation, and clients that then have no samples."""
    parts = [
        part[~mask] for part, mask in zip(federation.clients, np.split(left_out, federation.client_offsets[1:-1]), strict=True)
    ]
    parts = [part for part in parts if len(part)]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return Federation(federation.dataset, federation.classes, offsets, np.concatenate(parts), np.asarray(federation.given))


def heads_predict(evidence: Any) -> bool:
    """Whether heads predict the folds: no option of a training is given, and a head is cheap and learns the data.

    These are vectors, samples encoded by a backbone, and images of at most 256 values if there are at most 100,000; all with
    at most `MOST_INPUTS` values.
    """
    data = evidence.dataset
    readable = data.kind in ("vector", "image") and data.x_train.dtype != object
    small = data.features is not None or data.kind == "vector" or has_few_inputs(data, len(evidence.labels))
    return not evidence.chosen and readable and small and math.prod(data.x_train.shape[1:]) <= MOST_INPUTS


def solve_heads(evidence: Any, fold: np.ndarray) -> Iterator[tuple[np.ndarray, Head, Scaling]]:
    """Solve a head for each fold (m,) from the sums of all clients without it: (mask (m,) of the fold, head, scaling)."""
    evidence.training = {"method": "fedsums"}
    data, numbers = evidence.dataset, np.unique(fold)  # a fold can consist of clients without samples
    cosines = COSINES if data.features is None and has_few_inputs(data, len(fold)) else 0
    for done, number in enumerate(numbers, 1):
        left_out = fold == number
        part = without(evidence.federation, left_out | evidence.apart)
        scale = evidence.image_scale() or scale_of(part, data, data.x_train)
        if scale.from_clients:
            evidence.count_moments(len(part), len(scale.mean))
        inputs = Scaling(data.kind == "image", scale.mean, scale.std)
        offsets, rows = np.asarray(part.client_offsets), np.asarray(part.client_indices)
        session = Session(offsets, rows, np.asarray(part.given)[rows], part.classes, data.x_train, inputs)
        head = compute_head("fedsums", session, Head(cosines)).model
        sent = {f"head_{name}": size for name, size in session.traffic.sent.items()}
        evidence.add_traffic(Traffic(session.traffic.bytes_down, sent=sent))
        # In double precision, a sample has the same logits whatever samples are predicted with it.
        yield left_out, Head(cosines, tuple(layer.astype(np.float64) for layer in head.layers)), inputs
        evidence.progress(done, len(numbers), "heads")


def predict_by_heads(evidence: Any, fold: np.ndarray) -> np.ndarray:
    """Predict probabilities (m, C), each by a head that was solved without the sample's fold (m,)."""
    samples, predictions = evidence.dataset.x_train, np.empty((len(fold), evidence.classes))
    for left_out, head, inputs in solve_heads(evidence, fold):
        predictions[left_out] = softmax(head.of_samples(Chosen(samples, evidence.positions[left_out]), inputs))
    return predictions
