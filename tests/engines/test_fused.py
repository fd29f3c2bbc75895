"""The fused kernels against a plain PyTorch loop: every loss, drift term and augmentation, in both precisions."""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fnlkit.client.client import Batch
from fnlkit.client.losses.consistency import _view_terms, self_regularized
from fnlkit.errors import InputError
from fnlkit.kernels.fused import FusedAugment, FusedLoss, fused_fit, fused_forward, fused_parameters

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
LIMIT = {np.float32: 1e-5, np.float64: 1e-9}
# In single precision few enough that no max pool and no ReLU stands at a tie; see `compare`.
STEPS = {np.float32: 12, np.float64: 50}
CLASSES = 10


def network(net, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    if net[0] == "lenet5":
        layers = [nn.Conv2d(net[1], 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, net[2])]
    else:
        layers = [nn.Flatten()]
        for width, units in zip(net[1], net[1][1:], strict=False):
            layers += [nn.Linear(width, units), nn.ReLU()]
        layers.pop()
    return nn.Sequential(*layers).to(dtype)


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def fill(module, theta):
    nn.utils.vector_to_parameters(theta.clone(), module.parameters())


def picture(net, x, mean, std, dtype, augment=None, t=0, slots=None):
    """Network input of raw images, one by one, as torchvision would make it."""
    out = []
    for row, image in enumerate(x):
        image = image.astype(np.float64)
        if augment is not None and augment.shift is not None:
            (down, right), p = augment.shift[t, slots[row]], augment.pad
            image = np.pad(image, ((p, p), (p, p), (0, 0)))[down:, right:][: x.shape[1], : x.shape[2]]
        if augment is not None and augment.flip is not None and augment.flip[t, slots[row]]:
            image = image[:, ::-1]
        scale = 255 if x.dtype == np.uint8 else 1
        image = torch.from_numpy(image.copy()).to(dtype) / scale
        image = ((image - torch.tensor(mean, dtype=dtype)) / torch.tensor(std, dtype=dtype)).movedim(-1, 0)
        if augment is not None and augment.center is not None:
            middle, half = augment.center[t, slots[row]], augment.side // 2
            top, left = (max(m - half, 0) for m in middle)
            bottom, right = (max(m - half + augment.side, 0) for m in middle)
            image = image.clone()
            image[:, top:bottom, left:right] = 0
        out.append(image)
    batch = torch.stack(out)
    if net[0] == "lenet5":
        rows, columns = 32 - x.shape[1], 32 - x.shape[2]
        batch = F.pad(batch, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
    return batch


def values(loss, logits, teacher, y, index, other, memory, unmixed=None, mix=None):
    """Loss of each sample, and what to write back to the memories; `mix` is (share, partner) of mixup."""
    logp = logits.log_softmax(1)
    p = logp.exp()

    def at(of, labels):
        return of.gather(1, labels[:, None])[:, 0]

    if loss.kind == "cross_entropy":
        return -(1 - loss.smoothing) * at(logp, y) - loss.smoothing * logp.mean(1)
    if loss.kind == "forward":
        return -(at(p @ torch.as_tensor(loss.matrix).to(p), y) + 1e-12).log()
    if loss.kind == "reweighted":
        weight = at(p, y) / (at(p @ torch.as_tensor(loss.matrix).to(p), y) + 1e-12)
        return -(weight if loss.strength else weight.detach()) * at(logp, y)
    if loss.kind == "layer":
        return F.cross_entropy(p @ torch.as_tensor(loss.matrix).to(p).T, y, reduction="none")
    if loss.kind == "peer":
        bounded = (p + loss.floor).log() if loss.floor else logp
        second = at(bounded, other) if other is not None else bounded @ torch.as_tensor(loss.prior).to(p)
        return -at(bounded, y) + loss.strength * second
    if loss.kind == "soft":
        return -(torch.as_tensor(loss.soft).to(p)[index] * logp).sum(1)
    if loss.kind == "distill":
        f = loss.temperature
        a, b = (teacher / f).log_softmax(1), (logits / f).log_softmax(1)
        if loss.towards == "teacher":
            a, b = b, a
        return -at(logp, y) + loss.strength * f * f * (a.exp() * (a - b)).sum(1)

    def averaged(now):
        now = now.clamp(loss.clamp, 1 - loss.clamp) if loss.clamp else now
        return now / now.sum(1, keepdim=True) if loss.clamp else now

    seen, own = memory["seen"][index, None], averaged((logits if unmixed is None else unmixed).detach().softmax(1))
    memory["local"][index] = torch.where(seen, loss.gamma * memory["local"][index] + (1 - loss.gamma) * own, own)
    t = memory["local"][index]
    if loss.server is not None:
        now = averaged(teacher.softmax(1))
        memory["server"][index] = torch.where(seen, loss.beta * memory["server"][index] + (1 - loss.beta) * now, now)
        t = loss.alpha * memory["server"][index] + (1 - loss.alpha) * t
    memory["seen"][index] = True
    if mix is not None:
        t = mix[0] * t + (1 - mix[0]) * t[mix[1]]
    clamped = p.clamp(loss.clamp, 1 - loss.clamp) if loss.clamp else p
    apart = (1 - (clamped * t).sum(1)).clamp_min(1e-4 if loss.floor is None else loss.floor)
    return -at(logp, y) + loss.strength * apart.log()


def reference(
    net,
    theta,
    x,
    y,
    order,
    *,
    lr,
    momentum=0.0,
    weight_decay=0.0,
    loss=None,
    proximal=0.0,
    proximal_norm=0.0,
    anchor=None,
    linear=None,
    velocity=None,
    epoch_steps=None,
    mean=None,
    std=None,
    augment=None,
    mixup=None,
):
    """The plain loop; returns weights, mean loss and correct predictions of each epoch, and memories."""
    dtype = torch.float64 if theta.dtype == np.float64 else torch.float32
    model, server = network(net, dtype), network(net, dtype)
    fill(model, torch.from_numpy(theta))
    w0 = torch.from_numpy(theta if anchor is None else anchor)
    fill(server, w0)
    loss = loss or FusedLoss()
    kept = {name: getattr(loss, name) for name in ("server", "local", "seen")}
    memory = {name: torch.tensor(rows) for name, rows in kept.items() if rows is not None}
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.0, momentum=momentum, weight_decay=weight_decay)
    if velocity is not None:
        v, at = torch.from_numpy(velocity.copy()), 0
        for p in parameters:
            optimizer.state[p]["momentum_buffer"] = v[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
    epoch_steps = epoch_steps or len(order)
    epochs = -(-len(order) // epoch_steps)
    total, used, correct = np.zeros(epochs), np.zeros(epochs), np.zeros(epochs, int)
    y = torch.from_numpy(np.asarray(y, np.int64))
    for t in range(len(order)):
        slots = np.flatnonzero(order[t] >= 0)
        index = torch.from_numpy(order[t][slots].astype(np.int64))
        if not len(index):
            continue
        if x.ndim == 4:
            normal = mean or (0,) * x.shape[3], std or (1,) * x.shape[3]
            batch = picture(net, x[index.numpy()], *normal, dtype, augment, t, slots)
        else:
            scale = 255 if x.dtype == np.uint8 else 1
            batch = torch.from_numpy(x[index.numpy()].astype(np.float64)).to(dtype) / scale
        labels = y[index]
        other = None if loss.other is None else torch.from_numpy(loss.other[t][slots])
        plain, targets = batch, {}
        if mixup is not None:
            partner = torch.from_numpy(np.searchsorted(slots, mixup[0][t][slots]))
            share = float(mixup[1][t])
            batch = share * batch + (1 - share) * batch[partner]
        with torch.no_grad():
            if mixup is not None and loss.kind == "mixture":
                targets = {"unmixed": model(plain), "mix": (share, partner)}
            teacher = server(plain if targets else batch)
        logits = model(batch)
        before = {name: rows.clone() for name, rows in memory.items()}
        each = values(loss, logits, teacher, labels, index, other, memory, **targets)
        if mixup is not None:
            mixed = labels[partner], index[partner] if loss.kind == "soft" else index
            each = share * each + (1 - share) * values(loss, logits, teacher, *mixed, other, before, **targets)
        if loss.keep is not None:
            each = each * torch.from_numpy(loss.keep).to(each)[index]
        optimizer.zero_grad()
        each.mean().backward()
        away = flat(parameters) - w0
        pull = proximal * away
        if proximal_norm and t % epoch_steps and away.norm() > 0:
            pull = pull + proximal_norm * away / away.norm()
        if linear is not None:
            pull = pull + torch.from_numpy(linear)
        at = 0
        for p in parameters:
            p.grad += pull[at : at + p.numel()].view_as(p)
            at += p.numel()
        optimizer.param_groups[0]["lr"] = float(np.broadcast_to(lr, len(order))[t])
        optimizer.step()
        total[t // epoch_steps] += each.sum().item()
        used[t // epoch_steps] += len(index)
        correct[t // epoch_steps] += (logits.argmax(1) == labels).sum().item()
    with np.errstate(invalid="ignore"):
        return flat(parameters).numpy(), total / used, correct, {name: rows.numpy() for name, rows in memory.items()}


def client(net, n=60, seed=0, kind="uint8", side=32):
    rng = np.random.default_rng(seed)
    shape = (n, side, side, net[1]) if net[0] == "lenet5" else (n, net[1][0])
    classes = net[2] if net[0] == "lenet5" else net[1][-1]
    # Smooth pictures: neighboring pixels agree, as in photographs.
    x = rng.normal(size=shape)
    if len(shape) == 4:
        x = x.cumsum(1).cumsum(2) / 12
    y = rng.integers(0, classes, n)
    if kind == "uint8":
        return np.clip(128 + 50 * x, 0, 255).astype(np.uint8), y
    return x.astype(kind), y


def draw_order(n, steps, batch, seed=1, ragged=True):
    rng = np.random.default_rng(seed)
    order = np.stack([rng.permutation(n)[:batch] for _ in range(steps)])
    if ragged:
        order[2::5, batch // 2 :] = -1
        order[4::7, 1:] = -1
    return order


LENET, MLP = ("lenet5", 3, CLASSES), ("mlp", (30, 37, 20, 7))


def memories(n, classes, real, server=True):
    rng = np.random.default_rng(5)
    rows = {name: rng.dirichlet(np.ones(classes), n).astype(real) for name in ("server", "local")}
    if not server:
        rows.pop("server")
    return {**rows, "seen": rng.random(n) < 0.4}


def losses(n, classes, places, real):
    rng = np.random.default_rng(3)
    matrix = rng.dirichlet(np.ones(classes), classes) * 0.4 + 0.6 * np.eye(classes)
    return {
        "plain": FusedLoss(),
        "smoothed": FusedLoss(smoothing=0.1),
        "negative": FusedLoss(smoothing=-0.05),
        "kept": FusedLoss(keep=rng.random(n).round().astype(real)),
        "forward": FusedLoss("forward", matrix=matrix),
        "layer": FusedLoss("layer", matrix=3 * matrix),
        "reweighted": FusedLoss("reweighted", matrix=matrix, strength=0.0),
        "reweighted_through": FusedLoss("reweighted", matrix=matrix, strength=1.0),
        "peer": FusedLoss("peer", strength=0.4, other=rng.integers(0, classes, places)),
        "peer_floor": FusedLoss("peer", strength=0.7, floor=1e-2, other=rng.integers(0, classes, places)),
        "peer_floor_expected": FusedLoss("peer", strength=0.7, floor=1e-2, prior=rng.dirichlet(np.ones(classes))),
        "expected": FusedLoss("peer", strength=0.6, prior=rng.dirichlet(np.ones(classes))),
        "mixture": FusedLoss("mixture", strength=2.0, alpha=0.6, beta=0.7, gamma=0.5, **memories(n, classes, real)),
        "early": FusedLoss("mixture", strength=3.0, gamma=0.9, **memories(n, classes, real, server=False)),
        "bounded": FusedLoss("mixture", strength=2.0, alpha=0.5, floor=0.88, **memories(n, classes, real)),
        "clamped": FusedLoss("mixture", strength=2.0, alpha=0.4, clamp=0.12, gamma=0.5, **memories(n, classes, real)),
        "distill": FusedLoss("distill", strength=3.0, temperature=2.0),
        "distill_student": FusedLoss("distill", strength=3.0, temperature=4.0, towards="student"),
        "soft": FusedLoss("soft", soft=rng.dirichlet(np.ones(classes), n).astype(real)),
    }


def fresh(loss):
    """The same loss with memories of its own."""
    kept = {name: getattr(loss, name, None) for name in ("server", "local", "seen")}
    return loss and replace(loss, **{name: rows.copy() for name, rows in kept.items() if rows is not None})


def doubled(value):
    """The same number, array or loss in double precision."""
    if isinstance(value, FusedLoss):
        return replace(value, **{f.name: doubled(getattr(value, f.name)) for f in fields(value)})
    return value.astype(np.float64) if isinstance(value, np.ndarray) and value.dtype == np.float32 else value


def compare(net, real, x, y, order, **options):
    """Both loops from the same start; weights, losses, correct predictions and memories must agree.

    What single precision loses is measured against double precision, not against another order of single sums.  A max
    pool or ReLU that a last bit decides makes a leap that no bound on rounding covers, so starts that differ from ours
    in the last bit must end there as well: then every order of sums does.
    """
    theta = flat(network(net).parameters()).numpy().astype(real)
    if options.pop("away", False):
        options["anchor"] = theta + 0.05 * np.random.default_rng(9).normal(size=theta.size).astype(real)
    exact = {name: doubled(value) for name, value in options.items()}
    want, want_loss, want_correct, want_memory = reference(net, doubled(theta), x, y, order, **exact)
    start, limit = theta.copy(), LIMIT[real]
    if real == np.float32:
        rng = np.random.default_rng(6)
        for _ in range(3):
            near = (theta * (1 + rng.integers(-1, 2, theta.size) * 2.0**-23)).astype(real)
            fit = fused_fit(net, near, x, y, order, **{"anchor": theta, **options, "loss": fresh(options.get("loss"))})
            assert np.abs(fit.theta - want).max() <= limit, "the data decides in the last bit: take another seed"
    fit = fused_fit(net, theta, x, y, order, **options)
    assert fit.theta.dtype == real and np.array_equal(theta, start)
    assert np.abs(fit.theta - want).max() <= limit
    np.testing.assert_allclose(fit.loss, want_loss, rtol=limit, atol=10 * limit)
    assert np.array_equal(fit.correct, want_correct)
    for name, rows in want_memory.items():
        np.testing.assert_allclose(getattr(options["loss"], name), rows, atol=limit)
    assert np.abs(want - start).max() > 100 * limit
    return fit


@pytest.mark.slow
def test_lenets_features_follow_a_teacher():
    """12 steps with a head of 150 outputs behind LeNet-5, against PyTorch's own gradients."""
    x, y = client(LENET)
    order, size = draw_order(len(x), STEPS[np.float32], 10), 150
    net, rng = network(LENET, torch.float64), np.random.default_rng(4)
    head = torch.nn.Linear(84, size, dtype=torch.float64)
    teacher = rng.normal(size=(len(x), size))
    both = [*net.parameters(), *head.parameters()]
    theta = flat(both).numpy().astype(np.float32)
    fill(nn.ModuleList([net, head]), torch.from_numpy(theta.astype(np.float64)))
    loss = FusedLoss("embedding", strength=2.0, teacher=teacher.astype(np.float32))
    fit = fused_fit(LENET, theta, x, y, order, lr=0.02, momentum=0.5, loss=loss, mean=MEAN, std=STD, weight_decay=0.01)
    optimizer = torch.optim.SGD(both, lr=0.02, momentum=0.5, weight_decay=0.01)
    last, total = {}, 0.0
    net[-1].register_forward_pre_hook(lambda module, given: last.update(features=given[0]))
    for t in range(len(order)):
        slots = np.flatnonzero(order[t] >= 0)
        if not len(slots):
            continue
        index = order[t][slots]
        logits = net(picture(LENET, x[index], MEAN, STD, torch.float64, None, t, slots))
        apart = (head(last["features"]) - torch.from_numpy(teacher[index])).abs().mean(1)
        each = F.cross_entropy(logits, torch.from_numpy(y[index]), reduction="none") + 2.0 * apart
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        total += each.sum().item()
    np.testing.assert_allclose(fit.theta, flat(both).numpy(), rtol=0, atol=LIMIT[np.float32])
    np.testing.assert_allclose(fit.loss, total / (order >= 0).sum(), rtol=LIMIT[np.float32])


@pytest.mark.parametrize("variant", ["public", "plain"])
def test_two_views_equal_the_loss_in_pytorch(variant):
    """Views of a sample that differ as much as other samples, and predictions below the clamp."""
    (x, y), rng = client(MLP, kind="float64"), np.random.default_rng(7)
    order, uniform = np.stack([rng.permutation(len(x))[:10] for _ in range(30)]), rng.random(30)
    order[4, 2:], order[9, 6:] = -1, -1
    uniform[0] = 0.0
    net = network(MLP, torch.float64)
    with torch.no_grad():
        net[-1].weight.mul_(12)
    theta = flat(net.parameters()).numpy().copy()
    keywords = {"consistency": 0.7, "entropy": 0.4, "power": 3.0, "variant": variant}
    loss = _view_terms(SimpleNamespace(draws=SimpleNamespace(uniform=uniform[:, None])), **keywords)
    fit = fused_fit(MLP, theta, x, y, order, lr=0.02, momentum=0.5, loss=loss)
    optimizer, total = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.5), 0.0
    for t in range(len(order)):
        index = order[t][order[t] >= 0]
        batch = Batch(y=torch.from_numpy(y[index]), uniform=torch.full((len(index),), uniform[t], dtype=torch.float64))
        each = self_regularized(net(torch.from_numpy(x[index])), batch, **keywords)
        optimizer.zero_grad()
        each.mean().backward()
        optimizer.step()
        total += each.sum().item()
    np.testing.assert_allclose(fit.theta, flat(net.parameters()).numpy(), rtol=0, atol=LIMIT[np.float64])
    np.testing.assert_allclose(fit.loss, total / (order >= 0).sum(), rtol=1e-9)


def kinds(nets, slow=()):
    """Return a parametrization of networks and precisions; without --slow, LeNet-5 in single and others in double.

    Loops over samples and the losses are the same code for all networks and precisions, and compiling one takes 6 to 16 s.
    Networks in `slow` are slow in both precisions.
    """
    rows = []
    for name, net in nets.items():
        usual = np.float32 if net[0] == "lenet5" else np.float64
        for real in (np.float32, np.float64):
            marks = () if real is usual and name not in slow else pytest.mark.slow
            rows.append(pytest.param(net, real, id=f"{name}-{real.__name__}", marks=marks))
    return pytest.mark.parametrize(("net", "real"), rows)


NETS = {"lenet5": LENET, "mlp": MLP}


# The kernel of all losses differs from that of the plain cross entropy in the part that no network has of its own.
@kinds(NETS, slow=["lenet5"])
@pytest.mark.parametrize("name", losses(1, 2, (1, 1), np.float32))
def test_losses(net, name, real):
    x, y = client(net, kind="uint8" if net == LENET else "float64")
    order = draw_order(len(x), STEPS[real], 10)
    classes = net[2] if net == LENET else net[1][-1]
    loss = losses(len(x), classes, order.shape, real)[name]
    normal = {"mean": MEAN, "std": STD} if net == LENET else {}
    compare(net, real, x, y, order, lr=0.02, momentum=0.5, epoch_steps=5, loss=loss, away=True, **normal)


@kinds(NETS)
@pytest.mark.parametrize(
    "terms",
    [
        {"weight_decay": 0.01},
        {"proximal": 0.3, "away": True},
        {"proximal": 0.3},
        {"proximal_norm": 0.5},
        {"proximal_norm": 0.5, "proximal": 0.2, "away": True, "weight_decay": 0.001},
        {"linear": True, "proximal": 0.1},
        {"velocity": True, "momentum": 0.9, "lr": 0.002},
        {"lr": np.linspace(0.03, 0.001, 50)},
    ],
    ids=lambda terms: "-".join(terms),
)
def test_drift_terms(net, terms, real):
    x, y = client(net, kind="uint8" if net == LENET else "float64")
    count = fused_parameters(net)
    options = {"lr": 0.02, "momentum": 0.5, "epoch_steps": 5, **terms}
    if np.ndim(options["lr"]):
        options["lr"] = options["lr"][: STEPS[real]]
    for name in ("linear", "velocity"):
        if options.get(name):
            options[name] = 0.01 * np.random.default_rng(2).normal(size=count).astype(real)
    compare(net, real, x, y, draw_order(len(x), STEPS[real], 10), **options)


@kinds({"color": LENET, "gray": ("lenet5", 1, 5), "mlp": ("mlp", (3 * 9 * 7, 16, 6))})
@pytest.mark.parametrize("kind", ["uint8", "float32"])
@pytest.mark.parametrize("steps", ["crop", "flip", "cutout", "mixup", "all"])
def test_augmentation(net, kind, steps, real):
    if net[0] == "mlp":
        x = np.random.default_rng(4).random((40, 9, 7, 3)) * (255 if kind == "uint8" else 1)
        x, y = x.astype(kind), np.random.default_rng(4).integers(0, 6, 40)
    else:
        x, y = client(net, n=40, kind=kind, side=32 if net == LENET else 28)
    rng = np.random.default_rng(8)
    order = draw_order(len(x), STEPS[real] // 2, 8)
    height, width, channels = x.shape[1:]
    chosen = {}
    if steps in ("crop", "all"):
        chosen |= {"pad": 4, "shift": rng.integers(0, 9, (*order.shape, 2))}
    if steps in ("flip", "all"):
        chosen |= {"flip": rng.random(order.shape) < 0.5}
    if steps in ("cutout", "all"):
        chosen |= {"side": 5, "center": rng.integers(0, (height, width), (*order.shape, 2))}
    mixup = None
    if steps in ("mixup", "all"):
        keys = np.where(order < 0, 2.0, rng.random(order.shape))
        mixup = np.argsort(keys, 1), rng.beta(1, 1, len(order))
    normal = {"mean": MEAN[:channels], "std": STD[:channels]}
    augment = FusedAugment(**chosen)
    compare(net, real, x, y, order, lr=0.01, momentum=0.5, augment=augment, mixup=mixup, **normal)


@pytest.mark.parametrize("name", losses(1, 2, (1, 1), np.float32))
def test_every_loss_under_mixup(name):
    x, y = client(MLP, kind="float64")
    order = draw_order(len(x), 30, 9)
    rng = np.random.default_rng(8)
    partner = np.argsort(np.where(order < 0, 2.0, rng.random(order.shape)), 1)
    loss = losses(len(x), 7, order.shape, np.float64)[name]
    compare(MLP, np.float64, x, y, order, lr=0.02, momentum=0.5, loss=loss, mixup=(partner, rng.beta(1, 1, len(order))))


@pytest.mark.parametrize("mixed", [False, True])
def test_a_network_trains_alone_as_in_a_pair(mixed):
    """The cross entropy of one network has a kernel of its own, which writes the bytes of the kernel of all losses."""
    rng, single, steps, n = np.random.default_rng(0), ("mlp", (6, 5, 3)), 7, 12
    x, y = rng.random((n, 6), np.float32), rng.integers(0, 3, n)
    order = np.stack([rng.permutation(n)[:4] for _ in range(steps)])
    order[2, 1] = order[3] = -1
    theta = rng.normal(0, 0.4, (2, fused_parameters(single))).astype(np.float32)
    partner = np.where(np.arange(steps)[:, None] == 2, 0, rng.integers(0, 4, (steps, 4)))
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "proximal": 0.1, "epoch_steps": 3}
    options["mixup"] = (partner, rng.beta(2, 2, steps)) if mixed else None
    pair = fused_fit(("pair", single), theta.ravel(), x, y, order, **options)
    alone = [fused_fit(single, each, x, y, order, **options) for each in theta]
    assert pair.theta.tobytes() == b"".join(each.theta.tobytes() for each in alone)
    assert pair.velocity.tobytes() == b"".join(each.velocity.tobytes() for each in alone)
    np.testing.assert_allclose(pair.loss, alone[0].loss + alone[1].loss, rtol=1e-12)


@given(data=st.data())
def test_any_perceptron_and_ragged_order(data):
    depth = data.draw(st.integers(0, 3))
    widths = tuple(data.draw(st.integers(1, 70)) for _ in range(depth + 1)) + (data.draw(st.integers(2, 12)),)
    n, batch = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    net = ("mlp", widths)
    x, y = rng.normal(size=(n, widths[0])), rng.integers(0, widths[-1], n)
    order = rng.integers(-1, n, (data.draw(st.integers(1, 6)), batch))
    theta = flat(network(net).parameters()).numpy()
    want, want_loss, want_correct, _ = reference(net, theta, x, y, order, lr=0.05, momentum=0.9)
    fit = fused_fit(net, theta, x, y, order, lr=0.05, momentum=0.9)
    np.testing.assert_allclose(fit.theta, want, atol=1e-10)
    np.testing.assert_allclose(fit.loss, want_loss, atol=1e-10)
    assert np.array_equal(fit.correct, want_correct)
    np.testing.assert_allclose(fused_forward(net, want, x), _logits(net, want, x), atol=1e-10)


def _logits(net, theta, x):
    model = network(net, torch.float64 if theta.dtype == np.float64 else torch.float32)
    fill(model, torch.from_numpy(theta))
    with torch.no_grad():
        return model(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("real", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", [28, 29, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_forward(side, channels, real):
    net = ("lenet5", channels, 7)
    x, _ = client(net, n=23, side=side)
    theta = flat(network(net).parameters()).numpy().astype(real)
    mean, std = MEAN[:channels], STD[:channels]
    inputs = picture(net, x, mean, std, torch.float64 if real == np.float64 else torch.float32)
    found = fused_forward(net, theta, x, mean=mean, std=std)
    np.testing.assert_allclose(found, _logits(net, theta, inputs.numpy()), atol=LIMIT[real])
    assert fused_forward(net, theta, x[:0], mean=mean, std=std).shape == (0, 7)


@pytest.mark.parametrize("net", [LENET, MLP], ids=["lenet5", "mlp"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_samples_show(net, bad):
    x, y = client(net, kind="float32")
    x[3].reshape(-1)[5] = bad
    order = draw_order(len(x), 3, 10)
    order[order == 3] = 4
    theta = flat(network(net).parameters()).numpy().astype(np.float32)
    assert np.isfinite(fused_fit(net, theta, x, y, order, lr=0.1).theta).all()
    order[0, 0] = 3
    fit = fused_fit(net, theta, x, y, order, lr=0.1)
    assert np.isnan(fit.theta).mean() > 0.9 and np.isnan(fit.loss[0])
    assert np.isnan(fused_forward(net, theta, x)[3]).all()


def test_empty_steps_and_no_samples_change_nothing():
    x, y = client(LENET, n=5)
    theta = flat(network(LENET).parameters()).numpy().astype(np.float32)
    nothing = np.full((4, 3), -1)
    fit = fused_fit(LENET, theta, x, y, nothing, lr=0.1, momentum=0.9, weight_decay=0.1, epoch_steps=2)
    assert np.array_equal(fit.theta, theta) and np.isnan(fit.loss).all() and len(fit.loss) == 2
    fit = fused_fit(LENET, theta, x[:0], y[:0], nothing, lr=0.1)
    assert np.array_equal(fit.theta, theta)
    fit = fused_fit(LENET, theta, x, y, nothing[:0], lr=0.1)
    assert np.array_equal(fit.theta, theta) and len(fit.loss) == 0


def test_constant_images_have_ties_in_every_window():
    x, y = np.full((6, 32, 32, 3), 90, np.uint8), np.arange(6)
    compare(LENET, np.float32, x, y, draw_order(6, 10, 3), lr=0.05, momentum=0.5)


def test_threads_give_the_same_bytes():
    x, y = client(LENET)
    order = draw_order(len(x), 10, 10)
    theta = flat(network(LENET).parameters()).numpy().astype(np.float32)

    def run(_):
        return fused_fit(LENET, theta, x, y, order, lr=0.1, momentum=0.5, mean=MEAN, std=STD).theta.tobytes()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(run, range(4)))) == 1


@pytest.mark.slow  # it compiles all kernels of the network once more
def test_other_compilation_gives_the_same_bytes(tmp_path):
    """Compiled or from the cache, for 256-bit or 512-bit vectors: what the optimizer made of it must not show."""
    script = """if True:
        import hashlib
        import numpy as np
        from fnlkit.kernels.fused import fused_fit
        rng = np.random.default_rng(0)
        theta = rng.normal(size=40 * 51 + 7 * 41).astype("f4") / 9
        x, y = rng.normal(size=(30, 50)).astype("f4"), rng.integers(0, 7, 30)
        order = np.stack([rng.permutation(30)[:7] for _ in range(20)])
        fit = fused_fit(("mlp", (50, 40, 7)), theta, x, y, order, lr=0.1, momentum=0.9, weight_decay=0.01)
        print(hashlib.sha256(fit.theta.tobytes()).hexdigest())
    """
    fresh = {"NUMBA_CACHE_DIR": str(tmp_path)}
    if platform.machine() == "x86_64":
        # The first with 256-bit vectors and fused multiply-add, and no more than it has.
        fresh |= {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""}
    found = {subprocess.check_output([sys.executable, "-c", script], env={**os.environ, **where}) for where in ({}, fresh)}
    assert len(found) == 1


@pytest.mark.parametrize(
    "change, words",
    [
        ({"net": ("resnet18", 3, 10)}, "other networks"),
        ({"net": ("lenet5", 2, 10)}, "1 or 3"),
        ({"theta": np.zeros(5, np.float32)}, "62,006"),
        ({"theta": np.zeros(62006, np.int64)}, "float32 or float64"),
        ({"x": np.zeros((4, 20, 20, 3), np.uint8)}, "28 ... 32"),
        ({"x": np.zeros((4, 32, 32, 3), np.int64)}, "uint8 or float"),
        ({"y": np.array([0, 1, 2, 10])}, "0 ... 9"),
        ({"y": np.array([0, 1, 2])}, "(4)"),
        ({"y": np.array([0.5, 1, 2, 3])}, "integers"),
        ({"order": np.array([[0, 4]])}, "`order`"),
        ({"lr": np.zeros(3)}, "`lr`"),
        ({"std": (0.1, 0.2, 0.3)}, "passed together"),
        ({"mean": (0.1, 0.2, 0.3), "std": (0.0, 0.2, 0.3)}, "positive"),
        ({"loss": FusedLoss("focal")}, "one of"),
        ({"loss": FusedLoss("forward")}, "needs `matrix`"),
        ({"loss": FusedLoss("peer")}, "either"),
        ({"loss": FusedLoss("distill", temperature=0.0)}, "temperature"),
        ({"loss": FusedLoss("distill", towards="both")}, "towards"),
        ({"loss": FusedLoss("mixture", local=np.zeros((4, 10)), seen=np.zeros(4, bool))}, "in place"),
        ({"loss": FusedLoss(choice="largest")}, "one of"),
        ({"loss": FusedLoss(choice="exchanged")}, "a pair"),
        ({"loss": FusedLoss(choice="smallest", forget=1.0)}, "`forget`"),
        ({"loss": FusedLoss(offset=np.full(10, -np.inf))}, "at least one class"),
        ({"loss": FusedLoss(centroids=np.zeros((10, 5)))}, "(10, 84)"),
        ({"loss": FusedLoss(guesses=np.zeros((4, 3), np.int64))}, "needs `counts`"),
        ({"loss": FusedLoss(history=np.zeros((4, 3, 10)), counts=np.zeros(4, np.int64))}, "in place"),
        ({"loss": FusedLoss(pseudo=np.array([0, 1, 2, 10]))}, "`pseudo`"),
        ({"augment": FusedAugment(shift=np.full((1, 2, 2), 9), pad=4)}, "0 ... 8"),
        ({"mixup": (np.array([[0, 5]]), np.ones(1))}, "columns"),
        ({"order": np.array([[0, -1]]), "mixup": (np.array([[1, 1]]), np.ones(1))}, "empty place"),
        ({"epoch_steps": 0}, "at least 1"),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value,
)
def test_mistakes_are_named(change, words):
    theta, x = np.zeros(62006, np.float32), np.zeros((4, 32, 32, 3), np.uint8)
    good = {"net": LENET, "theta": theta, "x": x, "y": np.arange(4), "order": np.array([[0, 1]]), "lr": 0.1}
    with pytest.raises(InputError) as caught:
        fused_fit(**{**good, **change})
    assert words in str(caught.value)


def test_augmenting_vectors_is_a_mistake():
    with pytest.raises(InputError, match="images"):
        flip = FusedAugment(flip=np.ones((1, 2), bool))
        labels, order = np.array([0, 1]), np.array([[0, 1]])
        fused_fit(("mlp", (3, 2)), np.zeros(8), np.ones((2, 3)), labels, order, lr=0.1, augment=flip)
