"""Common style of all figures: a style sheet, colors for color-blind readers, lines that differ in gray."""

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import saving
from fnlkit.artifacts.names import class_names
from fnlkit.core.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's colors without yellow, which is hardly visible on paper. Seven colors and four line styles have no common
# divisor, so 28 curves differ. Among the first eight curves, those with the same line style differ in gray by a tenth of the
# range from black to white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000", "#E69F00")
STYLES = ("-", "--", "-.", ":")
# A matrix with at most this many classes shows names and numbers.
NAMED = 20
FORMATS = (".png", ".svg", ".pdf")


@contextmanager
def sheet() -> Iterator[None]:
    """Draw and save in fnlkit's style, independent of the session's settings.

    Raises
    ------
    InputError
        If matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise InputError("plots require matplotlib; run pip install 'fnlkit[plot]'") from error
    place = resources.files("fnlkit.data").joinpath("figures.mplstyle")
    with resources.as_file(place) as path, matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(path, use_default_template=False))
        # The font shows boxes for characters that it lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


# An audit withholds levels and transitions that it cannot judge.
NONE_JUDGED = "the audit could not judge the labels of any client; review their suspicious samples with `fnlkit review export`"


def panels(width: float, height: float, rows: int = 1, columns: int = 1, **more: Any) -> "tuple[Figure, Any]":
    """Make a figure outside any window or session, and the axes (rows, columns); sides in inches.

    A legend next to single axes enlarges the picture; the axes keep their size.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if rows * columns > 1 else None)
    return figure, figure.subplots(rows, columns, squeeze=False, **more)


def fit(figure: "Figure", size: tuple[float, float]) -> None:
    """Give a figure a size in inches that includes legends and labels; it is saved without trimming.

    If labels or a legend need more room, the legend moves below the axes and fonts shrink, to 6 points at least.

    Raises
    ------
    InputError
        If labels and legend leave no room for the axes.
    """
    import matplotlib

    figure.set_size_inches(*size)
    figure.set_layout_engine("constrained")
    matplotlib.rcParams["savefig.bbox"] = None
    for points in (None, 9, 8, 7, 6):
        if points is not None:
            _shrink(figure, points)
        if _fits(figure):
            return
    raise InputError(
        f"{size[0]:g}x{size[1]:g}: no room for the axes next to the legend; enlarge it", parameter="size"
    ) from None


def _shrink(figure, points):
    """Limit the font size, and put all legends below the axes in as many columns as fit."""
    from matplotlib.text import Text

    legends, entries = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())], {}
    title = next((legend.get_title().get_text() for legend in legends), "")
    for legend in legends:
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            entries.setdefault(text.get_text(), handle)
        legend.remove()
    for text in figure.findobj(Text):
        text.set_fontsize(min(text.get_fontsize(), points))
    if entries:
        longest = (0.58 * points * max(map(len, entries)) + 3.5 * points) / 72
        columns = min(len(entries), max(1, int(figure.get_size_inches()[0] / longest)))
        tight = {"labelspacing": 0.25, "columnspacing": 1.0, "borderaxespad": 0.2, "handlelength": 2.2}
        place = {"loc": "outside lower left", "ncols": columns, "fontsize": points, "title_fontsize": points}
        figure.legend(entries.values(), entries.keys(), title=title or None, **place, **tight)


def _fits(figure):
    """Whether the layout is possible, and legends, titles and labels are inside the figure and do not overlap."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="constrained_layout not applied")
        try:
            figure.draw_without_rendering()
        except UserWarning:
            return False
    width, height = figure.bbox.width, figure.bbox.height
    legends = [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend())]
    shown = [axis for axis in figure.axes if axis.axison]
    texts = [text for axis in shown for text in (axis.title, axis._left_title, axis.xaxis.label, axis.yaxis.label)]
    boxes = [artist.get_window_extent() for artist in (*legends, *texts) if artist.get_visible()]
    inside = all(b.x0 >= -1 and b.y0 >= -1 and b.x1 <= width + 1 and b.y1 <= height + 1 for b in boxes if b.width * b.height)
    titles = [(axis._left_title.get_window_extent(), axis) for axis in shown if axis._left_title.get_text()]
    disjoint = not any(a.overlaps(b) for i, (a, _) in enumerate(titles) for b, _ in titles[:i])
    return inside and disjoint and all(axis.get_window_extent().height >= 0.4 * figure.dpi for axis in shown)


def save(figure: "Figure", target: str | os.PathLike[str]) -> None:
    """Write a figure to a .png, .svg or .pdf file atomically; equal figures give equal files."""
    form = Path(target).suffix[1:]
    dated = {"svg": "Date", "pdf": "CreationDate"}.get(form)
    drawn = io.BytesIO()
    figure.savefig(drawn, format=form, metadata={dated: None} if dated else None)
    try:
        saving.write_bytes([drawn.getbuffer()], target)
    except OSError as error:
        raise InputError(
            f"{target}: {error.strerror}; choose a folder that exists and can be written", parameter="output"
        ) from error


def look(number: int) -> dict[str, Any]:
    """Choose color and line style of a curve by number; the first 28 all differ."""
    return {"color": COLORS[number % len(COLORS)], "linestyle": STYLES[number % len(STYLES)]}


def place_legend_right(axis: "Axes", **more: Any) -> None:
    """Put the legend to the right of the axes."""
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, **more)


def below(axis: "Axes") -> None:
    """Put the legend below the axes."""
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.2), borderaxespad=0)


def short(names: Sequence[str], length: int = 14) -> list[str]:
    """Truncate names if they would fill the figure."""
    return [name if len(name) <= length else f"{name[: length - 1]}…" for name in names]


def classes_of(meta: dict[str, Any], classes: int) -> list[str]:
    """Truncate the names of the classes."""
    return short(class_names(meta, classes))


def upright(names: Sequence[str]) -> int:
    """Rotation of names below an axis: long names are vertical."""
    return 90 if max(map(len, names)) > 2 else 0


def matrix(axis: "Axes", shares: np.ndarray, names: Sequence[str]) -> None:
    """Draw a matrix of shares in [0, 1] with names and numbers in percent.

    Numbers are white on dark cells.
    """
    shares = np.asarray(shares)
    axis.imshow(shares, vmin=0, vmax=1)
    axis.grid(False)
    axis.spines[:].set_visible(True)
    if len(names) > NAMED:
        return
    axis.set_xticks(range(len(names)), names, rotation=upright(names))
    axis.set_yticks(range(len(names)), names)
    for i, j in zip(*np.nonzero(np.round(100 * shares)), strict=True):
        color = "white" if shares[i, j] > 0.5 else "black"
        axis.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize=6.5, color=color)


def side(names: Sequence[str]) -> float:
    """Side in inches of a matrix with this number of classes."""
    return float(np.clip(0.32 * len(names) + 1, 2.8, 5.4)) if len(names) <= NAMED else 4.5
