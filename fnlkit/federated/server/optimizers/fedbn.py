"""FedBN: batch normalization stays on the client.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated learning on non-IID features via local batch normalization. ICLR 2021.
"""

import torch

from fnlkit.core.declarations import declare
from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.federated.client.network import Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.optimizer import Additions, FedOpt, Request


def normalizers(network: Network) -> torch.Tensor:
    """Mask of the weights (P + Q,) of batch norm: scales, shifts, running means and variances."""
    kinds = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    inside = {name for name, module in network.module.named_modules() if isinstance(module, kinds)}
    mask = torch.zeros(network.size, dtype=torch.bool, device=network.device)
    for name, start, end, _ in network.slots:
        mask[start:end] = name.rpartition(".")[0] in inside
    return mask


# ---- on the client
def load_own_norms(client: Client, model: LocalModel, received: Received) -> None:
    """Load the client's stored batch norm, if any, into the received model."""
    if "normalizers" in client.state:
        weights = model.weights.clone()
        weights[normalizers(model.network)] = client.state["normalizers"].to(weights)
        model.weights = weights


def save_own_norms(client: Client, model: LocalModel, received: Received) -> dict[str, torch.Tensor]:
    """Store the trained batch norm and reply the weights with the received batch norm."""
    mask = normalizers(model.network)
    client.state["normalizers"] = model.weights[mask].clone()
    return {"weights": torch.where(mask, model.start, model.weights)}


# ---- the server
def must_be_normed(network: Network) -> None:
    """Raise InputError if a network has no batch norm."""
    if not normalizers(network).any():
        raise InputError("fedbn keeps batch norm, and this network has none; use `optimizer='fedavg'`", parameter="optimizer")


def locally(request: Request) -> Additions:
    """Add the client steps if the network has batch norm."""
    must_be_normed(request.model.network)
    return Additions(before=(load_own_norms,), after=(save_own_norms,))


@declare(cite="Li 2021")
def fedbn(fit: Fit, **settings) -> FedOpt:
    """Keep batch normalization on each client, for sites that differ in their images but not in their classes.

    Return FedBN (Li 2021, Algorithm 1): batch norm's parameters and statistics stay in ``client.state["normalizers"]``.

    The common model, which a run stores and evaluates, keeps its initial batch norm.  It is only the basis of the clients'
    models, and less accurate than the clients' models.
    """
    return FedOpt(fit, prepare=locally, suits=must_be_normed, **settings)
