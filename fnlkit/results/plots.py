"""Figures of runs: learning curves, label confusions, LID scores with their mixture, estimated against true noise."""

from pathlib import Path

import numpy as np

from fnlkit import scores
from fnlkit.artefacts.names import class_names, client_names
from fnlkit.errors import InputError
from fnlkit.results import evaluation

KINDS = ("accuracy", "labels", "lid", "noise", "memorization", "estimates")


def _pyplot():
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plots need matplotlib; pip install 'fnlkit[plot]'") from error
    matplotlib.use("Agg")  # no window: files only
    from matplotlib import pyplot

    return pyplot


def plot(runs, kind, target):
    """Draw one figure of runs and write it to a file.

    Parameters
    ----------
    runs : list of (label, Run)
        ``accuracy`` takes several, with a band of one standard deviation over those that differ by seeds alone; the
        others take one, ``estimates`` a Federation.
    kind : str
        One of KINDS: test accuracy over client-rounds; true against working labels at each stage; histogram of cumulative
        LID scores with its two Gaussians (FedCorr, Figure 3); estimated against true noise level of each client; shares of
        memorized labels over rounds (FLR, Figure 2); what estimate-noise found of clients and classes.
    target : str
        Ends in .png, .svg or .pdf.

    Raises
    ------
    InputError
        When the runs did not record what the figure shows.
    """
    if kind not in KINDS:
        raise InputError(f"--kind is {kind!r}; write one of {', '.join(KINDS)}")
    if kind != "accuracy" and len(runs) != 1:
        raise InputError(f"--kind {kind} shows one run, found {len(runs)}")
    if Path(target).suffix not in (".png", ".svg", ".pdf"):
        raise InputError(f"-o {target}: write a name that ends in .png, .svg or .pdf")
    draw = {"accuracy": _accuracy, "labels": _labels, "lid": _lid, "noise": _noise, "memorization": _memorization,
            "estimates": _estimates}[kind]  # fmt: skip
    figure = draw(_pyplot(), runs if kind == "accuracy" else runs[0][1])
    temporary = f"{target}.tmp"
    try:
        figure.savefig(temporary, format=Path(target).suffix[1:], dpi=150, bbox_inches="tight")
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _need(run, name):
    if name not in run.records:
        raise InputError(f"the run of {run.settings['method']} recorded no {name}; it has: {', '.join(run.records) or 'none'}")
    return run.records[name]


# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow that paper swallows; with four line
# styles, 28 curves differ.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", ":", "-.")


def _look(number):
    """Return colour and line style of a curve by its number; no two of the first 28 are alike."""
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _STYLES[number // len(_COLOURS) % len(_STYLES)]}


def _beside(axis, **more):
    """Put the legend to the right of the axes, where it hides nothing."""
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize="small", **more)


def _data_set(run):
    return Path(str(run.meta.get("dataset"))).name


def _names(run):
    """Return the classes' names, cut where they would fill the figure, and whether they stand upright under an axis."""
    names = [name if len(name) <= 14 else f"{name[:13]}…" for name in class_names(run.meta, run.meta["classes"])]
    return names, max(map(len, names)) > 2


def _accuracy(plt, runs):
    figure, axis = plt.subplots(figsize=(6, 3.6))
    curves_of, groups = {}, evaluation.distinct([run for _, run in runs])
    names = {evaluation.score_name(run) for _, run in runs}
    if len(names) > 1:
        raise InputError("some runs hold accuracy and some agreement with labels that nobody verified; draw them apart")
    name = names.pop()
    for (_, run), group in zip(runs, groups, strict=True):
        scored = [(row.get("client_rounds", run.traffic.client_rounds), row[name]) for row in run.history if name in row]
        if scored:
            curves_of.setdefault(_named(group, groups), []).append(np.array(scored))
    for number, (group, curves) in enumerate(curves_of.items()):
        grid = np.unique(np.concatenate([c[:, 0] for c in curves]))
        grid = grid[(grid >= max(c[0, 0] for c in curves)) & (grid <= min(c[-1, 0] for c in curves))]
        values = 100 * np.stack([np.interp(grid, c[:, 0], c[:, 1]) for c in curves])
        count = f"{len(curves)} run{'s' * (len(curves) > 1)}"
        axis.plot(grid, values.mean(0), label=f"{group} ({count})", marker="." if len(grid) < 15 else "", **_look(number))
        if len(curves) > 1:
            spread = values.std(0, ddof=1)
            low, high = values.mean(0) - spread, values.mean(0) + spread
            axis.fill_between(grid, low, high, alpha=0.2, linewidth=0, color=_look(number)["color"])
    called = {"accuracy": "test accuracy (%)", "agreement": "agreement with given labels (%)"}[name]
    axis.set(xlabel="client-rounds", ylabel=called, ylim=(max(0, axis.get_ylim()[0]), min(100, axis.get_ylim()[1])))
    axis.set_title(", ".join(dict.fromkeys(_data_set(run) for _, run in runs)))
    _beside(axis)
    return figure


