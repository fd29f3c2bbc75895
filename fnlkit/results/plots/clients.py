"""Figures of clients: LID scores and noise levels, estimated and true."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fnlkit.artifacts.display import data_set
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import client_names
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.results import comparison, evaluation
from fnlkit.results.plots.style import COLORS, NAMED, NONE_JUDGED, classes_of, matrix, panels, place_legend_right, short

_HATCHES = ("", "////")


def lid(run: Run) -> Figure:
    """Draw a histogram of cumulative LID scores with the fitted mixture.

    Clean and noisy clients are drawn separately if they are known.
    """
    values, means, variances, shares = (
        _find_record(run, name)[-1] for name in ("cumulative_lid", "lid_means", "lid_variances", "lid_shares")
    )
    figure, ((axis,),) = panels(6.4, 3.4)
    noisy = run.truth.get("noise_client_noisy")
    groups = [("all clients", np.ones(len(values), bool))] if noisy is None else [("clean", ~noisy), ("noisy", noisy)]
    # The number of bins grows with the clients: half a dozen for ten clients, thirty for a thousand.
    bins = np.histogram_bin_edges(values, int(np.clip(round(2 * np.sqrt(len(values))), 5, 40)))
    for number, (name, mask) in enumerate(groups):
        label = f"{name}, {mask.sum()} client{'s' * int(mask.sum() != 1)}"
        color = COLORS[number]
        axis.hist(values[mask], bins, alpha=0.55, label=label, color=color, hatch=_HATCHES[number], edgecolor="white")
    x = np.linspace(bins[0], bins[-1], 400)
    parts = sorted(zip(means.tolist(), variances.tolist(), shares.tolist(), strict=True))
    for which, (mean, variance, share) in zip(("lower", "upper"), parts, strict=True):
        if variance > 0:
            density = share * np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
            name = f"{which} component, weight {100 * share:.0f} %"
            line = {"color": "black", "linewidth": 1.2, "linestyle": "-" if which == "lower" else "--"}
            axis.plot(x, density * len(values) * (bins[1] - bins[0]), label=name, **line)
    axis.set(xlabel="cumulative LID score", ylabel="clients", title=data_set(run.meta["dataset"]))
    axis.yaxis.get_major_locator().set_params(integer=True)
    place_legend_right(axis)
    return figure


def _find_record(run, name):
    if name not in run.records:
        raise InputError(f"the run of {run.settings['method']} recorded no {name}; it has: {', '.join(run.records) or 'none'}")
    return run.records[name][1]


def noise(thing: Run | Federation) -> Figure:
    """Draw estimated against true noise level of each client, with the sampling range if the estimate has one."""
    federation = comparison.federation(thing)
    values: list[Any] = []
    if federation.true is None:
        raise InputError("no true labels are known; plot noise requires injected noise, plot estimates does not")
    if "noise_level" in getattr(thing, "records", {}):
        levels = evaluation.first_levels(thing)  # type: ignore[arg-type]
        method = thing.settings["method"].partition("(")[0]  # type: ignore[union-attr]
        values.append((method, federation.wrong_share(), levels, None))
    if "estimate_client_level" in federation.extra:
        judged = federation.extra.get("estimate_judged_label", federation.given)
        values.append(("estimate-noise", federation.wrong_share(judged), *_ranges(federation)))
    if not values:
        raise InputError("no estimated noise levels; train with fedcorr or feddiv, or run `fnlkit estimate-noise`")
    figure, ((axis,),) = panels(5.4, 3.8)
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, zorder=0, label="equal")
    for number, (name, true, estimated, ends) in enumerate(values):
        look = {"fmt": "o^"[number], "color": COLORS[number], "markersize": 5, "elinewidth": 1, "alpha": 0.85}
        label = name if ends is None else f"{name}, sampling range"
        axis.errorbar(true, estimated, yerr=ends, label=label, **look)
    names = short(federation.meta.get("client_names") or [])
    for x, y, name in zip(values[0][1], values[0][2], names, strict=False) if len(names) <= NAMED else ():
        axis.annotate(name, (x, y), xytext=(4, 3), textcoords="offset points", fontsize="x-small")
    axis.set(xlabel="true noise level", ylabel="estimated", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
    axis.set_title(data_set(federation.dataset))
    place_legend_right(axis)
    return figure


def _ranges(federation):
    """Read estimated levels (N,) and the lengths of their ranges below and above (2, N), None without ranges.

    Levels that an audit withheld are NaN.
    """
    level = np.where(federation.judged(), federation.extra["estimate_client_level"], np.nan)
    ends = [federation.extra.get(f"estimate_client_level_{end}") for end in ("low", "high")]
    return level, None if any(end is None for end in ends) else np.abs(np.stack(ends) - level)


def estimates(thing: Run | Federation) -> Figure:
    """Draw the result of estimate-noise or audit: each client's level with its range, and the transition."""
    federation = comparison.federation(thing)
    extra = federation.extra
    drawn = "client_level", "client_level_low", "client_level_high", "client_score", "transition"
    if any(f"estimate_{name}" not in extra for name in drawn):
        raise InputError("the federation lacks estimates; pipe it through `fnlkit estimate-noise` first")
    if not federation.judged().any():
        raise InputError(NONE_JUDGED)
    level, ends = _ranges(federation)
    truth = federation.wrong_share(extra.get("estimate_judged_label", federation.given))
    names = short(client_names(federation.meta, len(federation)))
    figure, ((left, right),) = panels(9.4, 4.2, columns=2, width_ratios=(5, 4))
    order = np.argsort(-extra["estimate_client_score"], kind="stable")
    places = np.arange(len(order))
    left.errorbar(places, level[order], yerr=ends[:, order], fmt=".", color=COLORS[0], label="estimated, sampling range")
    if truth is not None:
        left.plot(places, truth[order], "x", color=COLORS[1], label="true")
    left.set(xlabel="client, noisiest first", ylabel="share of wrong labels", ylim=(-0.03, 1.03))
    if len(order) <= 40:
        left.set_xticks(places, [names[k] for k in order], rotation=90 if max(map(len, names)) > 2 else 0, fontsize="x-small")
    left.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0)
    matrix(right, extra["estimate_transition"], classes_of(federation.meta, federation.classes))
    right.set(xlabel="given label", ylabel="true label", title="estimated transition, in %")
    figure.suptitle(data_set(federation.dataset))
    return figure
