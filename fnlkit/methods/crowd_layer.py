"""Crowd Layer and trace regularization: a layer for each annotator, which stays on the client.

Rodrigues, Pereira. Deep learning from crowds. AAAI 2018.
Tanno, Saeedi, Sankaranarayanan, Alexander, Silberman. Learning from noisy labels by regularized estimation of annotator
confusion. CVPR 2019.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from fnlkit.client.client import Batch, Client, LocalModel
from fnlkit.client.learning import learn_layer_compiled, learn_matrix_compiled
from fnlkit.client.losses import crowd_cross_entropy, forward_corrected
from fnlkit.client.training import Adam
from fnlkit.components.declarations import declare, method
from fnlkit.components.parameters import NotNegative, Positive, Rounds, check_arguments
from fnlkit.methods.fedavg import Round, fedavg
from fnlkit.methods.warmup import warmup_sixth

if TYPE_CHECKING:
    from fnlkit.client.network import Model
    from fnlkit.server.clients import Clients
    from fnlkit.server.optimizers.optimizer import FedOpt


# First values of an annotator's matrix, on the diagonal and elsewhere; a share of right labels of 0.956 with ten classes.
START = 1.0, -5.0


# ---- on the client
def start_layer(client: Client, model: LocalModel, received: "dict[str, torch.Tensor]") -> None:
    """Allocate the crowd layer, the identity, once."""
    client.state.setdefault("crowd_layer", torch.eye(client.classes, dtype=model.weights.dtype))


@declare(compiled=learn_layer_compiled)
def learn_layer(client: Client, model: LocalModel, received: "dict[str, torch.Tensor]", *, rate: float) -> None:
    """Learn the crowd layer with Adam for the received network, with as many steps as the client has labels."""

    def loss(layer: "torch.Tensor", logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        return crowd_cross_entropy(logits, Batch(y=labels, state={"crowd_layer": layer})).mean()

    client.state["crowd_layer"] = _learn(client, model, client.state["crowd_layer"], loss, rate)


def annotator_matrix(values: "torch.Tensor") -> "torch.Tensor":
    """Return the transition matrix (C, C) of values (C, C): softplus, then rows divided by their sums."""
    rows = torch.nn.functional.softplus(values)
    return rows / rows.sum(-1, keepdim=True)


def start_matrix(client: Client, model: LocalModel, received: "dict[str, torch.Tensor]") -> None:
    """Allocate the values of the annotator's matrix, once; nearly the identity, as in the paper."""
    if "matrix_values" not in client.state:
        right, wrong = START
        values = wrong + (right - wrong) * torch.eye(client.classes, dtype=torch.float64)
        client.state["matrix_values"] = values
        client.state["transition"] = annotator_matrix(values).to(model.weights.dtype)


@declare(compiled=learn_matrix_compiled)
def learn_matrix(
    client: Client, model: LocalModel, received: "dict[str, torch.Tensor]", *, rate: float, strength: float
) -> None:
    """Learn the annotator's matrix with Adam for the received network, as `learn_layer`, with a penalty on the trace."""

    def loss(values: "torch.Tensor", logits: "torch.Tensor", labels: "torch.Tensor") -> "torch.Tensor":
        matrix = annotator_matrix(values)
        fit = forward_corrected(logits, Batch(y=labels, state={"transition": matrix})).mean()
        return fit + strength * matrix.trace()

    values = _learn(client, model, client.state["matrix_values"], loss, rate)
    client.state["matrix_values"], client.state["transition"] = values, annotator_matrix(values).to(model.weights.dtype)


def _learn(client, model, values, loss, rate):
    """Return values after as many Adam steps on a loss (values, logits, labels) as the client has labels."""
    kind, values = values.dtype, values.double().clone().requires_grad_()
    with torch.enable_grad():
        logits, labels = model(client.x).detach().cpu().double(), client.y.cpu()
        optimizer = Adam(values, rate)
        for _ in range(len(client)):
            (gradient,) = torch.autograd.grad(loss(values, logits, labels), values)
            with torch.no_grad():
                optimizer.step(gradient)
    return values.detach().to(kind)


# ---- the server
def _train(clients, model, opt, select, rounds, warmup, **step):
    model = yield from fedavg(clients, model, opt, select, rounds=warmup, stage="warm-up")
    for _ in range(warmup, rounds):
        model, replies = opt.round(clients, select(clients, model), model, **step)
        yield Round(model, "annotators", replies)
    return model


@method(loss="own", schedule=warmup_sixth, cite="Rodrigues 2018")
@check_arguments
def crowd_layer(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    rate: Positive = 0.01,
) -> "Generator[Round, None, Model]":
    """Learn a layer after the network for each annotator, which maps predictions to the annotator's labels.

    The layer W starts as the identity; the loss is the cross entropy of softmax(W p) (the variant "MW").

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of plain training.  Default: -1, a sixth of all rounds.
    rate : float > 0
        Learning rate of Adam on the layer.

    Notes
    -----
    The paper learns layer and network together and without warm-up. Here the layer is learned for the received network before
    a client's local training, because an engine trains only the network: after local training the network has just fitted the
    labels of this client, and the layer would remain near the identity. The layer never leaves the client.
    """
    step = {"before": (start_layer, partial(learn_layer, rate=rate)), "loss": crowd_cross_entropy}
    return (yield from _train(clients, model, opt, select, rounds, warmup_sixth(warmup, rounds), **step))


@method(loss="own", schedule=warmup_sixth, cite="Tanno 2019")
@check_arguments
def trace_regularization(
    clients: "Clients",
    model: "Model",
    opt: "FedOpt",
    select: Callable[..., Any],
    *,
    rounds: int,
    warmup: Rounds = -1,
    strength: NotNegative = 0.01,
    rate: Positive = 0.1,
) -> "Generator[Round, None, Model]":
    """Learn a transition matrix for each annotator, with a penalty on the trace.

    The loss is -log (p T)_y + strength trace(T). The penalty prefers matrices with many errors among those that explain the
    labels equally well.

    Parameters
    ----------
    rounds : int
    warmup : int >= 0, or -1
        Rounds of plain training.  Default: -1, a sixth of all rounds.
    strength : float >= 0
        lambda; 0.01 in the paper's experiments on MNIST and CIFAR-10.
    rate : float > 0
        Learning rate of Adam on the values of the matrix; chosen by held-out noisy labels of development runs.

    Notes
    -----
    The matrix is the softplus of its values, with rows scaled to sum to 1. The values start at 1 on the diagonal and -5
    elsewhere, as in the paper's sample code: a share of right labels of 0.956 with ten classes and 0.664 with 100. The paper
    learns matrices and network together; here a client learns its matrix for the received network before local training, as
    in `crowd_layer`, and keeps it.
    """
    before = (start_matrix, partial(learn_matrix, rate=rate, strength=strength))
    step = {"before": before, "loss": forward_corrected}
    return (yield from _train(clients, model, opt, select, rounds, warmup_sixth(warmup, rounds), **step))
