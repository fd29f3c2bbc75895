"""FLR+: FLR's regularizer in all three stages of FedCorr.

Kim, Kim, Yun. Revisiting early-learning regularization: When federated learning meets noisy labels. arXiv:2402.05353,
2024.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from fnlkit.core.declarations import declaration, method
from fnlkit.core.parameters import NotNegative, check_arguments, passes_on
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round
from fnlkit.methods.fedcorr import fedcorr
from fnlkit.methods.flr import local_training

RATES = ("alpha", "beta", "gamma", "warmup")
STAGES = ("iterations", "finetune_rounds", "usual_rounds", "ratio", "confidence", "clean_level", "mixup", "mixup_in")


@method(sends=declaration(fedcorr).sends or (), loss="own", schedule=declaration(fedcorr).schedule, cite="Kim 2024")
@check_arguments
@passes_on(local_training, *RATES)
@passes_on(fedcorr, *STAGES)
def flr_plus(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    strength: NotNegative = 3.0,
    proximal: NotNegative = 5.0,
    **passed_on: Any,
) -> Generator[Round, None, Model]:
    """Run FedCorr with FLR's loss in all three stages, after FLR's warm-up.

    FLR's schedule counts communication rounds.  In stage 1 each visit of a client is a round: with 100 clients and five
    iterations, the warm-up of 50 ends in the middle of the first iteration.

    To use FLR in the last stage only, write fedcorr(usual=flr(strength=3)).

    Parameters
    ----------
    rounds : int
        Budget in rounds of FedAvg.
    strength : float >= 0
        lambda: 3 on CIFAR-10 and Clothing1M, 5 on CIFAR-100.
    alpha, beta, gamma, warmup : float, int
        As in `flr`; R is the number of communication rounds of all stages.
    iterations, finetune_rounds, usual_rounds, ratio, confidence, clean_level, mixup, mixup_in : int, float, str
        As in `fedcorr`; the paper uses 300 and 300 rounds on CIFAR-10, 300 and 400 on CIFAR-100, 50 and 50 on
        Clothing1M.
    proximal : float >= 0
        FedCorr's beta.

    Reports
    -------
    The reports of FedCorr, and alpha, beta, gamma of FLR each round.
    """
    rates = {name: passed_on[name] for name in RATES if name in passed_on}
    stages = {name: passed_on[name] for name in STAGES if name in passed_on}
    loss = partial(local_training, strength=strength, **rates)
    return (yield from fedcorr(clients, model, opt, select, rounds=rounds, beta=proximal, regularizer=loss, **stages))
