"""FedELR: early-learning regularization with targets from local models.

Pu, Yu, Zhan, Xu, Zhou, Ling, Wang. FedELR: When federated learning meets learning with noisy labels. Neural Networks 2025.
Source: the algorithm `FedAvgELR` of the public code AllenPu/FedELR_CTR, commit cd82bcd.
"""

from collections.abc import Callable, Generator
from typing import Any

from fnlkit.core.declarations import declaration, method
from fnlkit.core.parameters import NotNegative, Rounds, Share, check_arguments
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round
from fnlkit.methods.flr import flr


@method(loss="own", schedule=declaration(flr).schedule, cite="Pu 2025")  # targets stay on the client
@check_arguments
def fedelr(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    strength: NotNegative = 2.0,
    momentum: Share = 0.1,
    warmup: Rounds = 0,
) -> Generator[Round, None, Model]:
    """Keep a network from memorizing wrong labels with targets from local models.

    Early-learning regularization on every client, CE + strength log(1 - <p, t>), with targets t from the predictions of the
    client's local models.

    Parameters
    ----------
    rounds : int
    strength, momentum : float
        elr_lamb and elr_beta of the public code: weight of the regularizer, and the share of the old target in
        t <- momentum t + (1 - momentum) p.
    warmup : int >= 0, or -1
        Rounds of plain cross entropy first.

    Notes
    -----
    Losses, gradients and targets equal the public code's `ELR_reg` (tests/golden/fedelr.npz).  Targets start at zero, stay on
    the client between its visits, and use predictions clamped to [1e-4, 1 - 1e-4].  The server averages as FedAvg.

    Only the public code and the highlights of the paper were available, not its text: settings for single data sets are
    unknown.  The code trains with its regularizer in its warm-up too, and has no warm-up by default.  `elr` is the same method
    with the settings of ELR's public code.
    """
    fixed = {"alpha": 0.0, "beta": 0.0, "gamma": momentum, "rates": "constant", "start": "zero", "clamp": 1e-4}
    return (yield from flr(clients, model, opt, select, rounds=rounds, strength=strength, warmup=warmup, **fixed))
