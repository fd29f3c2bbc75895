"""FedEFC: stop plain training early, then correct the loss with a transition matrix.

Yu, Ahn, Kang. FedEFC: Federated learning using enhanced forward correction against noisy labels. 2025.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from fnlkit.core.declarations import method
from fnlkit.core.parameters import AboveOne, check_arguments, passes_on
from fnlkit.federated.client.losses.correction import forward_corrected
from fnlkit.federated.client.scoring import softmax_numpy
from fnlkit.federated.types import Client, Clients, FedOpt, LocalModel, Model, Received
from fnlkit.kernels import count_matrix
from fnlkit.methods.corrected_training import TRANSITION, keep_transition, train_corrected, transition_of
from fnlkit.methods.fedavg import Round
from fnlkit.methods.prestopping import ACCURACY, monitoring_rounds, prestop

# ---- on the client


def estimate_transition(
    client: Client,
    model: LocalModel,
    received: Received,
    *,
    rule: Literal["cleanlab", "largest"],
    weighting: str,
    clip: bool,
    limit: float,
    report: bool,
) -> dict[str, torch.Tensor] | None:
    """Store T, estimated from the confident counts of the client (eqs. 3 to 9).

    The counts use the predictions of the received model.
    """
    labels = client.y.cpu().numpy()
    counts = count_matrix(softmax_numpy(model(client.x)), labels, rule=rule, least_diagonal=1 if clip else 0)
    shares = np.bincount(labels, minlength=client.classes) / len(labels)
    transition, identity = transition_of(counts, shares, weighting=weighting, limit=limit)
    return keep_transition(client, model, transition, identity, report)


# ---- the server


@method(sends=ACCURACY | TRANSITION, loss="own", schedule=monitoring_rounds, cite="Yu 2025")
@check_arguments
@passes_on(prestop)
def fedefc(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    rule: Literal["largest", "cleanlab"] = "largest",
    weighting: Literal["off", "paper", "public"] = "off",
    clip: bool = False,
    limit: AboveOne = 1e3,
    report_transition: bool = False,
    **watch: Any,
) -> Generator[Round, None, Model]:
    """Stop plain training before the noise is learned, then apply forward correction.

    Train plainly up to the prestopping round T_e, then with forward correction by a transition matrix of each client.

    Parameters
    ----------
    rounds : int
    start : int >= 0, or -1
        First monitored round.  Default: -1, which is 40, but at most a fifth of the rounds (a tenth of up to 100: MNIST).
    patience : int >= 1, or -1
        gamma_thr, consecutive rounds without a rise.  Default: -1, which is 6, or 3 for up to 100 rounds (MNIST).
    compare : "best" or "previous"
        Reference of A(t).  ``best``: the highest accuracy since `start` (public code).  ``previous``: the last round's
        accuracy (Algorithm 1 as printed), which falls `patience` times in a row only once in hundreds of rounds.  The paper's
        T_e of 54 requires ``best``.
    ties : "count" or "reset"
        Effect of an equal accuracy on the counter: Algorithm 1 counts it, the paper's text does not.
    accuracy : "global" or "local"
        Model whose accuracy a client sends: the received model (eq. 2), or its trained model.  ``local`` is close to the public
        code, which uses the running accuracy during training.
    latest : int >= 0, or -1
        Use this round as T_e if none was found before; -1 sets no limit.
    rule : "largest" or "cleanlab"
        Condition for a sample to be confident in a class.  ``largest``: the class is the most probable and reaches its
        threshold (eqs. 3 and 4).  ``cleanlab``: cleanlab's confident joint (public code); see `fnlkit.count_matrix`.
    weighting : "off", "paper" or "public"
        Weight the counts with the client's class distribution, for severe imbalance; see
        `fnlkit.methods.corrected_training.transition_of`.
    clip : bool
        Count each class at least once as itself (public code).
    limit : float > 1
        Largest condition number of T.  If exceeded, identity is blended in, and the share is stored in state["identity_share"].
    report_transition : bool
        Clients also send T, to study its quality.

    Notes
    -----
    Noise alone produces `patience` decreases in a row once in (patience + 1)! rounds, so that `compare=previous` may never stop
    plain training.  If metrics.jsonl has no `prestopping_round`, the run was plain FedAvg.

    A class without a confident sample gets the row of the identity.  Networks of the public code start Xavier-uniform:
    `resnet18(init=xavier)`.

    Reports
    -------
    estimated_accuracy each round until T_e, prestopping_round, and the cohort's mean transition (C, C) on request.
    """
    model, used = yield from prestop(clients, model, opt, select, rounds=rounds, **watch)
    estimate = partial(estimate_transition, rule=rule, weighting=weighting, clip=clip, limit=limit, report=report_transition)
    return (
        yield from train_corrected(clients, model, opt, select, rounds=rounds - used, estimate=estimate, loss=forward_corrected)
    )
