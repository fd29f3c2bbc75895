"""CPU seconds of short commands and of loading compiled kernels, and whether a command imports torch.

    python -m benchmarks.startup [--repeats 5] [--python OTHER/bin/python]

Each command runs in a new process on a tiny federation.  With --python an older installation runs in turn with this one.
Times are user plus system time, because of other load on the machine: median, and the quartiles in brackets.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

COMMANDS = [
    "embed fed.npz --backbone pca(dim=8) -o emb2.npz",
    "plot partition fed.npz -o partition.svg",
    "partition --clients 4 -o fed2.npz",
    "correct judged.npz -o corrected.npz",
    "info judged.npz",
    "watch run.metrics.jsonl --once",
    "evaluate --help",
]
RUN = """
import resource, sys
from fnlkit.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code
usage = resource.getrusage(resource.RUSAGE_SELF)
print(f"{code} {usage.ru_utime + usage.ru_stime} {'torch' in sys.modules}", file=sys.stderr)
"""
# A step of both networks: everything that `train` loads at the first visit of a client.
LOAD = """
import sys, time
import numpy as np
from fnlkit.kernels import fused
def step(net, *shape):
    x = np.zeros((2, *shape), "f4")
    theta = np.zeros(fused.fused_parameters(net), "f4")
    fused.fused_fit(net, theta, x, np.array([0, 1]), np.array([[0, 1]]), lr=0.1)
began = time.process_time()
step(("mlp", (4, 3, 2)), 4)
step(("lenet5", 1, 2), 28, 28, 1)
print(f"0 {time.process_time() - began} {'torch' in sys.modules}", file=sys.stderr)
"""


def prepare(folder):
    """Write the input files of the commands."""
    import fnlkit

    noisy = fnlkit.inject_noise(fnlkit.partition("digits", clients=4, say=None), say=None)
    fnlkit.save(noisy, folder / "fed.npz")
    vectors = np.random.default_rng(0).random((len(noisy.given), 8), np.float32)
    fnlkit.save(fnlkit.estimate_noise(noisy, "knn", embeddings=vectors, say=None), folder / "judged.npz")
    (folder / "votes.csv").write_text("id,a,b\n0,1,1\n1,2,2\n")
    (folder / "run.metrics.jsonl").write_text('{"round": 1, "stage": "train", "accuracy": 0.5}\n')


def once(python, code, arguments, folder):
    """Return (exit code, CPU seconds, whether torch was imported) of a process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    done = subprocess.run([python, "-c", code, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    status, seconds, torch = done.stderr.split()[-3:]
    return int(status), float(seconds), torch == "True"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--python", help="interpreter of an older installation, for a second column")
    options = parser.parse_args()
    pythons = [*([options.python] if options.python else []), sys.executable]
    print(f"CPU seconds, median of {options.repeats} processes (quartiles)" + (": older, this" if options.python else ""))
    rows = [("kernels of both networks, from the cache", LOAD, [])]
    rows += [(f"fnlkit {line}", RUN, line.split()) for line in COMMANDS]
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for label, code, arguments in rows:
            found = [[once(python, code, arguments, name) for python in pythons] for _ in range(options.repeats)]
            cells = []
            for column in zip(*found, strict=True):
                if failed := [status for status, _, _ in column if status]:
                    raise SystemExit(f"{label}: exit code {failed[0]}")
                low, middle, high = statistics.quantiles([seconds for _, seconds, _ in column], n=4)
                cells.append(f"{middle:5.2f} ({low:.2f}-{high:.2f}) {'torch' if column[0][2] else '':5}")
            print(f"{label:60}", *cells, flush=True)


if __name__ == "__main__":
    main()
