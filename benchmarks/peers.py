"""Time and peak memory of fnlkit and cleanlab on the same probabilities: ``python -m benchmarks.peers``.

Each call runs in a process of its own, three times; the fastest time counts, without imports and without the first call on
1,000 rows, which loads compiled code. Memory is the increase of the largest resident size over that after the input was made.
Input: random labels, 30 % of them redrawn, and softmax probabilities in float64, or with --dtype. Multi-label: the same
probabilities, and lists of the classes above 0.5 with 10 % flips. Datalab: 50,000 samples of 100 features (FAISS), once.
"""

import argparse
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np

SIZES = ((1_000_000, 10), (50_000, 100))
CALLS = (
    *(f"filter {name}" for name in ("prune_by_noise_rate", "prune_by_class", "both", "confident_learning")),
    *(f"filter {name}" for name in ("predicted_neq_given", "low_normalized_margin", "low_self_confidence")),
    *(f"rank {name}" for name in ("self_confidence", "normalized_margin", "confidence_weighted_entropy")),
    *(f"count {name}" for name in ("compute_confident_joint", "get_confident_thresholds", "num_label_issues")),
    "multi_label prune_by_noise_rate",
    "Datalab features",
)


def make(n, classes, dtype):
    """Return labels (n,) and probabilities (n, classes)."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, n)
    probs = rng.standard_normal((n, classes)) * 1.5
    probs[np.arange(n), np.where(rng.random(n) < 0.3, rng.integers(0, classes, n), labels)] += 2 + np.log(classes)
    np.exp(probs, out=probs)
    probs /= probs.sum(1, keepdims=True)
    return labels, probs.astype(dtype)


def prepare(package, call, n, classes, dtype):
    """Return a function of the number of rows that makes the call, and its input."""
    import importlib

    kind, name = call.split()
    if kind == "Datalab":
        rng = np.random.default_rng(0)
        labels = rng.integers(0, 10, n)
        features = (rng.standard_normal((n, classes)) + 3 * np.eye(10, classes)[labels]).astype(np.float32)
        datalab = importlib.import_module(package).Datalab

        def search(rows):
            lab = datalab({"y": labels[:rows]}, label_name="y", **({"verbosity": 0} if package == "cleanlab" else {}))
            lab.find_issues(features=features[:rows])

        return search, (labels, features)
    labels, probs = make(n, classes, dtype)
    module = importlib.import_module(f"{package}.{ {'multi_label': 'filter'}.get(kind, kind) }")
    if kind == "rank":
        return lambda rows: module.get_label_quality_scores(labels[:rows], probs[:rows], method=name), probs
    if kind == "count":
        return lambda rows: getattr(module, name)(labels[:rows], probs[:rows]), probs
    if kind == "filter":
        return lambda rows: module.find_label_issues(labels[:rows], probs[:rows], filter_by=name), probs
    # Lists of classes.
    has = (probs > 0.5) != (np.random.default_rng(1).random(probs.shape) < 0.1)
    lists = [np.flatnonzero(row).tolist() for row in has]
    return lambda rows: module.find_label_issues(lists[:rows], probs[:rows], filter_by=name, multi_label=True), probs


def resident():
    """Return the resident size of this process and its children in MB (Linux)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6


def measure(package, call, n, classes, dtype, repeats):
    """Return seconds of the fastest call, and the increase of the resident size in MB."""
    warnings.simplefilter("ignore")
    run, _ = prepare(package, call, n, classes, dtype)
    run(1000)
    before, peak, done = resident(), [0.0], threading.Event()

    def watch():
        while not done.wait(0.002):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(n)
        times.append(time.perf_counter() - start)
    done.set()
    watcher.join()
    return min(times), max(peak[0] - before, 0)


def run_alone(command, limit):
    """Return the numbers that a process prints, or infinity if it takes longer than `limit` seconds; end its children, too."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True)
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return float("inf"), float("nan")
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return json.loads(output.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="calls that contain this text")
    parser.add_argument("--dtype", choices=("float16", "float32", "float64"), default="float64")
    parser.add_argument("--limit", type=float, default=120, help="seconds of a process, after which its time is infinite")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        package, call, n, classes = args.one
        print(json.dumps(measure(package, call, int(n), int(classes), args.dtype, 1 if call.startswith("Datalab") else 3)))
        return
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores; {args.dtype}")
    print(
        f"{'samples x classes':<19}{'call':<36}{'seconds':>9}{'cleanlab':>10}{'ratio':>7}{'MB':>6}{'cleanlab':>10}{'input':>7}"
    )
    command = [sys.executable, "-m", "benchmarks.peers", "--dtype", args.dtype, "--one"]
    for n, classes in SIZES:
        for call in CALLS:
            if (args.only and args.only not in call) or (call.startswith("Datalab") and n > 100_000):
                continue
            rows = []
            for package in ("fnlkit", "cleanlab"):
                rows.append(run_alone([*command, package, call, str(n), str(classes)], args.limit))
            (ours, mine), (theirs, yours) = rows
            size = n * classes * (4 if call.startswith("Datalab") else np.dtype(args.dtype).itemsize) / 1e6
            times = f"{ours:>9.4f}{theirs:>10.4f}{theirs / ours:>7.1f}"
            print(f"{n:>9,} x {classes:<7}{call:<36}{times}{mine:>6.0f}{yours:>10.0f}{size:>7.0f}", flush=True)


if __name__ == "__main__":
    main()
