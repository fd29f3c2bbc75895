"""`fnlkit inject-noise`: a federation in, the same with corrupted labels out."""

import click

from fnlkit.cli.plumbing import Listing, console, data_of, dataset_option, emit, output_option, provenance, seed_option
from fnlkit.cli.source import need_input, refuse_both


def _models():
    from fnlkit.noise import MODELS

    return MODELS


@click.command(cls=Listing, title="Models", parts=_models)
@click.argument("file", required=False, metavar="[FILE]")
@dataset_option
@click.option(
    "--noise",
    default="clients(rho=0.6, tau=0.5)",
    show_default=True,
    metavar="SPEC",
    help="How labels become wrong: one of the models above, or FILE.py:NAME of your own.",
)
@seed_option
@output_option("NOISY.npz")
def command(file, dataset, noise, seed, output):
    """Corrupt the given labels of a federation; true labels stay in the file for the evaluation.

    Where nobody knows the true labels, those found in the file are taken for them, and it is said.

    Without FILE reads stdin; with --dataset and no FILE it corrupts a whole data set before `partition`. What was asked
    for and what came out is written to stderr and into the file. Noise on noise adds up.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise --noise 'symmetric(eta=0.4)' --seed 1 -o noisy.npz
    """
    from fnlkit import datasets, partitioning
    from fnlkit import noise as models
    from fnlkit.artefacts.federation import Federation
    from fnlkit.cli.info import noise_tables

    if file is None and dataset is not None:
        data = datasets.load(dataset)
        federation, samples = partitioning.empty(data), lambda: data.x_train
    else:
        need_input(file or "-")
        federation = Federation.read(file or "-")

        def samples():
            return data_of(federation, dataset).x_train

        if dataset is not None:
            samples()  # a data set that was named is compared, whether or not this noise looks at samples

    again = bool(federation.meta.get("noise"))
    noisy = models.inject(federation, noise, seed=seed, x=samples)
    record = provenance("inject-noise", seed, noise=noise, dataset=dataset)
    noisy.meta = {**noisy.meta, "provenance": [*noisy.meta.get("provenance", []), record]}
    refuse_both(file, dataset)
    say = console()
    if federation.true is None and noisy.true is not None:
        say.print("nobody declared these labels to be true: the noise takes those that it found for the truth", soft_wrap=True)
    if again:
        say.print("these labels were corrupted before: the noise adds up", style="yellow", soft_wrap=True)
    for part in noise_tables(noisy):
        say.print(part)
    emit(noisy, output)
