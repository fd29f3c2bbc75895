"""SELFIE: small-loss samples and those predicted alike again and again, which are trained with the predicted class.

Song, Kim, Lee. SELFIE: Refurbishing unclean samples for robust deep learning. ICML 2019.
"""

from functools import partial
from typing import Annotated

from fnlkit.client.losses import refurbished
from fnlkit.methods.dividemix import of_budget, warmup_rounds
from fnlkit.methods.fedavg import fedavg, refuse_mixup
from fnlkit.parameters import Count, Range, Rounds, Share, checked

__all__ = ["SENDS", "of_budget", "selfie"]

LOSS = "own"
SENDS = {}  # histories and refurbished labels stay on the client


@checked
def selfie(
    clients,
    model,
    opt,
    select,
    *,
    rounds,
    warmup: Rounds = -1,
    forget: Annotated[float, Range(0, 1, open_high=True)] = 0.2,
    certain: Share = 0.05,
    length: Count = 15,
):
    """Train on small losses and on refurbished samples, whose label is the class they were predicted again and again.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of plain training, in which predictions are remembered; -1 is a fifth of all (the paper: 25 of 100 epochs).
    forget : float in [0, 1)
        tau, the share of wrong labels, which the paper takes as known; 0.2 is the benchmarks' default.
    certain : float in [0, 1]
        epsilon: largest entropy of a sample's predicted classes, as a share of log C.
    length : int >= 1
        q, predictions that are looked back on.  They are those of training passes, of which a visit makes --epochs: a
        sample can be refurbished after q of them.

    The paper's restarts, which begin anew with what was refurbished, are left out.
    """
    refuse_mixup(opt, "selfie")
    warmup, settings = warmup_rounds(warmup, rounds), {"forget": forget, "certain": certain, "length": length}

    def schedule(r):
        return {"loss": partial(refurbished, plain=r < warmup, **settings)}, {}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))
