"""``python -m benchmarks.training``: local training on the CPU with fnlkit and eager PyTorch.

A measurement is one round of FedAvg over a cohort of equal clients: one local epoch, momentum SGD.  Eager PyTorch trains the
same clients on normalized float tensors in memory, in this process on one thread, and in two processes with one thread each.
All variants are interleaved.  The output shows medians with quartiles, and ratios of medians.  The second group of columns is
the work per CPU second of all processes of a variant.  On a machine with other load this is the more reliable figure, but it
does not show how well the cores are used.
"""

import argparse
import contextlib
import multiprocessing
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fnlkit.federated import engines
from fnlkit.federated.client.client import Client
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.client.training import Fit
from fnlkit.federated.server.optimizers.fedavg import fedavg
from fnlkit.models import build

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
# network: input shape, samples per client, clients per round, batch size, engines
SETTINGS = {
    "lenet5": ((3, 32, 32), 500, 10, 10, ("fused", "workers", "stacked", "sequential")),
    "resnet20": ((3, 32, 32), 64, 4, 32, ("workers", "workers bf16")),
    "cnn9": ((1, 28, 28), 128, 2, 32, ("workers", "workers bf16")),
}


def data(shape, count, clients):
    """Return images (clients, n, H, W, C) uint8 and labels (clients, n)."""
    rng = np.random.default_rng(0)
    c, h, w = shape
    x = rng.integers(0, 256, (clients, count, h, w, c), dtype=np.uint8)
    return torch.from_numpy(x), torch.from_numpy(rng.integers(0, 10, (clients, count)))


class Eager:
    """The plain loop over clients, also used by each of two processes."""

    def __init__(self, name, shape, count, clients, batch, channels_last):
        torch.set_num_threads(1)
        x, self.y = data(shape, count, clients)
        self.x = x.movedim(-1, -3).float().div_(255).sub_(0.5).div_(0.25)
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.network, self.batch = build(name, input_shape=shape, classes=10).to(memory_format=self.layout), batch
        self.state = {k: v.clone() for k, v in self.network.state_dict().items()}

    def train(self, clients):
        for k in clients:
            self.network.load_state_dict(self.state, strict=False)
            optimizer = torch.optim.SGD(self.network.parameters(), lr=0.03, momentum=0.5)
            for index in torch.randperm(len(self.y[k])).split(self.batch):
                optimizer.zero_grad()
                x = self.x[k, index].contiguous(memory_format=self.layout)
                F.cross_entropy(self.network(x), self.y[k, index]).backward()
                optimizer.step()

    def close(self):
        pass


def _serve(pipe, arguments):
    loop = Eager(*arguments)
    while clients := pipe.recv():
        loop.train(clients)
        pipe.send(True)


class Processes:
    """Two processes that share the clients of a round."""

    def __init__(self, *arguments):
        context, self.pipes = multiprocessing.get_context("spawn"), []
        for _ in range(2):
            ours, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, arguments), daemon=True).start()
            self.pipes.append(ours)

    def train(self, clients):
        for part, pipe in enumerate(self.pipes):
            pipe.send(clients[part::2])
        for pipe in self.pipes:
            pipe.recv()

    def close(self):
        for pipe in self.pipes:
            pipe.send([])


class Ours:
    """A round of an engine, including aggregation."""

    def __init__(self, engine, name, shape, count, clients, batch):
        engine, _, precision = engine.partition(" ")
        channels = shape[0]
        x, y = data(shape, count, clients)
        inputs = Inputs(True, MEAN[:channels], STD[:channels])
        held = [Client(k, x[k], y[k].clone(), y[k], 10, inputs) for k in range(clients)]
        network = Network(build(name, input_shape=shape, classes=10), precision=precision)
        self.fed, self.model = engines.make(engine, held, network, inputs), Model(network, network.flat.clone())
        self.opt = fedavg(Fit(epochs=1, batch_size=batch, lr=0.03, momentum=0.5))

    def train(self, clients):
        self.opt.round(self.fed, clients, self.model)

    def close(self):
        self.fed.close()


