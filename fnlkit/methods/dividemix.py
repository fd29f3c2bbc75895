"""DivideMix: two models split each other's samples and train on both parts.

Li, Socher, Hoi. DivideMix: Learning with noisy labels as semi-supervised learning. ICLR 2020.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Count, NotNegative, Positive, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.exchange import exchanged
from fnlkit.federated.client.losses.mixmatch import mixmatch
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels.mixture import lower_probability
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.warmup import warmup_rounds
from fnlkit.models.pair_output import both, must_be_pair


# ---- on the client
def divide(client: Client, model: LocalModel, received: Received, *, seed: int) -> None:
    """Store each model's probabilities (n, 2) that labels are right (co-divide, line 4)."""
    logits, labels = both(model.features(client.x)).cpu().double(), client.y.cpu()
    clean = [lower_probability(sample_losses(part, labels).numpy(), seed=seed) for part in logits.unbind(-2)]
    client.rows["divided_clean"] = torch.from_numpy(np.stack(clean, -1)).to(model.weights.dtype)
    client.rows["divided_label"] = labels.clone()  # mixup combines the labels of a batch in another way than this loss


# ---- the server
# The second model is the second half of `weights`; divisions stay on the client.
@method(loss="own", needs=("pair",), schedule=warmup_rounds, cite="Li 2020")
@check_arguments
def dividemix(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    unlabeled: NotNegative = 25.0,
    ramp: Count = 16,
    temperature: Positive = 0.5,
    threshold: Share = 0.5,
    alpha: Positive = 4.0,
    views: Count = 2,
) -> Generator[Round, None, Model]:
    """Train two models, each on labels that the other's losses classify as right.

    Parameters
    ----------
    rounds : int
        In each round, a client trains two models on `views` times the samples, makes one more pass without gradient, and sends
        twice the bytes.
    warmup : int >= 0, or -1
        Rounds of plain cross entropy for both models.  Default: -1, a fifth of all rounds.  The paper uses 10 epochs on
        CIFAR-10 and 30 on CIFAR-100.
    unlabeled, ramp : float >= 0, int >= 1
        lambda_u (0, 25, 50 or 150 in the paper, by noise), and the rounds over which it rises linearly (public code: 16).
    temperature, threshold, alpha : float
        T, tau and the Beta parameter of mixup: 0.5, 0.5 and 4 on CIFAR; alpha 0.5 on Clothing1M.
    views : int >= 1
        M, augmented views of a sample; without augmentation all views are equal.

    Notes
    -----
    L_U is the mean over the classes, as in the public code, for which lambda_u was chosen; the paper's eq. 10 is the sum.

    A client divides the samples once per visit, with the received models (the paper: once per epoch).  Both models see the
    same mixed batches.  A batch contains labeled and unlabeled samples in random order instead of half of each.

    Both models are trained as a single network, as in `coteaching`, and predict with the mean of their probabilities.  Two
    views and a pass without gradient make a visit about six times as expensive as FedAvg's.  A batch without labeled samples
    has no L_X.

    Reports
    -------
    unlabeled_weight each round after the warm-up.
    """
    must_be_pair(model.network, "dividemix")
    opt.fit.refuse_mixup("dividemix", "alpha")
    warmup = warmup_rounds(warmup, rounds)
    settings = {"temperature": temperature, "threshold": threshold, "views": views}

    def schedule(r: int) -> tuple[Any, ...]:
        if r < warmup:
            return {"loss": partial(exchanged, forget=0.0)}, {}
        weight = unlabeled * min(1.0, (r - warmup) / ramp)
        step = {"loss": partial(mixmatch, unlabeled=weight, **settings), "mixup": alpha, "views": views}
        return {"before": (partial(divide, seed=clients.seed),), **step}, {"unlabeled_weight": weight}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))
