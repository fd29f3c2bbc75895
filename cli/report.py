"""`fnlkit report`: write a page about runs."""

import click

import fnlkit
from fnlkit import datasets
from fnlkit.artifacts import saving
from fnlkit.cli.plumbing import (
    caution,
    console,
    dataset_option,
    ledger_option,
    must_differ,
    printable,
    runs_argument,
    suggest,
    takes_file,
    trust_option,
)
from fnlkit.core.errors import InputError
from fnlkit.results.evaluation import is_scored


@click.command()
@runs_argument
@dataset_option
@ledger_option
@trust_option
@click.option("-o", "--output", required=True, metavar="FILE.html", callback=takes_file,
              help="Output page; - is stdout.")  # fmt: skip
def command(runs: tuple[str, ...], dataset: str | None, ledger: str | None, trust: bool, output: str) -> None:
    """Write a self-contained page about runs: summary, curves, tables, noisy clients, suspicious samples, commands.

    Several runs are compared first, and then each has a section. The page needs no network, supports light and dark, and shows
    the numbers of `fnlkit evaluate`. RUN can be a folder; without RUN stdin is read.

    \b
    Example:
      fnlkit report run.pt -o report.html
      fnlkit report runs/quickstart -o report.html
    """
    from fnlkit.pipeline import report

    must_differ({"-o": output}, *runs)
    result = fnlkit.evaluate(*runs, dataset=dataset, ledger=ledger, trust=trust, say=caution)
    shown = report.page(report.facts(result, datasets=_Samples(dataset)))
    saving.write_bytes([shown.encode()], output)
    if output != "-":
        console().print(printable(f"wrote {output}; open it in a browser"), style="dim", soft_wrap=True)
        if runs[0] != "-" and any(map(is_scored, result.runs)):
            suggest("plot", *runs[:3], "-o", "curves.png")


class _Samples:
    """Samples of runs. Each data set is loaded once, and a missing data set is reported once."""

    def __init__(self, chosen):
        self.chosen, self.known = chosen, {}

    def __call__(self, run):
        name = self.chosen or run.meta["dataset"]
        if (name, run.meta.get("dataset_checksum")) not in self.known:
            data = None
            try:
                data = datasets.load(name)
                if data.checksum != run.meta.get("dataset_checksum"):
                    data = None
                    raise InputError(f"{name} is not the data set that the run was trained on")
            except InputError as error:
                caution(f"no thumbnails: {error}")
            self.known[name, run.meta.get("dataset_checksum")] = data
        return self.known[name, run.meta.get("dataset_checksum")]
