"""Declare the terms of a loss for compiled local training on the CPU (fnlkit.kernels.fused).

A loss in PyTorch declares a function that returns the same loss in terms, for the local training of a client:

    def sharper_terms(visit, *, strength):
        return FusedLoss(entropy=strength)

    @declare(terms=sharper_terms)
    def sharper(logits, batch, *, strength=0.1):
        logp = logits.log_softmax(-1)
        return -at(logp, batch.y) - strength * (logp.exp() * logp).sum(-1)

`visit` has ``client``, ``model`` (with ``weights``), ``received``, ``fit`` and ``draws``.  The keywords are the keywords of the
loss.  The formula in PyTorch is the specification: other engines use it, and both must give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class FusedLoss:
    """Terms of a loss for compiled local training on the CPU.

    ``keep_i L(y_i)`` is the label term of sample i, chosen by `kind`.  The other terms are added to it, and the loss of a batch
    is the mean over its samples, or over the samples that `choice` selects.  Formulas are in `fnlkit._kernels.fused.loss`.
    C is the number of classes, n the number of samples of the client, p the softmax of the logits.  Logarithms of 0 are 0.

    Attributes
    ----------
    kind : str
        ``cross_entropy``, ``forward``, ``reweighted``, ``peer``, ``mixture``, ``distill``, ``soft``, ``embedding`` or
        ``two_views``.
    smoothing : float
        Label smoothing of ``cross_entropy``; can be negative.
    strength : float
        Coefficient of the second term of ``peer``, ``mixture``, ``distill``, ``embedding`` and ``two_views``.  For
        ``reweighted``: factor of the gradient through the weights, 0 or 1.
    temperature : float > 0
        Temperature of ``distill`` and ``two_views``.
    towards : "teacher" or "student"
        Divergence of ``distill``: KL(student || teacher) for "teacher", KL(teacher || student) for "student".
    alpha, beta, gamma : float in [0, 1]
        For ``mixture``: share of the server's average in the mixture, rate of the server's and of the local average.
    floor : float >= 0
        ``forward`` adds it inside the logarithm, ``reweighted`` to the divisor, ``peer`` inside both logarithms; for
        ``mixture`` it is the smallest value of 1 - <p, t>.
        Default: 1e-12 for ``forward`` and ``reweighted``, 0 for ``peer`` and 1e-4 for ``mixture``.
    clamp : float in [0, 1/2)
        For ``mixture``: predictions are clamped to [clamp, 1 - clamp].  Smallest prediction of ``two_views``.
    matrix : (C, C)
        Transition matrix T[true, given] of ``forward`` and ``reweighted``, with rows that sum to 1.
    other : (steps, B) int
        Second label of ``peer`` for each place of `order`. None: use the expectation over `prior`.
    prior : (C,)
        Class distribution of ``peer``.
    soft : (n, C)
        Target distributions of ``soft``.
    keep : (n,)
        Factor of each sample's label term. Default: 1.
    labels : (n,) int
        Labels of the label term. Default: the working labels.
    server, local : (n, C) of the weights' type
        Averages of predictions of ``mixture``, updated in place.  Without `server` the mixture is the local average.
    seen : (n,) bool
        True for the rows of the averages that have a value; updated in place.
    teacher : (n, D)
        Target of ``embedding`` for the last hidden layer.  If D (width + 1) weights of a linear head follow the network's
        weights, it is the target for the output of this head.
    norm : bool
        For ``embedding``: the norm of the difference over the root of D instead of the mean of its absolute values.
    share : (steps,) in [0, 1)
        Weight of the first view in the mean prediction of ``two_views``.
    double : bool
        For ``two_views``: cross entropy and entropy of a second softmax, and the divergence divided by C.
    label : float
        Factor of the label term.
    offset : (C,)
        Added to the logits before the softmax; -inf removes a class, and its log p is 0.
    bounded, power : float
        Adds bounded (1 - p_y^power) / power to ``cross_entropy``.
    entropy : float
        Adds entropy H(p).  For ``two_views``: factor of the entropy at `temperature`.
    balance : float
        Adds balance KL(1/C || mean p), with the mean over the batch.
    teach, teach_temperature : float
        Adds teach KL(q || p), where q is the softmax of the round's initial model at this temperature.
    learned : (n, C)
        Label logits with softmax s, updated in place: in each step a sample's row descends KL(p || s) / C - hold log s_y with
        the learning rate `rate`.  Adds reverse KL(p || s) to the loss.
    reverse, rate, hold : float
    history : (n, L, C)
        Last L predictions of each sample, updated in place; their mean is the sample's label once `counts` is positive.
    guesses : (n, L) int64
        Last L predicted classes of each sample, updated in place.  If their entropy is at most `certain` log C, the most
        frequent class becomes the sample's label in `fixed` and the sample is always chosen.
    fixed : (n,) int64
        Label of each sample by `guesses`, -1 for none; updated in place.
    counts : (n,) int64
        Number of predictions that `history` or `guesses` recorded; updated in place.
    certain : float
    record : bool
        Record predictions, but train on the labels and on all samples.
    centroids : (C, D)
        Centers of the last hidden layer f.  Adds pull mean_j (f_j - c_yj)^2 for samples that are nearest to the centroid of
        their label by cosine.
    pull : float
    pseudo : (n,) int
        Label of samples that are nearest to another centroid.
    choice : "all", "smallest" or "exchanged"
        Samples of a batch to train on: all, those with the smallest cross entropy of the working label, or for a pair those
        with the smallest cross entropy of the other network.
    forget : float in [0, 1)
        Share of samples that is not chosen; at least one sample is.
    upwards : bool
        Round the number of chosen samples up instead of down.
    disagreeing : bool
        Choose only among samples for which the two networks predict different classes.
    agreed : bool
        Use all samples of a batch without such samples.
    mated : bool
        Under mixup, use `keep` of both samples, and divide the label term by the mean of the batch's factors.
    agree : (n,) int
        Samples have no label term unless the local model predicts this class before mixup.
    agree_offset : (C,)
        Added to the logits of this prediction. Default: 0.
    clean : (n, 2)
        For a pair under mixup: each network's probability that a label is right.  A sample is labeled for a network if the
        other network's probability reaches `threshold`.  Targets are the mean of label and prediction of labeled samples and
        of both predictions for others, sharpened by `sharpen`; the loss is the cross entropy of labeled samples plus
        `unlabeled` times the mean squared error of the others.
    threshold, sharpen, unlabeled : float
    views : int
        Views of each sample in a batch, all first views before all second views; only with `clean` and ``two_views``.
    """

    kind: str = "cross_entropy"
    smoothing: float = 0.0
    strength: float = 1.0
    temperature: float = 1.0
    towards: str = "teacher"
    alpha: float = 0.0
    beta: float = 0.0
    gamma: float = 0.0
    floor: float | None = None
    clamp: float = 0.0
    matrix: np.ndarray | None = None
    other: np.ndarray | None = None
    prior: np.ndarray | None = None
    soft: np.ndarray | None = None
    keep: np.ndarray | None = None
    server: np.ndarray | None = None
    local: np.ndarray | None = None
    seen: np.ndarray | None = None
    teacher: np.ndarray | None = None
    norm: bool = False
    share: np.ndarray | None = None
    double: bool = False
    labels: np.ndarray | None = None
    label: float = 1.0
    offset: np.ndarray | None = None
    bounded: float = 0.0
    power: float = 1.0
    entropy: float = 0.0
    balance: float = 0.0
    teach: float = 0.0
    teach_temperature: float = 1.0
    learned: np.ndarray | None = None
    reverse: float = 0.0
    rate: float = 0.0
    hold: float = 0.0
    history: np.ndarray | None = None
    guesses: np.ndarray | None = None
    fixed: np.ndarray | None = None
    counts: np.ndarray | None = None
    certain: float = 0.0
    record: bool = False
    centroids: np.ndarray | None = None
    pull: float = 0.0
    pseudo: np.ndarray | None = None
    choice: str = "all"
    forget: float = 0.0
    upwards: bool = False
    disagreeing: bool = False
    agreed: bool = False
    mated: bool = False
    agree: np.ndarray | None = None
    agree_offset: np.ndarray | None = None
    clean: np.ndarray | None = None
    threshold: float = 0.5
    sharpen: float = 1.0
    unlabeled: float = 1.0
    views: int = 1

    @property
    def depends_on_labels(self) -> bool:
        """Return True if the loss of a mixed label differs from the mean of the losses of both labels."""
        memory = (self.history, self.guesses, self.learned, self.centroids)
        return self.kind == "two_views" or self.choice != "all" or any(rows is not None for rows in memory)
