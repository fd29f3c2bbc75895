"""Run every task over five sites with tables, on loopback with TLS and keys, and compare the results with the simulation.

    python -m benchmarks.flower_demonstration --tables [STEP ...]

Each site has a part of the table `heart` (numbers, categories, missing cells) and the scale comes from the sites.  The tasks
are scale, audit, training, evaluation, FedCorr and secure aggregation.  Then one site is killed and started again,
one is stopped for a minute, and one sends NaN, in each task.  The two noisiest sites review by the true labels.  At the end
all sites refuse.  A line is printed for each step: seconds, the outcome, and the lines of `fnlkit sites run` that name a site.
"""

import argparse
import contextlib
import csv
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.audits import report
from fnlkit.audits.audit import audit
from fnlkit.datasets import columns
from fnlkit.datasets.dataset import Dataset
from fnlkit.experiment import Experiment
from fnlkit.federated.client.inputs import Inputs, intake
from fnlkit.federated.client.network import predict
from fnlkit.kernels.streams import stream
from fnlkit.sites import project
from fnlkit.sites.audit import scale_of
from fnlkit.sites.network import network_of
from fnlkit.sites.samples import load_for_task

REVIEWING = 2


class Sites:
    """The server and the sites of a demonstration of `fnlkit flower-app`; a context manager that stops them.

    Parameters
    ----------
    folder : Path
    options : sequence of str
        Options of `fnlkit flower-app`.
    count : int
        Number of sites.
    """

    def __init__(self, folder, options, count):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.project, self.processes = folder, folder / "project", {}
        self.names = [f"site-{k}" for k in range(count)]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        about = ["--sites", str(count), "--address", f"localhost:{port}", "--demo"]
        if (done := self.command("flower-app", "project", *about, *options)).returncode:
            raise RuntimeError(done.stderr)

    def command(self, *words):
        """Return the finished process of a command of fnlkit in the folder."""
        return subprocess.run(["fnlkit", *words], cwd=self.folder, env=self.environment, capture_output=True, text=True)

    def __enter__(self):
        self.start("coordinator")
        keys = [f"project/sites/{name}/{name}.key.pub" for name in self.names]
        if (done := self.command("sites", "admit", "project", *keys)).returncode:
            raise RuntimeError(done.stderr)
        for name in self.names:
            self.start(f"sites/{name}")
        return self

    def start(self, part):
        with open(self.folder / f"{part.replace('/', '-')}.log", "ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            command = [self.project / part / "start.sh"]
            self.processes[part] = subprocess.Popen(command, env=self.environment, **how)

    def wait_for(self, name, since):
        """Wait until the server lists a site as connected after a time (epoch).

        The server drops the entry of a killed process when its heartbeats stop, and refuses the new process until then.
        """
        (key,) = [key for key, site in zip(project.read(self.project).keys, self.names, strict=True) if site == name]
        node = json.loads((self.project / "coordinator/nodes.json").read_text())[key]
        flwr = ["flwr", "supernode", "list", "here", "--format", "json"]
        home = self.environment | {"FLWR_HOME": str(self.project / "coordinator/flwr")}
        while time.time() < since + 300:
            done = subprocess.run(flwr, cwd=self.project, env=home, capture_output=True, text=True)
            (row,) = [row for row in json.loads(done.stdout[done.stdout.index("{") :])["nodes"] if row["node-id"] == node]
            if row["status"] == "online" and datetime.fromisoformat(row["online-at"]).timestamp() > since:
                return
            time.sleep(1)
        raise RuntimeError(f"{name} did not connect again")

    def kill(self, part):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.processes[part].pid, signal.SIGKILL)
        self.processes[part].wait()

    def __exit__(self, *error):
        for part in self.processes:
            self.kill(part)


