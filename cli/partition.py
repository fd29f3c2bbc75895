"""`fnlkit partition`: split a data set over clients."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from fnlkit import pipeline
from fnlkit.artifacts.federation import Federation
from fnlkit.cli.plumbing import (
    Listing,
    console,
    dataset_option,
    emit,
    output_option,
    printable,
    sample_column_option,
    seed_option,
    suggest,
)
from fnlkit.cli.source import need_input, refuse_unread
from fnlkit.datasets.partition_report import report_lines
from fnlkit.datasets.partitioning import SCHEMES
from fnlkit.errors import InputError


def _schemes():
    return SCHEMES


@click.command(cls=Listing, title="Schemes", parts=_schemes, given=("fields",))
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option(
    "--scheme", default="iid", show_default=True, metavar="SPEC", help="Partition scheme from the list above, or FILE.py:NAME."
)
@click.option(
    "--clients",
    type=click.IntRange(min=1),
    default=None,
    help="Number of clients. Default: 20 for fewer than 10,000 samples, else 100.",
)
@click.option("--labels", default="auto", show_default=True, metavar="WORD",
              help="Status of the labels. observed: some can be wrong; true: all are right; auto: as the data"
                   " set declares.")  # fmt: skip
@click.option(
    "--min-samples",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Smallest number of samples per client; a split with smaller clients is drawn again.",
)
@click.option("--holdout", type=float, default=None, metavar="SHARE",
              help="Share of each client's samples held out for evaluation. Default: 0.2 without test "
                   "samples, else 0.")  # fmt: skip
@click.option("--gold", metavar="IDS.csv", default=None,
              help="Verified samples (columns id, label), used for evaluation and never for training.")  # fmt: skip
@sample_column_option
@click.option("--public", type=click.FloatRange(0, 1, max_open=True), default=0.0, metavar="SHARE",
              help="Share of the samples in a public set, for methods such as rhfl and clipfl.")  # fmt: skip
@click.option("--label", metavar="COLUMN", default=None, help="Label column of a table.")
@click.option("--group", metavar="COLUMN", default=None,
              help="Column of a table, field of an npz, or level of the folders of images: samples with the same value, such as"
                   " a patient, are never divided. Default: the column with a usual name.")  # fmt: skip
@seed_option
@output_option("FED.npz")
@click.option("--json", "as_json", is_flag=True, help="Print the report on stdout as one line of JSON. Requires -o.")
def command(
    file: str | None,
    dataset: str | None,
    scheme: str,
    clients: int | None,
    labels: str,
    min_samples: int,
    holdout: float | None,
    gold: str | None,
    sample_column: str | None,
    public: float,
    label: str | None,
    group: str | None,
    seed: int,
    output: str,
    as_json: bool,
) -> None:
    """Split a data set over clients and write a federation.

    The default data set is digits. FILE, or - for a pipe, can contain a federation without clients, written by `inject-noise
    --dataset`. It is split by its given labels; with --dataset, the samples are read from that data set.

    \b
    Example:
      fnlkit partition --dataset digits --clients 10 --scheme 'dirichlet(alpha=0.5)' --seed 1 -o fed.npz
    """
    options: dict[str, Any] = {"scheme": scheme, "clients": clients, "min_samples": min_samples, "labels": labels}
    options |= {"holdout": holdout, "gold": gold, "sample_column": sample_column, "public": public}
    if file is not None and (label or group):
        raise InputError("--label and --group describe a data set; the labels and groups of a federation are known")
    options |= {"label": label, "group": group} if file is None else {}
    if as_json and output == "-":
        raise InputError("--json prints the report on stdout; name the file of the federation with -o")
    notes: list[str] = []
    facts: dict[str, Any] = {}
    if file is None:
        federation = pipeline.partition(dataset or "digits", seed=seed, say=notes.append, report=facts.update, **options)
    else:
        need_input(file)
        federation = pipeline.partition(
            Federation.read(file), dataset=dataset, seed=seed, say=notes.append, report=facts.update, **options
        )
    refuse_unread(file)
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
