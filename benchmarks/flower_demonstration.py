"""Run the demonstration of docs/deployment.md with five sites on loopback and print seconds and bytes of each step.

    python -m benchmarks.flower_demonstration

Follows the two guides: write the project, start server and sites with TLS and keys, audit, review at the two noisiest sites,
train with the reviewed labels, and evaluate.  The reviewer of a site decides by the true labels of the digits.  The audit is
compared with the same audit as a simulation.
"""

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.flower_audit_failures import simulated
from fnlkit import datasets
from fnlkit.artifacts.run import Run

ROOT = Path(__file__).parents[1]
REVIEWING = 2


class Guide:
    """Commands of the guides in a folder, each with the seconds that it took."""

    def __init__(self, folder):
        self.folder = folder
        bin = Path(sys.executable).parent
        self.environment = os.environ | {"PATH": f"{bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(self, line, check=True):
        began = time.monotonic()
        words = shlex.split(line)
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise SystemExit(f"{line}: {done.stderr}")
        told(line, time.monotonic() - began)
        return done

    def start(self, line, words, seconds=600):
        """Start a command and return its process when it has printed a text."""
        began, log = time.monotonic(), self.folder / "demo.log"
        how = {"stdout": log.open("wb"), "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(shlex.split(line), cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, **how)
        while words not in log.read_text():
            if process.poll() is not None or time.monotonic() > began + seconds:
                raise SystemExit(f"{line}: {log.read_text()}")
            time.sleep(0.5)
        told(line, time.monotonic() - began)
        return process


def told(name, seconds=None, up=None, down=None):
    cells = [f"{seconds:7.1f} s" if seconds is not None else "", *("" if n is None else f"{n:11,d}" for n in (up, down))]
    print(f"{name[:90]:90} {cells[0]:>9} {cells[1]:>11} {cells[2]:>11}".rstrip(), flush=True)


def review(guide, name):
    """Review the suspicious samples of a site as a person who sees the true labels."""
    site = guide.folder / "project/sites" / name
    output = f"review-{name}"
    guide.run(f"fnlkit site review --project project/sites/{name} -o {output}")
    digits, data = datasets.load("digits"), np.load(site / "data.npz")
    true = {x.tobytes(): int(y) for x, y in zip(digits.x_train, digits.y_train, strict=True)}
    path = guide.folder / output / "decisions.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        right = true[data["x"][int(row["position"])].tobytes()]
        wrong = right != int(data["y"][int(row["position"])])
        row |= {"decision": "relabel", "label": str(right)} if wrong else {"decision": "keep"}
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0])
        table.writeheader()
        table.writerows(rows)
    print(guide.run(f"fnlkit site review --project project/sites/{name} -o {output}").stderr.strip(), flush=True)


def first_block():
    """Return the commands of the first block of the coordinator's guide, without the installation."""
    text = (ROOT / "docs/deployment.md").read_text(encoding="utf-8").split("```sh")[1].split("```")[0]
    return [line for line in text.strip().splitlines() if not line.startswith("pip ")]


def main():
    print("cores", len(os.sched_getaffinity(0)), "load", *(f"{load:.1f}" for load in os.getloadavg()), flush=True)
    guide, began = Guide(Path(tempfile.mkdtemp(prefix="fnlkit-demonstration-"))), time.monotonic()
    write, start = first_block()
    told("", None)
    guide.run(write)
    process = guide.start(start, "server and sites are running")
    try:
        guide.run("fnlkit sites run project --task audit -o audit.json")
        found = json.loads((guide.folder / "audit.json").read_text())
        for step in found["steps"]:
            told(f"  {step['step']}", step["seconds"], step["bytes_up"], step["bytes_down"])
        equal = found["sites"] == simulated(guide.folder / "project")
        print(f"audit {'equals' if equal else 'DIFFERS FROM'} the simulation", flush=True)
        guide.run("fnlkit sites run project --task train -o before.pt")
        guide.run("fnlkit sites run project --task evaluate --run before.pt -o before.json")
        for name in found["order"][:REVIEWING]:
            review(guide, name)
        guide.run("fnlkit sites run project --task train -o run.pt")
        traffic = Run.read(str(guide.folder / "run.pt")).traffic
        told("  training", None, traffic.bytes_up, traffic.bytes_down)
        guide.run("fnlkit sites run project --task evaluate --run run.pt -o evaluation.json")
        for name in ("before", "evaluation"):
            result = json.loads((guide.folder / f"{name}.json").read_text())
            for step in result["steps"]:
                told(f"  {step['step']}", step["seconds"], step["bytes_up"], step["bytes_down"])
            print(f"{name}: {100 * result['agreement']:.1f} % agree with the labels at the sites", flush=True)
        for name in found["order"][:1]:
            guide.run(f"fnlkit site log --project project/sites/{name}")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
    minutes, load = (time.monotonic() - began) / 60, " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"{minutes:.1f} minutes in total, load {load}")
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through `finally`, which stops the processes
    main()
