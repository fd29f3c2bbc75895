"""Loggers beside metrics.jsonl: TensorBoard, Weights & Biases and MLflow, each by the writer of its own library, offline."""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import escape, glob
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from fnlkit.core.errors import InputError, nearest


def check_loggers(names: str | Sequence[str], output: str | os.PathLike[str] | None) -> None:
    """Raise InputError if a logger is unknown, its library is missing, or the run is not written to a file."""
    for name in _list(names):
        if name not in LOGGERS:
            raise InputError(f"{name}: unknown{nearest(name, LOGGERS)}; write {' or '.join(LOGGERS)}", parameter="log")
        if find_spec(name) is None or name == "tensorboard" and find_spec("torch") is None:
            raise InputError(f"{name} is not installed; run pip install 'fnlkit[{name}]'", parameter="log")
        if output in (None, "-"):
            raise InputError("writes next to the run; name its file with `output`", parameter="log")


@contextmanager
def open_loggers(
    names: str | Sequence[str], output: str, settings: Mapping[str, Any], history: list[dict[str, Any]]
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that logs the numbers of a row of metrics.jsonl under the same names; the step is the row's line.

    Parameters
    ----------
    names : str or sequence of str
        Names of `LOGGERS`, or a text with commas.
    output : str
        The run's file. TensorBoard writes a folder next to it with its name, the others a folder or a file for all runs of
        its folder. The environment variables of W&B and MLflow name another project or server.
    settings : dict
        Logged once.
    history : list of dict
        Rows of the run that is continued; those that a logger lacks are logged first.
    """
    opened: list[Any] = []
    steps = count()

    def write(row: dict[str, Any]) -> None:
        step, numbers = next(steps), {k: v for k, v in row.items() if type(v) in (int, float)}
        for log, first, _ in opened:
            if step >= first:
                log(numbers, step)

    try:
        for name in _list(names):
            opened.append(LOGGERS[name](Path(output), settings, history))
        for row in history:
            write(row)
        yield write
    finally:
        for _, _, finish in opened:
            finish(sys.exc_info()[0] is not None)


def _list(names):
    return [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]


# Each opens a logger and returns log(numbers, step), the first step that it lacks, and finish(failed).
def _tensorboard(output, settings, history):
    """Open a folder; events of an earlier training into the same folder are hidden."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(output.with_suffix(".tensorboard")), purge_step=0)
    writer.add_text("settings", f"    {json.dumps(settings)}")

    def log(numbers, step):
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log, 0, lambda failed: writer.close()


def _wandb(output, settings, history):
    """Open a run; its id starts with the name of the file, so that the folder of a continued run is found."""
    import wandb

    folder = Path(os.environ.get("WANDB_DIR", output.parent))
    name = "".join("_" if c in "/\\#?%:" else c for c in output.stem)
    folders = sorted(glob(f"{escape(str(folder))}/wandb/*run-????????_??????-{escape(name)}-????????")) if history else []
    place = {"project": os.environ.get("WANDB_PROJECT", "fnlkit"), "mode": os.environ.get("WANDB_MODE", "offline")}
    options = {"resume": "allow", "config": dict(settings), "settings": wandb.Settings(silent=True)}
    run = wandb.init(**place, **options, dir=folder, name=name, id=f"{name}-{folders[-1][-8:] if folders else uuid4().hex[:8]}")
    return run.log, len(history) if folders else 0, lambda failed: run.finish(exit_code=int(failed))


def _mlflow(output, settings, history):
    """Open a run; a continued run is the last one of this name."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow").setLevel(logging.WARNING)  # it announces the tables of a new file
    client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{output.parent.absolute()}/mlflow.db"))
    name, query = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fnlkit"), f"attributes.run_name = {json.dumps(output.stem)}"
    known = client.get_experiment_by_name(name)
    number = known.experiment_id if known else client.create_experiment(name)
    earlier_runs = (
        client.search_runs([number], query, order_by=["attributes.start_time DESC"], max_results=1) if history else []
    )
    run = (earlier_runs[0] if earlier_runs else client.create_run(number, run_name=output.stem)).info.run_id
    client.log_batch(run, params=[] if earlier_runs else [Param(key, str(value)) for key, value in settings.items()])
    client.update_run(run, "RUNNING")

    def log(numbers, step):
        client.log_batch(run, [Metric(key, value, int(1000 * time.time()), step) for key, value in numbers.items()])

    first = len(client.get_metric_history(run, "round"))
    return log, first, lambda failed: client.set_terminated(run, "FAILED" if failed else "FINISHED")


LOGGERS = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
