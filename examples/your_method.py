"""A complete method: the weight of a client in the average decreases with the loss of the common model on its labels.

fnlkit train noisy.npz --method 'examples/your_method.py:by_loss(strength=2)' -o run.pt
"""

import torch

from fnlkit.core import Sent, method
from fnlkit.core.parameters import NotNegative, check_arguments
from fnlkit.federated.client.scoring import sample_losses
from fnlkit.methods.fedavg import Round


def reply_fit(client, model, received):
    """Client step: only the returned dict leaves the client."""
    return {"fit": sample_losses(model(client.x), client.y).double().mean()}


@method(sends={"fit": Sent("mean loss of the received model on the client's samples", "every round", (), low=0)})
@check_arguments
def by_loss(clients, model, opt, select, *, rounds, strength: NotNegative = 1.0):
    """Weight client k by n_k exp(-strength loss_k)."""

    def weights(replies):
        out = torch.zeros(len(clients), dtype=torch.float64)
        out[replies.ids] = clients.sizes[replies.ids] * torch.exp(-strength * replies["fit"])
        return out

    for _ in range(rounds):
        ids = select(clients, model)
        model, replies = opt.round(clients, ids, model, before=(reply_fit,), expect=("fit",), weights=weights)
        yield Round(model, "training", replies, {"fit": replies["fit"].mean()})
    return model
