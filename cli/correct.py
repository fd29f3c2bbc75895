"""`fnlkit correct`: apply suggested labels without a review."""

import click
from click.core import ParameterSource

import fnlkit
from fnlkit.cli.plumbing import (
    console,
    csv_option,
    emit,
    file_argument,
    must_differ,
    output_option,
    suggest,
)
from fnlkit.core.errors import InputError


@click.command()
@file_argument
@click.option("--above", type=float, default=0.9, show_default=True,
              help="Smallest confidence of a suggestion, from 0 to 1; the issue score if there is no confidence.")  # fmt: skip
@click.option("--drop", is_flag=True, help="Drop the samples instead of relabeling them.")
@click.option("--list", "listed", is_flag=True,
              help="Correct exactly the labels of the lists of reviews with a guarantee.")  # fmt: skip
@csv_option
@output_option("CORRECTED.npz")
def command(file: str, above: float, drop: bool, listed: bool, sheet: str | None, output: str) -> None:
    """Relabel or drop flagged samples whose suggestion is likely to be right; reviewed labels do not change.

    With --list, relabel the samples of the lists with a guarantee; samples without a suggested class are dropped.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise | fnlkit correct --csv cleaned.csv -o corrected.npz
    """
    if listed and click.get_current_context().get_parameter_source("above") is not ParameterSource.DEFAULT:
        raise InputError("--above: --list corrects exactly the listed labels, whatever their scores; omit one of both")
    must_differ({"-o": output, "--csv": sheet})
    must_differ({"--csv": sheet}, file)

    corrected = fnlkit.correct(file, above=above, drop=drop, listed=listed)
    facts = corrected.meta["corrections"][-1]
    done = [] if drop else [f"{facts['changed']:,} relabeled"]
    done += [f"{facts['dropped']:,} left out"] if drop or facts["dropped"] else []
    done = ", ".join(done)
    note = f", {facts['reviewed']:,} kept as reviewed" if facts["reviewed"] else ""
    words = "listed," if listed else f"flagged; with a {facts['measure']} of at least {above:g},"
    console().print(f"{facts['flagged']:,} {words} {done}{note}", style="dim", soft_wrap=True)
    if not listed and not facts["changed"] + facts["dropped"]:
        why = (
            f"the highest {facts['measure']} is {facts['highest']:.4f}"
            if facts["highest"] is not None
            else "no label is suggested"
        )
        console().print(f"nothing was corrected: {why}", style="dim", soft_wrap=True)
    if sheet:
        fnlkit.cleaned(corrected).write(sheet)
    emit(corrected, output)
    suggest("train", output, "-o", "run.pt", output=output)