def _named(group, groups):
    """Return what the legend calls runs: the method, and what else tells them from the others."""
    shown = [f"{name} {value}" for name, value in group.items() if name not in ("dataset", "method")]
    if len({other["dataset"] for other in groups}) > 1:
        shown.insert(0, Path(str(group["dataset"])).name)
    return ", ".join([group["method"], *shown])


def _labels(plt, run):
    stages = [(f"as {stage} began", counts) for stage, counts in evaluation.stage_confusions(run)]
    if "true" not in run.labels:
        raise InputError("the run knows no true labels; --kind labels needs a federation with injected noise")
    held = run.client_indices
    stages.append(
        (
            "at the end",
            scores.confusion(run.labels["true"][held], run.labels["corrected"][held], run.meta["classes"]),
        )
    )
    names, upright = _names(run)
    side = max(3.2, 0.3 * len(names) + 1) if len(names) <= _NAMED else 4.5
    figure, axes = plt.subplots(1, len(stages), figsize=(side * len(stages), side), squeeze=False, sharey=True)
    for axis, (title, counts) in zip(axes[0], stages, strict=True):
        _matrix(axis, counts / np.maximum(1, counts.sum(1, keepdims=True)), names, upright)
        axis.set(title=title, xlabel="working label")
    axes[0, 0].set_ylabel("true label")
    figure.suptitle(f"{_data_set(run)}: share of each true class, in %", y=1.02)
    return figure


# Up to so many classes a matrix has their names and its numbers.
_NAMED = 20


def _matrix(axis, shares, names, upright):
    """Draw a matrix of shares with names and numbers, which are white where the ground is dark."""
    axis.imshow(shares, vmin=0, vmax=1, cmap="Blues")
    if len(names) > _NAMED:
        return
    axis.set_xticks(range(len(names)), names, rotation=90 if upright else 0)
    axis.set_yticks(range(len(names)), names)
    for i, j in zip(*np.nonzero(np.round(100 * shares)), strict=True):
        colour = "white" if shares[i, j] > 0.5 else "black"
        axis.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=6, color=colour)


def _lid(plt, run):
    scores, means, variances, shares = (
        _need(run, name)[1][-1] for name in ("cumulative_lid", "lid_means", "lid_variances", "lid_shares")
    )
    figure, axis = plt.subplots(figsize=(5, 3.2))
    noisy = run.truth.get("noise_client_noisy")
    groups = [("all clients", np.ones(len(scores), bool))] if noisy is None else [("clean", ~noisy), ("noisy", noisy)]
    # As many bins as clients bear: half a dozen for ten of them, thirty for a thousand.
    bins = np.histogram_bin_edges(scores, int(np.clip(round(2 * np.sqrt(len(scores))), 5, 40)))
    for number, (name, mask) in enumerate(groups):
        label = f"{name}, {mask.sum()} client{'s' * int(mask.sum() != 1)}"
        axis.hist(scores[mask], bins, alpha=0.5, label=label, color=_COLOURS[number])
    x = np.linspace(bins[0], bins[-1], 400)
    parts = sorted(zip(means.tolist(), variances.tolist(), shares.tolist(), strict=True))
    for which, (mean, variance, share) in zip(("lower", "upper"), parts, strict=True):
        if variance > 0:
            density = share * np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
            name = f"{which} part of the mixture, {100 * share:.0f} %"
            line = {"color": "black", "linewidth": 1, "linestyle": "-" if which == "lower" else "--"}
            axis.plot(x, density * len(scores) * (bins[1] - bins[0]), label=name, **line)
    axis.set(xlabel="cumulative LID score", ylabel="clients", title=_data_set(run))
    axis.yaxis.get_major_locator().set_params(integer=True)
    _beside(axis)
    return figure


