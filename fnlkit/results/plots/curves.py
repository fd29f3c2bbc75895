"""Curves over training: accuracy over client-rounds or bytes, memorization, the prestopping round."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fnlkit.artifacts.display import data_set
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.results import evaluation, grouping
from fnlkit.results.held_out import differing
from fnlkit.results.plots.style import COLORS, STYLES, look, panels, place_legend_right

# The folder in the name of a user's method.
_SHORT = re.compile(r'"[^"]*/([^/"]+\.py:[^"]+)"|[^"(\s=,]*/([^/"(]+\.py:[^"(,)\s]+)')
_CALLED = {"accuracy": "test accuracy (%)", "agreement": "agreement with given labels (%)"}
# Largest number of curves whose stages are marked and named; most curves of one axis, and most panels in a row.
_STAGED, MOST, _WIDE = 2, 8, 3
# Smallest width of a panel in inches, with labels.
_NARROW = 1.6
# Characters of a legend that is below the panels instead of to the right.
_LONG = 24


def accuracy(runs: list[Run], *, facet: str | None = None, wide: float | None = None) -> Figure:
    """Draw accuracy over client-rounds: mean and standard deviation over runs that differ only by the seed.

    Parameters
    ----------
    runs : list of Run
    facet : str or None
        A panel for each value of this setting, named as for `fnlkit.results.grouping.groups`.  Default for runs of a recipe
        with several regimes: a panel for each regime.
    wide : float or None
        Width of the figure in inches, if it is limited.
    """
    return _curves(runs, "client-rounds", _client_rounds, facet, wide, stages=True)


def traffic(runs: Sequence[Run], *, facet: str | None = None, wide: float | None = None) -> Figure:
    """Draw accuracy over the megabytes sent up and down; parameters as for `accuracy`."""
    return _curves(runs, "MB sent up and down", _megabytes, facet, wide)


def _client_rounds(run, row):
    return row.get("client_rounds", run.traffic.client_rounds)  # the final row is at the last round


def _megabytes(run, row):
    return sum(row.get(name, getattr(run.traffic, name)) for name in ("bytes_up", "bytes_down")) / 1e6


def _curves(runs, across, place, facet, wide, *, stages=False):
    scored = [run for run in runs if evaluation.is_scored(run)] or runs
    name, groups, facets = common_score(map(evaluation.score_name, scored)), evaluation.distinct(runs), {}
    if differing(runs):
        raise InputError(
            "the runs measured agreement with different held-out labels, so that their curves cannot be compared; plot them "
            "separately, or use `fnlkit evaluate`, which measures them on the same labels"
        )
    regimes = {run.meta.get("row", {}).get("regime") for run in runs}
    if facet is None and None not in regimes and len(regimes) > 1:
        facet = "regime"
    full = None if facet is None else grouping.full_name(facet, [evaluation.deciding_settings(run) for run in runs], "`facet`")
    groups = [{key: value for key, value in group.items() if key != full} for group in groups]
    if None in regimes:
        labels = [legend_of(group, groups) for group in groups]
    else:  # runs of a recipe: the row has one name
        labels = [_row(run, len(regimes) > 1 and full != "regime") for run in runs]
    for run, label in zip(runs, labels, strict=True):
        points = np.array([(place(run, row), 100 * row[name]) for row in run.history if name in row])
        if len(points):
            value = "" if full is None else str(evaluation.deciding_settings(run).get(full))
            facets.setdefault(value, {}).setdefault(label, []).append((run, points))
    if not facets and all(run.finished for run in runs):
        raise InputError(
            "no run was evaluated: it had no test or held-out samples; `fnlkit.partition(holdout=0.2)` gives some, and over "
            "real sites the server's data"
        )
    if not facets:
        raise InputError(f"no run has an evaluation with {name} yet; continue with `fnlkit.train(resume=...)`")
    title = ", ".join(dict.fromkeys(data_set(run.meta.get("dataset")) for run in runs))
    parts = [(value or title, part) for value, members in facets.items() for part in _parts(members)]
    columns = min(_WIDE, len(parts), max(1, int((wide or 100) / _NARROW)))
    lines = -(-len(parts) // columns)
    size = (6.4, 3.8) if len(parts) == 1 else (3.4 * columns + 2, 2.9 * lines)
    figure, axes = panels(*size, rows=lines, columns=columns, sharey=len(parts) > 1)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(group for _, part in parts for group in part))}
    for axis, (heading, part) in zip(axes.flat, parts, strict=False):
        staged = sum(len(evaluation.stage_starts(found[0][0])) > 0 for found in part.values())
        for group, found in part.items():
            middle = _band(axis, group, [curve for _, curve in found], numbers[group])
            if stages and middle is not None:
                _mark(axis, [run for run, _ in found], middle, numbers[group], named=staged <= _STAGED)
        axis.set(xlabel=across, title=heading)
        if across == "client-rounds":
            axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes.flat[len(parts) :]:
        axis.set_axis_off()
    for row in axes:
        low, high = row[0].get_ylim()
        row[0].set(ylabel=_CALLED[name], ylim=(max(0, low), min(100, high)))
    _legend(figure, axes.flat[: len(parts)])
    return figure


def common_score(names: Iterable[str]) -> str:
    """Name of the scores of runs, accuracy or agreement; raise InputError if some runs have another one."""
    first, *others = dict.fromkeys(names)
    if others:
        raise InputError("some runs measured accuracy and others agreement with unverified labels; plot them separately")
    return first


def _parts(members):
    """Split {group: runs} into parts of at most `MOST` curves, one per panel."""
    groups = list(members)
    return [{group: members[group] for group in groups[i : i + MOST]} for i in range(0, len(groups), MOST)]


def _legend(figure, axes):
    """Put the legend outside: next to single axes, or a common legend to the right of all panels."""
    if len(axes) == 1:
        place_legend_right(axes[0])
        return
    handles = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if max(map(len, handles)) <= _LONG and len(handles) <= MOST:
        figure.legend(handles.values(), handles.keys(), loc="outside right upper")
        return
    width, height = figure.get_size_inches()
    columns = max(1, int(width / (0.6 + 0.08 * max(map(len, handles)))))
    figure.set_size_inches(width, height + 0.22 * -(-len(handles) // columns))
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=columns)


def _band(axis, group, curves, number):
    """Draw mean and spread of curves (points, 2) over their common range; return (2, points), or None.

    Curves without a common range are drawn separately.
    """
    grid = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    grid = grid[(grid >= max(curve[0, 0] for curve in curves)) & (grid <= min(curve[-1, 0] for curve in curves))]
    label = f"{group} ({len(curves)} run{'s' * (len(curves) > 1)})"
    if not len(grid):
        for curve in curves:
            axis.plot(*curve.T, label=label, marker=".", **look(number))
            label = None
        return None
    values = np.stack([np.interp(grid, *curve.T) for curve in curves])
    axis.plot(grid, values.mean(0), label=label, marker="." if len(grid) < 15 else "", **look(number))
    if len(curves) > 1:
        spread = values.std(0, ddof=1)
        low, high = values.mean(0) - spread, values.mean(0) + spread
        axis.fill_between(grid, low, high, alpha=0.2, linewidth=0, color=look(number)["color"])
    return np.stack([grid, values.mean(0)])


def _mark(axis, runs, middle, number, *, named):
    """Mark the mean start of each stage on a curve with a line, and with the stage's name if `legend_of`."""
    stages = [evaluation.stage_starts(run) for run in runs]
    for stage in dict.fromkeys(name for starts in stages for name in starts):
        begin = float(np.mean([starts[stage] for starts in stages if stage in starts]))
        color = look(number)["color"]
        axis.plot([begin], [np.interp(begin, *middle)], marker="|", markersize=12, markeredgewidth=1.8, color=color)
        if named:
            axis.axvline(begin, color=color, linewidth=0.8, linestyle=":", zorder=0)
            axis.text(begin, 0.02, f" {stage}", transform=axis.get_xaxis_transform(), rotation=90, ha="right", va="bottom",
                      fontsize="x-small", color=color)  # fmt: skip


