"""``python -m benchmarks.fused``: samples/s of the fused kernel and of an eager PyTorch loop, one thread each.

Both train on the same batches of data in memory, from the same weights, with momentum SGD.  Runs are interleaved, and the
output shows medians with quartiles.  The eager loop indexes normalized tensors and uses torch.optim.SGD without foreach or
fused variants; the augmentation is that of `fnlkit.client.inputs`.  ``--quick`` reduces the repetitions; ``--cpu-time``
measures CPU time of the process, for a machine with other load.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

from fnlkit.client.inputs import Augment, Inputs
from fnlkit.kernels.fused import FusedAugment, FusedLoss, fused_fit, fused_forward

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def module(net):
    """Return the torch network for a fused description."""
    if net[0] == "lenet5":
        layers = [nn.Conv2d(net[1], 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, net[2])]
        return nn.Sequential(*layers)
    layers = [nn.Flatten()]
    for width, units in zip(net[1], net[1][1:], strict=False):
        layers += [nn.Linear(width, units), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def interleaved(jobs, repeats, clock):
    """Return the quartiles of each job's samples/s, (jobs, 3); a job returns the number of processed samples."""
    rates = np.zeros((repeats, len(jobs)))
    for r in range(repeats + 1):
        for j, job in enumerate(jobs):
            started = clock()
            samples = job()
            if r:  # the first repetition is a warm-up
                rates[r - 1, j] = samples / (clock() - started)
    return np.quantile(rates, [0.25, 0.5, 0.75], axis=0).T


def training(net, batch, steps, *, augment=None, mixture=False):
    """Return the fused job, the eager job, and a function for the largest difference of their weights."""
    rng = np.random.default_rng(0)
    channels, classes = (net[1], net[2]) if net[0] == "lenet5" else (1, net[1][-1])
    shape = (500, 32, 32, channels) if net[0] == "lenet5" else (500, 28, 28, 1)
    x, y = rng.integers(0, 256, shape, dtype=np.uint8), rng.integers(0, classes, 500)
    order = np.concatenate([rng.permutation(500)[: 500 // batch * batch] for _ in range(-(-steps * batch // 500) + 1)])
    order = order[: steps * batch].reshape(steps, batch)
    torch.manual_seed(0)
    model, teacher = module(net), module(net)
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()
    nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), teacher.parameters())
    normal = {"mean": MEAN[:channels], "std": STD[:channels]}
    inputs = Inputs(True, **normal)
    raw, labels = torch.from_numpy(x), torch.from_numpy(y)
    ready = inputs.plain(raw)
    drawn = (None, None, None) if augment is None else augment.draw(rng, order.shape, shape[1:3])
    results = {}

    def fused():
        loss, chosen = FusedLoss(), None
        if mixture:
            memory = {name: np.zeros((500, classes), np.float32) for name in ("server", "local")}
            memory["seen"] = np.zeros(500, bool)
            loss = FusedLoss("mixture", strength=2.0, alpha=0.5, beta=0.7, gamma=0.5, **memory)
        if augment is not None:
            chosen = FusedAugment(drawn[0], augment.pad, drawn[1])
        fit = fused_fit(net, theta, x, y, order, lr=0.01, momentum=0.5, loss=loss, augment=chosen, **normal)
        results["fused"] = fit.theta
        return order.size

    def eager():
        nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=False)
        server, local, seen = torch.zeros(500, classes), torch.zeros(500, classes), torch.zeros(500, dtype=torch.bool)
        for t, index in enumerate(torch.from_numpy(order)):
            if augment is None:
                batch = ready[index]
            else:
                shift, flip = torch.from_numpy(drawn[0][t]), torch.from_numpy(drawn[1][t])
                batch = inputs.augment_images(raw[index], augment, shift, flip, None)
            optimizer.zero_grad()
            logits = model(batch)
            loss = nn.functional.cross_entropy(logits, labels[index])
            if mixture:
                with torch.no_grad():
                    known, now, p = seen[index, None], teacher(batch).softmax(1), logits.softmax(1)
                    server[index] = torch.where(known, 0.7 * server[index] + 0.3 * now, now)
                    local[index] = torch.where(known, 0.5 * local[index] + 0.5 * p, p)
                    seen[index] = True
                    target = 0.5 * server[index] + 0.5 * local[index]
                along = (logits.softmax(1) * target).sum(1)
                loss = loss + 2 * (1 - along).clamp_min(1e-4).log().mean()
            loss.backward()
            optimizer.step()
        results["eager"] = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
        return order.size

    return fused, eager, lambda: np.abs(results["fused"] - results["eager"]).max()


def scoring(net, samples):
    """Return jobs that compute the logits of a test set, and a function for their largest difference."""
    x = np.random.default_rng(0).integers(0, 256, (samples, 32, 32, net[1]), dtype=np.uint8)
    torch.manual_seed(0)
    model = module(net)
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().copy()
    ready = Inputs(True, mean=MEAN, std=STD).plain(torch.from_numpy(x))
    results = {}

    def fused():
        results["fused"] = fused_forward(net, theta, x, mean=MEAN, std=STD)
        return samples

    def eager():
        with torch.inference_mode():
            results["eager"] = torch.cat([model(part) for part in ready.split(100)]).numpy()
        return samples

    return fused, eager, lambda: np.abs(results["fused"] - results["eager"]).max()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    repeats = 3 if options.quick else 9
    clock = time.process_time if options.cpu_time else time.perf_counter
    torch.set_num_threads(1)
    lenet, perceptron = ("lenet5", 3, 10), ("mlp", (784, 200, 100, 10))
    settings = {
        "LeNet-5, batch 10": lambda: training(lenet, 10, 100),
        "LeNet-5, batch 10, crop + flip": lambda: training(lenet, 10, 100, augment=Augment(pad=4, flip=True)),
        "LeNet-5, batch 10, label mixture": lambda: training(lenet, 10, 100, mixture=True),
        "LeNet-5, batch 32": lambda: training(lenet, 32, 30),
        "LeNet-5, batch 10, 100 classes": lambda: training(("lenet5", 3, 100), 10, 100),
        "LeNet-5 gray, batch 10": lambda: training(("lenet5", 1, 10), 10, 100),
        "MLP 784-200-100-10, batch 10": lambda: training(perceptron, 10, 100),
        "MLP 784-200-100-10, batch 64": lambda: training(perceptron, 64, 30),
        "LeNet-5, scoring": lambda: scoring(lenet, 2000),
    }
    print(f"torch {torch.__version__}, one thread; samples/s, median (quartiles)")
    print(f"{'':34}{'fused':>27}{'eager':>27}{'ratio':>8}{'difference':>12}")
    for name, prepare in settings.items():
        fused, eager, apart = prepare()
        rates = interleaved((fused, eager), repeats, clock)
        shown = "".join(f"{f'{middle:,.0f} ({low:,.0f} - {high:,.0f})':>27}" for low, middle, high in rates)
        print(f"{name:34}{shown}{rates[0, 1] / rates[1, 1]:8.2f}{apart():12.1e}", flush=True)


if __name__ == "__main__":
    main()
