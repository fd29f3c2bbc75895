"""`fnlkit watch`: follow a run in another terminal."""

import json
import math
import os
import shlex
import time
from contextlib import nullcontext, suppress

import click

from fnlkit.artifacts import files, large
from fnlkit.cli.artifact_tables import progress
from fnlkit.cli.plumbing import caution, out_console, printable, suggest
from fnlkit.core.errors import InputError

BARS = "▁▂▃▄▅▆▇█"


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
    from rich.live import Live

    say, going, last = out_console(), True, ""
    with Live(console=say.rich, refresh_per_second=4) if say.is_terminal else nullcontext() as live:
        while going:
            going = _is_running(metrics) and not once  # before reading, so that the last rows are read
            text = _summary(_rows(metrics), max(10, min(say.width, 62) - 2))
            if live or text != last:
                live.update(text) if live else say.print(text, soft_wrap=True)
            last = text
            time.sleep(every if going else 0)
    run = metrics.removesuffix(".metrics.jsonl") + ".pt"
    if not _is_running(metrics) and os.path.isfile(run):
        with suppress(InputError):  # another file, or a damaged one
            if (facts := progress(large.heads(run)[0])) and facts["finished"]:
                suggest("evaluate", run)
            elif facts:
                caution(f"the run is not finished; repeat its command with --resume {shlex.quote(run)}")


def _is_running(path):
    """Whether a training process writes to the file: such a process locks it until it ends."""
    from filelock import FileLock, Timeout

    path = f"{os.path.realpath(path)}.lock"
    with suppress(OSError):
        try:
            if os.path.isfile(path):  # FileLock would create it
                FileLock(path, timeout=0).acquire().lock.release()
        except Timeout:
            return True
    return False


def _rows(path):
    """Read (stage, client-rounds, score, name of the score) of the rows of a metrics file without an incomplete last line."""
    remedy = "give the RUN.metrics.jsonl of `fnlkit train`"
    empty, rows = os.path.isfile(path) and not os.path.getsize(path), []
    try:
        lines = [] if empty else files.read_text(path, max_bytes=2**28).split("\n")[:-1]
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            name = "agreement" if "agreement" in row and "accuracy" not in row else "accuracy"
            score = math.nan if row.get(name) is None else float(row[name])
            rows.append((str(row["stage"]), int(row.get("client_rounds") or 0), score, name))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise InputError(f"{path}: line {number} is no row of a run; {remedy}") from None
    return rows


def _summary(rows, width):
    """Write stage, rounds, client-rounds and scores as a line, and a sparkline of the scores."""
    if not rows:
        return "no round yet"
    rounds = sum(stage != "final" for stage, *_ in rows)
    spent = max(count for _, count, *_ in rows)
    scores = [(score, name) for *_, score, name in rows if math.isfinite(score)]
    text = f"{printable(rows[-1][0])}, {rounds:,} rounds, {spent:,} client-rounds"
    if not scores:
        return text
    scores, name = [score for score, _ in scores], scores[-1][1]
    low, high, count = min(scores), max(scores), min(width, len(scores))
    means = [(scores[len(scores) * i // count] - low) / ((high - low) or 1) for i in range(count)]
    bars = "".join(BARS[round(mean * (len(BARS) - 1))] for mean in means)
    return f"{text}, {name} {scores[-1]:.4f}, best {high:.4f}\n{bars}"