def _noise(plt, run):
    _need(run, "noise_level")
    estimated = evaluation.first_levels(run)
    if "true" not in run.labels:
        raise InputError("the run knows no true labels; --kind noise needs a federation with injected noise")
    levels = scores.client_levels(run.labels["given"], run.labels["true"], run.client_offsets, run.client_indices)
    figure, axis = plt.subplots(figsize=(3.6, 3.6))
    _against(axis, levels, estimated, run.meta.get("client_names"))
    axis.set_title(f"{_data_set(run)}, {run.settings['method'].partition('(')[0]}")
    return figure


def _against(axis, levels, estimated, names, ends=None):
    """Draw estimated against true levels, each with its range, beside the line where both are equal."""
    axis.plot([0, 1], [0, 1], color="0.8", zorder=0)
    axis.text(0.86, 0.95, "equal", color="0.5", fontsize="x-small", ha="right")
    if ends is not None:
        axis.errorbar(levels, estimated, yerr=ends, fmt="none", ecolor=_COLOURS[5], elinewidth=1)
    axis.plot(levels, estimated, ".", color=_COLOURS[0])
    for x, y, name in zip(levels, estimated, names or [], strict=False) if len(names or ()) <= _NAMED else ():
        axis.annotate(name, (x, y), xytext=(3, 3), textcoords="offset points", fontsize="x-small")
    axis.set(xlabel="true noise level", ylabel="estimated", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))


def _estimates(plt, federation):
    """Draw what estimate-noise or audit found: each client's level with its range, and the transition."""
    extra = federation.extra
    drawn = "client_level", "client_level_low", "client_level_high", "client_score", "transition"
    if any(f"estimate_{name}" not in extra for name in drawn):
        raise InputError("the federation holds no estimates, or not all; pipe it through `fnlkit estimate-noise` first")
    level = extra["estimate_client_level"]
    ends = np.abs(np.stack([level - extra["estimate_client_level_low"], extra["estimate_client_level_high"] - level]))
    truth = federation.wrong_share(extra.get("estimate_judged_label", federation.given))
    names = client_names(federation.meta, len(federation))
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), width_ratios=(5, 4))
    order = np.argsort(-extra["estimate_client_score"], kind="stable")
    places = np.arange(len(order))
    left.errorbar(places, level[order], yerr=ends[:, order], fmt=".", color=_COLOURS[0], label="estimated, sampling range")
    if truth is not None:
        left.plot(places, truth[order], "x", color=_COLOURS[1], label="true")
    left.set(xlabel="client, the noisiest first", ylabel="share of wrong labels", ylim=(-0.03, 1.03))
    if len(order) <= 40:
        left.set_xticks(places, [names[k] for k in order], rotation=90 if max(map(len, names)) > 2 else 0, fontsize="x-small")
    left.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=2, borderaxespad=0, fontsize="small")
    classes = class_names(federation.meta, federation.classes)
    shown = [name if len(name) <= 14 else f"{name[:13]}…" for name in classes]
    _matrix(right, extra["estimate_transition"], shown, max(map(len, shown)) > 2)
    right.set(xlabel="given label", ylabel="true label", title="estimated transition, in %")
    figure.suptitle(Path(federation.dataset).name, y=1.04)
    figure.tight_layout()
    return figure


def _memorization(plt, run):
    rows = [row for row in run.history if "global_noisy_memorized" in row]
    if not rows:
        raise InputError("the run recorded no memorization; train it with --memorization")
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for axis, where in zip(axes, ("global", "local"), strict=True):
        found = [row for row in rows if f"{where}_noisy_memorized" in row]
        for number, what in enumerate(("correct", "memorized", "wrong")):
            look = {"color": _COLOURS[number], "linestyle": _STYLES[number], "marker": "." if len(found) < 15 else ""}
            axis.plot(
                [r["client_rounds"] for r in found], [100 * r[f"{where}_noisy_{what}"] for r in found], label=what, **look
            )
        axis.set(title=f"{where} model, mislabelled samples", xlabel="client-rounds")
    axes[0].set_ylabel("share (%)")
    _beside(axes[1], title="predicted is")
    figure.suptitle(_data_set(run), y=1.02)
    return figure
