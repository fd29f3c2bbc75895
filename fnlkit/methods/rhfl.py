"""RHFL: clients learn from each other's predictions, weighted by confidence.

Fang, Ye. Robust federated learning with noisy and heterogeneous clients. CVPR 2022.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import numpy as np
import torch

from fnlkit.core.declarations import Sent, declare, method
from fnlkit.core.parameters import Count, Natural, NotNegative, Positive, check_arguments
from fnlkit.federated.client.client import Batch, Client, LocalModel, Received
from fnlkit.federated.client.losses.robust import LogZero, symmetric_cross_entropy
from fnlkit.federated.client.training import Adam
from fnlkit.federated.types import Clients, FedOpt, Model
from fnlkit.kernels.fused import FusedSteps, fused_fit
from fnlkit.methods.fedavg import Round


# ---- on the client
def draw_batches(rng: np.random.Generator, count: int, steps: int, batch_size: int) -> np.ndarray:
    """Draw positions (steps, B) of the public samples in each step, pass by pass in new orders; -1 for an empty place."""
    size = min(batch_size, count)
    order = np.full((-(-steps // -(-count // size)), -(-count // size) * size), -1)
    for row in order:
        row[:count] = rng.permutation(count)
    return order.reshape(-1, size)[:steps]


def compiled_align(client: Client, model: LocalModel, received: Received, *, steps: int, lr: float, batch_size: int) -> None:
    """Run the steps of `align` in one compiled call."""
    if "public_target" not in received:
        return
    x, size = received["public"], model.network.parameters_count
    from fnlkit.models.parts import fused_form

    net: Any = fused_form(model.network.module, x.shape, client.inputs.image)
    order = draw_batches(client.rng, len(x), steps, batch_size)
    samples, weights = client.inputs.stored(x), model.weights[:size].numpy()
    none, targets = np.zeros(len(x), np.int64), {"soft": received["public_target"].numpy()}  # no labels
    steps_of_adam = FusedSteps(lr, optimizer="adam")
    fitted = fused_fit(net, weights, samples, none, order, steps_of_adam, targets=targets, **client.inputs.normal)
    model.weights = torch.cat([torch.from_numpy(fitted), model.weights[size:]])


@declare(compiled=compiled_align)
def align(client: Client, model: LocalModel, received: Received, *, steps: int, lr: float, batch_size: int) -> None:
    """Run `steps` of Adam on KL(target || p) over the public set.

    The steps start from the received model (collaborative learning).
    """
    if "public_target" not in received:
        return
    twin, size = model.network.twin(), model.network.parameters_count
    x, target = client.inputs.plain(received["public"]), received["public_target"]
    twin.load(model.weights)
    weights, gradient = twin.trainable.data, twin.gradient
    optimizer = Adam(weights, lr)
    for places in draw_batches(client.rng, len(x), steps, batch_size):
        part = torch.from_numpy(places[places >= 0])
        gradient.zero_()
        with torch.enable_grad():
            logp = twin.module(x[part]).log_softmax(-1)
            (-target[part].to(logp) * logp).sum(-1).mean().backward()  # the target's entropy has no gradient
        optimizer.step(gradient)
    model.weights = torch.cat([weights, model.weights[size:]])


def reply_knowledge(
    client: Client, model: LocalModel, received: Received, *, alpha: float, beta: float, log_zero: float
) -> dict[str, Any]:
    """Reply the trained model's public probabilities and the mean loss on the client."""
    logits = model(client.x).cpu().double()
    batch = Batch(y=client.y.cpu())
    loss = symmetric_cross_entropy(logits, batch, alpha=alpha, beta=beta, log_zero=log_zero).mean()
    return {"public_prediction": model(received["public"]).softmax(-1).double().cpu(), "private_loss": loss}


