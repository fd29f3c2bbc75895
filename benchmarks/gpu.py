"""``python -m benchmarks.gpu``: local training on one GPU, compared with a naive eager loop on the same device.

A measurement is one round of FedAvg over ten equal clients: one local epoch, batch 10, crop and flip.  The naive loop does
the same as public code: clients are trained sequentially, samples are normalized and augmented on the device with separate
kernels, and PyTorch uses default settings (convolutions in TF32).  "one stack" uses convolutions with K groups, "branches"
uses K parallel convolutions, and the other stacked rows use the engine's default for the network.  The column "of memory"
is the smallest possible traffic of weights, gradients and momentum in a step (seven times the size of the weights), divided
by the bandwidth of a large copy in the same run.  Times are medians over rounds, after two warm-up rounds.
"""

import argparse
import statistics
import sys
import time
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as F

from fnlkit import engines
from fnlkit.client.client import Client
from fnlkit.client.inputs import Augment, Inputs
from fnlkit.client.network import Model, Network
from fnlkit.client.training import Fit, plan
from fnlkit.engines import graphs as recordings
from fnlkit.models import build

CLIENTS, BATCH, MEAN, STD = 10, 10, (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
AUGMENT = Augment(pad=4, flip=True)
TRANSFERS = 7  # weights are read twice and written, gradients written and read, momentum read and written


def data(count):
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (CLIENTS, count, 32, 32, 3), dtype=np.uint8))
    return x, torch.from_numpy(rng.integers(0, 10, (CLIENTS, count)))


class Naive:
    """Eager PyTorch, client by client."""

    def __init__(self, name, count, device):
        self.x, self.y = (part.to(device) for part in data(count))
        self.inputs = Inputs(True, MEAN, STD, torch.float32, device)
        self.network, self.fit = build(name, input_shape=(3, 32, 32), classes=10).to(device), Fit(epochs=1, augment=AUGMENT)
        self.start = {k: v.clone() for k, v in self.network.state_dict().items()}

    def round(self, turn):
        for k in range(CLIENTS):
            self.network.load_state_dict(self.start, strict=False)
            optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.5)
            draws = plan(len(self.y[k]), self.fit, seed=0, round=turn, client=k, image=(32, 32))
            order, shift, flip = (torch.from_numpy(v).to(self.x.device) for v in (draws.order, draws.shift, draws.flip))
            for index, moved, mirrored in zip(order, shift, flip, strict=True):
                x = self.inputs.augment_images(self.x[k][index], AUGMENT, moved, mirrored, None)
                optimizer.zero_grad()
                F.cross_entropy(self.network(x), self.y[k][index]).backward()
                optimizer.step()


class Stacked:
    """One round of the stacked engine."""

    def __init__(self, name, count, device, precision, graphs=True, branched=None):
        x, y = data(count)
        inputs = Inputs(True, MEAN, STD, torch.float32, device)
        clients = [Client(k, x[k], y[k].clone(), y[k], 10, inputs) for k in range(CLIENTS)]
        module = build(name, input_shape=(3, 32, 32), classes=10)
        network = Network(module, device=device, precision=precision)
        self.fed, self.model = engines.make("stacked", clients, network, inputs), Model(network, network.flat.clone())
        self.fed.engine.graphs.broken = not graphs
        self.ways = recordings.ways if branched is None else lambda training: (branched,)
        self.fit = Fit(epochs=1, batch_size=BATCH, lr=0.01, augment=AUGMENT)

    def round(self, turn):
        with mock.patch.object(recordings, "ways", self.ways):
            self.fed.round(range(CLIENTS), self.model, self.fit)


def seconds(job, repeats):
    """Return the median seconds of a round."""
    times = []
    for turn in range(repeats + 2):
        torch.cuda.synchronize()
        started = time.perf_counter()
        job.round(turn)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[2:])


def bandwidth(size=2**32):
    """Return the bandwidth in bytes/s of a copy within the device; reads and writes are counted."""
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return 2 * size / statistics.median(times[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["resnet18", "lenet5", "resnet20"])
    parser.add_argument("--samples", type=int, default=200, help="samples per client")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs a CUDA device; this machine has none")
    memory = bandwidth()
    print(f"{torch.cuda.get_device_name()}, copies at {memory / 1e12:.2f} TB/s; torch {torch.__version__}", flush=True)
    for name in options.models:
        jobs = {"naive eager": lambda name=name: Naive(name, options.samples, "cuda")}
        for precision in ("fp32", "tf32", "bf16"):
            jobs[f"stacked {precision}"] = lambda name=name, p=precision: Stacked(name, options.samples, "cuda", p)
        for label, way in (("one stack", False), ("branches", True)):
            jobs[f"stacked tf32, {label}"] = lambda name=name, w=way: Stacked(name, options.samples, "cuda", "tf32", branched=w)
        jobs["stacked tf32, no graphs"] = lambda name=name: Stacked(name, options.samples, "cuda", "tf32", graphs=False)
        print(f"\n{name}, batch {BATCH}, {CLIENTS} clients of {options.samples} samples", flush=True)
        print(f"{'':26}{'samples/s':>10}{'x naive':>9}{'ms per step':>12}{'of memory':>11}")
        first = None
        for label, make in jobs.items():
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True  # PyTorch's defaults
            torch.backends.cudnn.deterministic = False
            job = make()
            rate = CLIENTS * options.samples / seconds(job, options.repeats)
            first = first or rate
            clients = 1 if label == "naive eager" else CLIENTS
            step = clients * BATCH / rate
            network = job.network if label == "naive eager" else job.fed.network.module
            weights = 4 * sum(p.numel() for p in network.parameters())
            share = TRANSFERS * weights * clients / memory / step
            print(f"{label:26}{rate:10,.0f}{rate / first:9.2f}{step * 1e3:12.2f}{share:11.0%}", flush=True)
            for note in getattr(getattr(job, "fed", None), "notes", ()):
                print(f"    {note}")
            del job
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
