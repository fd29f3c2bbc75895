"""Progress: a bar on a terminal, otherwise occasional lines."""

import time
from contextlib import contextmanager

from fnlkit.cli.terminal import console, printable

_EVERY = 30  # seconds between lines of progress
_NARROW = 80  # width of a terminal in columns


@contextmanager
def bar(title):
    """Yield a function (done, total, title=None) that updates a bar on a terminal, or prints a line every half a minute.

    The bar is removed at the end.
    """
    talk = console()
    if not talk.is_terminal:
        began = printed = time.monotonic()

        def line(done, total, text=title):
            nonlocal printed
            now = time.monotonic()
            if now - printed >= _EVERY:
                printed = now
                left = (now - began) / max(1, done) * (total - done)
                talk.print(f"{text}: {done:,} of {total:,}, about {left:,.0f} s left", style="dim", soft_wrap=True)

        yield line
        return
    with _shown(talk, "{task.percentage:>3.0f} %", transient=True) as shown:
        task = shown.add_task(printable(title), total=None)
        yield lambda done, total, text=title: shown.update(task, completed=done, total=total, description=printable(text))


@contextmanager
def of_rounds(experiment):
    """Yield a function that shows a finished round: a bar on a terminal, otherwise a line every tenth of the rounds."""
    from fnlkit.experiment.progress import Progress

    say, state = console(), Progress(experiment)
    if say.is_terminal:
        unit = "" if say.width < _NARROW else " client-rounds"
        with _shown(say, "{task.completed}/{task.total}" + unit) as shown:
            task = shown.add_task("training", total=state.total, completed=state.start)
            yield lambda row: shown.update(task, completed=state.done, description=printable(state.text(row)))
        return
    last = [state.start]

    def line(row):
        now, text = state.done, state.text(row)
        if now - last[0] >= state.total / 10 or row["stage"] == "final" or now >= state.total > last[0]:
            last[0] = now
            say.print(f"{now}/{state.total} client-rounds, {text}, {state.seconds_left:.0f} s left", soft_wrap=True)

    yield line


def _shown(talk, count, **more):
    """Return a rich progress bar that keeps its width on a narrow terminal; the text gets shorter."""
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
    return rich.Progress(*columns, description, console=talk, expand=True, **more)
