"""``python -m benchmarks.gpu_campaign FOLDER``: published rows at full length on a GPU, in pieces of a few minutes.

Each row is one `fnlkit train` with the settings of the paper. A piece trains an unfinished row until the time is over, saves
the run in FOLDER and prints a line. The next call, possibly on another machine with a copy of FOLDER, continues there. Rows are
ordered by their value for a comparison with the papers; a row and its baseline follow each other. With `--at-once`, several
rows train at the same time; start NVIDIA's MPS (`nvidia-cuda-mps-control -d`) before, because kernels of different processes
take turns otherwise.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fnlkit.artifacts.run import Run
from fnlkit.errors import InputError
from fnlkit.recipes import published
from fnlkit.results import evaluation

ROWS = [
    ("fedcorr/table2", "FedAvg, CIFAR-10 ResNet-18, iid rho=0.6 tau=0.5"),
    ("fedcorr/table2", "FedCorr, CIFAR-10 ResNet-18, iid rho=0.6 tau=0.5"),
    ("fedefc/table3", "FedAvg, CIFAR-10 ResNet-18, alpha=10 p=0.5 rho=0.4 zeta=0.8"),
    ("fedefc/table3", "FedEFC, CIFAR-10 ResNet-18, alpha=10 p=0.5 rho=0.4 zeta=0.8"),
    ("feddpcont/table2", "FedAvg, CIFAR-10 ResNet-18, random non-uniform eta=0.4"),
    ("feddpcont/table2", "FedDPCont, CIFAR-10 ResNet-18, random non-uniform eta=0.4"),
    ("flr/table7", "FedAvg, CIFAR-10 ResNet-18, iid symmetric rho=0.6 tau=0.0"),
    ("flr/table7", "entropy regularization, CIFAR-10 ResNet-18, iid symmetric rho=0.6 tau=0.0"),
    ("fedln/table3", "FedAvg, CIFAR-10 ResNet-20, nl=0.4 ns=0.7 F=0.8"),
    ("fedln/table3", "NA-FedAvg, CIFAR-10 ResNet-20, nl=0.4 ns=0.7 F=0.8"),
    ("fedln/table3", "NNC, CIFAR-10 ResNet-20, nl=0.4 ns=0.7 F=0.8"),
    ("fedln/table3", "AKD (embeddings), CIFAR-10 ResNet-20, nl=0.4 ns=0.7 F=0.8"),
]
FNLKIT = [sys.executable, "-c", "from fnlkit.cli import main; main()"]
SAVING = 20  # seconds that a stopped run gets to save itself
PREPARING = threading.Lock()  # rows can share a file of embeddings


def jobs(options):
    """Yield (table, Job) for every row and seed, all rows with the first seed before the second seed."""
    changed = {"scale": options.scale, "model": options.model, "precision": options.precision, "device": options.device,
               "embeddings": options.embeddings, "eval_every": options.eval_every}  # fmt: skip
    found = []
    for table, row in ROWS:
        made, _ = published.jobs(table, only=row, seeds=options.seeds, dataset=options.dataset, **changed)
        made = [job for job in made if job.regime == row]
        if len(made) != options.seeds:
            raise InputError(f"{table}: the table has no row {row!r}")
        found.append([(table, job) for job in made])
    for seed in range(options.seeds):
        yield from (row[seed] for row in found)


def piece(job, folder, seconds):
    """Train a job for at most `seconds`; return whether the process ended by itself, and its exit code."""
    with PREPARING:
        for arguments, target in job.prepare:
            if not (folder / target).exists():
                subprocess.run([*FNLKIT, *arguments, "-o", target], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    run = f"{job.name}.pt"
    words = ["train", job.prepare[-1][1], *job.train, "--resume", run, "-o", run]
    child = subprocess.Popen([*FNLKIT, *words], cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        _, errors = child.communicate(timeout=max(1, seconds))
        if child.returncode:
            print(errors.strip().splitlines()[-1], flush=True)
        return True, child.returncode
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGTERM)
        try:
            child.communicate(timeout=SAVING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
        return False, child.returncode


def line(table, job, folder, seconds):
    """Return a line with the state of a run."""
    path = folder / f"{job.name}.pt"
    if not path.exists():
        return f"{table}  {job.regime}, seed {job.seed}: no round was saved in {seconds:.0f} s"
    run = Run.read(str(path))
    found, printed = evaluation.summary(run), job.published
    ours = f"last {100 * found['accuracy_last']:.2f}, best {100 * found['accuracy_best']:.2f} %"
    theirs = f"{printed[0]} ± {printed[1]}" if len(printed) > 1 else f"{printed[0]}"
    state = "finished" if run.finished else "unfinished"
    return (
        f"{table}  {job.regime}, seed {job.seed}: {state} after {len(run.history)} rounds and {found['seconds']:.0f} s "
        f"({seconds:.0f} s in this piece); {ours}; published {theirs}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0, help="length of this call; unfinished runs are saved")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, nargs="*", help="numbers of the rows, beginning with 0; default: all")
    parser.add_argument("--dataset", default=None, help="a file with CIFAR-10, if it is not in the cache")
    parser.add_argument("--embeddings", default=None, help="a file of vectors instead of the rows' backbone")
    parser.add_argument("--eval-every", type=int, default=None, help="rounds between evaluations; default: as published")
    parser.add_argument("--at-once", type=int, default=1, help="rows to train at the same time")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the paper's rounds, for a trial")
    parser.add_argument("--model", default=None, help="another network, for a trial")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in ("dataset", "embeddings"):
        if getattr(options, name) and os.path.exists(getattr(options, name)):
            setattr(options, name, os.path.abspath(getattr(options, name)))
    selected = set(range(len(ROWS)) if options.rows is None else options.rows)
    rows = {ROWS[number][1] for number in selected}
    end = time.monotonic() + 60 * options.minutes - SAVING

    def train(table, job):
        path = options.folder / f"{job.name}.pt"
        if path.exists() and Run.read(str(path)).finished:
            return False
        if end - time.monotonic() < 30:  # a start of torch and a recording of the step would use up the rest
            return False
        started = time.monotonic()
        whole, code = piece(job, options.folder, end - started)
        print(line(table, job, options.folder, time.monotonic() - started), flush=True)
        return whole and code != 0

    with ThreadPoolExecutor(options.at_once) as pool:
        failed = list(pool.map(lambda one: train(*one), [one for one in jobs(options) if one[1].regime in rows]))
    sys.exit(int(any(failed)))


if __name__ == "__main__":
    main()
