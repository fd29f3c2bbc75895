"""`fnlkit inject-noise`: a federation in, the same with corrupted labels out."""

import click

from fnlkit.cli.plumbing import Listing, caution, console, dataset_option, emit, output_option, seed_option, verbose
from fnlkit.cli.source import need_input, refuse_both


def _models():
    from fnlkit.noise import MODELS

    return MODELS


@click.command(cls=Listing, title="Models", parts=_models)
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option(
    "--noise",
    default=None,
    show_default="clients(rho=0.6, tau=0.5); before partition symmetric(eta=0.4)",
    metavar="SPEC",
    help="How labels become wrong: one of the models above, or FILE.py:NAME of your own.",
)
@seed_option
@output_option("NOISY.npz")
def command(file, dataset, noise, seed, output):
    """Corrupt the given labels of a federation; true labels stay in the file for the evaluation.

    Where nobody knows the true labels, those found in the file are taken for them, and it is said.

    Without FILE reads stdin; with --dataset and no FILE it corrupts a whole data set before `partition`. What was asked
    for and what came out is written to stderr, with -v client by client and class by class, and into the file. Noise on
    noise adds up.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise --noise 'symmetric(eta=0.4)' --seed 1 -o noisy.npz
    """
    from fnlkit import pipeline
    from fnlkit.artefacts.federation import Federation
    from fnlkit.cli import tables

    if file is None and dataset is not None:
        noisy = pipeline.inject_noise(dataset, noise, seed=seed, say=caution)
    else:
        need_input(file or "-")
        noisy = pipeline.inject_noise(Federation.read(file or "-"), noise, seed=seed, dataset=dataset, say=caution)
    refuse_both(file, dataset)
    say = console()
    for part in (tables.of_noise if verbose() else tables.noise_lines)(noisy):
        say.print(part)
    emit(noisy, output)
