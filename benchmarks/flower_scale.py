"""fnlkit's fused engine and Flower's FedAvg with 10,000 simulated clients.

    python -m benchmarks.flower_scale [--rounds 4] [--repeats 2] [--clients 10000] [--cohort 100] [--samples 5]

LeNet-5, 100 clients per round, one epoch of batches of ten on random images of 32 x 32 pixels, two actors or threads.
Flower's FedAvg uses Flower's simulation (flwr[simulation]) and strategy (benchmarks/training_peers.py), with one node per
client.  The two programs run alternately.  Times are medians over all rounds except the first round of each process: wall
time, and CPU time of all processes together.  Memory is the largest sum of the proportional set sizes of all processes,
measured every half second; memory that processes share counts once.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

from benchmarks.training import machine
from benchmarks.training_peers import now

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
NAMES = {"fused": "fnlkit, --engine fused", "peer": "Flower's FedAvg"}


def ours(engine, rounds, clients, cohort, samples):
    """Return (wall time, CPU time) in seconds of each round except the first."""
    import torch

    from fnlkit.datasets import Dataset
    from fnlkit.datasets.partitioning import federation
    from fnlkit.experiment import Experiment, Settings

    torch.set_num_threads(1)
    rng, count = np.random.default_rng(0), clients * samples
    x, y = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, count)
    data = Dataset("noise", "image", y, y[:10], list("0123456789"), lambda: (x, x[:10]), statistics=([0.5] * 3, [0.25] * 3))
    settings = Settings(model="lenet5", rounds=rounds + 1, fraction=cohort / clients, epochs=1, batch_size=10, lr=0.03,
                        momentum=0.5, weight_decay=0.0, augment="none", eval_every=10**9)  # fmt: skip
    fed = federation(data, "iid", clients=clients, labels="true")
    experiment, stamps = Experiment(fed, data, settings, engine=engine, workers=2), []
    experiment.run(on_round=lambda row: stamps.append(now()))
    experiment.clients.close()
    return np.diff(stamps, axis=0)[:rounds].tolist()


def measured(which, numbers):
    """Return the rounds' (wall time, CPU time) and the peak in MiB of one process and its children."""
    here = Path(__file__).parents[1]
    own = ["-m", "benchmarks.flower_scale", "--one", which]
    command = own if which != "peer" else ["benchmarks/training_peers.py", "flower"]
    with tempfile.TemporaryDirectory(prefix="fs-") as folder, open(Path(folder, "err"), "w+") as err:
        given = os.environ | QUIET | {"FLWR_HOME": folder}
        line = [sys.executable, *command, *map(str, numbers)]
        child = subprocess.Popen(line, cwd=here, env=given, stdout=subprocess.PIPE, stderr=err, text=True)
        peak, done = [0.0], threading.Event()
        watch = threading.Thread(target=_watch, args=(child.pid, peak, done))
        watch.start()
        printed = child.communicate()[0]
        done.set()
        watch.join()
        if child.returncode:
            err.seek(0)
            raise SystemExit(f"{which}: {err.read()[-2000:]}")
    return json.loads(printed.strip().splitlines()[-1]), peak[0]


def _watch(pid, peak, done):
    import psutil

    while not done.wait(0.5):
        total = 0
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)) if psutil.pid_exists(pid) else ():
            try:
                lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
        peak[0] = max(peak[0], total / 1024)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in {"rounds": 4, "repeats": 2, "clients": 10_000, "cohort": 100, "samples": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--one", nargs=5, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(ours(options.one[0], *map(int, options.one[1:]))))
        return
    print(machine(), flush=True)
    numbers = options.rounds, options.clients, options.cohort, options.samples
    found = {name: ([], []) for name in NAMES}
    for _ in range(options.repeats):
        for name, (rounds, peaks) in found.items():
            more, peak = measured(name, numbers)
            rounds += more
            peaks.append(peak)
            print(f"  {NAMES[name]}: {np.round(more, 2).tolist()}, {peak:.0f} MiB, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{options.clients:,} clients of {options.samples} samples, {options.cohort} per round, LeNet-5, 1 epoch, batch 10")
    print(f"{'':26}{'rounds/s':>10}{'rounds/cpu-s':>14}{'peak MiB':>10}{'theirs / ours: s':>19}{'cpu-s':>8}{'memory':>8}")
    wall, busy = np.median(found["peer"][0], 0)
    theirs = np.array([wall, busy, max(found["peer"][1])])
    for name, (rounds, peaks) in found.items():
        mine = np.array([*np.median(rounds, 0), max(peaks)])
        ratio = theirs / mine
        print(f"{NAMES[name]:26}{1 / mine[0]:10.3f}{1 / mine[1]:14.3f}{mine[2]:10,.0f}", end="")
        print(f"{ratio[0]:19.1f}{ratio[1]:8.1f}{ratio[2]:8.2f}")


if __name__ == "__main__":
    main()
