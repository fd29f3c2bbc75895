"""Figures of samples: separation of wrong and right labels by issue scores, and suspects among other samples."""

import numpy as np
from matplotlib.figure import Figure

from fnlkit.artifacts.display import data_set
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.loading import to_dataset
from fnlkit.kernels import scores
from fnlkit.results import comparison, evaluation
from fnlkit.results.plots.curves import common_score, legend_of
from fnlkit.results.plots.style import COLORS, below, look, panels, place_legend_right

_FLAGS = {"marker": "x", "linestyle": "", "color": "black", "markersize": 8, "markeredgewidth": 2, "label": "flagged"}


def issues(thing: Run | Federation) -> Figure:
    """Draw a histogram of issue scores and, if true labels are known, ROC and precision over recall.

    The point of the flags is marked on the curves.
    """
    federation = comparison.federation(thing)
    held, issue, flagged = _find_judged(federation)
    wrong = _wrong(federation, held)
    both = wrong is not None and 0 < wrong.sum() < len(wrong)
    figure, (axes,) = panels(11 if both else 5.4, 3.6, columns=3 if both else 1)
    if wrong is None:
        groups = [("not flagged", ~flagged), ("flagged", flagged)]
    else:
        groups = [("right", ~wrong), ("wrong", wrong)]
    _histogram(axes[0], issue, groups)
    if both:
        _roc(axes[1], issue, wrong, flagged)
        _precision(axes[2], issue, wrong, flagged)
    figure.suptitle(data_set(federation.dataset))
    return figure


def calibration(runs: list[Run]) -> Figure:
    """Draw the share of right predictions over the confidence of predictions, in bins of equal width, with the ECE of each run.

    The samples are the first that `fnlkit evaluate` tests.
    """
    from fnlkit.results.scores import measure_run  # it imports the statistics of estimates

    figure, ((axis,),) = panels(4.2, 3.8)
    axis.plot([0, 100], [0, 100], color="gray", linewidth=0.8)
    groups = evaluation.distinct(runs)
    parts = [next(iter(measure_run(run, to_dataset(run.meta["dataset"])).values()), {}) for run in runs]
    for number, (run, group, part) in enumerate(zip(runs, groups, parts, strict=True)):
        if "ece" not in part:
            raise InputError(f"the run of {run.settings['method']} stores no probabilities; train it again with this version")
        _, confidence, share = 100 * np.array(part["reliability"]).T
        label = f"{legend_of(group, groups)}, ECE {100 * part['ece']:.1f} %"
        axis.plot(confidence, share, marker=".", label=label, **look(number))
    measured = common_score(part["measures"] for part in parts)
    axis.set(xlabel="confidence (%)", ylabel=f"{measured} (%)", xlim=(0, 100), ylim=(0, 100))
    place_legend_right(axis)
    axis.set_title(", ".join(dict.fromkeys(data_set(run.meta["dataset"]) for run in runs)))
    return figure


def _find_judged(federation):
    """Find positions of the clients' samples, their issue scores, and whether they were flagged."""
    if any(f"estimate_{name}" not in federation.extra for name in ("issue_score", "flagged")):
        raise InputError("no sample has been judged; pipe the federation through `fnlkit estimate-noise` or `fnlkit audit`")
    held = federation.whole().client_indices
    return held, federation.extra["estimate_issue_score"][held], federation.extra["estimate_flagged"][held]


def _wrong(federation, held):
    if federation.true is None:
        return None
    return (federation.extra.get("estimate_judged_label", federation.given) != federation.true)[held]


def _histogram(axis, issue, groups):
    bins = np.linspace(min(0, issue.min()), max(1, issue.max()), 31)
    for number, (name, mask) in enumerate(groups):
        look = {"color": COLORS[number], "alpha": 0.55, "hatch": ("", "////")[number], "edgecolor": "white"}
        axis.hist(issue[mask], bins, label=f"{name}, {mask.sum():,}", **look)
    axis.set(xlabel="issue score", ylabel="samples", title="labels by issue score", yscale="log", ylim=(0.7, None))
    axis.yaxis.set_major_formatter("{x:,.0f}")
    axis.yaxis.set_minor_formatter("")
    below(axis)


def _roc(axis, issue, wrong, flagged):
    from sklearn.metrics import roc_curve

    false, hits, _ = roc_curve(wrong, issue)
    axis.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":", label="chance")
    axis.plot(false, hits, color=COLORS[0], label=f"AUC {scores.auc(issue, wrong):.3f}")
    axis.plot([flagged[~wrong].mean()], [flagged[wrong].mean()], **_FLAGS)
    axis.set(xlabel="false positive rate (right labels)", ylabel="true positive rate (wrong labels)", title="ROC")
    below(axis)


def _precision(axis, issue, wrong, flagged):
    from sklearn.metrics import average_precision_score, precision_recall_curve

    precision, recall, _ = precision_recall_curve(wrong, issue)
    average = average_precision_score(wrong, issue)
    axis.axhline(wrong.mean(), color="0.6", linewidth=1, linestyle=":", label="chance")
    axis.plot(recall, precision, color=COLORS[0], drawstyle="steps-post", label=f"average precision {average:.3f}")
    if flagged.any():
        axis.plot([flagged[wrong].mean()], [wrong[flagged].mean()], **_FLAGS)
    axis.set(
        xlabel="recall (share of wrong labels flagged)", ylabel="precision (flags that are wrong labels)", ylim=(-0.03, 1.03)
    )
    axis.set_title("precision and recall")
    below(axis)
