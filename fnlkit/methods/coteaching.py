"""Co-teaching, Co-teaching+: two models, each trained on what the other one takes for right labels; both are averaged.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. Co-teaching: Robust training of deep neural networks with extremely noisy
labels. NeurIPS 2018; Yu, Han, Yao, Niu, Tsang, Sugiyama. How does disagreement help generalization against label
corruption? ICML 2019.
"""

from functools import partial
from typing import Annotated, Literal

from fnlkit.client.losses import exchanged
from fnlkit.methods.fedavg import fedavg
from fnlkit.models.pair import must_be_pair
from fnlkit.parameters import Count, Natural, Range, checked, passes_on

LOSS = "own"
SENDS = {}  # the second model is the second half of `weights`


def needs(**parameters):
    """Return what a run must have: ``pair`` makes its network two (fnlkit.models.pair)."""
    return ("pair",)


# ---- the server
def forgotten(r, *, forget, ramp):
    """Return R(T) of round r, the first one being T = 1: it rises linearly over `ramp` rounds to `forget`."""
    return forget * min(1.0, (r + 1) / ramp)


@checked
def coteaching(
    clients,
    model,
    opt,
    select,
    *,
    rounds,
    forget: Annotated[float, Range(0, 1, open_high=True)] = 0.2,
    ramp: Count = 10,
):
    """Train two models: in each batch each learns the samples with the other's smallest losses (Algorithm 1).

    Parameters
    ----------
    rounds : int
        Each costs a client two models' training and twice the bytes; `rounds` counts visits, as everywhere.
    forget : float in [0, 1)
        tau, the share of wrong labels, which the paper takes as known; 0.2 is the public code's default.
    ramp : int >= 1
        T_k: rounds until the whole share is left out; 10 epochs in the paper.  In a federation T counts rounds.

    The two models start from different weights and predict together, by the mean of their probabilities: the paper's
    accuracies are of each model alone, and a federation gives away one prediction.

    Reports
    -------
    forget_rate each round.
    """
    must_be_pair(model.network, "coteaching")

    def schedule(r):
        rate = forgotten(r, forget=forget, ramp=ramp)
        return {"loss": partial(exchanged, forget=rate)}, {"forget_rate": rate}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))


@checked
@passes_on(coteaching)
def coteaching_plus(
    clients,
    model,
    opt,
    select,
    *,
    rounds,
    start: Natural = 10,
    agreed: Literal["none", "all"] = "none",
    **schedule,
):
    """Co-teaching that from a round on only uses samples on which the two models disagree (Yu 2019, Algorithm 1).

    Parameters
    ----------
    rounds : int
    forget, ramp : float, int
        As in `coteaching`.
    start : int >= 0
        Rounds of Co-teaching before; the paper has none, its public code and benchmarks of this field have 10 to 20.
    agreed : "none" or "all"
        What a batch without disagreement is trained on: nothing, as in the paper, or all of it, as the public code has it
        in its first 5,000 steps.

    Reports
    -------
    forget_rate each round.
    """
    must_be_pair(model.network, "coteaching-plus")
    rates = {"forget": 0.2, "ramp": 10, **schedule}

    def training(r):
        rate = forgotten(r, **rates)
        step = {"disagreeing": True, "agreed": agreed} if r >= start else {}
        return {"loss": partial(exchanged, forget=rate, **step)}, {"forget_rate": rate}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=training))
