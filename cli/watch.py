"""`fnlkit watch`: follow a run in another terminal."""

from __future__ import annotations

import os
import time

import click

from fnlkit.cli.plumbing import out_console, printable, suggest
from fnlkit.results.live_metrics import Metrics, sparkline, summary


@click.command()
@click.argument("metrics", metavar="RUN.metrics.jsonl")
@click.option("--every", type=click.FloatRange(min=0.05), default=1.0, show_default=True,
              help="Seconds between updates.")  # fmt: skip
@click.option("--once", is_flag=True, help="Print the state once and stop.")
def command(metrics: str, every: float, once: bool) -> None:
    """Follow a run by the metrics file of `fnlkit train`: stage, rounds, accuracy and a sparkline.

    The command ends with the run, and at once if no run is active. On a terminal it updates one line; otherwise it prints a
    line per evaluation.

    \b
    Example:
      fnlkit watch run.metrics.jsonl --once
    """
    growing, say = Metrics(metrics), out_console()
    (_update if say.is_terminal else _lines)(growing, say, every, once)
    run = metrics.removesuffix(".metrics.jsonl") + ".pt"
    if not growing.running and os.path.isfile(run):
        suggest("evaluate", run)


def _update(found, say, every, once):
    from rich.live import Live

    with Live(console=say.rich, refresh_per_second=4) as live:
        going = True
        while going:
            going = found.running and not once  # check before reading, so that the last rows are read
            found.update()
            live.update(_display(found, max(10, say.width - 2)))
            if going:
                time.sleep(every)


def _lines(found, say, every, once):
    scored, going = -1, True
    while going:
        going = found.running and not once
        found.update()
        count = sum("accuracy" in row or "agreement" in row for row in found.rows)
        if count != scored or not going:
            say.print(_display(found, 60), soft_wrap=True)
            scored = count
        if going:
            time.sleep(every)


def _display(found, width):
    from rich.text import Text

    text, scores = summary(found.rows)
    return Text("\n".join(part for part in (printable(text), sparkline(scores, width)) if part))
