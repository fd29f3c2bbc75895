"""Send training metrics to TensorBoard, MLflow or Weights & Biases; each is imported only when used.

A tracker receives the rows of a run's history as numbers over client-rounds.  A resumed run sends earlier rows again;
repeated points are replaced or skipped, so that a curve has each point once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fnlkit.errors import InputError, nearest

if TYPE_CHECKING:
    from fnlkit.experiment.experiment import Experiment


KINDS = {
    "tensorboard": "a folder, tensorboard:runs/tb",
    "mlflow": "the store of runs, mlflow:sqlite:///mlruns.db",
    "wandb": "a project, wandb:noisy-labels",
}
# Settings that can differ in a resumed run.
_MAY_CHANGE = ("rounds", "min_replies")
# Numbers of a row that are positions and not measurements.
_PLACES = ("round", "client_rounds")


def parse_tracker(text: str) -> tuple[str, str]:
    """Return (kind, place) of a text, such as ``("tensorboard", "runs/tb")`` for ``tensorboard:runs/tb``.

    Raises
    ------
    InputError
        If the kind is unknown, has no place, or the library is not installed.
    """
    kind, _, place = str(text).partition(":")
    if kind not in KINDS:
        raise InputError(f"`log` {text}: unknown program{nearest(kind, KINDS)}; write one of {', '.join(KINDS)}")
    if not place:
        raise InputError(f"`log` {text}: after a colon, write {KINDS[kind]}")
    if importlib.util.find_spec(kind) is None:
        raise InputError(f"`log` {text}: {kind} is not installed; run pip install 'fnlkit[{kind}]'")
    return kind, place


@contextmanager
def track_run(
    texts: Sequence[str], experiment: Experiment, *, name: str | None = None
) -> Iterator[Callable[[dict[str, Any], float], None]]:
    """Yield a function (row, seconds) that sends a new row of the history to all trackers.

    Parameters
    ----------
    texts : list of str
        As `parse_tracker` reads them.
    experiment : fnlkit.experiment.Experiment
        Rows of earlier rounds are sent first.
    name : str or None
        Name of the run, such as its file.
    """
    with ExitStack() as stack:
        trackers = [stack.enter_context(_KINDS[kind](place, experiment, name)) for kind, place in map(parse_tracker, texts)]

        def send(row: dict[str, Any], seconds: float) -> None:
            for tracker in trackers:
                tracker(row, seconds)

        for row, seconds in zip(experiment.history, experiment.times, strict=True):
            send(row, seconds)
        yield send


def describe_run(experiment: Experiment) -> dict[str, Any]:
    """Return all settings of a run with its data set and the parameters of earlier commands, such as ``inject-noise.noise``.

    Parameters
    ----------
    experiment : fnlkit.experiment.Experiment
    """
    out = asdict(experiment.settings) | {"dataset": experiment.federation.dataset}
    for step in experiment.federation.meta.get("provenance", []):
        for name, value in (step.get("parameters") or {}).items():
            if name != "dataset":
                key = f"{step['command']}.{name}"
                out[key] = value if key not in out else f"{out[key]} + {value}"
    return out


def numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Return the measurements of a row: all numbers that are not positions."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key not in _PLACES
    }


@contextmanager
def _quiet_writers():
    """Keep TensorBoard's writer threads from printing a traceback: the next call of the writer raises their exception."""
    before = threading.excepthook

    def hook(failure: Any) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            before(failure)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


@contextmanager
def _tensorboard(place, experiment, name):
    from torch.utils.tensorboard import SummaryWriter

    try:
        # Readers drop points at or after the step at which a writer starts, so the folder then contains only this run.
        writer = SummaryWriter(place, purge_step=0)
    except OSError as error:
        raise InputError(f"`log` tensorboard:{place}: {error.strerror}; name a folder that can be written") from error
    began, stages, at = time.time() - experiment.seconds, [], [0]

    @contextmanager
    def name_run() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror or str(error), place) from error

    lines = [f"| {key} | {value} |" for key, value in describe_run(experiment).items()]

    def send(row: dict[str, Any], seconds: float) -> None:
        at[0] = row.get("client_rounds", at[0])  # the final row follows the last round
        when = began + (seconds or 0)
        with name_run():
            for key, value in numbers(row).items():
                writer.add_scalar(key, value, at[0], walltime=when)
            if row["stage"] not in (*stages[-1:], "final"):
                stages.append(row["stage"])
                writer.add_text("stage", row["stage"], at[0], walltime=when)
            writer.flush()

    with _quiet_writers():
        try:
            with name_run():
                writer.add_text("settings", "\n".join(["| option | value |", "|---|---|", *lines]), 0, walltime=began)
            yield send
        finally:
            with name_run():
                writer.close()


def _identity(experiment, name):
    """Return a short text that is the same for a run and its continuation, and differs for other runs."""
    where = os.path.realpath(name) if name else ""
    chosen = {key: value for key, value in asdict(experiment.settings).items() if key not in _MAY_CHANGE}
    digest = hashlib.sha256(f"{where}\n{sorted(chosen.items())}".encode())
    for values in (experiment.federation.client_indices, experiment.federation.given):
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]


@contextmanager
def _mlflow(place, experiment, name):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=place)
    group = client.get_experiment_by_name("fnlkit")
    where = group.experiment_id if group else client.create_experiment("fnlkit")
    identity, known = _identity(experiment, name), []
    if experiment.history:  # resumed: continue the tracked run with the same first rows, if there is one
        known = client.search_runs([where], f"tags.fnlkit = '{identity}'", max_results=1)
    run = known[0] if known else client.create_run(where, run_name=name, tags={"fnlkit": identity})
    logged = {key: max(point.step for point in client.get_metric_history(run.info.run_id, key)) for key in run.data.metrics}
    if not known:
        for key, value in describe_run(experiment).items():
            client.log_param(run.info.run_id, key, value)
    at = [0]

    def send(row: dict[str, Any], seconds: float) -> None:
        at[0] = row.get("client_rounds", at[0])
        for key, value in numbers(row).items():
            if at[0] > logged.get(key, -1) and math.isfinite(value):
                client.log_metric(run.info.run_id, key, value, step=at[0])

    status = "KILLED"
    try:
        yield send
        status = "FINISHED"
    finally:
        client.set_terminated(run.info.run_id, status)


@contextmanager
def _wandb(place, experiment, name):
    import wandb

    identity = _identity(experiment, name)
    # A new run replaces the tracked run of the same name; a resumed run skips points that were already sent.
    again = "allow" if experiment.history else None
    run = wandb.init(project=place, name=name, id=identity, resume=again, config=describe_run(experiment))
    logged, at, code = run.step, [0], 1

    def send(row: dict[str, Any], seconds: float) -> None:
        at[0] = row.get("client_rounds", at[0])
        if at[0] >= logged:
            run.log({**numbers(row), "stage": row["stage"]}, step=at[0])

    try:
        yield send
        code = 0
    finally:
        run.finish(exit_code=code)


_KINDS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}
