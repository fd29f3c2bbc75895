"""Shared options and output of all commands: data on stdout, messages on stderr."""

import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import click

from fnlkit.artifacts import files
from fnlkit.artifacts.provenance import provenance as provenance
from fnlkit.artifacts.sheets import Sheet
from fnlkit.cli import parts
from fnlkit.cli.artifact_tables import show
from fnlkit.cli.dataclass_options import options_of, takes_file
from fnlkit.cli.terminal import LINES, Table, console, cross, height, out_console, printable
from fnlkit.core.errors import InputError
from fnlkit.core.spec import find
from fnlkit.experiment import output as outputs_of_runs
from fnlkit.experiment.settings import TrainOptions
from fnlkit.results.tables import Table as Results

# Commands import everything shared from here.
__all__ = ["LINES", "Table", "console", "cross", "height", "out_console", "printable"]


def need_input(file: str | None) -> None:
    """Raise if an input file would come from a keyboard."""
    if file == "-" and (sys.stdin is None or sys.stdin.closed or sys.stdin.isatty()):
        raise InputError("no FILE and nothing in the pipe; name a file or pipe another fnlkit command into this one")


def take_inputs(ctx: click.Context, argument: click.Parameter, value: Any) -> Any:
    """Read the input files of an argument, stdin for none of several, after `need_input`; a callback."""
    value = ("-",) if value == () else value
    for file in value if isinstance(value, tuple) else (value,):
        need_input(file)
    return value


file_argument = click.argument("file", default="-", metavar="[FILE]", callback=take_inputs)
runs_argument = click.argument("runs", nargs=-1, metavar="[RUN.pt]...", callback=take_inputs)
seed_option = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
                           help="Seed of all random draws; equal seeds give equal results.")  # fmt: skip
dataset_option = click.option("--dataset", metavar="NAME|PATH", default=None,
                              help="Data set: a name of `fnlkit data list`, an npz, csv or parquet file, a folder, a spec such "
                                   "as 'folder(path=P, label=2)', or FILE.py:NAME, your function that returns "
                                   "arrays.")  # fmt: skip
ledger_option = options_of(TrainOptions, "ledger")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of tables.")
sample_column_option = click.option("--sample-column", default=None, metavar="NAME",
                                    help="Column of a table that names the samples. Default: the only column that names a "
                                         "sample in every row.")  # fmt: skip
control_option = click.option("--control", default=None, metavar="NAME",
                              help="Control or column with the labels. Default: the only one whose values are "
                                   "classes.")  # fmt: skip
baseline_option = click.option("--baseline", default=None, metavar="METHOD",
                               help="Method that other methods are compared with. Default: fedavg if present, else the "
                                    "first.")  # fmt: skip
trust_option = click.option("--trust", is_flag=True, help="Import the code that an input file names; read this code first.")


def output_option(what: str = "FILE") -> Callable[..., Any]:
    """The option -o; names with the ending of another format are refused before any work."""
    help = "Output file. Default: stdout."
    return click.option("-o", "--output", default="-", metavar=what, help=help, callback=_own_format)


_OTHERS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".xlsx", ".parquet", ".html", ".png", ".svg", ".pdf", ".toml", ".md")


def must_differ(outputs: dict[str, str | None], *inputs: str | None) -> None:
    """Raise if an output, {option: file}, would overwrite an input file or another output."""
    read = [file for file in inputs if file and file != "-" and os.path.isfile(file)]
    for option, path in outputs.items():
        if path and path != "-" and os.path.isfile(path) and any(os.path.samefile(file, path) for file in read):
            raise InputError(f"{option} {path} is also the input file; choose another name")
    outputs_of_runs.must_differ(outputs)


csv_option = click.option("--csv", "sheet", metavar="FILE.csv", default=None, callback=takes_file,
                          help="Also write a table of all samples with their labels as received and now.")  # fmt: skip


def _own_format(ctx, option, output):
    ending = os.path.splitext(output)[1].lower()
    if ending in _OTHERS:
        options = {o.name for o in ctx.command.params}
        other = "; --json prints the table's numbers" if "as_json" in options else ""
        if ending == ".html" and "html" in options:
            other = f"; --html {output} writes the page"
        if ending == ".csv" and "sheet" in options:
            other = f"; --csv {output} writes the labels as a table"
        text = f"the output has another format than {ending[1:]}; write a name such as {option.metavar}{other}"
        raise InputError(f"-o {output}: {text}")
    return takes_file(ctx, option, output)