def legend_of(group: dict[str, Any], groups: list[dict[str, Any]]) -> str:
    """Write the legend of runs: the method and the settings that distinguish them.

    Folders and versions of a user's files are shown only if groups differ in nothing else.
    """
    label = _without_folders(_describe_group(group, groups))
    alike = any(other != group and _without_folders(_describe_group(other, groups)) == label for other in groups)
    return _visible(_describe_group(group, groups, files=True) if alike else label)


def _describe_group(group, groups, files=False):
    others = {name: value for name, value in group.items() if name not in ("dataset", "method") and value is not None}
    shown = [f"{name} {value}" for name, value in others.items() if files or not name.startswith(evaluation.FILES)]
    if len({other["dataset"] for other in groups}) > 1:
        shown.insert(0, data_set(group["dataset"]))
    return ", ".join([group["method"], *shown])


def _visible(label):
    """Put a space before an underscore: matplotlib leaves labels that begin with one out of legends."""
    return f" {label}" if label.startswith("_") else label


def _row(run, with_regime):
    """Write the legend of a recipe's row: its name or method, and its regime if several share a panel."""
    row = run.meta["row"]
    label = ", ".join([row.get("name") or run.settings["method"], *([row["regime"]] if with_regime else [])])
    return _visible(_without_folders(label))


