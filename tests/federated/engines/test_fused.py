"""The compiled networks alone: any perceptron against a plain PyTorch loop, predictions, ties, NaN, no samples, mistakes.

Losses, drift terms, augmentation and mixup are compared with PyTorch through the engine, in test_engines.py.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fnlkit._kernels.fused import tile
from fnlkit.core.errors import InputError
from fnlkit.kernels.fused import FusedAugment, FusedCohort, FusedSteps, fused_fit, fused_forward, fused_parameters
from tests.commands import refuse_call

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
LIMIT = {np.float32: 1e-5, np.float64: 1e-9}
CLASSES = 10
LENET, MLP = ("lenet5", 3, CLASSES), ("mlp", (30, 37, 20, 7))


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


def inputs_of(net, x, mean=(), std=()):
    """Return the network's input of raw samples x: scaled, and images with channels first, padded to 32 pixels."""
    batch = torch.from_numpy(x).double() / (255 if x.dtype == np.uint8 else 1)
    if net[0] == "mlp":
        return batch
    batch = ((batch - torch.tensor(mean or 0.0)) / torch.tensor(std or 1.0)).movedim(-1, 1)
    rows, columns = 32 - x.shape[1], 32 - x.shape[2]
    return F.pad(batch, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))


def reference(net, theta, x, y, order, *, lr, momentum):
    """Return the weights after a plain loop over the steps."""
    model = network(net, torch.from_numpy(theta).dtype)
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    inputs, labels = inputs_of(net, x).to(model[-1].weight.dtype), torch.from_numpy(y)
    for row in order:
        if len(index := row[row >= 0]):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[index]), labels[index]).backward()
            optimizer.step()
    return flat(model.parameters()).numpy()


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


def test_a_pair_in_steps_trains_as_its_networks_alone():
    """`forward` and `backward` with the gradient of the cross entropy do what `train` does, in threads and ragged batches.

    `backward` computes the next step's results where other clients take it, too.
    """
    rng, single, steps, n = np.random.default_rng(0), ("mlp", (6, 5, 3)), 7, 12
    x, y = rng.random((n, 6)), rng.integers(0, 3, n)
    order = np.stack([rng.permutation(n)[:4] for _ in range(2 * steps)]).reshape(2, steps, 4)
    order[1, 2, 3] = -1
    theta = rng.normal(0, 0.4, (2, 2 * fused_parameters(single)))
    descent = FusedSteps(0.1, momentum=0.9, weight_decay=0.01, proximal=[0.1, 0.2], proximal_norm=0.1, epoch_steps=3)
    alone = []
    for each, pull, batches in zip(theta, descent.proximal, order, strict=True):
        alone += [fused_fit(single, half, x, y, batches, descent._replace(proximal=pull)) for half in each.reshape(2, -1)]
    with ThreadPoolExecutor(2) as threads:
        cohort = FusedCohort(("pair", single), theta, x, order, descent, threads=threads, workers=2)
        groups = [(np.arange(2), step) for step in range(steps)]
        groups[2:3] = [(np.array([0]), 2), (np.array([1]), 2)]
        groups = [(who, np.full(len(who), step), (order[who, step] >= 0).sum(1).min()) for who, step in groups]
        results = cohort.forward(*groups[0])
        for (who, at, size), following in zip(groups, [*groups[1:], None], strict=True):
            logits = torch.from_numpy(results).requires_grad_()
            labels = torch.from_numpy(y[order[who, at, :size]]).repeat_interleave(2, 0)
            F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none").mean(-1).sum().backward()
            results = cohort.backward(who, at, logits.grad.numpy(), then=following)
    np.testing.assert_allclose(cohort.weights.reshape(4, -1), alone, rtol=1e-12, atol=1e-12)
    refuse_call("layer of 5 inputs", FusedCohort, single, np.zeros((2, fused_parameters(single) + 7)), x, order, descent)


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
    want = reference(net, theta, x, y, order, lr=0.05, momentum=0.9)
    found = fused_fit(net, theta.astype(np.float32), x, y, order, FusedSteps(0.05, momentum=0.9))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    forward = fused_forward(net, want.astype(np.float32), x)
    np.testing.assert_allclose(forward, logits_of(net, want, x), rtol=1e-4, atol=1e-4)


def logits_of(net, theta, x, mean=(), std=()):
    model = network(net)
    nn.utils.vector_to_parameters(torch.from_numpy(theta).double(), model.parameters())
    with torch.no_grad():
        return model(inputs_of(net, x, mean, std)).numpy()


