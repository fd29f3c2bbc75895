"""Bytes, memory and time of a round, for varied clients, cohort, network and samples per client.

    python -m benchmarks.rounds [--only TEXT] [--rounds 4]

FedAvg with the fused kernel, one epoch, a perceptron on 256 values; one quantity is varied at a time.  Each row runs in a
separate process to measure peak memory.  Times are CPU times because of other load on the machine.  Memory is the peak of the
process without the memory of the program, the samples and the federation.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np

# (varied quantity, clients, cohort, width of the hidden layer, samples per client, options of the run)
ROWS = [
    *(("clients", n, 100, 232, 5, {}) for n in (100, 1_000, 10_000, 100_000)),
    *(("cohort", 10_000, k, 232, 5, {}) for k in (10, 100, 1_000)),
    *(("weights", 1_000, 10, width, 5, {}) for width in (232, 2_320, 23_200)),
    *(("weights x cohort", 1_000, k, 23_200, 5, {}) for k in (5, 20)),
    *(("samples", 1_000, 100, 232, n, {}) for n in (5, 50, 500)),
    *(("memory of clients", 10_000, 100, 232, 5, {"optimizer": name}) for name in ("feddyn", "scaffold", "ditto")),
    *(("method", 10_000, 100, 232, 5, {"method": name}) for name in ("flr", "feddpcont", "fedefc")),
]


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(clients, cohort, width, samples, rounds, options):
    """Return the measurements of one row as a dict."""
    import torch

    from fnlkit.datasets import Dataset
    from fnlkit.datasets.partitioning import federation
    from fnlkit.experiment import Experiment, Settings

    torch.set_num_threads(1)
    rng, count = np.random.default_rng(0), clients * samples
    x, y = rng.standard_normal((count, 256), np.float32), rng.integers(0, 10, count)
    data = Dataset("noise", "vector", y, y[:10], list("0123456789"), lambda: (x, x[:10]))
    fed = federation(data, "iid", clients=clients, labels="true")
    settings = Settings(
        model=f"mlp(hidden={width})", rounds=rounds, fraction=cohort / clients, epochs=1, eval_every=10**9, **options
    )
    before, began = peak(), time.process_time()
    experiment = Experiment(fed, data, settings)
    made, stamps, rows = time.process_time() - began, [time.process_time()], []

    def done(row):
        stamps.append(time.process_time())
        rows.append(row)

    run = experiment.run(on_round=done)
    first, last = rows[0], rows[rounds - 1]
    steps = rounds - 1
    artifact = run.to_artifact().arrays
    return {
        "weights": int(run.weights.numel()),
        "prepare_seconds": made,
        "round_seconds": float(np.median(np.diff(stamps)[1:rounds])),
        "up": (last["bytes_up"] - first["bytes_up"]) / steps,
        "down": (last["bytes_down"] - first["bytes_down"]) / steps,
        "mebibytes": peak() - before,
        "file_bytes": sum(value.nbytes for value in artifact.values()),
        "log_bytes": (artifact["log"].nbytes + artifact["body"].nbytes) / rounds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--one", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(*json.loads(options.one))))
        return
    heads = (
        "clients",
        "cohort",
        "weights",
        "samples",
        "s/round",
        "ms/client",
        "MB up",
        "MB down",
        "MiB",
        "run.pt, MB",
        "log, kB",
    )
    print(f"{'varied':18}" + "".join(f"{head:>11}" for head in heads))
    for varied, clients, cohort, width, samples, more in ROWS:
        if options.only not in varied:
            continue
        one = json.dumps([clients, cohort, width, samples, options.rounds, more])
        child = subprocess.run(
            [sys.executable, "-m", "benchmarks.rounds", "--one", one], stdout=subprocess.PIPE, text=True, check=True
        )
        found = json.loads(child.stdout.splitlines()[-1])
        cells = (
            f"{clients:,}", f"{cohort:,}", f"{found['weights']:,}", f"{samples:,}", f"{found['round_seconds']:.3f}",
            f"{1000 * found['round_seconds'] / cohort:.2f}", f"{found['up'] / 1e6:.1f}", f"{found['down'] / 1e6:.1f}",
            f"{found['mebibytes']:.0f}", f"{found['file_bytes'] / 1e6:.1f}", f"{found['log_bytes'] / 1e3:.1f}",
        )  # fmt: skip
        print(f"{' '.join(more.values()) or varied:18}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