def tidy_option(what: str, more: str = "") -> Callable[..., Any]:
    """The option --tidy; a name without the ending of a table is refused before any work."""
    help = f"Also write {what} as a .csv or .parquet table with every option{more and f' and {more}'} as a column."
    return click.option("--tidy", default=None, metavar="FILE", help=help, callback=_takes_table)


def _takes_table(ctx, option, target):
    if target is not None:
        from fnlkit.results.tidy import must_be_table  # numpy and scipy, which few commands need here

        must_be_table(target)
    return takes_file(ctx, option, target)


class Listing(click.Command):
    """A command whose help lists the components of a kind with their parameters and first sentences."""

    def __init__(self, *args, title, kind, **more):
        super().__init__(*args, **more)
        self.title, self.kind = title, kind

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows, table = [], parts.KINDS[self.kind].parts()
        for name in table:
            function = find(name, table, self.kind)
            keys = [f"{key}={default or '...'}" for key, default, *_ in parts.describe_parameters(self.kind, function)]
            rows.append((f"{name}({', '.join(keys)})" if keys else name, parts.purpose(function)))
        with formatter.section(self.title):
            formatter.write_dl(rows, col_max=26)
        super().format_options(ctx, formatter)


def caution(text: str) -> None:
    """Print a warning on stderr."""
    console().print(text, style="yellow", soft_wrap=True)


def emit(artifact: Any, target: str, *, shown: bool = False) -> None:
    """Write an artifact to `target`, or print it as a table if stdout is a terminal.

    Parameters
    ----------
    artifact : object with write(target) and to_artifact(), or fnlkit.artifacts.files.Artifact
    target : str
        A path, or ``-`` for stdout.
    shown : bool
        Whether the command has printed a summary already.
    """
    plain = isinstance(artifact, files.Artifact)
    if target == "-" and sys.stdout.isatty():
        if not shown:
            show(artifact if plain else artifact.to_artifact(), everything=verbose() > 0)
        console().print("not written: stdout is a terminal; add -o FILE or a pipe", style="dim")
    elif plain:
        files.write(artifact, target)
    else:
        artifact.write(target)


def emit_table(table: Sheet, target: str) -> None:
    """Write a table as CSV to `target`; on a terminal, without -v, print its first rows and the number of the others."""
    if target == "-":
        print_first(table.csv().splitlines(), "rows", LINES - 4)
    else:
        table.write(target)


def print_first(lines: list[str], what: str, most: int) -> None:
    """Print lines on stdout; on a terminal, without -v, print the first `most` lines and the number of the others.

    Parameters
    ----------
    lines : list of str
    what : str
        Plural of the content of a line.
    most : int
    """
    some = lines[:most] if sys.stdout.isatty() and not verbose() else lines
    sys.stdout.write("".join(f"{line}\n" for line in some))
    sys.stdout.flush()
    if len(some) < len(lines):
        console().print(f"and {len(lines) - len(some):,} more {what} (all: -v, or a pipe)", style="dim")


def print_results(table: Results, title: str | None = None) -> None:
    """Print a table of results and its notes on stdout."""
    say, columns = out_console(), map(printable, table.columns)
    say.print(Table(*columns, rows=[map(printable, row) for row in table.texts()], title=title))
    for note in table.notes:
        say.print(printable(note), style="dim", soft_wrap=True)


def suggest(*words: str, output: str = "") -> None:
    """Print the next command on stderr, with the user's file names; nothing if the command wrote to a pipe.

    Parameters
    ----------
    *words : str
        Words after ``fnlkit``.
    output : str
        The file that the command wrote; ``-`` is a pipe.
    """
    loader = click.get_current_context().params.get("dataset")  # a file that names the user's code does not run it
    reads = words[0] in ("audit", "train", "evaluate") or words[:2] == ("partition", output)
    if reads and isinstance(loader, str) and ".py:" in loader:
        words = (*words, "--dataset", loader)
    if output != "-":
        console().print(printable(f"next: fnlkit {shlex.join(words)}"), style="dim", soft_wrap=True)


def verbose() -> int:
    """Count the -v options before and after the command."""
    return click.get_current_context().find_root().obj or 0
