"""Tasks of a deployment at the server: training, audit, evaluation and scale over real sites."""

import contextlib
import json
import math
import os
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError, WorkStopped, list_names
from fnlkit.experiment.output import lock_output, torch_threads
from fnlkit.federated.client import private_counts, scaling
from fnlkit.federated.client.network import Model
from fnlkit.federated.server.admission import least_of
from fnlkit.sites import scale
from fnlkit.sites.network import network_of
from fnlkit.sites.project import FEWEST, Project, Task, task_of
from fnlkit.sites.scores import scores
from fnlkit.sites.server import audit, training
from fnlkit.sites.server import scale as pooling
from fnlkit.sites.server.folder import Journal
from fnlkit.sites.server.remote import Remote
from fnlkit.sites.server.roster import Roster

KIND = "fnlkit.sites/1"


@dataclass(frozen=True)
class Options:
    """Options of a run of a task, which only the server uses.

    Attributes
    ----------
    task : str
    output : str
        Path of the result: a run of the task train, JSON of the other tasks.
    run : str
        Path of the run to evaluate.
    scale : str
        Result of the task scale.
    server_data : str
        Data set with test samples, for the task train.
    min_replies : float or None
        Share of the sites that must remain. None: that of the project.
    wait, timeout : float or None
        Seconds to wait for sites, and for a reply. None: those of the project.
    """

    task: str = "train"
    output: str = ""
    run: str = ""
    scale: str = ""
    server_data: str = ""
    min_replies: float | None = None
    wait: float | None = None
    timeout: float | None = None


def options_of(values: Mapping[str, Any]) -> Options:
    """Read the Options in the configuration of a run.

    Raises
    ------
    InputError
        If an entry is unknown or has another type.
    """
    known = {field.name for field in fields(Options)}
    for name, value in values.items():
        if name not in known:
            raise InputError(f"{name}: is no option of a task; the options are {', '.join(sorted(known))}")
        numbers = name in ("min_replies", "wait", "timeout")
        if isinstance(value, bool) or not isinstance(value, int | float if numbers else str):
            raise InputError(f"{name} is {value!r}; expected {'a number' if numbers else 'a text'}")
    chosen: dict[str, Any] = {name: float(v) if isinstance(v, int | float) else v for name, v in values.items()}
    options = Options(**chosen)
    default = "run.pt" if options.task == "train" else f"{options.task}.json"
    return replace(options, output=os.path.abspath(options.output or default))


def prepare(project: Project, options: Options) -> Task:
    """Check the options of a run and make its Task.

    Raises
    ------
    InputError
    """
    task = task_of(project, options.task, options.scale)
    if options.min_replies is not None:
        settings = replace(task.settings, min_replies=options.min_replies)
        task = replace(task, settings=settings, plan=replace(task.plan, settings=settings))
    if task.name == "audit" and project.sites < FEWEST:
        raise InputError(f"task audit: compares at least {FEWEST} sites, and the project has {project.sites}")
    if task.name == "evaluate" and not options.run:
        raise InputError("run: names no run to evaluate; give the output of the task train")
    for name, value, of in (("run", options.run, "evaluate"), ("server_data", options.server_data, "train")):
        if value and task.name != of:
            raise InputError(f"is for the task {of}, and this is the task {task.name}; leave it out", parameter=name)
    if task.name == "evaluate":
        _read_run(task, options)
    if task.name != "train" and os.path.exists(options.output):
        raise InputError(f"output {options.output}: there is a finished result already; move it away or name another file")
    return task


def conduct(transport: Any, project: Project, options: Options, folder: str | None = None) -> None:
    """Run a task over real sites.

    Training writes a run.  The other tasks write a JSON file with the results by site, the covered and the lost sites.  Every
    task can be stopped at any time; a run with the same output continues.

    Parameters
    ----------
    transport : object
        See `fnlkit.sites.server.roster.Roster`.
    project : fnlkit.sites.project.Project
    options : Options
    folder : path, optional
        Folder of the name and the journal of the run. Default: a folder next to the output, which is removed at the end.

    Raises
    ------
    InputError, WorkStopped
    """
    task, output = prepare(project, options), options.output
    if task.name == "train" and task.plan.protection is not None and not hasattr(transport, "sum_secretly"):
        raise InputError("`protect='secagg'` runs over Flower only; write the project again with `address`")
    beside = folder or f"{output}.steps"
    with lock_output(output), torch_threads(), contextlib.nullcontext() if folder else _naming_errors():
        os.makedirs(beside, exist_ok=True)
        # Over files, the command runs again for each exchange, also before the run is written; trainings share a folder.
        name = f"id-{zlib.crc32(os.path.realpath(output).encode()):08x}" if folder and task.name == "train" else "id"
        token, finished = os.path.join(beside, name), os.path.join(beside, f"{name}-finished")
        if os.path.exists(finished) and os.path.exists(output):  # a finished run gets more rounds
            os.replace(finished, token)
        run = _token(token, new=not folder and task.name == "train" and not os.path.exists(output))
        # A training is resumed by its run.
        journal = None if task.name == "train" or folder else Journal(beside)
        wait = project.wait if options.wait is None else options.wait
        sites = Roster(transport, task, run=run, agreed=project, scale=options.scale, wait=wait, journal=journal,
                       say=_say)  # fmt: skip
        if not (project.keys or transport.named):
            _say("the project names no keys: any admitted SuperNode may claim a client's number "
                 "(option `key` of fnlkit flower-app)")  # fmt: skip
        if task.name == "train":
            training.train(sites, task, options, _say)
            if folder:  # without the run, the next training asks the sites anew
                os.replace(token, finished)
            return
        result = over(sites, task, options)
        saving.write_bytes([json.dumps(result, indent=1).encode()], output)
        if not folder:
            shutil.rmtree(beside)
            for line in words(result):  # for the log of the server
                _say(line)


