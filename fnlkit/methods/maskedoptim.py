"""MaskedOptim: FedELC with a geometric median, masked label learning and averaged local models.

Jiang, Wen, Yang, Wu, Chen, Sun, Wang, Liu. Robust federated learning against noisy clients via masked optimization.
arXiv:2506.02079, 2025.  Source of all values: the public code Sprinter1999/MaskedOptim, commit a8e8e55.
"""

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import torch

from fnlkit.core.declarations import declaration, method
from fnlkit.core.parameters import NotNegative, Positive, Range, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.adjusted import label_learning
from fnlkit.federated.server.robust import rfa
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.methods.fedavg import Round
from fnlkit.methods.noisy_clients import CLASS_LOSSES, merge_prediction, stages, warm_up


# ---- on the client
def blend_with_received(client: Client, model: LocalModel, received: Received, *, inertia: float) -> None:
    """Replace a noisy client's trained weights by their weighted mean with the received weights."""
    if received["noisy"] > 0:
        model.weights = inertia * model.start + (1 - inertia) * model.weights


# ---- the server
def first_correction(warmup: int, rounds: int) -> int:
    """Number of rounds before the noisy clients are found.  Default: a quarter of all rounds."""
    return stages(rounds, warmup, 0, share=1 / 4)[0]


@method(sends=CLASS_LOSSES, loss="own", schedule=first_correction, cite="Jiang 2025")
@check_arguments
def maskedoptim(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    alpha: NotNegative = 0.5,
    beta: NotNegative = 0.1,
    rate: NotNegative = 15.625,
    scale: Positive = 10.0,
    kept: Annotated[float, Range(0, 1, open_low=True)] = 0.8,
    inertia: Share = 0.2,
) -> Generator[Round, None, Model]:
    """Find noisy clients by class-wise losses, then learn their labels with a mask, and merge models robustly.

    Clients train with logits adjusted by class shares.  After the warm-up, noisy clients learn their labels as in `fedelc`, but
    only the samples with small losses are held near the given labels.  Models are merged by the geometric median.

    Parameters
    ----------
    rounds : int
        After the warm-up all clients also score their samples once, without training.
    warmup : int >= 0, or -1
        Rounds before the noisy clients are found.  Default: -1, a quarter of all rounds (30 of 120).
    alpha, beta, rate, scale
        As in `fedelc`; the public code has 0.5, 0.1, 1000 with batches of 64, and 10.
    kept : float in (0, 1]
        Share of a batch, those with the smallest cross entropy, whose learned labels are pulled towards the given labels.
    inertia : float in [0, 1]
        Weight of the received model in the model that a noisy client replies.

    Notes
    -----
    Loss and label gradients equal the public code (tests/golden/maskedoptim.npz).  Only the abstract, summaries and the public
    code were available, not the paper's equations.  The code also defines clipped logits and a mask of samples whose prediction
    is the given label; neither is used there or here.

    All tensors are merged separately by ``rfa(variant=public)``, without weights.  Another ``--aggregator`` than ``mean``
    replaces the geometric median.  The public code drops the last short batch of an epoch; here it is trained.

    A mixture always finds noisy clients, also if all are equally noisy.

    Reports
    -------
    noisy_clients (N,) once.
    """
    opt.fit.refuse_mixup("maskedoptim")
    if declaration(opt.aggregate).sums:  # the default, a mean
        opt = replace(opt, aggregate=partial(rfa, variant="public"))
    warmup = first_correction(warmup, rounds)
    model, noisy = yield from warm_up(clients, model, opt, select, warmup=warmup, rounds=rounds, missing="least")
    report = {"noisy_clients": noisy}
    loss = partial(label_learning, alpha=alpha, beta=beta, rate=rate, scale=scale, kept=kept)
    after = partial(merge_prediction, scale=scale), partial(blend_with_received, inertia=inertia)
    for _ in range(warmup, rounds):
        ids = select(clients, model)
        scatter = {"noisy": torch.from_numpy(noisy[ids]).double()}
        model, replies = opt.round(clients, ids, model, loss=loss, after=after, scatter=scatter)
        yield Round(model, "label correction", replies, report)
        report = {}
    return model
