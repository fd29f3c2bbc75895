"""Figures of samples: separation of wrong and right labels by issue scores, and suspects among other samples."""

from typing import TYPE_CHECKING

import numpy as np

from fnlkit.errors import InputError
from fnlkit.kernels import scores
from fnlkit.kernels.streams import stream
from fnlkit.results import comparison
from fnlkit.results.plots.style import COLORS, NAMED, below, classes_of, data_set, panels, place_legend_right

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fnlkit.artifacts.federation import Federation
    from fnlkit.artifacts.run import Run


# At most this many points are drawn: more points cover each other, and t-SNE takes minutes.
POINTS = 2_000
_FLAGS = {"marker": "x", "linestyle": "", "color": "black", "markersize": 8, "markeredgewidth": 2, "label": "flagged"}
# Black is reserved for suspects.
_CLOUDS = tuple("#999999" if color == "#000000" else color for color in COLORS)


def issues(thing: "Run | Federation") -> "Figure":
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


def _find_judged(federation):
    """Return positions of the clients' samples, their issue scores, and whether they were flagged."""
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


def embeddings(thing: "Federation | Run", *, vectors: np.ndarray, projection: str = "pca", seed: int = 0) -> "Figure":
    """Draw samples in two dimensions: classes by color and name, flagged samples as crosses.

    Parameters
    ----------
    thing : Federation or Run
    vectors : (n, ...) array
        Of each sample of the training set: embeddings, or the samples themselves; rows with NaN are left out.
    projection : "pca" or "tsne"
    seed : int
        Of the draw if there are more than 2,000 samples, and of t-SNE's start.
    """
    federation = comparison.federation(thing)
    held, _, flagged = _find_judged(federation)
    if len(held) > POINTS:
        chosen = np.sort(stream(seed, "embeddings plot").choice(len(held), POINTS, replace=False))
        some, held, flagged = f", {POINTS:,} of {len(held):,} samples", held[chosen], flagged[chosen]
    else:
        some = ""
    points = np.asarray(vectors[held], np.float64).reshape(len(held), -1)
    there = np.isfinite(points).all(1)
    held, flagged, points = held[there], flagged[there], points[there]
    if len(points) < 5:
        raise InputError(f"{len(points)} samples have a vector; a projection to two dimensions requires at least 5")
    flat, called = _flat(points, projection, seed)
    figure, ((axis,),) = panels(6.8, 5)
    names = classes_of(federation.meta, federation.classes)
    _scatter(axis, flat, federation.given[held], names)
    axis.plot(*flat[flagged].T, "x", color="black", markersize=4, markeredgewidth=0.8, label=f"flagged, {flagged.sum():,}")
    if len(names) <= NAMED:
        _name(axis, flat[~flagged], federation.given[held][~flagged], names)
    axis.set(xticks=[], yticks=[], title=f"{data_set(federation.dataset)}, {called}{some}")
    axis.spines[:].set(visible=True, color="0.7")
    axis.grid(False)
    place_legend_right(axis)
    return figure


def _flat(points, projection, seed):
    """Return points (m, 2) in two dimensions, and the name of the projection."""
    if projection == "pca":
        from sklearn.decomposition import PCA

        found = PCA(2, svd_solver="full").fit(points) if points.shape[1] < 500 else PCA(2, random_state=seed).fit(points)
        return found.transform(points), f"PCA, {100 * found.explained_variance_ratio_.sum():.0f} % of the variance"
    from sklearn.manifold import TSNE

    near = min(30, (len(points) - 1) // 3)
    return TSNE(perplexity=near, init="pca", random_state=seed).fit_transform(points), "t-SNE"


def _scatter(axis, flat, labels, names):
    """Draw points with a separate color and shape per class; with many classes, all points are gray."""
    if len(names) > NAMED:
        axis.plot(*flat.T, ".", color="0.7", markersize=3, label=f"{len(names)} classes")
        return
    for number, name in enumerate(names):
        mine = flat[labels == number]
        if len(mine):
            color, marker = _CLOUDS[number % len(_CLOUDS)], "o^s"[number // len(_CLOUDS) % 3]
            label = f"given {name}, {len(mine):,}"
            axis.plot(*mine.T, marker, color=color, markersize=4, alpha=0.75, markeredgewidth=0, label=label)


def _name(axis, flat, labels, names):
    """Write each class's name at the median of its points that are not flagged."""
    for number, name in enumerate(names):
        mine = flat[labels == number]
        if len(mine):
            ground = {"facecolor": "white", "alpha": 0.85, "linewidth": 0, "pad": 1.5}
            axis.text(*np.median(mine, 0), name, weight="bold", ha="center", va="center", bbox=ground, zorder=5)