def _without_folders(text):
    return _SHORT.sub(lambda found: found[1] or found[2], text)


def memorization(run: Run) -> Figure:
    """Draw the shares of mislabeled samples predicted as the true label, as the given wrong label, or as another class."""
    rows = [row for row in run.history if "global_noisy_memorized" in row]
    if not rows:
        raise InputError("the run recorded no memorization; train with `memorization=True` and known true labels")
    figure, (axes,) = panels(8.4, 3.4, columns=2, sharex=True, sharey=True)
    for axis, whose in zip(axes, ("global", "local"), strict=True):
        for number, kind in enumerate(("correct", "memorized", "wrong")):
            # A round without a client with wrong labels has no share, so the curve has a gap.
            points = [(row["client_rounds"], 100 * row.get(f"{whose}_noisy_{kind}", np.nan)) for row in rows]
            axis.plot(*np.array(points).T, label=kind, marker=".", **look(number))
        axis.set(title=f"{whose} model, mislabeled samples", xlabel="client-rounds", ylim=(-3, 103))
    axes[0].set_ylabel("share (%)")
    place_legend_right(axes[1], title="predicted is", alignment="left")
    figure.suptitle(f"{data_set(run.meta['dataset'])}, {run.settings['method']}")
    return figure


def prestopping(run: Run) -> Figure:
    """Draw the share of noisy labels that models predict (FedEFC's criterion), the test accuracy, and the prestopping round."""
    watched = np.array(
        [(row["round"] + 1, 100 * row["estimated_accuracy"]) for row in run.history if "estimated_accuracy" in row]
    )
    if not len(watched):
        raise InputError(f"the run of {run.settings['method']} has no prestopping rule; fedefc and forward have")
    name = evaluation.score_name(run)
    tested = np.array([(row["round"] + (row["stage"] != "final"), 100 * row[name]) for row in run.history if name in row])
    figure, ((axis,),) = panels(6.4, 3.8)
    axis.plot(*watched.T, label="agreement with given labels\n(prestopping criterion)", marker=".", **look(0))
    if len(tested):
        axis.plot(*tested.T, label=_CALLED[name].removesuffix(" (%)"), marker="." if len(tested) < 15 else "", **look(1))
    rounds = [row["round"] + 1 for row in run.history if "prestopping_round" in row]
    for chosen in rounds[:1]:
        axis.axvline(chosen, color=COLORS[5], linestyle=STYLES[3], label=f"prestopping round {chosen}")
    if not rounds:
        axis.plot([], [], " ", label="no prestopping round found")
    axis.set(xlabel="round", ylabel="share (%)", title=f"{data_set(run.meta['dataset'])}, {run.settings['method']}")
    place_legend_right(axis)
    return figure
