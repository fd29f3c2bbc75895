"""Training of a deployment at the server."""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.provenance import provenance
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets import columns as features
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.labels import class_finder
from fnlkit.experiment import Experiment
from fnlkit.experiment.criteria import AGREEMENT, CHANGES
from fnlkit.experiment.output import metrics_file, metrics_path
from fnlkit.federated.server.clients import TooManyLost
from fnlkit.sites.project import Project, Task
from fnlkit.sites.samples import samples_like
from fnlkit.sites.server.roster import Roster

# Entries of a row of the history that the server prints.
_PRINTED = ("round", "stage", "accuracy", AGREEMENT, CHANGES, "rejected")


class Elsewhere(Rows):
    """Placeholder for samples that are at the sites: it has a shape but no values."""

    here = False

    def __init__(self, count, shape):
        self.shape, self.dtype = (count, *shape), np.dtype(np.float32)

    def _read(self, positions):
        if len(positions):
            raise InputError("a sample of a site was asked for, which no server has")
        return np.zeros((0, *self.shape[1:]), self.dtype)


def train(sites: Roster, task: Task, options: Any, say: Callable[[str], object]) -> None:
    """Train over real sites and write the run after every round; an unfinished run in the output file is resumed.

    Parameters
    ----------
    sites : fnlkit.sites.server.roster.Roster
    task : fnlkit.sites.project.Task
    options : fnlkit.sites.server.tasks.Options
        `server_data` is a data set with the test samples for the evaluation.
    say : callable (str)
        Receives a line for each site that is refused, fails or is awaited.

    Raises
    ------
    InputError, WorkStopped
    """
    output, names = options.output, task.project.names
    resume = Run.read(output) if os.path.exists(output) else None
    test = _read_test_set(options.server_data, task.project)  # so that an error is raised before waiting for the sites
    experiment = _experiment(task, sites, resume, options, test)
    clients = experiment.clients
    printed, rejected = 0, len(clients.rejected)
    counts: Counter[tuple[str, str]] = Counter()

    def print_notes() -> None:
        """Write new notes and, once for each site and reason, the rounds without the site."""
        nonlocal printed, rejected
        for text in dict.fromkeys(clients.notes[printed:]):
            if text not in clients.notes[:printed]:
                say(_with_names(text, names))
        for rejection in clients.rejected[rejected:]:
            missed = names[rejection["client"]], rejection["reason"]
            counts[missed] += 1
            if counts[missed] == 1:
                say(f"round {rejection['round']} without {missed[0]}: {missed[1]}")
        printed, rejected = len(clients.notes), len(clients.rejected)

    print_notes()
    with metrics_file(metrics_path(output), experiment.history, output) as write:

        def done(row: dict[str, Any]) -> None:
            write(row)
            print_notes()
            print(json.dumps({name: row[name] for name in _PRINTED if name in row}), flush=True)

        try:
            experiment.run(on_round=done, checkpoint=lambda run: run.write(output), checkpoint_every=1)
        except TooManyLost as error:
            remedy = sites.remedy(error.reasons)
            raise TooManyLost(f"{_with_names(error, names)}; {remedy}, then run the same command") from None
    for (name, reason), rounds in counts.items():
        if rounds > 1:
            say(f"{rounds} rounds without {name}: {reason}")
    say(f"trained {len(experiment.history)} rounds; the run is {output}")


def _with_names(text, names):
    """Replace clients in a text by the names of their sites."""
    return re.sub(r"\bclient (\d+)\b", lambda match: names[int(match[1])], str(text))


def _experiment(task, sites, resume, options, test):
    about, settings = task.project, task.settings
    sizes = [sites.sizes[k] for k in sites.gather()]
    count = about.sites
    x_test, y_test = test or (np.zeros((0, *about.shape), np.float32), np.zeros(0, np.int64))
    # A single entry represents all samples of a site, so that memory does not grow with the number that a site reports.
    nothing = np.zeros(count, np.int64)
    dataset = describe_dataset(about, sizes, nothing, x_test, y_test)
    meta = {"dataset_checksum": dataset.checksum}
    federation = Federation(REAL_SITES, len(about.classes), np.arange(count + 1), np.arange(count), nothing, meta=meta)
    engine = {"engine": "flower", "runtime": sites, "client_timeout": options.timeout or about.timeout, "device": "cpu"}
    beside = {"release_ledger": f"{options.output}.ledger", "privacy_key": f"{options.output}.privacy-key"}
    experiment = Experiment(federation, dataset, settings, resume=resume, **beside, **engine)
    experiment.provenance.append(provenance("flower-app", **asdict(settings), sites=about.sites, samples=sizes))
    return experiment


def describe_dataset(
    project: Project, sizes: Sequence[int], given: np.ndarray, x_test: np.ndarray, y_test: np.ndarray
) -> Dataset:
    """Make the Dataset of sites with these numbers of samples: placeholders for their samples, and test samples.

    Parameters
    ----------
    project : Project
    sizes : list of int
    given : int (n,)
        Placeholders of the labels.
    x_test, y_test : (m, ...), (m,)
        Of the server.
    """
    facts = json.dumps([list(sizes), project.agreement()]).encode()
    return Dataset(
        name=REAL_SITES,
        kind=project.kind,
        y_train=given,
        y_test=y_test,
        class_names=list(project.classes),
        samples=lambda: (Elsewhere(len(given), project.shape), x_test),
        statistics=(tuple(project.mean), tuple(project.std)),
        observed=True,
        test_true=True,
        table=project.columns,
        columns=features.features(project.columns) if project.columns else None,
        content=lambda order: [facts, np.ascontiguousarray(x_test).tobytes(), y_test.tobytes()],
    )


def _read_test_set(path, project):
    """Read (x_test, y_test) of the server's data set; None if the server has no data set."""
    if not path:
        return None
    data, find = samples_like(str(path), project), class_finder(project.classes)
    shape, names = tuple(data.x_test.shape[1:]), list(map(str, data.class_names))
    if shape != tuple(project.shape):
        raise InputError(f"{path}: its samples are {shape}, and those of the project {tuple(project.shape)}; give samples of "
                         "this shape", parameter="server_data")  # fmt: skip
    if unknown := [name for name in names if find(name) is None]:
        raise InputError(f"{path}: the class {unknown[0]!r} is none of the project ({list_names(project.classes)}); rename it",
                         parameter="server_data")  # fmt: skip
    if not len(data.y_test):
        raise InputError(f"{path}: has no test samples, so that nothing would be evaluated; give some, or leave it out",
                         parameter="server_data")  # fmt: skip
    number = np.array([find(name) for name in names], np.int64)
    return np.asarray(data.x_test[:]), number[np.asarray(data.y_test, np.int64)]
