"""Parameters of a loss, and memory for a batch, in the form of the kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fnlkit._kernels.fused.tile import strict

if TYPE_CHECKING:
    from fnlkit._kernels.fused.input import Batch


CROSS_ENTROPY, FORWARD, PEER, MIXTURE, DISTILL, SOFT, EMBEDDING, VIEWS, REWEIGHTED = range(9)
ALL, SMALLEST, EXCHANGED = range(3)


class Terms(NamedTuple):
    """Terms of a sample's loss in addition to the label term; C classes, unused array fields have length 0.

    Attributes
    ----------
    offset : (C,) float64
        Added to the logits; -inf removes a class from the softmax, with log p = 0.
    label : float
        Factor of the label term.
    bounded, power : float
        Adds bounded (1 - p_y^power) / power.
    entropy : float
        Adds entropy H(p).
    balance : float
        Adds balance KL(1/C || mean p), with the mean over the batch.
    teach, teach_heat : float
        Adds teach KL(teacher || p), where the teacher is the round's initial model with a softmax at temperature teach_heat.
    reverse : float
        Adds reverse KL(p || s), where s is the softmax of the sample's `Memory.learned`.
    pull : float
        Adds pull mean_j (f_j - c_j)^2 if the features f are, by cosine, nearest to the centroid c of the sample's label.
    centroids : flat real
        C centroids of D numbers, then C + SPARE zeros, as the weights of a linear layer.
    norms : (C,) float64
        Lengths of the centroids.
    pseudo : (n,) int64
        Label of samples whose features are nearest to another centroid; length 0 keeps the label.
    """

    offset: np.ndarray
    label: float
    bounded: float
    power: float
    entropy: float
    balance: float
    teach: float
    teach_heat: float
    reverse: float
    pull: float
    centroids: np.ndarray
    norms: np.ndarray
    pseudo: np.ndarray


class Memory(NamedTuple):
    """Labels that a client learns during training, one row per sample, updated in place; length 0 if unused.

    Attributes
    ----------
    history : (n, L, C) real
        Last L predictions; their mean is the sample's label once it has been seen.
    guesses : (n, L) int64
        Last L predicted classes.
    seen : (n,) int64
        Number of recorded predictions.
    record : bool
        Only record: train on the label itself, without choice.
    fixed : (n,) int64
        Label by `guesses`, -1 for none: the most frequent class if their entropy is at most `certain` log C.
    certain : float
    learned : (n, C) real
        Label logits, which descend KL(p || s) / C - hold log s_y with the rate `rate`.
    rate, hold : float
    """

    history: np.ndarray
    guesses: np.ndarray
    seen: np.ndarray
    record: bool
    fixed: np.ndarray
    certain: float
    learned: np.ndarray
    rate: float
    hold: float


class Choice(NamedTuple):
    """Choice of samples in each batch; the loss of a batch is the mean over the chosen samples.

    Attributes
    ----------
    rule : int
        ALL; SMALLEST: the samples with the smallest cross entropy; EXCHANGED: those of the other network.
    forget : float
        Share that is dropped.
    upwards : bool
        Round the number of chosen samples up instead of down.
    disagreeing : bool
        Choose among samples for which two networks predict different classes.
    agreed : bool
        Use all samples of a batch without such samples.
    mated : bool
        Under mixup, `keep` of both samples is used, and the label term is divided by the mean of both factors.
    agree : (n,) int64
        Class that the local model must predict on the sample before mixup, with `agree_offset` added to the logits; the label
        term of other samples is 0.  Length 0 if unused.
    agree_offset : (C,) float64
    """

    rule: int
    forget: float
    upwards: bool
    disagreeing: bool
    agreed: bool
    mated: bool
    agree: np.ndarray
    agree_offset: np.ndarray


class Division(NamedTuple):
    """Labels of two networks that divide each other's samples (DivideMix); `clean` has length 0 if unused.

    Attributes
    ----------
    clean : (n, 2) real
        Each network's probability that the label is right.
    threshold, heat, unlabeled : float
        Least probability of labeled samples, temperature of the targets, factor of the squared error of other samples.
    views : int
        Views of each sample in a batch.
    """

    clean: np.ndarray
    threshold: float
    heat: float
    unlabeled: float
    views: int


class Loss(NamedTuple):
    """Parameters of a loss; C classes, n samples of the client, unused array fields have length 0.

    Attributes
    ----------
    kind : int
        Row of the table above.
    plain : bool
        True for kind 0 without smoothing, factors, labels and further terms.
    smoothing : float
        s of kind 0.
    strength : float
        b.
    temperature : float
        F of kinds 4 and 8.
    backwards : bool
        Kind 4: KL(student || teacher) instead of KL(teacher || student).
    alpha, beta, gamma : float
        Kind 3: share of the server's average in t, rate of the server's average, rate of the local average.
    floor, clamp : float
    matrix : (C, C) float64
        ``T[true, given]`` of kinds 1 and 9, W of kind 7.
    other : (steps, B) int64
        y' of kind 2; if empty, `prior` is used.
    prior : (C,) float64
        q of kind 2.
    soft : (n, C) real
        Soft labels of kind 5.
    keep : (n,) real
        Factor of each sample's label term; length 0 for 1.
    labels : (n,) int64
        Labels of the label term; length 0 for y.
    server, local : (n, C) real
        Running averages of kind 3, updated in place.  Without `server`, t is the local average alone.
    seen : (n,) bool
        True for the rows of the averages that have a value; updated in place.
    teacher : (n, D) real
        Embeddings e of kind 6.
    norm : bool
        Kind 6 with the norm of ê - e over the root of D instead of the mean of its absolute values.
    share : (steps,) float64
        m of kind 8.
    double : bool
        Kind 8 with a second softmax.
    terms, memory, choice, division
    """

    kind: int
    plain: bool
    smoothing: float
    strength: float
    temperature: float
    backwards: bool
    alpha: float
    beta: float
    gamma: float
    floor: float
    clamp: float
    matrix: np.ndarray
    other: np.ndarray
    prior: np.ndarray
    soft: np.ndarray
    keep: np.ndarray
    labels: np.ndarray
    server: np.ndarray
    local: np.ndarray
    seen: np.ndarray
    teacher: np.ndarray
    norm: bool
    share: np.ndarray
    double: bool
    terms: Terms
    memory: Memory
    choice: Choice
    division: Division


class Room(NamedTuple):
    """Inputs, results and scratch of `loss_and_gradient`; N networks, B samples, float64.

    Attributes
    ----------
    logits, gradient : (N, B, C)
    server : (N, B, C)
        Logits of the round's initial model; see `needs_server`.
    own : (N, B, C)
        Logits of the local model on samples before mixup; see `needs_unmixed`.
    nearest : (B,) int64
        Class of the nearest centroid.
    pulled : (B,)
        Factor of the distance to the centroid in the gradient; written.
    log_p, p, target : (N, B, C)
    marks : (B,) int64
        Label of each sample.
    factor : (B,)
        Factor of each sample's label term.
    chosen : (N, B)
        Factor of each sample's loss.
    rank : (N, B)
        Cross entropies that are ranked.
    soft : (N, B, C)
        Soft labels of this batch.
    sure : (N, B)
        1 for samples that are labeled for a network, else 0.
    scratch : (C,)
    """

    logits: np.ndarray
    gradient: np.ndarray
    server: np.ndarray
    own: np.ndarray
    nearest: np.ndarray
    pulled: np.ndarray
    log_p: np.ndarray
    p: np.ndarray
    target: np.ndarray
    marks: np.ndarray
    factor: np.ndarray
    chosen: np.ndarray
    rank: np.ndarray
    soft: np.ndarray
    sure: np.ndarray
    scratch: np.ndarray


@strict
def loss_room(networks: int, batch: int, classes: int) -> Room:
    """Return the Room of batches of a size."""
    shape = networks, batch, classes
    return Room(
        np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(batch, np.int64), np.zeros(batch),
        np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(batch, np.int64), np.zeros(batch),
        np.zeros((networks, batch)), np.zeros((networks, batch)), np.zeros(shape), np.zeros((networks, batch)),
        np.zeros(classes),
    )  # fmt: skip


@strict
def needs_server(loss: Loss) -> bool:
    """Return True if the loss needs predictions of the round's initial model on each batch."""
    return loss.kind == DISTILL or (loss.kind == MIXTURE and loss.server.shape[0] > 0) or loss.terms.teach != 0


@strict
def needs_unmixed(loss: Loss, batch: Batch) -> bool:
    """Return True if the loss needs predictions of both models on each batch before mixup."""
    read = loss.kind == MIXTURE or loss.choice.agree.shape[0] > 0 or loss.division.clean.shape[0] > 0
    return read and batch.raw.shape[0] > 0
