"""``python -m benchmarks.gpu``: local training on one GPU, compared with a naive eager loop on the same device.

A measurement is one round of FedAvg over ten equal clients: one local epoch, batch 10, crop and flip.  The naive loop does
the same as public code: clients are trained sequentially, samples are normalized and augmented on the device with separate
kernels, and PyTorch uses default settings (convolutions in TF32).  "stack" uses convolutions with K groups, "products" uses
matrix products, and "branches" uses K parallel convolutions; a star marks the engine's default for the network.  The column
"of memory" is the smallest possible traffic of weights, gradients and momentum in a step (seven times the size of the
weights), divided by the bandwidth of a large copy in the same run.  Times are medians over rounds, after two warm-up rounds.

``--only TEXT`` selects rows.  ``--profile`` prints the kernels of a round that take most of the time.

Floor of a ResNet-18 step of 10 clients x 10 samples under bf16: 331 GFLOP in convolutions (0.33 ms at the 989 TFLOP/s of an
H100) and 2.9 GB of weights (read in bf16 twice; gradients written and read in bf16; weights and momentum read and written in
fp32; weights written in bf16), 0.97 ms at 2.99 TB/s.  Activations are 0.12 GB in bf16 and are read or written about twenty
times; most of it stays in the 50 MB cache.  1.3 ms a step are 77,000 samples/s.
"""

import argparse
import statistics
import sys
import time
import types
from functools import partial
from unittest import mock

import numpy as np
import torch
from torch.nn import functional as F

from fnlkit.federated import engines
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Augment, Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit, plan
from fnlkit.federated.engines import graphs as recordings
from fnlkit.federated.engines.forward import FORMS
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

    def __init__(self, name, count, device, precision, graphs=True, form=None):
        x, y = data(count)
        inputs = Inputs(True, MEAN, STD, torch.float32, device)
        clients = [Client(k, x[k], y[k].clone(), y[k], 10, inputs) for k in range(CLIENTS)]
        module = build(name, input_shape=(3, 32, 32), classes=10)
        network = Network(module, device=device, precision=precision)
        self.fed, self.model = engines.make("stacked", clients, network, inputs), Model(network, network.flat.clone())
        self.fed.engine.graphs.broken = not graphs
        self.ways = recordings.ways if form is None else lambda training: (form,)
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


def default_form(job):
    """Return the form of recording that the engine selects for a network."""
    return recordings.ways(types.SimpleNamespace(network=job.fed.network))[0] if isinstance(job, Stacked) else None


def profile(job, rows=40):
    """Return a table of the kernels of a round, without the first rounds: milliseconds, calls, microseconds per call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        job.round(0)
        torch.cuda.synchronize()
    events = sorted(trace.key_averages(), key=lambda e: -e.device_time_total)
    lines = [f"{sum(e.device_time_total for e in events) / 1e3:10.2f} ms in {sum(e.count for e in events)} kernels"]
    for e in events[:rows]:
        lines.append(f"{e.device_time_total / 1e3:10.2f}{e.count:8}{e.device_time_total / e.count:9.1f}  {e.key[:110]}")
    return "\n".join(lines)


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
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows that contain one of these texts")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take most of the time")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu needs a CUDA device; this machine has none")
    memory = bandwidth()
    print(f"{torch.cuda.get_device_name()}, copies at {memory / 1e12:.2f} TB/s; torch {torch.__version__}", flush=True)
    for name in options.models:
        jobs = {"naive eager": partial(Naive, name, options.samples, "cuda")}
        for precision in ("fp32", "tf32", "bf16"):
            for form in FORMS:
                jobs[f"stacked {precision}, {form}"] = partial(Stacked, name, options.samples, "cuda", precision, form=form)
        jobs["stacked tf32, no graphs"] = partial(Stacked, name, options.samples, "cuda", "tf32", graphs=False)
        print(f"\n{name}, batch {BATCH}, {CLIENTS} clients of {options.samples} samples", flush=True)
        print(f"{'':26}{'samples/s':>10}{'x naive':>9}{'ms per step':>12}{'of memory':>11}")
        first = None
        for label, make in jobs.items():
            if not any(text in label for text in options.only):
                continue
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
            label += " *" if label.endswith(f", {default_form(job)}") else ""
            print(f"{label:26}{rate:10,.0f}{rate / first:9.2f}{step * 1e3:12.2f}{share:11.0%}", flush=True)
            for note in getattr(getattr(job, "fed", None), "notes", ()):
                print(f"    {note}")
            if options.profile:
                print(profile(job), flush=True)
            del job
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
