"""FedLSR: local self-regularization with sharpened predictions of two views.

Jiang, Sun, Wang, Liu. Towards federated learning against noisy labels via local self-regularization. CIKM 2022.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

from fnlkit.core.declarations import method
from fnlkit.core.parameters import NotNegative, Positive, Rounds, check_arguments
from fnlkit.federated.client.losses.consistency import self_regularized
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.warmup import warmup_rounds


# ---- the server
@method(loss="own", schedule=warmup_rounds, cite="Jiang 2022")
@check_arguments
def fedlsr(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    consistency: NotNegative = 0.4,
    entropy: NotNegative = 0.3,
    power: Positive = 3.0,
    variant: Literal["public", "plain"] = "public",
) -> Generator[Round, None, Model]:
    """Train on the sharpened mean prediction of two views and penalize disagreement.

    Parameters
    ----------
    rounds : int
        Each round costs a client twice the passes.
    warmup : int >= 0, or -1
        Rounds over which `consistency` rises linearly.  Default: -1, a fifth of all rounds.
    consistency, entropy, power : float
        gamma 0.4, gamma_e and 1 / T = 3.  gamma_e is 0.6 in the authors' code and 0.3 in a later benchmark (FNBench).
    variant : "public" or "plain"
        The loss of the authors' code, whose cross entropy is bounded by a second softmax, or the plain formulas; see
        `fnlkit.federated.client.losses.self_regularized`.  The divergence of ``plain`` is C times larger at the same gamma.

    Notes
    -----
    ``public`` is the default because ``plain`` is worse than FedAvg at the authors' learning rate 0.15 and momentum 0.9.  The
    bounded loss has small gradients: at a tenth of that rate it learns slowly.  The authors' second view is a flip, jittered
    colors and a gray image; here --augment produces both views.  Without augmentation both are equal, and the consistency term
    has no effect.

    Reports
    -------
    consistency each round.
    """
    opt.fit.refuse_mixup("fedlsr")
    warmup = warmup_rounds(warmup, rounds)
    if not opt.fit.augment:
        clients.note("fedlsr: without augmentation the two views of a sample are equal; the consistency term has no effect")

    def schedule(r: int) -> tuple[dict[str, Any], dict[str, Any]]:
        weight = consistency * min(1.0, r / warmup) if warmup else consistency
        loss = partial(self_regularized, consistency=weight, entropy=entropy, power=power, variant=variant)
        return {"loss": loss, "views": 2}, {"consistency": weight}

    return (yield from fedavg(clients, model, opt, select, rounds=rounds, schedule=schedule))