@pytest.mark.parametrize("real", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("side", [28, 29, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_forward(side, channels, real):
    net = ("lenet5", channels, 7)
    x, _ = client(net, n=23, side=side)
    theta = flat(network(net).parameters()).numpy().astype(real)
    normal = {"mean": MEAN[:channels], "std": STD[:channels]}
    np.testing.assert_allclose(fused_forward(net, theta, x, **normal), logits_of(net, theta, x, **normal), atol=LIMIT[real])
    assert fused_forward(net, theta, x[:0], **normal).shape == (0, 7)


@pytest.mark.parametrize("net", [LENET, MLP], ids=["lenet5", "mlp"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_bad_samples_show(net, bad):
    x, y = client(net, kind="float32")
    x[3].reshape(-1)[5] = bad
    order = draw_order(len(x), 3, 10)
    order[order == 3] = 4
    theta = flat(network(net).parameters()).numpy().astype(np.float32)
    assert np.isfinite(fused_fit(net, theta, x, y, order, FusedSteps(0.1))).all()
    order[0, 0] = 3
    assert np.isnan(fused_fit(net, theta, x, y, order, FusedSteps(0.1))).mean() > 0.9
    assert np.isnan(fused_forward(net, theta, x)[3]).all()


def test_empty_steps_and_no_samples_change_nothing():
    x, y = client(LENET, n=5)
    theta = flat(network(LENET).parameters()).numpy().astype(np.float32)
    nothing = np.full((4, 3), -1)
    steps = FusedSteps(0.1, momentum=0.9, weight_decay=0.1, epoch_steps=2)
    for order, count in ((nothing, 5), (nothing, 0), (nothing[:0], 5)):
        assert np.array_equal(fused_fit(LENET, theta, x[:count], y[:count], order, steps), theta)


def test_constant_images_have_ties_in_every_window():
    x, y = np.full((6, 32, 32, 3), 90, np.uint8), np.arange(6)
    theta, order = flat(network(LENET).parameters()).numpy().astype(np.float32), draw_order(6, 10, 3)
    want = reference(LENET, theta.astype(np.float64), x, y, order, lr=0.05, momentum=0.5)
    np.testing.assert_allclose(fused_fit(LENET, theta, x, y, order, FusedSteps(0.05, momentum=0.5)), want, atol=1e-5)


def test_threads_give_the_same_bytes():
    x, y = client(LENET)
    order = draw_order(len(x), 10, 10)
    theta = flat(network(LENET).parameters()).numpy().astype(np.float32)

    def run(_):
        return fused_fit(LENET, theta, x, y, order, FusedSteps(0.1, momentum=0.5), mean=MEAN, std=STD).tobytes()

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(run, range(4)))) == 1


@pytest.mark.parametrize("change, words", [
    ({"net": ("resnet18", 3, 10)}, "other networks"),
    ({"net": ("lenet5", 2, 10)}, "1 or 3"),
    ({"theta": np.zeros(5, np.float32)}, "62,006"),
    ({"x": np.zeros((4, 20, 20, 3), np.uint8)}, "28 ... 32"),
    ({"y": np.array([0, 1, 2, 10])}, "0 ... 9"),
    ({"y": np.array([0, 1, 2])}, "one label per sample"),
    ({"order": np.array([[0, 4]])}, "`order`"),
    ({"offset": np.array([-1])}, "`offset`"),
    ({"steps": FusedSteps(0.1, linear=np.zeros((1, 5), np.float32))}, "`linear`"),
    ({"steps": FusedSteps(0.1, optimizer="lion")}, "sgd or adam"),
    ({"std": (0.1, 0.2, 0.3)}, "passed together"),
    ({"mean": (0.1, 0.2, 0.3), "std": (0.0, 0.2, 0.3)}, "positive"),
    ({"targets": {"soft": np.zeros((4, 3))}}, "`soft`"),
    ({"targets": {"keep": np.zeros(3)}}, "`keep`"),
    ({"augment": FusedAugment(shift=np.full((1, 1, 2, 2), 9), pad=4)}, "0 ... 8"),
    ({"augment": FusedAugment(partner=np.array([[[0, 5]]]), share=np.ones((1, 1)))}, "columns"),
    ({"order": np.array([[0, -1]]), "augment": FusedAugment(partner=np.ones((1, 1, 2), int), share=np.ones((1, 1)))},
     "empty place"),
], ids=lambda value: "" if isinstance(value, dict) else value)  # fmt: skip
def test_mistakes_are_named(change, words):
    theta, x = np.zeros(62006, np.float32), np.zeros((4, 32, 32, 3), np.uint8)
    good = {"net": LENET, "theta": theta, "x": x, "y": np.arange(4), "order": np.array([[0, 1]]), "steps": FusedSteps(0.1)}
    with pytest.raises(InputError) as caught:
        fused_fit(**{**good, **change})
    assert words in str(caught.value)


@pytest.mark.parametrize("most", [24, 6])
def test_parts_of_a_block_contain_each_accumulator_once_and_fit_the_registers(monkeypatch, most):
    monkeypatch.setattr(tile, "_ACCUMULATORS", most)
    for rows, columns in ((5, 4), (5, 1), (5, 2), (6, 4), (20, 1), (7, 1)):
        parts = tile.parts(rows, columns)
        assert sorted(sum(parts, [])) == [(m, v) for m in range(rows) for v in range(columns)]
        assert max(map(len, parts)) <= most
