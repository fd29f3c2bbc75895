"""Tasks of a deployment at the server: training, audit, estimate and evaluation over the sites of a grid."""

import json
import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.run import Run
from fnlkit.client import scaling, testing
from fnlkit.client.client_list import ClientList
from fnlkit.client.inputs import Inputs, weight_type
from fnlkit.client.network import Model
from fnlkit.datasets import columns as features
from fnlkit.datasets.dataset import Dataset
from fnlkit.errors import InputError, WorkStopped, list_names
from fnlkit.estimators import federated, run_estimator
from fnlkit.estimators.inputs import EstimatorInputs
from fnlkit.estimators.intervals import wilson
from fnlkit.experiment.output import lock_output, torch_threads
from fnlkit.experiment.plan import Plan
from fnlkit.server.clients import TooManyLost
from fnlkit.sites import opening, scale, terms, training
from fnlkit.sites.remote import Remote

if TYPE_CHECKING:
    from fnlkit.client.testing import Ranges
    from fnlkit.experiment.settings import Settings
    from fnlkit.sites.sites import Sites
    from fnlkit.sites.terms import Task


KIND = "fnlkit.sites/1"
# A site whose reply is missing this many times is lost, although it connects again.
MOST_TRIES = 3
# Lines of a task that its state contains.
_MOST_EVENTS = 1000
# Codes of failures after which a site can come back.
_SILENT = ("did not reply", "did not answer")


def conduct(grid: Any, config: dict[str, Any]) -> None:
    """Run the task of a project's configuration over the sites of a grid; called by the ServerApp.

    Training writes a run. The other tasks write a JSON file with the results by site, the covered sites and the lost sites. All
    tasks can be stopped at any time; a run with the same ``output`` continues.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    config : dict
        Configuration of the project. ``task`` selects the task; ``output`` is the path of the result; ``run`` is the path of
        the run for the task evaluate.

    Raises
    ------
    InputError, WorkStopped
    """
    settings, task = terms.read_config(config)
    scale.must_have_scale(task)
    output = os.path.abspath(config.get("output") or ("run.pt" if task.name == "train" else f"{task.name}.json"))
    if task.name == "train":
        with progress(output, task) as report:
            calls = {"on_sites": report.about, "on_round": report.row, "on_refused": report.refused, "say": report.event}
            return training.conduct(grid, config, **calls)

    if task.name == "evaluate" and not config.get("run"):
        raise InputError('run: names no run to evaluate; set task="evaluate" and run="/path/run.pt" in the run config')
    with lock_output(output), torch_threads(), progress(output, task) as report:
        if os.path.exists(output):
            raise InputError(f"output {output}: there is a finished result already; move it away or name another file")
        folder = f"{output}.steps"
        os.makedirs(folder, exist_ok=True)
        run = _token(folder)
        sites = training.sites_of(grid, task, config, run=run, say=report.event, on_refused=report.refused)
        found = over(sites, task, settings, config, folder, report)
        saving.write_bytes([json.dumps(found, indent=1).encode()], output)
        shutil.rmtree(folder)
        for line in words(found):
            print(line, flush=True)
    return None


def _token(folder):
    path = os.path.join(folder, "id")
    return training.token(path, os.path.exists(path) or None)


