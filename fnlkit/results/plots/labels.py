"""Figures of labels: bubbles of a partition, transitions, confusions at each stage."""

import numpy as np
from matplotlib.figure import Figure

from fnlkit.artifacts.display import data_set
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.kernels import scores
from fnlkit.results import comparison, evaluation
from fnlkit.results.plots.style import COLORS, NAMED, NONE_JUDGED, classes_of, matrix, panels, short, side
from fnlkit.simulate.noise.injection import mean_requested_transition

# With more clients, a bubble is smaller than a point in print.
CLIENTS = 100


def labels(run: Run) -> Figure:
    """Draw true against working labels at the start of each stage and at the end: shares of each true class."""
    if "true" not in run.labels:
        raise InputError("the run has no true labels; plot labels requires a federation with injected noise")
    held = run.client_indices
    last = scores.confusion(run.labels["true"][held], run.labels["corrected"][held], run.meta["classes"])
    stages = [(f"start of {stage}", counts) for stage, counts in evaluation.stage_confusions(run)]
    title = f"{data_set(run.meta['dataset'])}, {run.settings['method']}: share of each true class, in %"
    return _matrices([*stages, ("end", last)], classes_of(run.meta, run.meta["classes"]), "working label", title)


def transition(thing: Run | Federation) -> Figure:
    """Draw the requested transition, the transition of the labels and the estimate, as far as they exist."""
    federation = comparison.federation(thing)
    matrices = {}
    if (asked := mean_requested_transition(federation)) is not None:
        matrices["requested"] = asked
    if federation.true is not None:
        judged = federation.extra.get("estimate_judged_label", federation.given)
        held = federation.client_indices if len(federation) else slice(None)
        matrices["achieved"] = scores.confusion(federation.true[held], judged[held], federation.classes)
    if "estimate_transition" in federation.extra and federation.judged().any():
        matrices["estimated"] = federation.extra["estimate_transition"]
    records = getattr(thing, "records", {})
    if "transition" in records:
        method = thing.settings["method"].partition("(")[0]  # type: ignore[union-attr]
        matrices[f"estimated by {method}, round {records['transition'][0][-1] + 1}"] = records["transition"][1][-1]
    if not matrices and "estimate_transition" in federation.extra:
        raise InputError(NONE_JUDGED)
    if not matrices:
        raise InputError("no transition of these labels is known; estimate it with `fnlkit estimate-noise`")
    title = f"{data_set(federation.dataset)}: given labels in % of each true class"
    return _matrices(list(matrices.items()), classes_of(federation.meta, federation.classes), "given label", title)


def _matrices(matrices, names, across, title):
    """Draw [(title, counts or shares)] side by side, each row as shares."""
    width = side(names)
    figure, (axes,) = panels(width * len(matrices) + 0.6, width + 0.5, columns=len(matrices), sharey=True)
    for axis, (name, counts) in zip(axes, matrices, strict=True):
        matrix(axis, counts / np.maximum(counts.sum(1, keepdims=True), 1e-12), names)
        axis.set(title=name, xlabel=across)
    axes[0].set_ylabel("true label")
    figure.set_layout_engine("constrained")  # keeps the title of the figure away from those of the matrices
    figure.suptitle(title)
    return figure


def partition(thing: Run | Federation) -> Figure:
    """Draw each client's number of samples per class as bubble areas; of true labels if they are known."""
    federation = comparison.federation(thing)
    if not len(federation):
        raise InputError("the federation has no clients yet; pipe it through `fnlkit partition -` first")
    known = federation.given if federation.true is None else federation.true
    shown, classes = min(len(federation), CLIENTS), federation.classes
    counts = np.stack([np.bincount(known[part], minlength=classes) for part in federation.clients[:shown]])
    names = classes_of(federation.meta, classes)
    cell = float(np.clip(9 / max(shown, classes), 0.085, 0.36))
    wide, high = max(3.2, cell * shown), max(2.2, cell * classes)
    figure, ((axis,),) = panels(wide + 1.8, high + 0.9)
    most = max(1, counts.max())
    # The largest bubble fills a cell, in square points; with many clients it can exceed the cell to stay visible.
    largest = (72 * max(0.14, 0.92 * max(wide / shown, high / classes) if shown > NAMED else 0.92 * cell)) ** 2
    clients, labels = np.nonzero(counts)
    look = {"color": COLORS[0], "linewidths": 0, "alpha": 0.8}
    axis.scatter(clients, labels, s=largest * counts[clients, labels] / most, **look)
    axis.set(xlim=(-0.8, shown - 0.2), ylim=(-0.8, classes - 0.2), xlabel="client", ylabel="class")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.get_major_locator().set_params(integer=True)
    if classes <= NAMED:
        axis.set_yticks(range(classes), names)
    own = short(federation.meta.get("client_names") or [])
    if own and shown <= NAMED:
        axis.set_xticks(range(shown), own[:shown], rotation=90)
    for count in dict.fromkeys(max(1, round(most * share)) for share in (1, 0.5, 0.1)):
        axis.scatter([], [], s=largest * count / most, label=f"{count:,}", **look)
    axis.legend(title="samples", loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, labelspacing=1.1)
    some = "" if shown == len(federation) else f", the first {shown} of {len(federation):,} clients"
    which = "given" if federation.true is None else "true"
    axis.set_title(f"{data_set(federation.dataset)}: {which} labels{some}")
    return figure
