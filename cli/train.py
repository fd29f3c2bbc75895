"""`fnlkit train`: a federation in, a run out."""

import os
import shlex
import sys
from contextlib import ExitStack, contextmanager
from functools import partial

import click
from click.core import ParameterSource

from fnlkit import pipeline
from fnlkit.cli.plumbing import (
    Grouped,
    caution,
    console,
    dataset_option,
    device_option,
    emit,
    engine_option,
    file_argument,
    keeps,
    ledger_option,
    output_option,
    setting_options,
    takes_file,
)
from fnlkit.cli.progress import log as progress_log
from fnlkit.cli.progress import of_rounds
from fnlkit.cli.source import need_input
from fnlkit.errors import InputError

SECTIONS = {
    "Method": ("method", "preset", "loss", "optimizer", "aggregator", "selector", "model"),
    "Local training": ("epochs", "batch_size", "client_optimizer", "lr", "momentum", "weight_decay", "decay", "clip", "augment",
                       "mixup", "standardize", "precision"),
    "Federation": ("dataset", "features", "embeddings", "rounds", "fraction", "min_replies", "max_update_ratio", "seed"),
    "Measurement": ("eval_every", "measure", "select", "patience", "memorization", "metrics", "log"),
    "Protection": ("protect", "privacy_key", "ledger"),
    "Run": ("engine", "device", "workers", "at_once", "client_timeout", "checkpoint_every", "resume", "overwrite",
            "output"),
}  # fmt: skip
# Options that --help only names.
RARE = ("client_optimizer", "weight_decay", "decay", "clip", "augment", "mixup", "standardize", "precision", "features",
        "embeddings", "min_replies", "max_update_ratio", "eval_every", "patience", "memorization", "metrics", "log", "protect",
        "privacy_key", "ledger", "overwrite", "workers", "at_once", "client_timeout", "checkpoint_every", "aggregator",
        "selector")  # fmt: skip


@click.command(cls=Grouped, sections=SECTIONS, rare=RARE)
@file_argument
@dataset_option
@click.option("--preset", default=None, metavar="NAME",
              help="Options of a paper, for example fedcorr/cifar10; options given here take precedence.")  # fmt: skip
@setting_options()
@device_option
@engine_option
@click.option("--workers", type=click.IntRange(min=0), default=0,
              help="Number of processes or threads; 0 uses all cores.")  # fmt: skip
@click.option("--at-once", type=click.IntRange(min=0), default=0,
              help="Clients that train at once on each device; 0: as many as fit into memory, on a single device.")  # fmt: skip
@click.option("--client-timeout", type=click.FloatRange(min=0), default=None, metavar="SECONDS",
              help="Engines workers and flower: seconds until a client is given to another process. Default: an hour; 0 waits "
              "forever.")  # fmt: skip
@click.option("--embeddings", metavar="EMB.npz", default=None,
              help="Embeddings by `fnlkit embed` for methods that compare samples.")  # fmt: skip
@click.option("--features", metavar="EMB.npz", default=None,
              help="Train on features by `fnlkit embed` instead of the samples.")  # fmt: skip
@click.option("--checkpoint-every", type=click.IntRange(min=1), default=10, show_default=True,
              help="Rounds between checkpoints.")  # fmt: skip
@click.option("--resume", metavar="RUN", default=None,
              help="Continue this run; start a new one if the file does not exist.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace an unfinished run at -o.")
@ledger_option
@click.option("--privacy-key", metavar="FILE", default=None,
              help="Secret key of privacy noise, to publish the output. Default: draws follow from --seed.")  # fmt: skip
@click.option("--metrics", metavar="FILE", default=None, callback=takes_file,
              help="JSON lines with the numbers of each round. Default: RUN.metrics.jsonl next to -o.")  # fmt: skip
@click.option("--log", multiple=True, metavar="KIND:PLACE",
              help="Also log to tensorboard:DIR, mlflow:URI or wandb:PROJECT.")  # fmt: skip
@output_option("RUN.pt")
@click.pass_context
def command(
    ctx,
    file,
    dataset,
    preset,
    device,
    engine,
    workers,
    at_once,
    client_timeout,
    embeddings,
    features,
    checkpoint_every,
    resume,
    overwrite,
    ledger,
    privacy_key,
    metrics,
    log,
    output,
    **options,
):
    """Train a model with a federated method.

    The output is a run (.pt) with the model, the corrected labels and a checkpoint, and RUN.metrics.jsonl with a line per
    round. After Ctrl-C the run can be resumed.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit train --method fedcorr --rounds 20 -o run.pt
    """
    need_input(file)
    keeps(file, output, "federation")
    if output == "-" and sys.stdout.isatty():
        raise InputError("a run is not written to a terminal; add -o run.pt, or pipe into `fnlkit evaluate`")
    given = {name: v for name, v in options.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    with ExitStack() as loading:
        loading.enter_context(progress_log(lambda: "loading the federation and the data set"))

        run = pipeline.train(
            file,
            preset=preset,
            dataset=dataset,
            features=features,
            embeddings=embeddings,
            engine=engine,
            device=device,
            workers=workers,
            at_once=at_once,
            client_timeout=client_timeout,
            resume=resume,
            overwrite=overwrite,
            ledger=ledger,
            privacy_key=privacy_key,
            output=None if output == "-" else output,
            metrics=metrics,
            log=log,
            checkpoint_every=checkpoint_every,
            say=caution,
            watch=partial(watch, file=file, output=output, loading=loading),
            **given,
        )
    if output == "-":
        emit(run, output)


@contextmanager
def watch(experiment, *, file, output, loading):
    """Print a heading and yield a function that shows progress and notes for the row of each round.

    The stack `loading` has the progress of what comes before, which ends here.
    """
    loading.close()
    from fnlkit.pipeline.training import Notes

    say = console()
    say.print(
        f"{experiment.dataset.name}, {len(experiment.clients)} clients, {experiment.settings.method}, "
        f"{experiment.network.parameters_count:,} parameters, engine {experiment.clients.engine.name} on {experiment.device}",
        style="dim",
    )
    notes = Notes(experiment.clients, lambda text: say.print(text, style="dim"))
    with of_rounds(experiment) as advance:

        def on_round(row):
            notes.update()
            advance(row)

        with ending(experiment, file, output, notes, say):
            yield on_round


@contextmanager
def ending(experiment, file, output, notes, say):
    """Print the file of the run at the end; after an interruption, print the saved rounds and the command that resumes it."""
    try:
        yield
    except BaseException:
        rounds = len(experiment.history)
        why = "there is no -o" if output == "-" else "" if rounds else "no round was finished"
        if why or not os.path.isfile(output):
            say.print(f"nothing was saved: {why or f'{output} could not be written'}", style="yellow")
        else:
            command = ["fnlkit", *sys.argv[1:]]
            if not any(word == "--resume" or word.startswith("--resume=") for word in command):
                command += ["--resume", output]
            line = shlex.join(command) if file != "-" else f"... | {shlex.join(command)}"
            say.print(f"{rounds} rounds are saved in {output}; continue with: {line}", style="yellow", soft_wrap=True)
        raise
    notes.update()
    if output != "-":
        name = experiment.measured.name
        scored = [row[name] for row in experiment.history if name in row]
        called = "agreement with given labels" if name == "agreement" else name
        text = f": {called} {scored[-1]:.4f}, best {max(scored):.4f}" if scored else ""
        if experiment.selection.round is not None:
            text += f"; kept round {experiment.selection.round + 1}"
        say.print(f"wrote {output}{text}", style="dim", soft_wrap=True)
