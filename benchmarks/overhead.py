"""CPU time of a client's round without its training, for each engine, and memory of many clients.

    python -m benchmarks.overhead [--clients 10000] [--samples 5] [--rounds 6] [--engines fused,sequential]

A federation of many small clients, a perceptron of 62,000 weights, 100 clients per round.  Times are CPU times because of
other load on the machine.  The column `training` is the same local training without an engine.
"""

import argparse
import resource
import time

import numpy as np
import torch

from fnlkit.artifacts.federation import Federation
from fnlkit.client.network import Model
from fnlkit.client.training import Fit, plan, train_client
from fnlkit.datasets import Dataset
from fnlkit.datasets.partitioning import federation as split
from fnlkit.experiment import Experiment, Settings
from fnlkit.kernels.fused import fused_fit

COHORT = 100


def data(count):
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((count, 256), np.float32), rng.integers(0, 10, count)
    return Dataset("noise", "vector", y, y[:10], list("0123456789"), lambda: (x, x[:10]))


def bare(experiment, engine, count=50):
    """Return the CPU time in milliseconds of one client's local training without an engine."""
    fed, fit = experiment.clients, Fit(epochs=1)
    clients = [fed.members[k] for k in range(count)]
    model = Model(fed.network, fed.network.flat.clone())
    draws = [plan(len(c), fit, seed=0, round=0, client=c.id) for c in clients]
    for c in clients:
        c.rng = np.random.default_rng(0)
    for _ in range(2):  # the first repetition compiles
        began = time.process_time()
        for c, d in zip(clients, draws, strict=True):
            if engine == "fused":
                arrays = model.weights.numpy(), c.x.numpy(), c.y.numpy(), d.order
                fused_fit(fed.engine.net, *arrays, lr=0.03, momentum=0.5, **c.inputs.normal)
            else:
                train_client(fed.network, c, model.weights, fit, d, {})
        spent = 1000 * (time.process_time() - began) / count
    return spent


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--engines", default="fused,sequential,stacked,workers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = data(options.clients * options.samples)
    found.checksum  # noqa: B018 - computed here to exclude it from the partition's time
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fed: Federation = split(found, "iid", clients=options.clients, labels="true")
    print(f"{options.clients:,} clients of {options.samples} samples; partition {time.process_time() - began:.2f} s")
    print("engine       visit  training  overhead (ms of CPU time)   run's log, bytes per round")
    for engine in options.engines.split(","):
        settings = Settings(
            model="mlp(hidden=232)", rounds=options.rounds, fraction=COHORT / options.clients, epochs=1, eval_every=10**9
        )
        experiment = Experiment(fed, found, settings, engine=engine)
        stamps, children = [time.process_time()], engine == "workers"
        experiment.run(on_round=lambda row, stamps=stamps: stamps.append(time.process_time()))
        visit = 1000 * float(np.median(np.diff(stamps)[1 : options.rounds])) / COHORT
        alone = float("nan") if children else bare(experiment, engine)
        run = experiment.snapshot().to_artifact().arrays
        text = (run["log"].nbytes + run["body"].nbytes) / options.rounds
        note = "  (without the time of the worker processes)" if children else ""
        print(f"{engine:10} {visit:7.3f} {alone:9.3f} {visit - alone:9.3f} {text:24,.0f}{note}", flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    samples = found.x_train.nbytes / 2**20
    print(f"peak memory {peak / 1024:,.0f} MiB; {before / 1024:,.0f} before the clients, including {samples:,.0f} of samples")


if __name__ == "__main__":
    main()
