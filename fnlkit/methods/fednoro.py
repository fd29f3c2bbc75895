"""FedNoRo: class-wise losses find noisy clients, which then get a smaller weight.

Wu, Yu, Jiang, Cheng, Yan. FedNoRo: Towards noise-robust federated learning by addressing class imbalance and label noise
heterogeneity. IJCAI 2023.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

from fnlkit.core.declarations import method
from fnlkit.core.parameters import Positive, Rounds, Share, check_arguments
from fnlkit.federated.client.losses.adjusted import adjusted_distilled
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.methods.fedavg import Round
from fnlkit.methods.noisy_clients import CLASS_LOSSES, aware_of_distance, stages, teachers_weight, warm_up


@method(sends=CLASS_LOSSES, loss="own", schedule=stages, cite="Wu 2023")
@check_arguments
def fednoro(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    end: Rounds = -1,
    strength: Share = 0.8,
    temperature: Positive = 0.8,
    distance: Literal["whole", "layers"] = "whole",
    missing: Literal["least", "mean"] = "least",
) -> Generator[Round, None, Model]:
    """Find noisy clients, distill them from the global model and reduce their weight.

    The weight of a noisy client decreases with the distance of its model from the models of clean clients.

    Parameters
    ----------
    rounds : int
        After the warm-up all clients also score their samples once, without training.
    warmup, end : int >= 0, or -1
        T1, and the round in which the teacher's weight reaches its maximum.  Default: -1, a tenth and 0.49 of the rounds (10
        and 49 of 100).
    strength, temperature : float
        The largest weight of the teacher, and the temperature of its softmax; 0.8 and 0.8 in the public code.
    distance : "whole" or "layers"
        Distance between models: the L2 norm of the difference, or the sum of the L2 norms over tensors (public code).
    missing : "least" or "mean"
        Loss of a class that a client does not have: the smallest loss of all clients, as in the public code, or the mean.  If
        clients have half of the classes each, ``least`` makes the mixture separate the clients that have a class from the
        others.

    Notes
    -----
    All clients train with logits adjusted by their class shares.

    In FedDPCont's tables FedNoRo is 6 to 32 points behind FedAvg: a mixture always finds noisy clients, also if all are
    equally noisy, and class-wise losses differ between clients that have other classes.

    ``distance=layers`` gives the weights of the public code to 1e-6.  The round that scores all clients costs bytes and no
    client-round.

    Reports
    -------
    noisy_clients (N,) once; teacher_weight each round after the warm-up.
    """
    warmup, end = stages(rounds, warmup, end)
    model, noisy = yield from warm_up(clients, model, opt, select, warmup=warmup, rounds=rounds, missing=missing)
    report = {"noisy_clients": noisy}
    weigh = aware_of_distance(clients, model.network, noisy, distance)
    for r in range(warmup, rounds):
        ids = select(clients, model)
        weight = teachers_weight(r, strength=strength, start=warmup, end=end)
        step: dict[str, Any] = {
            "loss": partial(adjusted_distilled, temperature=temperature),
            "scatter": {"distil": weight * noisy[ids]},
        }
        model, replies = opt.round(clients, ids, model, weights=weigh, **step)
        yield Round(model, "noise-robust", replies, {"teacher_weight": weight, **report})
        report = {}
    return model