def interleaved(jobs, clients, samples, repeats):
    """Return samples/s and samples per CPU second, (repeats,) each, for each job, after one warm-up round."""
    rates = {name: ([], []) for name in jobs}
    for repeat in range(repeats + 1):
        for name, job in jobs.items():
            wall, busy = time.perf_counter(), processor_seconds()
            job.train(clients)
            if repeat:
                rates[name][0].append(samples / (time.perf_counter() - wall))
                rates[name][1].append(samples / (processor_seconds() - busy))
    return rates


def processor_seconds():
    """Return the CPU seconds of this process and of all processes that descend from it and live."""
    total, todo = time.process_time(), [os.getpid()]
    while todo:
        pid = todo.pop()
        children = [int(p) for task in Path(f"/proc/{pid}/task").glob("*/children") for p in task.read_text().split()]
        for child in children:
            fields = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        todo += children
    return total


def local(name, repeats):
    """Print samples/s and samples per CPU second of each variant for one network."""
    shape, count, clients, batch, ours = SETTINGS[name]
    layouts = (False,) if name == "lenet5" else (False, True)
    peak = sgemm()  # before other threads exist
    jobs = {}
    for last in layouts:
        suffix = " channels_last" if last else ""
        jobs[f"eager{suffix}, 1 thread"] = Eager(name, shape, count, clients, batch, last)
        jobs[f"eager{suffix}, 2 processes"] = Processes(name, shape, count, clients, batch, last)
    jobs |= {engine: Ours(engine, name, shape, count, clients, batch) for engine in ours}
    rates = interleaved(jobs, list(range(clients)), clients * count, repeats)
    for job in jobs.values():
        job.close()
    middles = {job: [np.median(v) for v in both] for job, both in rates.items()}
    first = middles["eager, 1 thread"]
    best = [max(m[i] for job, m in middles.items() if job.startswith("eager")) for i in (0, 1)]
    print(f"\n{name}, batch {batch}, {clients} clients of {count} samples")
    print(f"{'':34}{'samples/s':>9}{'quartiles':>17}{'x eager':>9}{'x best':>8}", end="")
    print(f"{'samples/cpu-s':>15}{'x eager':>9}{'x best':>8}", flush=True)
    for job, (wall, _) in rates.items():
        low, high = np.quantile(wall, [0.25, 0.75])
        (middle, busy), quartiles = middles[job], f"{low:,.0f} - {high:,.0f}"
        print(f"{job:34}{middle:9,.0f}{quartiles:>17}{middle / first[0]:9.2f}{middle / best[0]:8.2f}", end="")
        print(f"{busy:15,.0f}{busy / first[1]:9.2f}{busy / best[1]:8.2f}")
    if "fused" in middles:
        flop = flops(name, shape, batch)
        share = middles["fused"][0] * flop / peak
        print(f"sgemm of all cores {peak / 1e9:.0f} GFLOP/s; a sample needs {flop / 1e6:.2f} MFLOP; fused: {100 * share:.0f} %")


def flops(name, shape, batch):
    """Return the operations in products and convolutions per sample, for loss and gradient."""
    network = build(name, input_shape=shape, classes=10)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(network(torch.zeros(batch, *shape)), torch.zeros(batch, dtype=torch.int64)).backward()
    return counter.get_total_flops() / batch


def sgemm(side=1024, times=100):
    """Return the machine's limit: operations per second of a matrix product on all cores, the best of `times`."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    a, seconds = torch.rand(side, side), []
    for _ in range(times):
        began = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - began)
    torch.set_num_threads(1)
    return 2 * side**3 / min(seconds)


def machine():
    """Return a line that describes the machine."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), name)
    cores = len(os.sched_getaffinity(0))
    load, python = os.getloadavg()[0], platform.python_version()
    return f"{name}, {cores} cores, load {load:.1f}; torch {torch.__version__}, python {python}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SETTINGS, help="measure only this network")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(machine(), flush=True)

    for name in SETTINGS:
        if options.only in (None, name):
            local(name, options.repeats)
    print(f"\nload at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
