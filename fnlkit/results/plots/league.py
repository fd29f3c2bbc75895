"""Figures of a league of methods: ranks over regimes and the critical difference of mean ranks."""

import json
import math
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.errors import InputError
from fnlkit.results.plots.style import COLORS, panels, short
from fnlkit.results.ranking import ranking

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def read_league(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a league from a file, or from lines of text, as `fnlkit reproduce league --json` prints them.

    Raises
    ------
    InputError
        If a line has another form.
    """
    rows = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if not {"ranking", "search"} & row.keys():
                    named = {name: str(row[name]) for name in ("regime", "method")}
                    score = float(row.get("kept_mean", row["late_mean"]))
                    if not math.isfinite(score):
                        raise ValueError("no number")
                    rows.append(named | {"late_mean": score, "runs": int(row["runs"]), "published": None})
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; `fnlkit reproduce league --json > {path}` writes one") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"{path}: line {len(rows) + 1} is not a row of a league; expected the output of `fnlkit reproduce league --json`"
        ) from error
    return rows


def league(rows: list[dict[str, Any]]) -> "Figure":
    """Draw mean ranks with the rank in each regime, the critical difference, and late accuracy in each regime.

    The layout is Demsar's critical difference diagram, drawn vertically. Methods within the band do not differ significantly
    from the best.
    """
    ranks = ranking(rows)
    order = list(ranks["mean_rank"])
    if not order:
        raise InputError(
            "no regime has results of all methods, so mean ranks are undefined; complete `fnlkit reproduce league`"
        )
    late = {(row["method"], row["regime"]): row["late_mean"] for row in rows}
    regimes = ranks["regimes"]
    wide, high = 0.55 * len(regimes) + 0.6, 0.27 * len(order) + 2.2
    figure, ((left, right),) = panels(5.2 + wide, high, columns=2, sharey=True, width_ratios=(4.2, wide))
    _ranks(left, ranks, order)
    _accuracies(right, np.array([[late[method, regime] for regime in regimes] for method in order]), ranks, order)
    return figure


def _ranks(axis, ranks, order):
    best = ranks["mean_rank"][order[0]]
    if ranks["apart"] is not None:
        label = f"less than {ranks['apart']:.2f} behind the best:\nno significant difference (Nemenyi, 5 %)"
        axis.axvspan(best, best + ranks["apart"], color="0.9", label=label, zorder=0)
    for place, method in enumerate(order):
        mine = list(ranks["ranks"][method].values())
        axis.plot(mine, [place] * len(mine), "|", color="0.45", markersize=7, label=None if place else "in a regime")
        look = {"color": COLORS[0], "markersize": 7}
        axis.plot([ranks["mean_rank"][method]], [place], "o", label=None if place else "mean rank", **look)
    axis.set_yticks(range(len(order)), short(order, 40))
    axis.set(xlabel="rank, 1 is best", xlim=(0.5, len(order) + 0.5), ylim=(len(order) - 0.4, -0.6))
    axis.set_title(f"ranks by late accuracy, {len(ranks['regimes'])} regime{'s' * (len(ranks['regimes']) != 1)}")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.62 / (0.27 * len(order) + 0.3)), borderaxespad=0)


def _accuracies(axis, late, ranks, order):
    """Draw late accuracies (methods, regimes), darker if a method ranks higher in the regime."""
    regimes = ranks["regimes"]
    place = np.array([[ranks["ranks"][method][regime] for regime in regimes] for method in order])
    dark = 1 - (place - 1) / max(1, len(order) - 1)
    axis.imshow(0.75 * dark, vmin=0, vmax=1, aspect="auto")
    for (i, j), value in np.ndenumerate(late):
        color = "white" if 0.75 * dark[i, j] > 0.5 else "black"
        axis.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize="x-small", color=color)
    axis.set_xticks(range(len(regimes)), short(regimes, 40), rotation=90)
    axis.tick_params(left=False)
    axis.grid(False)
    axis.set_title("late accuracy, in %")
