"""Progress: a bar on a terminal, otherwise a line at least every half a minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fnlkit.cli.terminal import console, printable
from fnlkit.experiment.progress import Progress

if TYPE_CHECKING:
    from fnlkit.experiment.experiment import Experiment


# Seconds without a line: at the start, and afterwards. A command begins after its first 0.3 s.
_FIRST, _EVERY = 0.6, 30
_NARROW = 80  # width of a terminal in columns


@contextmanager
def log(state: Callable[[], str]) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line; a thread prints `state()` if no line was printed for a while.

    Parameters
    ----------
    state : callable
        Returns the current progress as text.  It is called after 0.6 seconds without a line, then after every 30 seconds.
    """
    talk, ended = console(), threading.Event()
    due = [time.monotonic() + _FIRST]

    def line(text: str) -> None:
        due[0] = time.monotonic() + _EVERY
        talk.print(text, soft_wrap=True)

    def watch() -> None:
        while not ended.wait(max(0, due[0] - time.monotonic())):
            if time.monotonic() >= due[0]:
                line(state())

    thread = threading.Thread(target=watch, name="fnlkit-progress", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()


@contextmanager
def bar(title: str) -> Iterator[Callable[..., object]]:
    """Yield a function (done, total, title=None) that updates a bar on a terminal; otherwise `log` prints the progress.

    The bar is removed at the end.
    """
    talk = console()
    if talk.is_terminal:
        with _make_bar(talk, "{task.percentage:>3.0f} %", transient=True) as shown:
            task = shown.add_task(printable(title), total=None)
            yield lambda done, total, text=title: shown.update(task, completed=done, total=total, description=printable(text))
        return
    began, last = [time.monotonic()], [time.monotonic()]
    now: list[Any] = [0, 0, title]

    def state() -> str:
        done, total, text = now
        if not done:
            return f"{text}: started"
        return f"{text}: {done:,} of {total:,}, about {(time.monotonic() - began[0]) / done * (total - done):,.0f} s left"

    def advance(done: int, total: int, text: str = title) -> None:
        if text != now[2] or done < now[0]:  # the next step counts from zero, and began when the previous one ended
            began[0] = last[0]
        now[:], last[0] = (done, total, text), time.monotonic()

    with log(state):
        yield advance


@contextmanager
def of_rounds(experiment: Experiment) -> Iterator[Callable[[dict[str, Any]], object]]:
    """Yield a function that shows a finished round: a bar on a terminal, otherwise lines.

    A line is printed every tenth of the rounds, and by `log`.
    """
    talk, state = console(), Progress(experiment)
    if talk.is_terminal:
        unit = "" if talk.width < _NARROW else " client-rounds"
        with _make_bar(talk, "{task.completed}/{task.total}" + unit) as shown:
            task = shown.add_task("training", total=state.total, completed=state.start)
            yield lambda row: shown.update(task, completed=state.done, description=printable(state.text(row)))
        return
    last, row_text = [state.start], ["training"]

    def text() -> str:
        left = f", {state.seconds_left:.0f} s left" if state.done > state.start else ""
        return f"{state.done}/{state.total} client-rounds, {row_text[0]}{left}"

    def advance(row: dict[str, Any]) -> None:
        now, row_text[0] = state.done, state.text(row)
        if now - last[0] >= state.total / 10 or row["stage"] == "final" or now >= state.total > last[0]:
            last[0] = now
            line(text())

    with log(text) as line:
        yield advance


def _make_bar(talk, count, **more):
    """Make a rich progress bar with a fixed width; on a narrow terminal, the text gets shorter."""
    from rich import progress as rich
    from rich.table import Column

    narrow = talk.width < _NARROW
    columns = [
        rich.BarColumn(bar_width=15 if narrow else 40),
        rich.TextColumn(count, markup=False),
        rich.TimeRemainingColumn(compact=narrow),
    ]
    # A path can contain text that looks like markup.
    column = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    description = rich.TextColumn("{task.description}", markup=False, table_column=column)
    return rich.Progress(*columns, description, console=talk.rich, expand=True, **more)
