"""Local training: the settings (Fit), the random choices (Plan), and the plain loop for one client."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fnlkit.core import own
from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import Batch, Client
from fnlkit.federated.client.inputs import Augment
from fnlkit.federated.client.losses.cross_entropy import cross_entropy
from fnlkit.federated.client.network import Network
from fnlkit.kernels.streams import stream

BETAS, EPS = (0.9, 0.999), 1e-8  # the defaults of torch.optim.Adam


@dataclass(frozen=True)
class Fit:
    """Settings of local training, in a form that engines can stack over clients or run in a fused kernel.

    Attributes
    ----------
    loss : (logits (..., B, C), Batch) -> values (..., B) or (values, rows)
    corrections : tuple of (w (..., P), w_start (..., P), Batch) -> (..., P)
        Added to the gradient: FedProx, FedDyn, FedCorr's adaptive term.
    penalty : (features (..., B, width), Batch) -> (...), or None
        Added to the mean loss of a batch; requires `features`.
    epochs, batch_size : int
        If the last batch of an epoch is short, it is trained as a short batch.
    lr, momentum, weight_decay : float
    optimizer : "sgd" or "adam"
        As defined by torch.optim; the optimizer state starts empty in every round.
    clip : float
        Largest norm of the gradient; 0 disables clipping.
    augment : Augment
    mixup : float
        Parameter of Beta(mixup, mixup) (Zhang 2018); 0 disables mixup.
    teacher, features, uniform : bool
        Values that the loss needs in the Batch in addition to labels and rows.
    unmixed : bool
        With mixup: the loss needs the predictions of the local model and of the teacher on the samples before mixup.  The
        teacher then does not predict mixed samples.  No effect without mixup.
    mixes : bool
        The loss mixes the targets itself.  Without it, the values for the labels of both samples of a mixture are averaged.
    views : int
        Number of differently augmented views of each sample in a batch.  A batch of B samples has views x B entries, all first
        views before all second views.
    """

    loss: Callable[..., Any] = cross_entropy
    corrections: tuple[Any, ...] = ()
    epochs: int = 5
    batch_size: int = 10
    lr: float = 0.03
    momentum: float = 0.5
    weight_decay: float = 0.0
    optimizer: str = "sgd"
    clip: float = 0.0
    augment: Augment = Augment()
    mixup: float = 0.0
    teacher: bool = False
    features: bool = False
    uniform: bool = False
    unmixed: bool = False
    mixes: bool = False
    views: int = 1
    penalty: Callable[..., Any] | None = None

    def changed(self, **values: Any) -> "Fit":
        return replace(self, **values)

    def refuse_mixup(self, method: str, parameter: str = "") -> None:
        """Raise InputError if samples are mixed, for a method with labels or weights of samples, or a parameter for mixup."""
        if self.mixup:
            reason = f"{method} has labels or weights of single samples, which cannot be mixed; remove `mixup`"
            if parameter:
                inside = f"{parameter}={self.mixup:g} in the parentheses of the method"
                reason = f"{method} mixes samples by its {parameter}; write {inside} instead"
            raise InputError(f"{self.mixup:g}: {reason}", parameter="mixup")


@dataclass(frozen=True)
class Plan:
    """All random choices of one client's local training; the same for each engine.

    Attributes
    ----------
    order : int64 (steps, B)
        Positions in the client's samples; -1 for an empty place of a short batch.  With views, B includes each sample's views.
    first : bool (steps,)
        First step of an epoch.
    shift, flip, center : int32 (steps, B, 2), bool (steps, B), int32 (steps, B, 2), or None
    share : float64 (steps,) or None
        Mixup's lambda.
    partner : int64 (steps, B) or None
        Position in the batch of the sample to mix with.
    uniform : float64 (steps, B) or None
    """

    order: np.ndarray
    first: np.ndarray
    shift: Any = None
    flip: Any = None
    center: Any = None
    share: Any = None
    partner: Any = None
    uniform: Any = None

    def __len__(self):
        return len(self.order)


def plan(n: int, fit: Fit, *, seed: int, round: int, client: int, image: tuple[int, int] | None = None) -> Plan:
    """Draw all random choices of a client with n samples.

    Parameters
    ----------
    n : int >= 1
    fit : Fit
    seed, round, client : int
        Keys of the random streams.
    image : (H, W) or None
        Size of an image, for augmentation.
    """

    def rng(purpose: str) -> np.random.Generator:
        return stream(seed, purpose, round, client)

    if not n:
        raise ValueError("the client has no samples to train on")
    size = min(fit.batch_size, n)
    steps = -(-n // size)
    order = np.full((fit.epochs, steps * size), -1, np.int64)
    draws = rng("batches")
    for epoch in range(fit.epochs):
        order[epoch, :n] = draws.permutation(n)
    order = order.reshape(fit.epochs * steps, size)
    first = np.zeros(len(order), bool)
    first[::steps] = True
    if fit.views > 1:
        order = np.tile(order, fit.views)
        order = np.take_along_axis(order, np.argsort(order < 0, 1, kind="stable"), 1)  # empty places are at the end of a batch
    shift = flip = center = share = partner = uniform = None
    if fit.augment and image is not None:
        shift, flip, center = fit.augment.draw(rng("augment"), order.shape, image)
    if fit.mixup:
        mix = rng("mixup")
        share = mix.beta(fit.mixup, fit.mixup, len(order))
        keys = np.where(order < 0, 2.0, mix.random(order.shape))  # padding is sorted last and mixed with itself
        partner = np.argsort(keys, 1)
    if fit.uniform:
        uniform = rng("loss").random(order.shape)
    return Plan(order, first, shift, flip, center, share, partner, uniform)


class Descent:
    """SGD with momentum on a vector, with the results of `torch.optim.SGD` (dampening 0, no Nesterov).

    The first step of an optimizer of torch imports torch's compiler, which takes as long as the import of torch.
    """

    def __init__(self, weights, fit):
        self.weights = weights
        self.fit = fit
        self.velocity = None

    def step(self) -> None:
        fit = self.fit
        with torch.no_grad():
            gradient = self.weights.grad
            if fit.weight_decay:
                gradient = gradient.add(self.weights, alpha=fit.weight_decay)
            if fit.momentum:
                old = self.velocity
                self.velocity = gradient.clone() if old is None else old.mul_(fit.momentum).add_(gradient)
                gradient = self.velocity
            self.weights.add_(gradient, alpha=-fit.lr)


class Adam:
    """Adam on a tensor, with the results of `torch.optim.Adam`, whose steps cost more to launch than small tensors to compute.

    Client steps of methods use it for a few steps outside of local training.

    Parameters
    ----------
    weights : Tensor
        Changed in place.
    lr : float
    """

    def __init__(self, weights: torch.Tensor, lr: float):
        self.weights, self.lr, self.steps = weights, lr, 0
        self.first, self.second = torch.zeros_like(weights), torch.zeros_like(weights)

    def step(self, gradient: torch.Tensor) -> None:
        """Update the weights."""
        self.steps += 1
        self.first.lerp_(gradient, 1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        spread = (self.second.sqrt() / (1 - BETAS[1] ** self.steps) ** 0.5).add_(EPS)
        self.weights.addcdiv_(self.first, spread, value=-self.lr / (1 - BETAS[0] ** self.steps))


def make_optimizer(fit: Fit, weights: torch.Tensor) -> Any:
    """Make the optimizer of `fit` for a vector of weights."""
    if fit.optimizer == "adam":
        return torch.optim.Adam([weights], lr=fit.lr, weight_decay=fit.weight_decay)
    return Descent(weights, fit)


@contextmanager
def seeded(key: int) -> Iterator[None]:
    """Seed torch's generator of the CPU within a context, for losses of a user that draw from it; not that of a GPU."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key)
        yield


