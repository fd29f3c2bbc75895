"""CPU time and traffic of each method, relative to FedAvg.

    python -m benchmarks.methods [--model lenet5] [--old FOLDER] [--only fedavg,rofl] [--rounds 60] [--repeats 3]
    python -m benchmarks.methods --traffic > data/costs.toml

MLP: 100 clients of 200 vectors of 128 numbers, 128 hidden units, ten clients per round, five epochs.  LeNet-5: 20 clients
of 200 images, four per round, one epoch.  Batches of ten, clients(rho=0.6, tau=0.5).  A client-round trains on 200 samples,
and two networks count twice.  FedAvg runs before every method, and every method runs once before it is measured, because a
first run imports libraries.  "work" counts passes of samples through the network, a backward pass as two, relative to FedAvg.
With --old the code in another folder, for example of ``git archive``, runs in turn with this code, and its ratio to the FedAvg
of this code is added.  Medians with quartiles, on one core.

Traffic: digits on 20 clients of which half are noisy; 4 clients per round; 20 rounds; a perceptron of 19,210 weights.  In
larger networks, replies other than weights are a smaller share of the traffic.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TRAFFIC = {"rounds": 20, "fraction": 0.2, "epochs": 1, "batch_size": 32, "model": "mlp(hidden=256)", "eval_every": 1000}
# Settings of both networks; see fnlkit.experiment.settings.
WORDS = {
    "mlp": {"model": "mlp(hidden=[128])", "fraction": 0.1, "epochs": 5, "lr": 0.01},
    "lenet5": {"model": "lenet5", "fraction": 0.2, "epochs": 1, "lr": 0.01},
}


def samples(model):
    """Return a data set of separable noise: vectors, or images of ten colors."""
    import numpy as np

    from fnlkit.datasets import Dataset

    rng = np.random.default_rng(0)
    count = 20_400 if model == "mlp" else 4_080
    y = rng.integers(0, 10, count + 500)
    if model == "mlp":
        x = (rng.normal(size=(10, 128))[y] * 0.4 + rng.normal(size=(len(y), 128))).astype(np.float32)
        kind = "vector"
    else:
        color = rng.integers(60, 200, (10, 3))[y][:, None, None]
        x, kind = np.clip(color + rng.normal(size=(len(y), 32, 32, 3)) * 40, 0, 255).astype(np.uint8), "image"
    names = [str(c) for c in range(10)]
    return Dataset("made", kind, y[:count], y[count:], names, lambda: (x[:count], x[count:]))


class Passes:
    """Number of samples that the compiled networks process, in forward passes; a backward pass counts as two.

    Measured runs do not count, because counting takes time in each call.
    """

    def __init__(self):
        from fnlkit._kernels.fused import lenet5, mlp

        self.count, self.on = 0, False
        for module in (mlp, lenet5):
            module.advance = self._counted(module.advance)

    def _counted(self, kernel):
        def call(train, theta, velocity, *given):
            if self.on:
                offset, _, order, who, first, begin, end = given[5:12]
                for k, backward, forward, stop in zip(who, first, begin, end, strict=True):
                    taken = 2 * (order[k, backward:forward] >= 0).sum() + (1 + 2 * train) * (order[k, forward:stop] >= 0).sum()
                    self.count += int(taken) * (len(theta) // len(offset))
            return kernel(train, theta, velocity, *given)

        return call


def serve(model, rounds):
    """Train the methods named on stdin; print CPU seconds, client-rounds, work and notes of each as a line of JSON."""
    from fnlkit.core import registry
    from fnlkit.experiment import Experiment, Settings
    from fnlkit.pipeline.compiling import compile_kernels
    from fnlkit.simulate import noise, partitioning

    compile_kernels()
    passes = Passes()
    data = samples(model)
    clients = 100 if model == "mlp" else 20
    whole = partitioning.federation(data, clients=clients, scheme="iid", public=80 / len(data.y_train))
    federation = noise.inject(whole, "clients(rho=0.6, tau=0.5)", seed=0)
    for line in sys.stdin:
        method, counted = line.split()
        passes.on = counted == "True"
        words = {"rounds": rounds, "batch_size": 10, "momentum": 0.5, "eval_every": 10, **WORDS[model]}
        experiment = Experiment(federation, data, Settings(method=method, **words), engine="auto", workers=1)
        passed, began = passes.count, time.process_time()
        experiment.run()
        seconds = time.process_time() - began
        notes = [n for n in experiment.clients.notes if "fused:" in n or "stacked:" in n or n.startswith("engine")]
        visits = experiment.clients.traffic.client_rounds * (clients if "pooled" in registry.needs(method) else 1)
        networks = 2 if "pair" in registry.needs(method) else 1
        found = {"seconds": seconds, "visits": visits * networks, "notes": notes}
        found["passes"] = passes.count - passed
        print(json.dumps(found), file=sys.stderr, flush=True)


class Worker:
    """A process that trains methods with the code of a folder."""

    def __init__(self, folder, options):
        environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        line = [sys.executable, "-P", __file__, "--serve", "--model", options.model, "--rounds", str(options.rounds)]
        pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL}
        self.process = subprocess.Popen(line, env=environment, cwd=folder, text=True, **pipes)

    def run(self, method, counted=False):
        """Return (CPU seconds and passes per client-round and network, seconds, notes) of a run."""
        print(method, counted, file=self.process.stdin, flush=True)
        lines = []
        for line in self.process.stderr:
            if line.startswith("{"):
                found = json.loads(line)
                each = [found[name] / found["visits"] for name in ("seconds", "passes")]
                return *each, found["seconds"], found["notes"]
            lines.append(line)
        raise SystemExit("".join(lines[-5:]))


def shown(values):
    """Return the median with quartiles in brackets."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return f"{middle:6.2f} ({low:.2f}-{high:.2f})"


