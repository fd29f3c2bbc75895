"""SCAFFOLD: control variates correct each local step for the difference between local and global gradients.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh. SCAFFOLD: Stochastic controlled averaging for federated learning. ICML
2020.
"""

from functools import partial

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.parameters import Positive, check_arguments
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.federated.client.drift import control_variate
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import Additions, FedOpt, Request, Updates, gradient_weight


# ---- on the client
def recall_control(client: Client, model: LocalModel, received: Received) -> None:
    """Allocate c_k at the first visit."""
    if "control" not in client.state:
        client.state["control"] = torch.zeros_like(received["control"], device=model.weights.device)


def update_control(client: Client, model: LocalModel, received: Received) -> None:
    """Update the control variate: c_k <- c_k - c + (w_global - w_k) / (eta ||a_k||), option II.

    `reach` is eta ||a_k||, so that the last term is a mean gradient even with momentum.
    """
    p, control = model.network.parameters_count, received["control"].to(model.weights)
    moved = (model.start[:p] - model.weights[:p]) / received["reach"].to(model.weights)
    client.state["control"] = client.state["control"] - control + moved


# ---- the server
def controls(request: Request) -> Additions:
    """Send c to all clients, and to each client the product of learning rate and accumulated steps."""
    model = request.model
    zeros = torch.zeros_like(model.weights[: model.network.parameters_count])
    sizes = request.sizes[torch.as_tensor(request.ids, dtype=torch.int64)]
    return Additions(
        before=(recall_control,),
        after=(update_control,),
        corrections=(control_variate,),
        broadcast={"control": request.memory.get("control", zeros)},
        scatter={"reach": request.fit.lr * gradient_weight(sizes, request.fit)},
    )


def move_control(updates: Updates, merged: torch.Tensor, *, server_lr: float) -> torch.Tensor:
    """Step to w + eta_g (mean_k(w_k) - w); update c <- c + K/N mean_k(c_k' - c_k), computed from the weights."""
    start, memory = updates.start, updates.memory
    control = memory.get("control", torch.zeros_like(start))
    reach = updates.fit.lr * gradient_weight(updates.sizes[updates.ids], updates.fit)
    change = ((start - updates.trained) / reach.to(start)[:, None] - control).mean(0)
    memory["control"] = control + updates.share * change
    return start + server_lr * (merged - start)


@declare(cite="Karimireddy 2020")
@check_arguments
def scaffold(fit: Fit, *, server_lr: Positive = 1.0, **settings) -> FedOpt:
    """Correct each local step for the client's deviation from the global gradient, for skewed classes.

    Return SCAFFOLD (Karimireddy 2020, Algorithm 1, option II): local steps go along g - c_k + c.

    A client sends only weights: the server computes the change of the client's control variate.  Clients receive c in addition
    to the model.  c includes all clients, even if a robust aggregator drops some of them.

    Parameters
    ----------
    server_lr : float > 0
        eta_g; 1 in the paper's experiments.
    """
    return FedOpt(fit, prepare=controls, server=partial(move_control, server_lr=server_lr), uniform_weights=True, **settings)