def over(
    sites: "Sites", task: "Task", settings: "Settings", config: dict[str, Any], folder: Any, report: Any
) -> dict[str, Any]:
    """Return the result of a task over the sites of a grid.

    A site that stops replying is awaited for `wait` seconds. If it does not come back, or if it refuses, the task starts again
    without it, as long as the share `min_replies` of the sites remains.

    Returns
    -------
    dict
        kind, task, covers (names of sites), lost ({name: reason}), steps, and the entries of the task.

    Raises
    ------
    WorkStopped
        If too few sites remain. The message names the lost sites.
    """
    work, fewest = {"audit": (_run_audit, 2), "estimate": (_run_estimate, 1), "evaluate": (_run_evaluate, 1),
                    scale.TASK: (_run_scale, 1)}[task.name]  # fmt: skip
    least = max(fewest, math.ceil(settings.min_replies * task.sites))
    present = sites.gather(least)
    lost = {k: sites.cause(k) for k in range(task.sites) if k not in present}
    tries: Counter[int] = Counter()
    while True:
        report.about(sites, present, lost)
        remote = Remote(sites, present, folder=folder, timeout=float(config["timeout"]), on_step=report.step)
        try:
            found = work(remote, task, settings, config, report)
        except TooManyLost as error:
            gone = remote.list_lost_sites(error)
            for k, reason in gone.items():
                report.step(f"{task.names[k]}: {reason}")
            silent = {k for k, reason in gone.items() if any(words in reason for words in _SILENT)}
            back = sites.wait_for_return(silent) if silent else set()
            tries.update(list(gone))
            for k in sorted(gone):
                if k in back and tries[k] < MOST_TRIES:
                    report.step(f"{task.names[k]} is connected again")
                else:
                    lost[k] = gone[k]
            present = [k for k in present if k not in lost]
            if not gone or len(present) < least:
                named = "; ".join(f"{task.names[k]}: {reason}" for k, reason in sorted(lost.items()))
                raise WorkStopped(
                    f"{len(present)} of {task.sites} sites remain, and this task requires {least} (min_replies); "
                    f"lost: {named}; start these sites, then run the same command"
                ) from None
            continue
        about: dict[str, Any] = {"kind": KIND, "task": task.name, "covers": [task.names[k] for k in present]}
        about["lost"] = {task.names[k]: reason for k, reason in sorted(lost.items())}
        return about | found | {"steps": remote.steps}


