"""FedBN: what batch norm knows of a client's samples never leaves it.

Li, Jiang, Zhang, Kamp, Dou. FedBN: Federated learning on non-IID features via local batch normalization. ICLR 2021.
"""

import torch
from torch import nn

from fnlkit.errors import InputError
from fnlkit.server.optimizers.optimizer import Additions, FedOpt


def normalisers(network):
    """Return which entries (P + Q,) bool of the weights are batch norm's: scales, shifts, running means and variances."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    inside = {name for name, module in network.module.named_modules() if isinstance(module, kinds)}
    mask = torch.zeros(network.size, dtype=torch.bool, device=network.device)
    for name, start, end, _ in network.slots:
        mask[start:end] = name.rpartition(".")[0] in inside
    return mask


# ---- on the client
def wear_own(client, model, received):
    """Put the client's own batch norm into the received model; at first there is none."""
    if "normalisers" in client.state:
        weights = model.weights.clone()
        weights[normalisers(model.network)] = client.state["normalisers"].to(weights)
        model.weights = weights


def keep_own(client, model, received):
    """Keep the trained batch norm and reply the weights with the received one in its place."""
    mask = normalisers(model.network)
    client.state["normalisers"] = model.weights[mask].clone()
    return {"weights": torch.where(mask, model.start, model.weights)}


# ---- the server
def must_be_normed(network):
    """Raise InputError where a network has no batch norm."""
    if not normalisers(network).any():
        raise InputError("--optimizer fedbn keeps batch norm on the clients; this network has none, write --optimizer fedavg")


def locally(request):
    """Ask for it, where the network has any batch norm."""
    must_be_normed(request.model.network)
    return Additions(before=(wear_own,), after=(keep_own,))


def fedbn(fit, **settings):
    """Keep batch normalisation with each client, where sites differ in their images and not in their classes.

    Return FedBN (Li 2021, Algorithm 1): batch norm's parameters and statistics stay in ``client.state["normalisers"]``.

    The common model, which a run holds and evaluates, keeps the batch norm that it started with: it is a skeleton for the
    clients and scores less than their own models.
    """
    return FedOpt(fit, prepare=locally, suits=must_be_normed, **settings)
