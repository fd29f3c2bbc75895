"""Progress: a bar on a terminal, otherwise a line at least every half a minute."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fnlkit.cli.terminal import console, printable

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
def bar(title: str, *, unit: str = "", start: int = 0, total: int | None = None) -> Iterator[Callable[..., object]]:
    """Yield a function (done, total, title=None) that updates a bar on a terminal; otherwise `log` prints the progress.

    Parameters
    ----------
    title : str
    unit : str
        Unit of the numbers. With a unit the bar stays at the end, and a log gets a line every tenth of `total`.
    start, total : int
        Numbers at the start.
    """
    talk = console()
    if talk.is_terminal:
        count = f"{{task.completed}}/{{task.total}} {unit}" if unit and talk.width >= _NARROW else "{task.percentage:>3.0f} %"
        with _make_bar(talk, count, transient=not unit) as shown:
            task = shown.add_task(printable(title), total=total, completed=start)
            yield lambda done, total, text=title: shown.update(task, completed=done, total=total, description=printable(text))
        return
    began, last, printed, latest = time.monotonic(), time.monotonic(), start, ""
    now: tuple[int, int, str] = (start, total or 0, title)

    def state() -> str:
        done, total, text = now
        if done == start:
            return f"{text}: started"
        left = (time.monotonic() - began) / (done - start) * (total - done)
        return f"{text}: {done:,} of {total:,}{unit and f' {unit}'}, about {left:,.0f} s left"

    def advance(done: int, total: int, text: str = title) -> None:
        nonlocal began, last, now, printed, latest
        if total != now[1] or done < now[0]:  # the next step counts from zero, and began when the previous one ended
            began = last
        now, last = (done, total, text), time.monotonic()
        if unit and (done - printed >= total / 10 or (done >= total and state() != latest)):
            printed, latest = done, state()
            line(latest)

    with log(state) as line:
        yield advance


@contextmanager
def of_rounds(experiment: "Experiment") -> Iterator[Callable[[dict[str, Any]], object]]:
    """Yield a function that shows a finished round as progress of a `bar`."""
    state, texts = Progress(experiment), [""]

    def show(row: dict[str, Any]) -> None:
        texts.append(state.text(row))
        advance(state.done, state.total, texts[-1])

    with bar("training", unit="client-rounds", start=state.start, total=state.total) as advance:
        yield show
        if texts[-1]:
            advance(state.done, state.done, texts[-1])  # a run can end before its budget is spent


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


class Progress:
    """Counter of an experiment's client-rounds from now on.

    Parameters
    ----------
    experiment : fnlkit.experiment.Experiment

    Attributes
    ----------
    total : int
        Client-rounds in the budget.
    start : int
        Client-rounds that a resumed run has already finished.
    """

    def __init__(self, experiment):
        self.experiment = experiment
        self.total = experiment.client_rounds_total
        self.start = self._done(experiment)
        self._began, self._score = time.monotonic(), ""
        self._samples = float(experiment.clients.sizes.mean()) * experiment.settings.epochs

    @staticmethod
    def _done(experiment):
        return experiment.clients.traffic.client_rounds

    @property
    def done(self) -> int:
        return self._done(self.experiment)

    def text(self, row: dict[str, Any]) -> str:
        """Format stage, last scores and samples per second after a round's row of metrics."""
        name = next((name for name in ("accuracy", "agreement") if name in row), None)
        if name:
            self._score = f"{name} {row[name]:.4f}"
            if "label_accuracy" in row:
                self._score += f", labels right {row['label_accuracy']:.4f}"
        rate = (self.done - self.start) * self._samples / max(1e-9, time.monotonic() - self._began)
        return f"{row['stage']}: {self._score}{', ' if self._score else ''}{rate:,.0f} samples/s"
