"""`fnlkit plot`: plot runs and federations."""

import os

import click

import fnlkit
from fnlkit.cli.plumbing import caution, console, printable, suggest, takes_file, trust_option
from fnlkit.core.errors import InputError
from fnlkit.pipeline.judging import open_runs
from fnlkit.results import plots


@click.command()
@click.argument("words", nargs=-1, metavar="[KIND] FILE...", required=True)
@click.option("--facet", default=None, metavar="NAME",
              help="For accuracy and bytes: draw a panel for each value of this setting, for example noise. Default for a "
                   "recipe: regime.")  # fmt: skip
@click.option("--size", default=None, metavar="WxH", help="Width and height of the figure in inches, for example 6.5x3.")
@trust_option
@click.option("-o", "--output", required=True, metavar="FIGURE", callback=takes_file,
              help="Output figure: .png, .svg or .pdf.")  # fmt: skip
def command(words: tuple[str, ...], facet: str | None, size: str | None, trust: bool, output: str) -> None:
    """Draw runs and federations as one figure.

    The default KIND is accuracy for runs and estimates for a federation. A folder stands for all of its runs. Plots require
    the extra `plot` (matplotlib).

    \b
    KIND for one or more runs:
      accuracy      test accuracy over client-rounds, bands over seeds, stages
      bytes         test accuracy over the bytes sent up and down
      calibration   share of right predictions over confidence, with ECE
    KIND for one run:
      labels        true against working labels before and after each stage
      lid           cumulative LID scores with their two Gaussians
      memorization  share of wrong labels that models repeat
      prestopping   FedEFC's estimated accuracy and prestopping round
    KIND for one federation (of a run: the federation that it was trained on):
      partition     number of samples per client and class
      transition    requested, achieved and estimated transition matrices
      noise         estimated against true noise level of each client
      estimates     estimated noise levels (noisiest first) and transition
      issues        issue scores of right and wrong labels, ROC, precision

    \b
    Example:
      fnlkit plot fedavg-0.pt fedcorr-0.pt -o curves.svg
      fnlkit plot transition judged.npz -o transition.png
    """
    kind, paths = _kind(words, plots.KINDS)
    plot = plots.find_kind(kind)
    things = _read(paths, plot.takes, trust)
    options = {}
    if facet is not None:
        if kind not in ("accuracy", "bytes"):
            raise InputError(f"--facet {facet} is for plot accuracy and bytes, found plot {kind}")
        options["facet"] = facet
    plots.plot(things, kind, output, size=_inches(size), **options)
    console().print(printable(f"wrote {output}"), style="dim", soft_wrap=True)
    if plot.takes == "labels" and not hasattr(things[0][1], "history"):
        suggest("train", paths[0], "-o", "run.pt")
    else:
        suggest("report", *paths[:3], "-o", "report.html")


def _inches(text):
    """Parse (width, height) of a text such as 6.5x3, or None."""
    if text is None:
        return None
    try:
        width, height = map(float, text.lower().split("x"))
    except ValueError:
        width = height = 0.0
    if not (0.5 <= width <= 100 and 0.5 <= height <= 100):
        raise InputError(f"--size {text}: write width and height in inches, each from 0.5 to 100, for example 6.5x3")
    return width, height


def _kind(words, kinds):
    """Split words into the kind and the paths; write ./NAME for a file that has the name of a kind."""
    first, *rest = words
    if first in kinds and (rest or not os.path.exists(first)):
        if not rest:
            raise InputError(f"plot {first}: the file is missing; add a run or a federation")
        return first, rest
    if rest and not os.path.exists(first) and not os.path.splitext(first)[1]:
        return first, rest  # the error lists the kinds
    return "estimates" if all(path.endswith(".npz") for path in words) else "accuracy", words


def _read(paths, takes, trust):
    """Read [(label, Run, Federation or rows)] of files; a folder stands for its runs."""
    if takes == "labels":
        return [(path, _labels(path, trust)) for path in paths]
    return [run for path in paths for run in open_runs(path, trust=trust, say=caution)]


def _labels(path, trust):
    thing = fnlkit.load(path, trust=trust)
    if not hasattr(thing, "client_offsets"):
        raise InputError(f"{path}: neither a federation nor a run, found {thing.kind}")
    return thing