def placeholders(task: "Task", sizes: Sequence[int], names: Sequence[str]) -> tuple[Federation, Dataset]:
    """Return (Federation, Dataset) with the numbers of samples of sites and no values.

    Parameters
    ----------
    task : fnlkit.sites.project.Task
    sizes : sequence of int
    names : sequence of str
    """
    total = int(sum(sizes))
    given, none = np.zeros(total, np.int64), np.zeros((0, *task.shape), np.float32)
    about = json.dumps([list(sizes), asdict(task)]).encode()
    dataset = Dataset(
        name=REAL_SITES,
        kind=task.kind,
        y_train=given,
        y_test=given[:0],
        class_names=list(task.classes),
        samples=lambda: (training.Elsewhere(total, task.shape), none),
        statistics=(task.mean, task.std),
        observed=True,
        table=task.columns,
        columns=features.features(task.columns) if task.columns else None,
        content=lambda: [about],
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    meta = {"dataset_checksum": dataset.checksum, "client_names": list(names)}
    return Federation(REAL_SITES, len(task.classes), offsets, np.arange(total), given, meta=meta), dataset


def _parts(remote, task):
    sizes = [remote.sites.sizes[k] for k in remote.present]
    return placeholders(task, sizes, [task.names[k] for k in remote.present])


def warm_up(task: "Task", settings: "Settings") -> dict[str, Any]:
    """Return the settings of the models of an estimate, as in `fnlkit.estimators.estimate`.

    All sites must reply in each round. A simulation with these settings gives equal results.
    """
    return {"rounds": task.judging.audit_rounds, "fraction": 1.0, "model": settings.model, "precision": settings.precision,
            "standardize": "none", "min_replies": 1.0}  # fmt: skip


def _run_audit(remote, task, settings, config, report):
    from fnlkit.audits import audit, steps
    from fnlkit.audits import report as reports
    from fnlkit.audits.results import Names

    federation, dataset = _parts(remote, task)
    evidence = EstimatorInputs(federation, dataset, form="federated", seed=settings.seed, sites=remote)
    evidence.sends = audit.SENDS
    arrays = federation.client_offsets, federation.client_indices, federation.given
    members = ClientList(dataset.x_train, *arrays, federation.classes, Inputs(task.kind == "image"))
    session, named = federated.ClientSession(evidence, members), Names(federation.names, list(task.classes), dataset.columns)
    scale = (np.array(task.mean), np.array(task.std)) if task.kind == "vector" and task.mean else None
    rows, T = steps.audit_session(session, task.kind, task.shape, named, scale, settings.seed)
    facts = reports.facts_of(rows, federation.dataset, named.classes, evidence.traffic, audit.SENDS)
    return facts | {"order": [row["site"] for row in facts["sites"]], "transition": T.tolist(), "digest": audit.digest(rows)}


def _run_estimate(remote, task, settings, config, report):
    federation, dataset = _parts(remote, task)
    how = {"form": "federated", "seed": settings.seed, "warm_up": warm_up(task, settings)}
    talk = {"say": report.step, "progress": report.progress}
    arrays, facts = run_estimator(federation, dataset, task.judging.estimator, sites=remote, **how, **talk)
    columns = {name: arrays[f"estimate_client_{name}"].tolist() for name in ("level", "level_low", "level_high", "score")}
    rows = [
        {"site": name, "samples": int(size), "level": level, "low": low, "high": high, "score": score}
        for name, size, level, low, high, score in zip(
            federation.names, np.diff(federation.client_offsets), *columns.values(), strict=True
        )
    ]
    order = np.argsort([-row["level"] for row in rows], kind="stable")
    facts |= {"classes": list(task.classes), "sites": rows, "order": [rows[k]["site"] for k in order]}
    return facts | {"transition": arrays["estimate_transition"].tolist()}


def _run_evaluate(remote, task, settings, config, report):
    run = Run.read(config["run"])
    network = opening.network_of(Plan.of(settings), task, input_shape(task))
    if run.weights.numel() != network.size or run.settings["model"] != settings.model:
        raise InputError(f"run {config['run']}: its model is {run.settings['model']}, not {settings.model} of this project")
    federation, dataset = _parts(remote, task)
    evidence = EstimatorInputs(federation, dataset, form="federated", seed=settings.seed, sites=remote)
    evidence.sends = testing.SENDS
    inputs = Inputs(task.kind == "image", task.mean, task.std, weight_type(settings.precision), "cpu")
    arrays = federation.client_offsets, federation.client_indices, federation.given
    members = ClientList(dataset.x_train, *arrays, federation.classes, inputs)
    model = Model(network, run.weights)
    session, sides = federated.ClientSession(evidence, members, model), {"groups": federation.classes + 1}
    replies = session.ask(testing.reply_tested, sides=sides, compare=testing.implausible)
    found = scores(testing.ranges(*(replies[name].numpy() for name in testing.SENDS)), federation.names)
    return {"run": os.path.abspath(config["run"]), "classes": list(task.classes), **found}


def _run_scale(remote, task, settings, config, report):
    federation, dataset = _parts(remote, task)
    evidence = EstimatorInputs(federation, dataset, form="federated", seed=settings.seed, sites=remote)
    evidence.sends = scaling.SENDS
    arrays = federation.client_offsets, federation.client_indices, federation.given
    members = ClientList(dataset.x_train, *arrays, federation.classes, Inputs(False))
    session, sides = federated.ClientSession(evidence, members), {"features": math.prod(task.shape)}
    return scale.of_replies(session.ask(scaling.reply_moments, sides=sides, compare=scale.implausible), task)


def input_shape(task: "Task") -> tuple[int, ...]:
    """Return the shape of a network's input for samples of the task."""
    if task.kind != "image":
        return task.shape
    return (task.shape[2], *task.shape[:2])


def scores(counts: "Ranges", names: Sequence[str]) -> dict[str, Any]:
    """Return the agreement of a model with the labels of each site.

    A number that is known as a range counts as the middle of the range, and the interval contains both ends.  `agreement` and
    `balanced` (mean over the groups) are None for a site whose samples were not tested.

    Parameters
    ----------
    counts : fnlkit.client.testing.Ranges
        Of the sites, (N, G).
    names : sequence of str
    """
    rows, middle = [], (counts.fewest + counts.most) / 2
    for k, name in enumerate(names):
        size, held = int(counts.tested[k].sum()), counts.tested[k] > 0
        row = {"site": name, "samples": size, "agreement": None, "low": 0.0, "high": 1.0, "balanced": None}
        if size:
            row["agreement"] = float(1 - middle[k].sum() / size)
            row["low"] = float(wilson(size - int(counts.most[k].sum()), size)[0])
            row["high"] = float(wilson(size - int(counts.fewest[k].sum()), size)[1])
            row["balanced"] = float((1 - middle[k, held] / counts.tested[k, held]).mean())
        rows.append(row)
    total = int(counts.tested.sum())
    return {"sites": rows, "samples": total, "agreement": float(1 - middle.sum() / total) if total else None}


def words(found: dict[str, Any]) -> Iterator[str]:
    """Return lines with the result of a task, for the server's log."""
    covers = f"{len(found['covers'])} sites: {list_names(found['covers'])}"
    yield f"{found['task']} of {covers}" + "".join(f"; lost {name}: {reason}" for name, reason in found["lost"].items())
    for row in found.get("sites", ()):
        value = row["agreement"] if found["task"] == "evaluate" else row["level"]
        share = "unknown" if value is None else f"{100 * value:.1f} %"
        what = "agreement" if found["task"] == "evaluate" else "wrong labels"
        yield f"{row['site']}: {row['samples']:,} samples, {what} {share} ({100 * row['low']:.1f} to {100 * row['high']:.1f} %)"


def _reason(error):
    """Return the text of an error with a remedy; errors that are not for users are named with the place of their traceback."""
    text = str(error)
    if not isinstance(error, InputError | WorkStopped):
        text = f"internal error at the server ({type(error).__name__}: {text[:500]}); its log has the traceback"
    return " ".join(text.split())[:1000]


class progress:
    """Context that writes the state of a task to OUTPUT.status.json, for `fnlkit sites status`.

    Parameters
    ----------
    output : str
    task : fnlkit.sites.project.Task
    """

    def __init__(self, output, task):
        self.path, self.task = f"{output}.status.json", task
        self.state = {"kind": "fnlkit.status/1", "task": task.name, "output": output, "state": "waiting", "step": "", "done": 0}
        self.state |= {"total": 0, "sites": {}, "lost": {}, "refused": {}, "silent": {}, "reason": "", "events": []}

    def __enter__(self):
        self._write()
        return self

    def __exit__(self, kind, error, traceback):
        stopped = kind is not None and not issubclass(kind, Exception)  # `fnlkit sites stop`, or a signal
        self.state["state"] = "completed" if error is None else "stopped" if stopped else "failed"
        self.state["reason"] = "" if error is None or stopped else _reason(error)
        self._write()

    def about(self, sites: Any, present: Any, lost: Any = None) -> None:
        """Record the samples of each site, and the lost sites."""
        self.state["state"] = "running"
        about = {k: {"samples": sites.sizes[k], "version": sites.versions[k]} for k in present}
        self.state["sites"] = {self.task.names[k]: each for k, each in about.items()}
        self.state["lost"] = {self.task.names[k]: reason for k, reason in (lost or {}).items()}
        self._write()

    def refused(self, refused: dict[int, str], silent: dict[int, str]) -> None:
        """Record the sites that refuse or are refused, and the sites that gave no answer in time, {client: cause} each."""
        for name, causes in (("refused", refused), ("silent", silent)):
            self.state[name] = {self.task.names[k]: cause for k, cause in sorted(causes.items())}
        self._write()

    def event(self, text: str) -> None:
        """Print and record a line, for example about a site that refuses or fails."""
        print(text, flush=True)
        self.state["events"] = [*self.state["events"], [time.time(), text[:1000]]][-_MOST_EVENTS:]
        self._write()

    def step(self, text: str) -> None:
        """Print and record a line about a step."""
        self.event(text)
        self.state |= {"step": text, "done": 0, "total": 0}
        self._write()

    def row(self, row: dict[str, Any]) -> None:
        """Record a round of the task train."""
        self.state |= {"step": f"round {row['round']}", "done": 0, "total": 0}
        self._write()

    def progress(self, done: int, total: int, title: str) -> None:
        """Record the finished visits of a training."""
        self.state |= {"step": title, "done": int(done), "total": int(total)}
        self._write()

    def _write(self):
        self.state["time"] = time.time()
        saving.write_bytes([json.dumps(self.state).encode()], self.path)