def train_client(
    network: Network,
    client: Client,
    start: torch.Tensor,
    fit: Fit,
    draws: Plan,
    received: dict[str, Any],
    twin: Network | None = None,
) -> torch.Tensor:
    """Train one client and return the weights (P + Q,).  Other engines must give the same result.

    Parameters
    ----------
    network : fnlkit.federated.client.network.Network
    client : fnlkit.federated.client.client.Client
        The loss can write its rows.
    start : Tensor (P + Q,)
    fit : Fit
    draws : Plan
    received : dict
        The values that the server sent with the round.
    twin : Network or None
        Network for the received model if the loss needs a teacher.
    """
    network.load(start)
    module, w0 = network.module, start[: network.parameters_count].to(network.device)
    if twin is not None:
        twin.load(start)
        twin.module.eval()
    module.train()
    optimizer = make_optimizer(fit, network.trainable)
    received = {name: value.to(network.device) for name, value in received.items()}
    key = int(client.rng.integers(2**62))
    network.reseed(key)  # dropout, equal on every engine
    with seeded(key):
        for t in range(len(draws)):
            network.gradient.zero_()
            batch = _step(network, client, fit, draws, received, twin, t)
            if fit.corrections:
                w = network.trainable.detach()
                for correction in fit.corrections:
                    network.gradient.add_(correction(w, w0, batch))
            if fit.clip:
                norm = network.gradient.norm()
                network.gradient.mul_((fit.clip / norm.clamp_min(1e-12)).clamp_max(1.0))
            optimizer.step()
    module.eval()
    return network.flat.clone()


