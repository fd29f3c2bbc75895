"""FedEM: expectation maximization with a transition matrix for each client, for labels of different annotators.

A method of this project (docs/annotators.md).  The model of the noise is that of Dawid, Skene 1979, with a classifier in place
of the class shares as in Raykar et al., Learning from crowds, JMLR 2010.  The classifier of the E step is a Gaussian
distribution of each class with a common covariance, on features of the network, as in Lee et al., Robust inference via
generative classifiers, ICML 2019: it has too few parameters to learn wrong labels by heart.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any

import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Automatic, Count, Range, Rounds, Share, check_arguments
from fnlkit.evidence.gaussian import gaussian_head, symmetric
from fnlkit.federated.client.losses.cross_entropy import soft_cross_entropy
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.label_inference import (
    PRIOR,
    SENDS,
    VOTES,
    _infer_labels,
    can_keep_features,
    keep_given,
    normalize_rows,
)
from fnlkit.methods.warmup import warmup_sixth

# Largest decrease of the inferred share of right labels in the last update. In the first two parts of the league, with
# perceptrons, it is at most 0.06. With LeNet-5 on CIFAR-10 it is 0.11: the inferred labels are worse than the given ones.
UNSETTLED = 0.08
# Shrinkage and ridge without and with combined labels.  The second pair was chosen on simulated annotators of digits, image
# features, texts and small tables, measured at commit 4d89694f.
DEFAULTS = (3.0, 0.1), (30.0, 1.0)
Chosen = Annotated[float, Range(open_low=True), Automatic()]


def find_needs(combine: bool = False) -> tuple[str, ...]:
    """List the needs of the method: numbers of shared samples, if their labels are combined."""
    return ("samples",) if combine else ()


@method(sends=SENDS | VOTES, loss="own", schedule=warmup_sixth, needs=find_needs)
@check_arguments
def fedem(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    passes: Count = 4,
    steps: Count = 3,
    right: Share = 0.6,
    strength: Chosen = -1.0,
    ridge: Chosen = -1.0,
    combine: bool = False,
) -> Generator[Round, None, Model]:
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
    strength : float > 0, or -1
        Shrinkage to the common matrix, in labels per true class.  Default: -1, which is 3, or 30 with combined labels.
    ridge : float > 0, or -1
        Added to each variance of the classifier, in units of the mean variance.  Default: -1, which is 0.1, or 1 with combined
        labels.
    combine : bool
        Whether to combine the labels that several clients gave to the same sample.  Default: false.

    Notes
    -----
    The classifier has few parameters compared with a network, so that it does not learn single wrong labels by heart.  It sees
    the labels of all clients; if annotators labeled the same samples, they correct each other through it.

    The passes cost bytes and no client-round.  All sums of a pass come from the clients that replied to it, so that a client
    can miss any pass: it keeps the labels that it inferred last, or the given labels.

    With `combine`, q(z) ~ p(z|x) prod_i T_i[z, y_i] over the clients i that labeled x, as in
    Dawid, Skene 1979.  Clients send log T[z, y] by sample, and receive the sums over all clients; the sum of a sample with one
    label reveals this label.  T is then shrunk to a common matrix whose odds of right labels fit the client (`match_level`).
    After every further `warmup` rounds all clients infer their labels again, on the features of the better network.
    The errors of clients must be independent for a given class: if annotators agree on wrong labels, it is worse.

    **The sums of a single client reveal its samples** (docs/privacy.md): `products` contains the span of its features, and the
    sums by class of several passes together do as well.  The server needs only the sums over all clients; a run stores only
    these.  Real sites refuse the method, because no protection masks these sums.

    Without true labels T is known only up to the errors of the model. If errors follow the features, as those of weak
    labelers do, the model learns these errors and no matrix can correct it.

    If the features are weak, as those of a convolutional network early in training, the passes drift from the given labels to
    groups of similar features: the inferred share of right labels still decreases in the last update. If it decreases by more
    than 0.08, the remaining rounds train on the given labels.

    Reports
    -------
    common_transition (C, C), and the decrease of the inferred share of right labels in the last update; once.
    """
    opt.fit.refuse_mixup("fedem")
    warmup = warmup_sixth(warmup, rounds)
    model = yield from fedavg(clients, model, opt, select, rounds=warmup, stage="warm-up")
    if warmup == rounds:
        return model
    settings: dict[str, Any] = {"passes": passes, "steps": steps, "combine": combine, "strength": strength, "ridge": ridge}
    common, decrease = infer_all(clients, model, right=right, **settings)
    report = {"common_transition": common.numpy(), "decrease": decrease}
    stage = "given labels"
    step: dict[str, Any] = {}
    if decrease <= UNSETTLED:
        stage, step = "inferred labels", {"before": (keep_given,), "loss": soft_cross_entropy}
    for r in range(warmup, rounds):
        if step and combine and warmup and r > warmup and r % warmup == 0:
            infer_all(clients, model, right=right, **settings)
        model, replies = opt.round(clients, select(clients, model), model, **step)
        yield Round(model, stage, replies, report)
        report = {}
    return model


def infer_all(
    clients: Clients,
    model: Model,
    *,
    passes: int = 4,
    steps: int = 3,
    right: float = 0.6,
    strength: float = -1.0,
    ridge: float = -1.0,
    combine: bool = False,
) -> tuple[torch.Tensor, float]:
    """Let all clients infer their labels in passes without training; parameters as in `fedem`.

    Returns
    -------
    (C, C) Tensor, float
        Common transition matrix, and the decrease of the inferred share of right labels in its last update, 0 for one update.
    """
    classes = clients.classes
    small = can_keep_features(clients, model)
    shared = clients.shared if combine else 0
    strength, ridge = (each if each > 0 else usual for each, usual in zip((strength, ridge), DEFAULTS[shared > 0], strict=True))
    common = right * torch.eye(classes, dtype=torch.float64) + (1 - right) / classes
    sent = {"strength": torch.tensor(strength, dtype=torch.float64), "common": common}
    names, sides = tuple(SENDS), {}
    scatter: dict[str, torch.Tensor] = {}
    if shared:
        sent["shared"] = torch.tensor(shared)
        names, sides = (*SENDS, *VOTES), {"shared": shared}
    right_shares: list[float] = []
    for i in range(passes + 1):
        last = i == passes
        infer = partial(_infer_labels, steps=steps, last=last, keep=small and not last)
        expect = ("counts",) if last else names
        replies = clients.round(range(len(clients)), model, infer, expect=expect, broadcast=sent, scatter=scatter, sides=sides)
        counts = replies["counts"].sum(0)
        if "head" in sent:
            right_shares.append(float(counts.trace() / counts.sum()))
            sent["common"] = normalize_rows(counts + PRIOR * torch.eye(classes) + 0.01)
        if not last:
            moments = symmetric(replies["products"].sum(0, dtype=torch.float64).numpy())
            sums = counts.sum(1).numpy(), replies["class_features"].sum(0).numpy(), moments
            sent["head"] = torch.from_numpy(gaussian_head(*sums, ridge, prior=1.0))  # a class that nobody has is at the origin
        if shared and not last:
            sent["votes"] = replies["votes"].sum(0)
            scatter = {"included": torch.isin(torch.arange(len(clients)), torch.as_tensor(replies.ids))}
    return sent["common"], right_shares[-2] - right_shares[-1] if len(right_shares) > 1 else 0.0
