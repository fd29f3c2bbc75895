"""The compiled form of the client step that learns a matrix between predictions and labels."""

import torch

from fnlkit.federated.client.client import Client, LocalModel, Received
from fnlkit.kernels.learning import learn_matrix


def learn_slack_compiled(
    client: Client, model: LocalModel, received: Received, *, correction: str, lr: float, epochs: int, batch_size: int
) -> None:
    """Learn the slack on a transition matrix, as `fnlkit.methods.t_revision.revise`."""
    estimated = client.state.setdefault("estimated", client.state["transition"].double())
    steps = epochs * -(-len(client) // batch_size)
    logp, labels = model(client.x).cpu().double().log_softmax(-1), client.y.cpu().numpy()
    p = logp.exp().numpy()
    factor = None
    if correction == "reweight":
        own = logp[torch.arange(len(client)), torch.from_numpy(labels)].numpy()
        factor = -own * p[range(len(client)), labels]
    slack = client.state.get("slack", torch.zeros_like(estimated)).numpy()
    learned = learn_matrix(slack, p, labels, rate=lr, steps=steps, base=estimated.numpy(), factor=factor)
    client.state["slack"] = torch.from_numpy(learned)
    total = (estimated + client.state["slack"]).clamp_min(0)
    transition = total / total.sum(-1, keepdim=True).clamp_min(1e-12)
    client.state["transition"] = transition.to(client.state["transition"])