class Followed:
    """`fnlkit sites run` of a task, and the lines that it prints."""

    def __init__(self, sites, name, task, *options):
        self.path = sites.folder / f"{name}.log"
        self.output = self.path.with_suffix(".pt" if task == "train" else ".json")
        words = ["fnlkit", "sites", "run", "project", "--task", task, *options, "-o", self.output.name]
        with open(self.path, "wb") as log:
            self.process = subprocess.Popen(words, cwd=sites.folder, env=sites.environment, stdout=log, stderr=log)

    def lines(self):
        """Return the printed lines."""
        return self.path.read_text().splitlines()

    def wait_for_a_step(self, seconds=120):
        """Wait until the command has printed the number of a step or round, or has ended."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end and not any("of" in line for line in self.lines()):
            time.sleep(0.2)


HEART = ["--dataset", "heart", "--scale", "sites", "--model", "mlp(hidden=16)", "--rounds", "4", "--fraction", "1",
         "--wait", "180"]  # fmt: skip
# Replaces the program that a site's SuperNode starts: every number of each reply is NaN or -1.
HOSTILE = """#!{python}
import sys
import torch
from fnlkit.sites.site import door, processes
answer = door.answer

def spoil(value):
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, float("nan") if value.is_floating_point() else -1)
    if isinstance(value, dict):
        return {{name: spoil(each) for name, each in value.items()}}
    return type(value)(map(spoil, value)) if isinstance(value, list | tuple) else value

door.answer = lambda *words: spoil(answer(*words))
if __name__ == "__main__":  # the processes that answer import this file
    processes.superexec(sys.argv[1:])
