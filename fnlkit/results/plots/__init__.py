"""Figures of runs and federations, one family per file; `KINDS` lists them with their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from fnlkit.artifacts.names import REAL_SITES
from fnlkit.core.errors import InputError, nearest
from fnlkit.results.plots import style


@dataclass(frozen=True)
class Kind:
    """A kind of figure.

    Attributes
    ----------
    place : str
        ``module:function`` within this package; the function receives things and returns a figure.
    takes : str
        ``runs``, ``run`` or ``labels`` (a federation, or a run with its federation).
    shows : str
        Content of the figure.
    """

    place: str
    takes: str
    shows: str


KINDS = {
    "accuracy": Kind("curves:accuracy", "runs", "test accuracy over client-rounds, with bands over seeds and the stages"),
    "bytes": Kind("curves:traffic", "runs", "test accuracy over the bytes sent up and down"),
    "calibration": Kind("samples:calibration", "runs", "share of right predictions over confidence, with ECE"),
    "memorization": Kind("curves:memorization", "run", "share of wrong labels that models repeat (FLR, Figure 2)"),
    "prestopping": Kind("curves:prestopping", "run", "FedEFC's estimated accuracy and prestopping round"),
    "labels": Kind("labels:labels", "run", "true against working labels before and after each stage"),
    "transition": Kind("labels:transition", "labels", "requested, achieved and estimated transition matrices"),
    "partition": Kind("labels:partition", "labels", "number of samples per client and class"),
    "lid": Kind("clients:lid", "run", "cumulative LID scores with their two Gaussians (FedCorr, Figure 3)"),
    "noise": Kind("clients:noise", "labels", "estimated against true noise level of each client"),
    "estimates": Kind("clients:estimates", "labels", "estimated noise level of each client and transition matrix"),
    "issues": Kind("samples:issues", "labels", "issue scores of right and wrong labels: histogram, ROC, precision and recall"),
}  # fmt: skip


def plot(things: Sequence[Any], kind: str, target: str, *, size: tuple[float, float] | None = None, **options: Any) -> None:
    """Draw one figure and write it to a file.

    Parameters
    ----------
    things : list of (label, Run or Federation or rows)
        Input of the kind: several for ``runs``, otherwise one.
    kind : str
        One of `KINDS`.
    target : str
        Ends in .png, .svg or .pdf.
    size : (float, float) or None
        Width and height of the figure in inches, with everything inside. Default: the axes have a usual size.
    **options
        Options of the kinds ``accuracy`` and ``bytes`` (`curves.accuracy`).

    Raises
    ------
    InputError
        If the input does not contain the data of the figure.
    """
    if Path(target).suffix not in style.FORMATS:
        raise InputError(f"{target}: write a name that ends in .png, .svg or .pdf", parameter="output")
    if size is not None and kind in ("accuracy", "bytes"):
        options["wide"] = size[0]
    with style.sheet():
        figure = draw(things, kind, **options)
        if size is not None:
            style.fit(figure, size)
        style.save(figure, target)


def draw(things: Sequence[Any], kind: str, **options: Any) -> Any:
    """Draw the figure that `plot` writes."""
    plot = find_kind(kind)
    if plot.takes == "runs":
        runs = [_run(label, thing, kind) for label, thing in things]
    elif len(things) != 1:
        raise InputError(f"plot {kind} shows one file, found {len(things)}")
    else:
        ((label, thing),) = things
        runs = thing if plot.takes != "run" else _run(label, thing, kind)
        if plot.takes == "labels" and thing.meta.get("dataset") == REAL_SITES:
            raise InputError(f"{label}: its samples and labels are at the sites; plot {kind} shows federations")
    module, _, name = plot.place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), name)(runs, **options)


def find_kind(kind: str) -> Kind:
    """Find the Kind of a name; raise InputError if it is unknown."""
    if kind not in KINDS:
        raise InputError(f"plot {kind}: unknown kind{nearest(kind, KINDS)}; write one of {', '.join(KINDS)}")
    return KINDS[kind]


def _run(label, thing, kind):
    if not hasattr(thing, "history"):
        raise InputError(f"{label}: this is not a run; plot {kind} shows runs of `fnlkit train`")
    return thing