def spent(method):
    """Return (client-rounds, bytes sent by clients, bytes received by clients) of a method."""
    from fnlkit import datasets
    from fnlkit.core import registry
    from fnlkit.experiment import Settings
    from fnlkit.experiment.crossfit import make_experiment
    from fnlkit.simulate import noise, partitioning

    digits = datasets.load("digits")
    public = 0.05 if "public" in registry.needs(method) else 0.0
    federation = noise.inject(partitioning.federation(digits, clients=20, public=public), "clients(rho=0.5, tau=0.5)", seed=0)
    traffic = make_experiment(federation, digits, Settings(method=method, **TRAFFIC), engine="sequential").run().traffic
    return traffic.client_rounds, traffic.bytes_up, traffic.bytes_down


def relative(method, plain):
    """Return the three costs of a method divided by those of FedAvg, rounded to 0.01.

    Parameters
    ----------
    method : str
    plain : (client-rounds, bytes, bytes)
        Of FedAvg.
    """
    return [round(mine / theirs, 2) for mine, theirs in zip(spent(method), plain, strict=True)]


def print_traffic():
    """Print data/costs.toml."""
    from fnlkit.core import registry

    plain = spent("fedavg")
    print(
        "# Client-rounds, bytes up and bytes down relative to FedAvg at equal --rounds: python -m benchmarks.methods --traffic"
    )
    for method in registry.METHODS:
        rounds, up, down = relative(method, plain)
        print(f"{method} = {{client_rounds = {rounds}, up = {up}, down = {down}}}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=WORDS, default="mlp")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="methods, separated by commas; default: all")
    parser.add_argument("--old", type=Path, help="folder of another version of the code")
    parser.add_argument("--traffic", action="store_true", help="print the traffic of all methods instead of their time")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.model, options.rounds)
    if options.traffic:
        return print_traffic()
    from fnlkit.core import registry

    here = Path(__file__).parent.parent
    workers = [Worker(here, options)]
    if options.old:
        workers.append(Worker(options.old, options))
    print(f"{options.model}, {options.rounds} rounds, one core: CPU seconds; ratio to FedAvg per client-round and network")
    print(f"{'method':20}{'seconds':>9}{'work':>7}{'ratio':>22}" + (f"{'old ratio':>22}" if options.old else ""))
    for worker in workers:
        worker.run("fedavg")  # compiles or loads the kernels
    for method in options.only.split(",") if options.only else registry.METHODS:
        rows = []
        for repeat in range(options.repeats + 1):
            plain, whole, *_ = workers[0].run("fedavg", not repeat)
            found = [worker.run(method, not repeat and worker is workers[0]) for worker in workers]
            if repeat:
                rows.append([(each / plain, *more) for each, _, *more in found])
            else:
                work = found[0][1] / whole
        cells = [shown([row[k][0] for row in rows]) for k in range(len(workers))]
        notes = "; ".join(dict.fromkeys(note for note in rows[0][0][2] if "engine fused" not in note))
        seconds = statistics.median(row[0][1] for row in rows)
        line = f"{method:20}{seconds:9.2f}{work:7.2f}" + "".join(f"{cell:>22}" for cell in cells) + " " + notes
        print(line.rstrip(), flush=True)
    for worker in workers:
        worker.process.stdin.close()
        worker.process.wait()


if __name__ == "__main__":
    main()
