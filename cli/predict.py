"""`fnlkit predict`: predict classes of new samples."""

from typing import Any

import click

import fnlkit
from fnlkit.cli.plumbing import caution, console, emit_table, must_differ, printable, suggest, takes_file, trust_option


@click.command()
@click.argument("run", metavar="RUN.pt")
@click.argument("data", required=False, metavar="[DATA]")
@click.option("--unlabeled", is_flag=True, help="Predict samples without a label of DATA, or of the run's data set.")
@click.option("--all", "every", is_flag=True, help="Add a column with the probability of each class.")
@click.option("--skip-damaged", is_flag=True, help="Leave out images and sounds that cannot be read, and print their names.")
@trust_option
@click.option("-o", "--output", default="-", metavar="FILE.csv", callback=takes_file,
              help="Output file. Default: stdout.")  # fmt: skip
def command(run: str, data: str | None, output: str, **options: Any) -> None:
    """Predict the classes of new samples as csv: sample, class, name, probability.

    DATA is an npy, an npz with a single array or x, x_new or x_test, a folder of images or sounds, or a table with a row per
    sample. If the run has a backbone, it encodes these samples too.

    \b
    Example:
      fnlkit predict run.pt photos.npz -o predictions.csv
    """
    must_differ({"-o": output}, run, data)
    sheet = fnlkit.predict(run, data, say=lambda note: caution(printable(note)), **options)
    emit_table(sheet, output)
    if output != "-":
        mean = sum(row[3] for row in sheet.rows) / len(sheet)
        console().print(f"{output}: {len(sheet):,} predictions, mean probability {mean:.3f}", style="dim", soft_wrap=True)
        suggest("export", run, "-o", "model.pt2")