"""


def by_site(folder, names=None, *, task="train", scale=""):
    """Return (Federation, Dataset, Task) with the samples of the sites of a demonstration.

    Parameters
    ----------
    folder : Path
        Of the project.
    names : sequence of str, optional
        Sites that take part. Default: all.
    task, scale : str
        As for `fnlkit.sites.project.task_of`.
    """
    found = project.task_of(project.read(folder), task, scale)
    about, names = found.project, list(names or found.project.names)
    paths = [next((folder / "sites" / name).glob("data.*")) for name in names]
    parts = [load_for_task(str(path), about) for path in paths]
    x, given = (np.concatenate([np.asarray(getattr(part, name)) for part in parts]) for name in ("x_train", "y_train"))
    facts = {"statistics": (tuple(about.mean), tuple(about.std)), "observed": True, "table": about.columns}
    facts["columns"] = columns.features(about.columns) if about.columns else None
    data = Dataset("all", about.kind, given, given[:0], list(about.classes), lambda: (x, x[:0]), **facts)
    offsets = np.concatenate([[0], np.cumsum([len(part.y_train) for part in parts])])
    federation = Federation("all", len(about.classes), offsets, np.arange(len(x)), given, meta={"client_names": names})
    return federation, data, found


def equals_simulation(found, folder, scale=""):
    """Return whether the rows of an audit are those of the same audit in one place, without counts of single samples."""
    federation, data, task = by_site(folder, found["covers"], task="audit", scale=scale)
    about = task.project
    plain = audit(federation, data, detectors=(), scale=scale_of(about) and (np.array(about.mean), np.array(about.std)),
                  seed=task.settings.seed)  # fmt: skip
    single = ("copies", "near_copies", "far", "unlabeled", "detectors", "agreed")
    both = found["sites"], json.loads(json.dumps(report.facts(plain, federation, data)["sites"]))
    left, right = ([{name: row[name] for name in row if name not in single} for row in rows] for rows in both)
    return left == right


# Steps in their order; `scale` is needed by all others, `train` by `disturbed`, `audit` by `review`.
STEPS = ("scale", "audit", "train", "fedcorr", "masked", "disturbed", "review", "refusing")


class Tables:
    """Tasks over five sites with tables, each compared with its simulation; prints a line for each.

    Parameters
    ----------
    sites : Sites
    """

    def __init__(self, sites):
        self.sites, self.project, self.scale, self.differing = sites, sites.project, [], 0

    def task(self, name, task, *options, check=None, relation="equals", during=lambda followed: None):
        """Run a task, print its outcome and the lines that name a site, and return the Followed.

        `check` returns whether the result has the `relation` to that of the simulation.
        """
        began, followed = time.monotonic(), Followed(self.sites, name, task, *self.scale, *options)
        during(followed)
        followed.process.wait(900)
        seconds, outcome = time.monotonic() - began, f"exit code {followed.process.returncode}"
        if followed.output.exists() and check:
            equal = check(followed)
            self.differing += not equal
            outcome += f", {relation if equal else 'DIFFERS FROM'} the simulation"
        print_outcome(f"{name}: {task}", seconds, outcome)
        for line in itertools.takewhile(lambda line: " into " not in line, followed.lines()):
            if re.match(r"site-\d|fnlkit: error|round \d+ without|waiting|\d of \d", line):
                print(f"    {line[:300]}", flush=True)
        return followed

    def config(self):
        text = json.loads((self.sites.folder / "scale.json").read_text())["scale"] if self.scale else ""
        return {"scale": text}

    # ---- comparisons with the simulation
    def scale_equals(self, followed):
        _, data, _ = by_site(self.project, task="scale")
        rows = json.loads(followed.output.read_text())["rows"]
        x = np.asarray(data.x_train, np.float64)
        mean, std = np.nanmean(x, 0), np.nanstd(x, 0)
        got = np.array([[row["mean"], row["std"]] for row in rows])
        return np.allclose(got, np.stack([mean, np.where(std > 0, std, 1)], 1), rtol=1e-9)

    def audit_equals(self, followed):
        found = json.loads(followed.output.read_text())
        return equals_simulation(found, self.project, **self.config())

    def train_equals(self, followed, tolerance=0.0):
        federation, data, task = by_site(self.project, **self.config())
        plain = Experiment(federation, data, replace(task.settings, protect="none"), engine="sequential").run()
        away = float((Run.read(str(followed.output)).weights - plain.weights).abs().max())
        print(f"    largest difference of a weight: {away:g}", flush=True)
        return away <= tolerance

    def evaluate_contains(self, followed):
        """Return whether the interval of each site contains the agreement; sites send ranges of numbers."""
        found = json.loads(followed.output.read_text())
        federation, data, task = by_site(self.project, found["covers"], **self.config())
        train, _, shape, image = intake(data)
        network = network_of(task, shape)
        run = Run.read(found["run"])
        inputs = Inputs(image, tuple(task.project.mean), tuple(task.project.std), torch.float32, "cpu")
        right = predict(network, run.weights, torch.from_numpy(np.asarray(train[:])), inputs).argmax(1).numpy() == data.y_train
        shares = [right[a:b].mean() for a, b in itertools.pairwise(federation.client_offsets)]
        return all(row["low"] <= share <= row["high"] for row, share in zip(found["sites"], shares, strict=True))

    # ---- steps
    def run_scale(self):
        self.task("scale", "scale", check=self.scale_equals)
        self.scale = ["--scale", "scale.json"]

    def run_audit(self):
        self.task("audit", "audit", check=self.audit_equals)

    def run_train(self):
        self.task("before", "train", check=self.train_equals)
        self.task("evaluation", "evaluate", "--run", "before.pt", check=self.evaluate_contains, relation="contains")

    def run_fedcorr(self):
        self.agree(settings={"method": "fedcorr(iterations=1, finetune_rounds=1)"})
        self.task("fedcorr", "train", check=self.train_equals)
        self.agree(settings={"method": "fedavg"})

    def run_masked(self):
        self.agree(settings={"protect": "secagg"})
        self.task("masked", "train", check=partial(self.train_equals, tolerance=1e-3), relation="is within 0.001 of")
        self.task("audit of masked", "audit")
        self.agree(settings={"protect": "none"})

    def run_disturbed(self):
        """In each task, site 1 is killed and started again, site 2 is stopped for a minute, and site 3 sends NaN."""
        self.hostile("site-3")
        self.agree(audits=2)  # under an agreement, a site answers one audit
        self.task("disturbed audit", "audit", check=self.audit_equals, during=self.disturb)
        self.task("disturbed training", "train", during=self.disturb)
        self.task(
            "disturbed evaluation",
            "evaluate",
            "--run",
            "before.pt",
            check=self.evaluate_contains,
            relation="contains",
            during=self.disturb,
        )

    def run_review(self):
        """Review at the noisiest sites, then train and evaluate again."""
        for name in json.loads((self.sites.folder / "audit.json").read_text())["order"][:REVIEWING]:
            began, outcome = time.monotonic(), self.review(name)
            print_outcome(f"review at {name}", time.monotonic() - began, outcome)
        self.task("after", "train")
        self.task("evaluation after", "evaluate", "--run", "after.pt")

    def run_refusing(self):
        """All sites have agreed to another learning rate; the task ends after `wait` seconds."""
        before = (self.project / project.FILE).read_text(encoding="utf-8")
        self.agree(wait=60.0, settings={"lr": 0.02})
        for name in self.sites.names:
            (self.project / "sites" / name / project.FILE).write_text(before, encoding="utf-8")
        self.task("all sites refuse", "train")

    # ---- faults
    def agree(self, *names, **changes):
        """Change entries of the project and of the copies of the named sites, by default of all."""
        agreed = project.read(self.project)
        changes["settings"] = agreed.settings | changes.get("settings", {})
        text = project.text_of(replace(agreed, **changes))
        for folder in (self.project, *(self.project / "sites" / name for name in names or self.sites.names)):
            (folder / project.FILE).write_bytes(text)

    def hostile(self, name):
        """Restart a site with a program that sends NaN."""
        program = self.project / "sites" / name / "bin/flower-superexec"
        program.write_text(HOSTILE.format(python=sys.executable), encoding="utf-8")
        self.sites.kill(f"sites/{name}")
        began = time.time()
        self.sites.start(f"sites/{name}")
        self.sites.wait_for(name, began)

    def disturb(self, followed):
        """Kill a site and start it again, and stop the processes of another one for a minute, after the first step."""
        followed.wait_for_a_step()
        self.sites.kill("sites/site-1")
        self.sites.start("sites/site-1")
        late = self.sites.processes["sites/site-2"].pid
        os.killpg(late, signal.SIGSTOP)
        time.sleep(60)
        os.killpg(late, signal.SIGCONT)

    def review(self, name):
        """Review the suspicious rows of a site by the true labels, as `make_demo` dealt them out; return the last line."""
        data, number, count = datasets.load("heart"), self.sites.names.index(name), len(self.sites.names)
        held = np.sort(stream(0, "demonstration").permutation(len(data.y_train))[number::count])
        command = "site", "review", "--project", f"project/sites/{name}", "-o", f"review-{name}"
        self.sites.command(*command)
        path = self.sites.folder / f"review-{name}/decisions.csv"
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            right = str(data.class_names[data.y_train[held[int(row["position"])]]])
            row |= {"decision": "relabel", "label": right} if right != row["given"] else {"decision": "keep"}
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
        return self.sites.command(*command).stderr.strip()


def print_outcome(name, seconds, outcome):
    print(f"{name:34} {seconds:7.1f} s  {outcome}", flush=True)


def run_tables(steps):
    """Run steps over five sites with tables; return the number of results that differ from the simulation."""
    with Sites(Path(tempfile.mkdtemp(prefix="fnlkit-tables-")), HEART, count=5) as sites:
        tables = Tables(sites)
        for step in STEPS:
            if step in steps:
                getattr(tables, f"run_{step}")()
    return tables.differing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", choices=STEPS, default=[], metavar="STEP",
                        help=f"only these of the steps {', '.join(STEPS)}")  # fmt: skip
    steps = parser.parse_args().tables or STEPS
    print("cores", len(os.sched_getaffinity(0)), "load", *(f"{load:.1f}" for load in os.getloadavg()), flush=True)
    began = time.monotonic()
    differing = run_tables(steps)
    minutes, load = (time.monotonic() - began) / 60, " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"{minutes:.1f} minutes in total, load {load}")
    sys.exit(1 if differing else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit through `__exit__`, which stops the processes
    main()
