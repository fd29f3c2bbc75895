"""Compiled forms of client steps that learn a matrix between predictions and labels."""

from typing import TYPE_CHECKING

import torch

from fnlkit.kernels.learning import learn_matrix

if TYPE_CHECKING:
    from fnlkit.client.client import Client, LocalModel


def learn_layer_compiled(client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]", *, rate: float) -> None:
    """Learn the crowd layer, as `fnlkit.methods.crowd_layer.learn_layer`."""
    layer = client.state["crowd_layer"]
    learned = learn_matrix("layer", layer.numpy(), *_predict(client, model)[1:], rate=rate, steps=len(client))
    client.state["crowd_layer"] = torch.from_numpy(learned).to(layer.dtype)


def learn_matrix_compiled(
    client: "Client", model: "LocalModel", received: "dict[str, torch.Tensor]", *, rate: float, strength: float
) -> None:
    """Learn an annotator's matrix, as `fnlkit.methods.crowd_layer.learn_matrix`."""
    predicted = _predict(client, model)[1:]
    values = client.state["matrix_values"].numpy()
    learned = learn_matrix("softplus", values, *predicted, rate=rate, strength=strength, steps=len(client))
    client.state["matrix_values"] = torch.from_numpy(learned)
    rows = torch.nn.functional.softplus(client.state["matrix_values"])
    client.state["transition"] = (rows / rows.sum(-1, keepdim=True)).to(model.weights.dtype)


def learn_slack_compiled(
    client: "Client",
    model: "LocalModel",
    received: "dict[str, torch.Tensor]",
    *,
    correction: str,
    lr: float,
    epochs: int,
    batch_size: int,
) -> None:
    """Learn the slack on a transition matrix, as `fnlkit.methods.t_revision.revise`."""
    estimated = client.state.setdefault("estimated", client.state["transition"].double())
    steps = epochs * -(-len(client) // batch_size)
    logp, p, labels = _predict(client, model)
    factor = None
    if correction == "reweight":
        own = logp[torch.arange(len(client)), torch.from_numpy(labels)].numpy()
        factor = -own * p[range(len(client)), labels]
    slack = client.state.get("slack", torch.zeros_like(estimated)).numpy()
    learned = learn_matrix("scaled", slack, p, labels, rate=lr, steps=steps, base=estimated.numpy(), factor=factor)
    client.state["slack"] = torch.from_numpy(learned)
    total = (estimated + client.state["slack"]).clamp_min(0)
    transition = total / total.sum(-1, keepdim=True).clamp_min(1e-12)
    client.state["transition"] = transition.to(client.state["transition"])


def _predict(client, model):
    """Return log probabilities (n, C), probabilities and labels of a client's samples."""
    logp = model(client.x).cpu().double().log_softmax(-1)
    return logp, logp.exp().numpy(), client.y.cpu().numpy()
