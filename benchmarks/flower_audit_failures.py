"""Kill processes during audits of a Flower deployment and print how each audit ended.

    python -m benchmarks.flower_audit_failures --times 5

Starts the demonstration of `fnlkit flower-app --demo` with three sites, and measures an audit without a failure.  Each
repetition kills one process at a random time of an audit: a SuperNode with all its processes (started again at once, or not
before the end), the ServerApp, or the SuperLink with all its processes (started again).  A repetition is good if the results
equal those of a simulation, or if the killed site is named as lost.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.flower_failures import serverapps
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.audit import audit
from fnlkit.audits.report import facts
from fnlkit.datasets import columns
from fnlkit.datasets.dataset import Dataset
from fnlkit.sites import agreement, terms

SITES = 3
WRITE = ["--dataset", "digits", "--sites", str(SITES), "--demo", "--model", "mlp(hidden=8)", "--audit-rounds", "2",
         "--folds", "2", "--wait", "90"]  # fmt: skip
KINDS = ("supernode", "supernode-gone", "serverapp", "superlink")


class Demo:
    """The processes of a demonstration, each in a session of its own."""

    def __init__(self, folder, port):
        self.folder, self.processes = folder / "demo", {}
        self.bin = Path(sys.executable).parent
        self.environment = os.environ | {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.call("flower-app", "demo", "--address", f"localhost:{port}", *WRITE, cwd=folder)

    def call(self, *words, cwd=None, check=True):
        return subprocess.run([self.bin / "fnlkit", *words], cwd=cwd or self.folder, env=self.environment, check=check,
                              capture_output=True, text=True)  # fmt: skip

    def start(self, name):
        folder = self.folder / ("coordinator" if name == "superlink" else f"sites/{name}")
        with open(folder / "log.txt", "ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            self.processes[name] = subprocess.Popen([folder / "start.sh"], cwd=folder, env=self.environment, **how)

    def kill(self, name):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def revive(self):
        """Start SuperNodes again that ended, as systemd does."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self.kill(name)
                self.start(name)

    def audit(self, output):
        words = [self.bin / "fnlkit", "sites", "run", ".", "--task", "audit", "-o", str(output)]
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(words, cwd=self.folder, env=self.environment, **how)


def by_site(folder, names=None, *, change=lambda task: task, **config):
    """Return (Federation, Dataset, Settings, Task) with the samples of the sites of a demonstration.

    Parameters
    ----------
    folder : Path
        Of the project.
    names : sequence of str, optional
        Sites that take part. Default: all.
    change : callable (Task) -> Task
        Applied before the samples are read.
    **config
        Entries of the run configuration.
    """
    settings, task = terms.read_config(agreement.config_of(str(folder / "pyproject.toml")) | config)
    task = change(task)
    names = list(names or task.names)
    paths = [next((folder / "sites" / name).glob("data.*")) for name in names]
    parts = [agreement.load_for_task(str(path), task) for path in paths]
    x, given = (np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in ("x_train", "y_train"))
    about = {"statistics": (task.mean, task.std), "observed": True, "table": task.columns}
    about["columns"] = columns.features(task.columns) if task.columns else None
    data = Dataset("all", task.kind, given, given[:0], list(task.classes), lambda: (x, x[:0]), **about)
    offsets = np.concatenate([[0], np.cumsum([len(part.y_train) for part in parts])])
    federation = Federation("all", len(task.classes), offsets, np.arange(len(x)), given, meta={"client_names": names})
    return federation, data, settings, task


def simulated(folder, names=None, **config):
    """Return the results by site of the same audit as a simulation."""
    federation, data, settings, task = by_site(folder, names, **config | {"task": "audit"})
    return json.loads(json.dumps(facts(audit(federation, data, seed=settings.seed), federation, data)["sites"]))


def once(demo, kind, output, wanted, seconds, rng):
    """Kill a process of an audit at a random time below `seconds`; return the outcome."""
    command, at = demo.audit(output), rng.random() * seconds
    with contextlib.suppress(subprocess.TimeoutExpired):
        command.wait(at)
    step = step_of(output)
    site = f"site-{rng.randrange(SITES)}"
    if kind == "serverapp":
        for process in serverapps(demo.folder / "coordinator"):
            os.kill(process, signal.SIGKILL)
    else:
        demo.kill("superlink" if kind == "superlink" else site)
    if kind == "superlink":
        demo.start("superlink")
    runs = 1
    while True:
        while command.poll() is None:
            if kind != "supernode-gone":
                demo.revive()
            time.sleep(2)
        if command.returncode == 0 or runs == 5:
            break
        time.sleep(10)
        command, runs = demo.audit(output), runs + 1
    found = json.loads(output.read_text()) if output.exists() else {"sites": None, "lost": {}}
    demo.revive()
    named = list(found["lost"])
    good = found["sites"] == wanted if not named else kind.startswith("supernode") and named == [site]
    return {"kind": kind, "after": round(at), "step": step, "good": bool(good), "lost": named, "commands": runs}


def step_of(output):
    """Return the last line of an audit's state; empty before the first."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads(Path(f"{output}.status.json").read_text())["step"]
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--port", type=int, default=18400)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fnlkit-audits-"))
    demo, rng, fine, count = Demo(folder, arguments.port), random.Random(0), 0, 0
    try:
        demo.start("superlink")
        demo.call("sites", "admit", ".", *(f"sites/site-{k}/site-{k}.key.pub" for k in range(SITES)))
        for k in range(SITES):
            demo.start(f"site-{k}")
        wanted = simulated(demo.folder)
        began = time.monotonic()
        whole = demo.audit(folder / "whole.json").wait()
        seconds = time.monotonic() - began
        good = whole == 0 and json.loads((folder / "whole.json").read_text())["sites"] == wanted
        print(json.dumps({"kind": "none", "good": good, "seconds": round(seconds)}), flush=True)
        for number in range(arguments.times):
            for kind in arguments.kinds:
                began = time.monotonic()
                found = once(demo, kind, folder / f"{kind}-{number}.json", wanted, 0.9 * seconds, rng)
                fine, count = fine + found["good"], count + 1
                print(json.dumps(found | {"seconds": round(time.monotonic() - began)}), flush=True)
    finally:
        for name in demo.processes:
            demo.kill(name)
    print(f"{fine} of {count}")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through `finally`, which stops the processes
    main()
