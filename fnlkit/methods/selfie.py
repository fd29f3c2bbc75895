"""SELFIE: train on small-loss samples and on relabeled consistent samples.

Song, Kim, Lee. SELFIE: Refurbishing unclean samples for robust deep learning. ICML 2019.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Count, Range, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.refurbish import refurbished
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.warmup import warmup_rounds


@method(loss="own", schedule=warmup_rounds, cite="Song 2019")  # histories stay on the client
@check_arguments
def selfie(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    forget: Annotated[float, Range(0, 1, open_high=True)] = 0.2,
    certain: Share = 0.05,
    length: Count = 15,
) -> Generator[Round, None, Model]:
    """Train on small losses and on samples relabeled with a consistent prediction.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of plain training in which predictions are recorded.  Default: -1, a fifth of all rounds (the paper: 25 of 100
        epochs).
    forget : float in [0, 1)
        tau, the share of wrong labels, which the paper assumes to be known; 0.2 is the benchmarks' default.
    certain : float in [0, 1]
        epsilon: largest entropy of a sample's predicted classes, as a share of log C.
    length : int >= 1
        q, number of recorded predictions.  Each training pass records one prediction, so that a sample can be relabeled after
        q passes (--epochs per visit).

    Notes
    -----
    The paper's restarts, which train a new model with the refurbished samples, are left out.

    If the share of wrong labels is far from `forget`, the samples with small losses contain wrong labels or lack right ones.

    The benchmarks' code counts missing predictions as class 0.  Labels in the run stay as given; refurbished labels are stored
    as `memory/rows/selfie_label`.
    """
    opt.fit.refuse_mixup("selfie")
    warmup, settings = warmup_rounds(warmup, rounds), {"forget": forget, "certain": certain, "length": length}

    def schedule(r: int) -> tuple[dict[str, Callable[..., Any]], dict[str, Any]]:
        return {"loss": partial(refurbished, plain=r < warmup, **settings)}, {}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))
