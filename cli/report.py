"""`fnlkit report`: runs in, a page that a browser shows out."""

import click

from fnlkit.cli.plumbing import caution, console, dataset_option, ledger_option, trust_option
from fnlkit.cli.source import need_input


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN.pt]...")
@dataset_option
@ledger_option
@trust_option
@click.option("-o", "--output", required=True, metavar="FILE.html", help="The page to write; - is stdout.")
def command(runs, dataset, ledger, trust, output):
    """Write one self-contained page about runs: summary, curves, tables, who is noisy, suspicious samples, commands.

    It needs no network, suits light and dark, and shows the numbers of `fnlkit evaluate`. Without RUN reads stdin; of a
    folder it takes all runs.

    \b
    Example:
      fnlkit report run.pt -o report.html
    """
    from fnlkit import datasets, pipeline
    from fnlkit.artefacts import files
    from fnlkit.errors import InputError
    from fnlkit.pipeline import report

    runs = runs or ("-",)
    for path in runs:
        need_input(path)
    found = pipeline.evaluate(*runs, dataset=dataset, ledger=ledger, trust=trust, say=caution)
    data = None
    try:
        data = datasets.load(dataset or found.runs[0].meta["dataset"])
        if data.checksum != found.runs[0].meta.get("dataset_checksum"):
            raise InputError(f"{data.name} is not the data set that the run was trained on")
    except InputError as error:
        data = None
        caution(f"no thumbnails: {error}")
    files.write_bytes([report.page(report.facts(found, dataset=data)).encode()], output)
    if output != "-":
        console().print(f"wrote {output}", style="dim", soft_wrap=True)