# ---- the server
def confidences(now: np.ndarray, before: np.ndarray, *, strength: float) -> np.ndarray:
    """Weigh (K,) a cohort's predictions by client confidence.

    They are the softmax of strength x q_k / sum q.

    q is the decrease of a client's loss since its last visit, relative to the current loss.  A rise counts as 0, because
    quotients by sums of both signs have no meaning; clients in their first visit also count as 0.  Weights sum to 1.

    Parameters
    ----------
    now, before : (K,)
        Mean losses; NaN for clients without an earlier visit.
    strength : float >= 0
        0 gives equal weights.
    """
    fallen = np.nan_to_num(np.maximum((before - now) / np.maximum(now, 1e-12), 0.0))
    share = fallen / fallen.sum() if fallen.sum() > 0 else np.zeros(len(now))
    weights = np.exp(strength * share)
    return weights / weights.sum()


@method(
    sends={
        "public_prediction": Sent.share("probabilities of the trained model for the public set", "each round", ("public", "C")),
        "private_loss": Sent("mean symmetric cross entropy of the trained model", "each round", (), low=0),
    },
    loss="own",
    needs=("public",),
    cite="Fang 2022",
)
@check_arguments
def rhfl(
    clients: Clients,
    model: Model,
    opt: FedOpt,
    select: Callable[..., Any],
    *,
    rounds: int,
    alpha: NotNegative = 0.1,
    beta: NotNegative = 1.0,
    strength: NotNegative = 0.5,
    steps: Natural = 20,
    lr: Positive = 0.001,
    batch_size: Count = 256,
    log_zero: LogZero = -9.21,
) -> Generator[Round, None, Model]:
    """Fit models to weighted predictions of others on a public set, then train locally.

    Local training uses the symmetric cross entropy.

    Parameters
    ----------
    rounds : int
        In each round a client takes `steps` on the public set and predicts it once; the set is sent every time.
    alpha, beta : float >= 0
        Weights of the cross entropy and the reverse cross entropy; 0.1 and 1 in the public code.
    strength : float >= 0
        Effect of client confidence; 0.5 in the public code, 0 gives equal weights.
    steps : int >= 0
        Steps of Adam on the public set before local training.  Default: 20, about one pass through the published 5,000
        public samples.  A smaller set is passed through several times.
    lr : float > 0
        Learning rate of these steps; 0.001 in the paper.
    batch_size : int >= 1
        Public samples of a step; 256 in the public code.
    log_zero : float < 0
        A of the reverse cross entropy: the public code clamps labels at 1e-4, whose logarithm is -9.21.  Wang 2019 and
        ``--loss sce`` have -4.

    Notes
    -----
    The public set consists of samples that belong to no client (`fnlkit partition --public 0.1`); its labels are not used.  The
    paper's clients have separate models, of different networks, and never average.  Here all clients have the same network,
    start each round from the average, and add the learning from each other.  The target is the last cohort's mean prediction.
    In the public code the target leaves out the prediction of the client itself and follows the other models from batch to
    batch, and Adam restarts in every batch.

    `inject-noise` before `partition` also corrupts the labels of the public samples; after `partition`, a noise model by client
    does not.

    In FedDPCont's tables RHFL is 7 to 33 points behind FedAvg.

    A loss that rose counts as no gain in confidence; the public code divides by a sum of both signs.

    Reports
    -------
    confidence (N,) each round, 0 for clients outside the cohort.
    """
    public, target = {"public": clients.public.x}, None
    losses = np.full(len(clients), np.nan)
    constants: dict[str, Any] = {"alpha": alpha, "beta": beta, "log_zero": log_zero}
    step: dict[str, Any] = {
        "before": (partial(align, steps=steps, lr=lr, batch_size=batch_size),),
        "after": (partial(reply_knowledge, **constants),),
        "loss": partial(symmetric_cross_entropy, **constants),
        "expect": ("public_prediction", "private_loss"),
    }
    for _ in range(rounds):
        sent = public if target is None else {**public, "public_target": target}
        model, replies = opt.round(clients, select(clients, model), model, broadcast=sent, **step)
        confidence = np.zeros(len(clients))
        if len(replies.ids):
            now = replies["private_loss"].numpy()
            weights = confidences(now, losses[replies.ids], strength=strength)
            target = torch.tensordot(torch.from_numpy(weights), replies["public_prediction"], 1)
            losses[replies.ids], confidence[replies.ids] = now, weights
        yield Round(model, "training", replies, {"confidence": confidence})
    return model
