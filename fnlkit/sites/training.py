"""Training of a deployment at the server."""

import json
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.provenance import provenance
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Rows
from fnlkit.datasets import columns as features
from fnlkit.datasets.dataset import Dataset
from fnlkit.errors import InputError
from fnlkit.experiment import Experiment
from fnlkit.experiment.criteria import AGREEMENT, CHANGES
from fnlkit.experiment.output import lock_output, metrics_file, metrics_path, torch_threads
from fnlkit.server.clients import TooManyLost
from fnlkit.sites.agreement import samples_like
from fnlkit.sites.sites import Sites
from fnlkit.sites.terms import Task, read_config

# Entries of a row of the history that the server prints.
_PRINTED = ("round", "stage", "accuracy", AGREEMENT, CHANGES, "rejected")


class Elsewhere(Rows):
    """Placeholder for samples that are at the sites: it has a shape but no values."""

    def __init__(self, count, shape):
        self.shape, self.dtype = (count, *shape), np.dtype(np.float32)

    def _read(self, positions):
        if len(positions):
            raise InputError("a sample of a site was asked for, which no server has")
        return np.zeros((0, *self.shape[1:]), self.dtype)


def conduct(
    grid: Any,
    config: dict[str, Any],
    *,
    on_sites: Callable[..., object] = lambda sites, present: None,
    on_round: Callable[..., object] = lambda row: None,
    on_refused: Callable[..., object] = lambda refused, silent: None,
    say: Callable[..., Any] | None = None,
) -> None:
    """Train over the sites of a grid and write the run.

    The run is written after every round. If the output file already exists, the run is resumed.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    config : dict
        Configuration of the project. ``output`` is the path of the run, and ``server_data`` is a data set with the test samples
        for the evaluation.
    on_sites : callable (Sites, numbers of the clients)
        Called when all sites are connected.
    on_round : callable (row of the metrics)
        Called after each round.
    on_refused : callable (dict, dict)
        Called with the causes by client when a site refuses, is refused, gives no answer in time or is admitted again.
    say : callable (str), optional
        Receives a line for each site that is refused, fails or is awaited. Default: print it.

    Raises
    ------
    InputError, WorkStopped
    """
    say = say or _say
    settings, task = read_config(config)
    output = os.path.abspath(config.get("output") or "run.pt")
    with lock_output(output), torch_threads():
        resume = Run.read(output) if os.path.exists(output) else None
        _read_test_set(config.get("server_data"), task)  # so that an error is raised before waiting for the sites
        sites = sites_of(grid, task, config, run=token(f"{output}.id", resume), say=say, on_refused=on_refused)
        experiment = _experiment(settings, task, sites, resume, config)
        on_sites(sites, list(range(task.sites)))
        clients = experiment.clients
        printed, rejected = 0, len(clients.rejected)

        def print_notes() -> None:
            nonlocal printed, rejected
            for text in clients.notes[printed:]:
                say(_with_names(text, task))
            for each in clients.rejected[rejected:]:
                say(f"round {each['round']} without {task.names[each['client']]}: {each['reason']}")
            printed, rejected = len(clients.notes), len(clients.rejected)

        print_notes()
        with metrics_file(metrics_path(output), experiment.history) as write:

            def done(row: dict[str, Any]) -> None:
                write(row)
                print_notes()
                on_round(row)
                _say(json.dumps({name: row[name] for name in _PRINTED if name in row}))

            try:
                experiment.run(on_round=done, checkpoint=lambda run: run.write(output), checkpoint_every=1)
            except TooManyLost as error:
                raise TooManyLost(f"{_with_names(error, task)}; start these sites, then run the same command") from None


def sites_of(
    grid: Any,
    task: Task,
    config: dict[str, Any],
    *,
    run: str,
    say: Callable[[str], object],
    on_refused: Callable[..., Any],
) -> Sites:
    """Return the Sites of a run over the nodes of a grid."""
    if not task.keys:
        say("the project names no keys: any admitted SuperNode may claim a client's number (option `key` of fnlkit flower-app)")
    about = {"wait": float(config["wait"]), "most": task.most, "keys": task.keys, "names": task.names}
    return Sites(grid, task.sites, run=run, say=say, on_refused=on_refused, **about)


def _with_names(text, task):
    """Return a text in which clients have the names of their sites."""
    return re.sub(r"\bclient (\d+)\b", lambda match: task.names[int(match[1])], str(text))


def _say(text):
    """Print a line to the server's log."""
    print(text, flush=True)


def token(path: str | os.PathLike[str], resume: "Run | None") -> str:
    """Return the identifier of a run that the sites use, or a new identifier for a new run."""
    if resume is not None and os.path.exists(path):
        return Path(path).read_text(encoding="ascii").strip()
    token = secrets.token_hex(8)
    Path(path).write_text(token, encoding="ascii")
    return token


def _experiment(settings, task, sites, resume, config):
    sizes = [sites.sizes[k] for k in sites.gather()]
    count, test = task.sites, _read_test_set(config.get("server_data"), task)
    x_test, y_test = test or (np.zeros((0, *task.shape), np.float32), np.zeros(0, np.int64))
    # A single entry represents all samples of a site, so that memory does not grow with the number that a site reports.
    nothing = np.zeros(count, np.int64)
    dataset = Dataset(
        name=REAL_SITES,
        kind=task.kind,
        y_train=nothing,
        y_test=y_test,
        class_names=list(task.classes),
        samples=partial(_samples, count, task.shape, x_test),
        statistics=(task.mean, task.std),
        observed=True,
        test_true=True,
        table=task.columns,
        columns=features.features(task.columns) if task.columns else None,
        content=lambda: [json.dumps([sizes, asdict(task)]).encode(), np.ascontiguousarray(x_test).tobytes(), y_test.tobytes()],
    )
    about = {"dataset_checksum": dataset.checksum}
    federation = Federation(REAL_SITES, len(task.classes), np.arange(count + 1), np.arange(count), nothing, meta=about)
    settings_of_engine = {"engine": "flower", "runtime": sites, "client_timeout": float(config["timeout"]), "device": "cpu"}
    output = os.path.abspath(config.get("output") or "run.pt")
    beside = {"release_ledger": f"{output}.ledger", "privacy_key": f"{output}.privacy-key"}
    experiment = Experiment(federation, dataset, settings, resume=resume, **beside, **settings_of_engine)
    experiment.provenance.append(provenance("flower-app", **asdict(settings), sites=task.sites, samples=sizes))
    return experiment


def _samples(count, shape, x_test):
    return Elsewhere(count, shape), x_test


def _read_test_set(path, task):
    """Return (x_test, y_test) of the server's data set, or None if the server has no data set."""
    if not path:
        return None
    data = samples_like(str(path), task)
    if tuple(data.x_test.shape[1:]) != task.shape or list(data.class_names) != list(task.classes):
        raise InputError(f"server_data {path}: its test samples are not like those of the task")
    return np.asarray(data.x_test[:]), np.asarray(data.y_test, np.int64)
