"""Co-teaching, Co-teaching+: two models select the training samples of each other.

Han, Yao, Yu, Niu, Xu, Hu, Tsang, Sugiyama. Co-teaching: Robust training of deep neural networks with extremely noisy
labels. NeurIPS 2018; Yu, Han, Yao, Niu, Tsang, Sugiyama. How does disagreement help generalization against label
corruption? ICML 2019.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Annotated, Any, Literal

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Count, Natural, Range, check_arguments, passes_on
from fnlkit.federated.client.losses.exchange import exchanged
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.warmup import forgotten
from fnlkit.models.pair_output import must_be_pair


@method(loss="own", needs=("pair",), cite="Han 2018")  # the second model is the second half of `weights`
@check_arguments
def coteaching(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    forget: Annotated[float, Range(0, 1, open_high=True)] = 0.2,
    ramp: Count = 10,
) -> Generator[Round, None, Model]:
    """Train two models, each on the samples with the other's smallest losses.

    Parameters
    ----------
    rounds : int
        In each round, a client trains two models and sends twice the bytes.  `rounds` counts visits, as in all methods.
    forget : float in [0, 1)
        tau, the share of wrong labels, which the paper assumes to be known.  The public code's default is 0.2.
    ramp : int >= 1
        T_k: rounds until the full share is dropped; 10 epochs in the paper.  In a federation T counts rounds.

    Notes
    -----
    The two models start from different weights and predict with the mean of their probabilities.  The paper reports the
    accuracy of each model separately, but a federation returns a single prediction.

    The public code divides the mean over the kept samples by their number once more, which shrinks the step; this is not
    repeated here.

    Published gains over FedAvg in federations are small: +1.5 to +2.1 on CIFAR-100 (FLR, Table 3), -15.5 to +7.3 on CIFAR-10
    (FedDPCont, Table 2).  `forget` is not fitted to the noise.

    Both models are trained as a single network (`fnlkit/models/pair.py`), so that all optimizers and engines work.

    Reports
    -------
    forget_rate each round.
    """
    must_be_pair(model.network, "coteaching")

    def schedule(r: int) -> tuple[dict[str, Callable[..., Any]], dict[str, float]]:
        rate = forgotten(r, forget=forget, ramp=ramp)
        return {"loss": partial(exchanged, forget=rate)}, {"forget_rate": rate}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))


@method(loss="own", needs=("pair",), cite="Yu 2019")
@check_arguments
@passes_on(coteaching)
def coteaching_plus(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    start: Natural = 10,
    agreed: Literal["none", "all"] = "none",
    **schedule: Any,
) -> Generator[Round, None, Model]:
    """Train two models on samples on which they disagree (Yu 2019, Algorithm 1).

    Parameters
    ----------
    rounds : int
    forget, ramp : float, int
        As in `coteaching`.
    start : int >= 0
        Rounds of Co-teaching before the restriction: 0 in the paper, 10 to 20 in its public code and in benchmarks.
    agreed : "none" or "all"
        Samples used from a batch without disagreement: none, as in the paper, or all, as in the first 5,000 steps of the
        public code.

    Reports
    -------
    forget_rate each round.
    """
    must_be_pair(model.network, "coteaching-plus")
    rates = {"forget": 0.2, "ramp": 10, **schedule}

    def training(r: int) -> tuple[dict[str, Callable[..., Any]], dict[str, float]]:
        rate = forgotten(r, **rates)
        step = {"disagreeing": True, "agreed": agreed} if r >= start else {}
        return {"loss": partial(exchanged, forget=rate, **step)}, {"forget_rate": rate}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=training))