def _step(network, client, fit, draws, received, twin, t):
    """Write the gradient of step t to network.gradient, write rows back, and return the Batch."""
    inputs, device = client.inputs, network.device
    real = int((draws.order[t] >= 0).sum())

    def to_tensor(values: np.ndarray | None) -> torch.Tensor | None:
        return None if values is None else torch.as_tensor(values[t, :real]).to(device)

    index = torch.from_numpy(draws.order[t, :real])
    x = client.x[index]
    if fit.augment:
        x = inputs.augment_images(
            x.to(device), fit.augment, to_tensor(draws.shift), to_tensor(draws.flip), to_tensor(draws.center)
        )
    else:
        x = inputs.plain(x)
    batch = Batch(
        y=client.y[index].to(device),
        rows={name: rows[index].to(device) for name, rows in client.rows.items()},
        state=client.state,
        received=received,
        uniform=to_tensor(draws.uniform),
        first=torch.tensor(bool(draws.first[t]), device=device),
    )
    plain = None
    if draws.share is not None:
        partner = to_tensor(draws.partner)
        if fit.unmixed:
            plain = network.lay_out(x)
            batch.share, batch.partner = torch.tensor(draws.share[t], device=device), partner
            batch.unmixed, batch.unmixed_features = _predict_unmixed(network, plain, fit.features)
        x = draws.share[t] * x + (1 - draws.share[t]) * x[partner]
    x = network.lay_out(x)
    if twin is not None:
        with torch.no_grad():
            batch.teacher = network.compute(twin.module, x if plain is None else plain)
    if fit.features:
        batch.features = network.compute(network.module.features, x)
        logits = network.module.classify(batch.features)
    else:
        logits = network.compute(network.module, x)
    values, rows = loss_values(fit.loss, logits, batch)
    if draws.share is not None and not fit.mixes:
        other, _ = loss_values(fit.loss, logits, replace(batch, y=batch.y[partner]))
        values = draws.share[t] * values + (1 - draws.share[t]) * other
    if fit.penalty is not None:
        values = values + fit.penalty(batch.features, batch)
    values.mean().backward()
    for name, new in rows.items():
        client.rows[name][index] = new.detach().to(client.rows[name])
    return batch


def _predict_unmixed(network, x, features):
    """Predict (logits, features or None) of samples by the current network, in evaluation mode and without gradient."""
    network.module.eval()
    with torch.no_grad():
        between = network.compute(network.module.features, x) if features else None
        logits = network.module.classify(between) if features else network.compute(network.module, x)
    network.module.train()
    return logits, between


def loss_values(loss: Callable[..., Any], logits: torch.Tensor, batch: Batch) -> tuple[Any, Any]:
    """Evaluate a loss in a step: the values (..., B), and the rows to write back.

    Raises
    ------
    InputError
        If the loss does not return one value per sample.
    """
    try:
        result = loss(logits, batch)
    except KeyError as error:
        error.known = f"batch.rows has {', '.join(sorted(batch.rows)) or 'no entries'}"  # type: ignore[attr-defined]
        raise
    values, rows = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(values, torch.Tensor) or values.shape != batch.y.shape:
        form = f"shape {tuple(values.shape)}" if isinstance(values, torch.Tensor) else type(result).__name__
        raise InputError(
            f"{own.describe_place(loss)}: returned {form}; expected one value per sample, {tuple(batch.y.shape)}, or these "
            "values and a dict of rows"
        )
    return values, rows
