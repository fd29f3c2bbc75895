"""Read the numbers that published rows print from finished runs and estimates."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.estimators.compare import compare
from fnlkit.results import evaluation

if TYPE_CHECKING:
    from fnlkit.recipes.reproduce import Job


_TARGET = re.compile(r"client-rounds to (\d+) % accuracy")


def options_of(measure: str) -> dict[str, Any]:
    """Return the options of `train` that a published measure needs, as a dict."""
    return {"memorization": True} if measure.startswith("memorization: ") else {}


def unit(measure: str) -> str:
    """Return the unit of a published measure: ``%``, ``client-rounds`` or ``hours``."""
    return next((word for word in ("client-rounds", "hours") if measure.startswith(word)), "%")


def compute_measure(measure: str, reports: str, job: Job, folder: str | os.PathLike[str]) -> float | None:
    """Return the number of a published measure in the result of a job.

    Parameters
    ----------
    measure : str
        Of a row of published.csv: ``accuracy``, ``client-rounds to 80 % accuracy``, ``memorization: global noisy correct``,
        ``hours of 300 rounds`` or ``auc``.
    reports : "best" or "last"
        Which accuracy the paper prints.
    job : fnlkit.recipes.reproduce.Job
    folder : str or Path
        Contains the job's result.

    Returns
    -------
    float or None
        In the units of the row: percent, client-rounds, or hours.  None if no evaluation reached the target.
    """
    path = str(Path(folder) / job.file)
    if measure == "auc":
        return 100 * compare(Federation.read(path))["sample_auc"]
    run = Run.read(path)
    if match := _TARGET.fullmatch(measure):
        return evaluation.summary(run, target=int(match[1]) / 100)["target_client_rounds"]
    if measure.startswith("memorization: "):
        name = measure.removeprefix("memorization: ").replace(" ", "_")
        return 100 * next(row[name] for row in reversed(run.history) if name in row)
    summary = evaluation.summary(run)
    if measure.startswith("hours of "):
        return summary["seconds"] / 3600
    return 100 * summary[f"{evaluation.score_name(run)}_{reports}"]
