"""FedELC: FedNoRo with learned labels on the noisy clients.

Jiang, Sun, Li, Xue, Li, Wu, Xu, Wang, Liu. Tackling noisy clients in federated learning with end-to-end label correction. CIKM
2024; the update rule of the labels is that of PENCIL (Yi, Wu, CVPR 2019).
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import NotNegative, Positive, Rounds, check_arguments
from fnlkit.federated.client.losses.adjusted import label_learning
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round
from fnlkit.methods.noisy_clients import CLASS_LOSSES, aware_of_distance, merge_prediction, stages, warm_up


# ---- the server
def warmup_rounds(warmup: int, rounds: int) -> int:
    """Number of rounds before the noisy clients are found.  Default: a sixth of all rounds."""
    return stages(rounds, warmup, 0, share=1 / 6)[0]


@method(sends=CLASS_LOSSES, loss="own", schedule=warmup_rounds, cite="Jiang 2024")
@check_arguments
def fedelc(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    alpha: NotNegative = 0.5,
    beta: NotNegative = 0.2,
    rate: NotNegative = 15.625,
    scale: Positive = 10.0,
    distance: Literal["whole", "layers"] = "whole",
    missing: Literal["least", "mean"] = "least",
) -> Generator[Round, None, Model]:
    """Find noisy clients as FedNoRo does, then learn their labels by back-propagation.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds before the noisy clients are found.  Default: -1, a sixth of all rounds (public code: 20 of 120).
    alpha, beta : float >= 0
        Weights of the compatibility with the given labels and of the entropy; 0.5 and 0.2 in the public code.
    rate : float >= 0
        Learning rate of label logits for the loss of a single sample: the public code's 1000 divided by its batch size 64, so
        that it does not depend on the batch size here.
    scale : float > 0
        K: initial label logit of the given class.  After each visit the logits are reset to K times the mean of label and
        prediction; 10 in the public code.
    distance, missing : str
        As in `fednoro`; the aggregation is the same.

    Notes
    -----
    All values are from the public code, because the paper was not available to us.

    Reports
    -------
    noisy_clients (N,) once.
    """
    opt.fit.refuse_mixup("fedelc")
    warmup = warmup_rounds(warmup, rounds)
    model, noisy = yield from warm_up(clients, model, opt, select, warmup=warmup, rounds=rounds, missing=missing)
    report = {"noisy_clients": noisy}
    weigh = aware_of_distance(clients, model.network, noisy, distance)
    loss = partial(label_learning, alpha=alpha, beta=beta, rate=rate, scale=scale)
    merge = partial(merge_prediction, scale=scale)
    for _ in range(warmup, rounds):
        ids = select(clients, model)
        scatter = {"noisy": torch.from_numpy(noisy[ids]).double()}
        model, replies = opt.round(clients, ids, model, loss=loss, after=(merge,), scatter=scatter, weights=weigh)
        yield Round(model, "label correction", replies, report)
        report = {}
    return model
