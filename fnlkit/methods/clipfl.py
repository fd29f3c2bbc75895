"""ClipFL: prune the clients whose models are least accurate on a public set.

Morafah, Chang, Chen, Lin. Federated learning client pruning for noisy labels. arXiv:2411.07391, 2024.
"""

import math
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.components.declarations import Sent, method
from fnlkit.components.parameters import Rounds, Share, check_arguments
from fnlkit.methods.fedavg import Round, fedavg

if TYPE_CHECKING:
    import torch

    from fnlkit.client.client import Client, LocalModel
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients
    from fnlkit.server.optimizers.optimizer import FedOpt


# ---- on the client
def judge_publicly(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Reply the trained model's accuracy on the public set."""
    hits = model(received["public"]).argmax(-1).cpu() == received["public_label"].cpu()
    return {"public_accuracy": hits.double().mean()}


# ---- the server
def find_suspects(accuracies: np.ndarray, share: float) -> np.ndarray:
    """Return the candidates of a cohort (K,) bool: the floor(share K) least accurate."""
    worst = np.argsort(accuracies, kind="stable")[: math.floor(share * len(accuracies) + 1e-9)]
    return np.isin(np.arange(len(accuracies)), worst)


def find_unpruned(suspicions: np.ndarray, visits: np.ndarray, share: float) -> np.ndarray:
    """Return the clients (N,) bool that are not pruned.

    The floor(share N) clients with the highest score (suspicions / visits) are pruned, but only clients that were suspected at
    least once.  Ties are broken by the number of suspicions, because a score from more visits is more certain, then by
    client number.
    """
    score = suspicions / np.maximum(visits, 1)
    order = np.lexsort((-suspicions, -score))
    worst = order[suspicions[order] > 0][: math.floor(share * len(score) + 1e-9)]
    return ~np.isin(np.arange(len(score)), worst)


def rounds_before(before: int, rounds: int) -> int:
    """Return the number of scored rounds: `before`, or a fifth of all rounds for -1."""
    return before if before >= 0 else rounds // 5


@method(
    sends={
        "public_accuracy": Sent.share("accuracy of the trained model on the public set", "each round before the pruning"),
    },
    needs=("public",),
    schedule=rounds_before,
    cite="Morafah 2024",
)
@check_arguments
def clipfl(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    before: Rounds = -1,
    suspect: Share = 0.3,
    prune: Share = 0.3,
) -> "Generator[Round, None, Model]":
    """Prune clients whose models are often the worst on a public set, then run FedAvg.

    Parameters
    ----------
    rounds : int
    before : int >= 0, or -1
        Rounds in which clients are scored.  Default: -1, a fifth of all rounds.
    suspect : float in [0, 1]
        Share of the cohort that is suspected in each scored round.
    prune : float in [0, 1]
        Largest share of all clients that is pruned; clients that were never suspected remain.

    Notes
    -----
    The public set consists of samples that belong to no client (`fnlkit partition --public 0.05`).  This method needs correct
    labels on it.  The three phases and the score are from the paper's abstract; all three default values are our choice.
    Clients evaluate the local models and send the accuracy, so that a run can be resumed.  A server could also evaluate the
    models that it receives.

    Pruning removes right labels as well: it helps if the pruned clients are mostly noisy, and has no effect on noise that is
    equal at all clients.

    Reports
    -------
    candidacy_score (N,), kept_clients (N,) once, after the last scored round.
    """
    count, scored = len(clients), min(rounds_before(before, rounds), rounds)
    suspicions, visits = np.zeros(count), np.zeros(count)
    public = {"public": clients.public.x, "public_label": clients.public.y}
    for r in range(scored):
        ids = select(clients, model)
        model, replies = opt.round(clients, ids, model, after=(judge_publicly,), expect=("public_accuracy",), broadcast=public)
        if len(replies.ids):
            suspicions[replies.ids] += find_suspects(replies["public_accuracy"].numpy(), suspect)
            visits[replies.ids] += 1
        report = {}
        if r == scored - 1:
            report["candidacy_score"] = suspicions / np.maximum(visits, 1)
            report["kept_clients"] = find_unpruned(suspicions, visits, prune)
        yield Round(model, "scoring", replies, report)
    among = find_unpruned(suspicions, visits, prune) if scored else None
    return (yield from fedavg(clients, model, opt, select, rounds=rounds - scored, among=among, stage="pruned"))
