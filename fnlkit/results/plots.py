"""Figures of runs: learning curves, label confusions, LID scores with their mixture, estimated against true noise."""

from pathlib import Path

import numpy as np

from fnlkit import scores
from fnlkit.errors import InputError
from fnlkit.results import evaluation

KINDS = ("accuracy", "labels", "lid", "noise", "memorization")


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
        others take one.
    kind : str
        One of KINDS: test accuracy over client-rounds; true against working labels at each stage; histogram of cumulative
        LID scores with its two Gaussians (FedCorr, Figure 3); estimated against true noise level of each client; shares of
        memorized labels over rounds (FLR, Figure 2).
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
    draw = {"accuracy": _accuracy, "labels": _labels, "lid": _lid, "noise": _noise, "memorization": _memorization}[kind]
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
    for group, curves in curves_of.items():
        grid = np.unique(np.concatenate([c[:, 0] for c in curves]))
        grid = grid[(grid >= max(c[0, 0] for c in curves)) & (grid <= min(c[-1, 0] for c in curves))]
        values = 100 * np.stack([np.interp(grid, c[:, 0], c[:, 1]) for c in curves])
        (line,) = axis.plot(grid, values.mean(0), label=f"{group} ({len(curves)} run{'s' * (len(curves) > 1)})")
        if len(curves) > 1:
            spread = values.std(0, ddof=1)
            axis.fill_between(grid, values.mean(0) - spread, values.mean(0) + spread, alpha=0.2, color=line.get_color())
    called = {"accuracy": "test accuracy (%)", "agreement": "agreement with given labels (%)"}[name]
    axis.set(xlabel="client-rounds", ylabel=called, ylim=(max(0, axis.get_ylim()[0]), min(100, axis.get_ylim()[1])))
    axis.legend(frameon=False)
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
    names = run.meta.get("samples", {}).get("class_names")
    figure, axes = plt.subplots(1, len(stages), figsize=(3.2 * len(stages), 3.2), squeeze=False, sharey=True)
    for axis, (title, counts) in zip(axes[0], stages, strict=True):
        axis.imshow(counts / np.maximum(1, counts.sum(1, keepdims=True)), vmin=0, vmax=1, cmap="Blues")
        axis.set(title=title, xlabel="working label")
        if names and len(names) <= 20:
            axis.set_xticks(range(len(names)), names, rotation=90)
            axis.set_yticks(range(len(names)), names)
    axes[0, 0].set_ylabel("true label")
    return figure


def _lid(plt, run):
    scores, means, variances, shares = (
        _need(run, name)[1][-1] for name in ("cumulative_lid", "lid_means", "lid_variances", "lid_shares")
    )
    figure, axis = plt.subplots(figsize=(5, 3.2))
    noisy = run.truth.get("noise_client_noisy")
    groups = [("all clients", np.ones(len(scores), bool))] if noisy is None else [("clean", ~noisy), ("noisy", noisy)]
    bins = np.histogram_bin_edges(scores, 30)
    for name, mask in groups:
        axis.hist(scores[mask], bins, alpha=0.5, label=name)
    x = np.linspace(bins[0], bins[-1], 400)
    for mean, variance, share in zip(means, variances, shares, strict=True):
        if variance > 0:
            density = share * np.exp(-((x - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)
            axis.plot(x, density * len(scores) * (bins[1] - bins[0]), "k", linewidth=1)
    axis.set(xlabel="cumulative LID score", ylabel="clients")
    axis.legend(frameon=False)
    return figure


def _noise(plt, run):
    _need(run, "noise_level")
    estimated = evaluation.first_levels(run)
    if "true" not in run.labels:
        raise InputError("the run knows no true labels; --kind noise needs a federation with injected noise")
    levels = scores.client_levels(run.labels["given"], run.labels["true"], run.client_offsets, run.client_indices)
    figure, axis = plt.subplots(figsize=(3.6, 3.6))
    axis.plot([0, 1], [0, 1], color="0.8")
    axis.plot(levels, estimated, ".")
    names = run.meta.get("client_names") or []
    for x, y, name in zip(levels, estimated, names if len(names) <= 20 else [""] * len(names), strict=bool(names)):
        axis.annotate(name, (x, y), fontsize="x-small")
    axis.set(xlabel="true noise level", ylabel="estimated", xlim=(-0.02, 1), ylim=(-0.02, 1))
    return figure


def _memorization(plt, run):
    rows = [row for row in run.history if "global_noisy_memorized" in row]
    if not rows:
        raise InputError("the run recorded no memorization; train it with --memorization")
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for axis, where in zip(axes, ("global", "local"), strict=True):
        found = [row for row in rows if f"{where}_noisy_memorized" in row]
        for what in ("correct", "memorized", "wrong"):
            axis.plot([r["client_rounds"] for r in found], [100 * r[f"{where}_noisy_{what}"] for r in found], label=what)
        axis.set(title=f"{where} model, mislabelled samples", xlabel="client-rounds")
    axes[0].set_ylabel("share (%)")
    axes[1].legend(frameon=False)
    return figure