def _token(path, *, new):
    """Name of a run at the sites: 16 hexadecimal digits in a file."""
    if new or not os.path.exists(path):
        saving.write_bytes([secrets.token_hex(8).encode()], path)
    return Path(path).read_text(encoding="ascii").strip()


def over(sites: Roster, task: Task, options: Options) -> dict[str, Any]:
    """Run a task over real sites.

    A site that stops replying is awaited for `wait` seconds. If it does not come back, or if it refuses, the task continues
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
    names, count = task.project.names, task.project.sites
    least = least_of(task.settings.min_replies, count)
    present = sites.gather(least)
    remote = Remote(sites, present, timeout=options.timeout or task.project.timeout, on_step=_say)
    remote.lost |= {k: sites.cause(k) for k in range(count) if k not in present}
    work = {"audit": _run_audit, "evaluate": _run_evaluate, scale.TASK: _run_scale}[task.name]
    result = work(remote, task, options)
    lost = {names[k]: reason for k, reason in sorted(remote.lost.items())}
    return {"kind": KIND, "task": task.name, "lost": lost} | result | {"steps": remote.steps}


def _run_audit(remote, task, options):
    return audit.run(remote, task)


def _ask_once(remote, task, step, declared, sides, implausible, model=None):
    """Run the only step of a task at all sites: (names of the sites that replied, their arrays (N, ...))."""
    replies = remote.ask_all(0, step, remote.present, declared, sides=sides, model=model)
    while odd := implausible(replies):  # without the oddest sites, others can stand out
        for k, reason in odd.items():
            remote.lose(k, reason)
            del replies[k]
    remote.must_remain(len(replies), least_of(task.settings.min_replies, task.project.sites))
    arrays = {name: np.stack([reply[name] for reply in replies.values()]) for name in declared}
    return [task.project.names[k] for k in replies], arrays


def _run_evaluate(remote, task, options):
    classes = task.project.classes
    names, counts = _ask_once(remote, task, private_counts.reply_tested, private_counts.SENDS, {"groups": len(classes) + 1},
                              private_counts.implausible, _read_run(task, options))  # fmt: skip
    agreement = scores(private_counts.ranges(**counts), names)
    return {"covers": names, "run": os.path.abspath(options.run), "classes": list(classes), **agreement}


def _read_run(task, options):
    """Read the model of the run to evaluate."""
    run, network = Run.read(options.run), network_of(task, task.project.input_shape)
    if run.weights.numel() != network.size or run.settings["model"] != task.settings.model:
        raise InputError(
            f"run {options.run}: its model is {run.settings['model']}, not {task.settings.model} of this project; name the "
            "output of the task train of this project"
        )
    return Model(network, run.weights)


def _run_scale(remote, task, options):
    sides = {"features": math.prod(task.project.shape)}
    names, arrays = _ask_once(remote, task, scaling.reply_moments, scaling.SENDS, sides, pooling.implausible)
    return {"covers": names, **pooling.scale_of_replies(arrays, task.project)}


def words(result: dict[str, Any]) -> Iterator[str]:
    """Format the result of a task as lines of the server's log."""
    covers = f"{len(result['covers'])} sites: {list_names(result['covers'])}"
    yield f"{result['task']} of {covers}" + "".join(f"; lost {name}: {reason}" for name, reason in result["lost"].items())
    for row in result.get("sites", ()):
        value, kind = (row["agreement"], "agreement") if result["task"] == "evaluate" else (row["level"], "wrong labels")
        share = "unknown" if value is None else f"{100 * value:.1f} %"
        yield f"{row['site']}: {row['samples']:,} samples, {kind} {share} ({100 * row['low']:.1f} to {100 * row['high']:.1f} %)"


@contextlib.contextmanager
def _naming_errors():
    """Print the reason why a task ends with an error as the last line of its log."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if not isinstance(error, InputError | WorkStopped):
            text = f"internal error at the server ({type(error).__name__}: {text[:500]}); its log has the traceback"
        _say(f"failed: {' '.join(text.split())[:1000]}")
        raise


def _say(text):
    print(text, flush=True)
