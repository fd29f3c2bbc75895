"""FedDyn: a linear term on each client and a dual variable on the server align local optima with the global optimum.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama. Federated learning based on dynamic regularization. ICLR 2021.
"""

from functools import partial
from typing import Literal

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Positive, check_arguments
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.federated.client.drift import dynamic
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import FedOpt, Updates


# ---- on the client
def recall_dual(client: Client, model: LocalModel, received: Received) -> None:
    """Allocate g_k at the first visit."""
    if "dual" not in client.state:
        p = model.network.parameters_count
        client.state["dual"] = torch.zeros(p, dtype=model.weights.dtype, device=model.weights.device)


def update_dual(client: Client, model: LocalModel, received: Received, *, alpha: float) -> None:
    """Update the dual variable: g_k <- g_k - alpha (w_k - w_global)."""
    p = model.network.parameters_count
    client.state["dual"] = client.state["dual"] - alpha * (model.weights[:p] - model.start[:p])


# ---- the server
def subtract_dual(updates: Updates, merged: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """Step to mean_k(w_k) - h / alpha after h <- h - alpha K/N (mean_k(w_k) - w_global)."""
    memory, start = updates.memory, updates.start
    memory["dual_mean"] = memory.get("dual_mean", torch.zeros_like(start)) - alpha * updates.share * (merged - start)
    return merged - memory["dual_mean"] / alpha


def subtract_drift(updates: Updates, merged: torch.Tensor, *, alpha: float) -> torch.Tensor:
    """Step to mean_k(w_k) - alpha sum_k h_k over the cohort after h_k <- h_k + w_global - w_k."""
    memory, start, ids = updates.memory, updates.start, torch.as_tensor(updates.ids)
    drift = memory.get("drift", torch.zeros(len(updates.sizes), len(start), dtype=start.dtype, device=start.device)).clone()
    drift[ids] += start - updates.trained
    memory["drift"] = drift
    return merged - alpha * drift[ids].sum(0)


@declare(cite="Acar 2021")
@check_arguments
def feddyn(fit: Fit, *, alpha: Positive = 0.01, rule: Literal["paper", "fedefc"] = "paper", **settings) -> FedOpt:
    """Change each client's loss from round to round so that local optima move to the common optimum.

    Return FedDyn (Acar 2021, Algorithm 1).

    Client: minimize the local loss - <g_k, w> + alpha/2 ||w - w_global||^2, then g_k <- g_k - alpha (w_k - w_global).
    Server: h <- h - alpha/N sum_k (w_k - w_global); w <- mean_k(w_k) - h / alpha, with the unweighted mean over the cohort.

    Parameters
    ----------
    alpha : float > 0
        0.01 in FedCorr's comparison, with lr 0.1 and a decay of 0.998 per round.
    rule : "paper" or "fedefc"
        ``fedefc`` is the variant in FedEFC's public code (at alpha 1e-5): clients train without additional terms.  The server
        sums h_k <- h_k + w_global - w_k and returns mean_k(w_k) - alpha sum_k h_k over the cohort.
    """
    if rule == "fedefc":
        return FedOpt(fit, server=partial(subtract_drift, alpha=alpha), uniform_weights=True, **settings)
    return FedOpt(
        fit,
        corrections=(partial(dynamic, alpha=alpha),),
        before=(recall_dual,),
        after=(partial(update_dual, alpha=alpha),),
        server=partial(subtract_dual, alpha=alpha),
        uniform_weights=True,
        **settings,
    )
