"""`fnlkit partition`: split a data set over clients."""

import json
import os
import sys
from typing import Any

import click

import fnlkit
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.plumbing import (
    Listing,
    console,
    dataset_option,
    emit,
    must_differ,
    output_option,
    printable,
    seed_option,
    suggest,
    take_inputs,
)
from fnlkit.core.errors import InputError
from fnlkit.pipeline.labels import Partitioning
from fnlkit.simulate.partition_report import report_lines


@click.command(cls=Listing, title="Schemes", kind="scheme")
@click.argument("file", required=False, metavar="[FILE]", callback=take_inputs)
@dataset_option
@click.option("--scheme", default="iid", show_default=True, metavar="SPEC",
              help="Partition scheme from the list above, or FILE.py:NAME.")  # fmt: skip
@options_of(Partitioning)
@seed_option
@output_option("FED.npz")
@click.option("--json", "as_json", is_flag=True, help="Print the report on stdout as one line of JSON. Requires -o.")
def command(file: str | None, dataset: str | None, output: str, as_json: bool, **options: Any) -> None:
    """Split a data set over clients and write a federation.

    The default data set is digits. FILE, or - for a pipe, can contain a federation without clients, written by `inject-noise
    --dataset`. It is split by its given labels; with --dataset, the samples are read from that data set.

    \b
    Example:
      fnlkit partition --dataset digits --clients 10 --scheme 'dirichlet(alpha=0.5)' --seed 1 -o fed.npz
    """
    if as_json and output == "-":
        raise InputError("--json prints the report on stdout; name the file of the federation with -o")
    files.must_spare_data(output, dataset)
    must_differ({"-o": output}, file)
    notes: list[str] = []
    facts: dict[str, Any] = {}
    source: Any = dataset or "digits"
    if file is not None:
        if file != "-" and (os.path.isdir(file) or not os.path.exists(file)):
            what = "is a folder" if os.path.isdir(file) else "no such file"
            raise InputError(f"{file}: {what}; a data set is named by --dataset {file!r}")
        source, options["dataset"] = Federation.read(file), dataset
    federation = fnlkit.partition(source, say=notes.append, report=facts.update, **options)
    if as_json:
        emit(federation, output)
        sys.stdout.write(json.dumps(facts | {"notes": notes}) + "\n")
        return
    for line in report_lines(facts, notes):
        console().print(printable(line), style="dim", soft_wrap=True)
    emit(federation, output)
    if federation.true is None:
        suggest("audit", output, "--html", "audit.html", "-o", "judged.npz", output=output)
    else:
        suggest("inject-noise", output, "-o", "noisy.npz", output=output)
