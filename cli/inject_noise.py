"""`fnlkit inject-noise`: corrupt labels of a federation."""

import click

import fnlkit
from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.cli import tables
from fnlkit.cli.plumbing import (
    Listing,
    caution,
    console,
    dataset_option,
    emit,
    must_differ,
    need_input,
    output_option,
    seed_option,
    suggest,
    verbose,
)


@click.command(cls=Listing, title="Models", kind="noise")
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option("--noise", default=None, show_default="clients(rho=0.6, tau=0.5); before partition symmetric(eta=0.4)",
              metavar="SPEC", help="Noise model from the list above, or FILE.py:NAME.")  # fmt: skip
@seed_option
@output_option("NOISY.npz")
def command(file: str | None, dataset: str | None, noise: str | None, seed: int, output: str) -> None:
    """Corrupt the given labels of a federation; true labels stay in the file for evaluation.

    If the data set declares no true labels, the current labels are treated as true and a warning is printed.

    Without FILE stdin is read; with --dataset and no FILE a whole data set is corrupted before `partition`. The requested and
    the achieved noise are printed on stderr (-v: by client and class) and written to the file. Repeated noise accumulates.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise --noise 'symmetric(eta=0.4)' --seed 1 -o noisy.npz
    """
    must_differ({"-o": output}, file)
    files.must_spare_data(output, dataset)
    if file is None and dataset is not None:
        noisy = fnlkit.inject_noise(dataset, noise, seed=seed, say=caution)
    else:
        need_input(file or "-")
        noisy = fnlkit.inject_noise(Federation.read(file or "-"), noise, seed=seed, dataset=dataset, say=caution)
    say = console()
    for part in (tables.of_noise if verbose() else tables.noise_lines)(noisy):
        say.print(part)
    emit(noisy, output)
    if len(noisy):
        suggest("train", output, "--method", "fedcorr", "-o", "run.pt", output=output)
    else:
        suggest("partition", output, "-o", "fed.npz", output=output)
