"""`fnlkit train`: a federation in, a run out."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import fnlkit
from fnlkit.artifacts.run import Run
from fnlkit.cli.dataclass_options import Declared, options_of
from fnlkit.cli.group import WORDS
from fnlkit.cli.plumbing import (
    caution,
    console,
    dataset_option,
    emit,
    file_argument,
    must_differ,
    output_option,
    suggest,
)
from fnlkit.cli.progress import bar, of_rounds
from fnlkit.cli.terminal import Output
from fnlkit.core.errors import InputError
from fnlkit.experiment.settings import Settings, TrainOptions
from fnlkit.results.evaluation import describe_choice, score_name

if TYPE_CHECKING:
    from fnlkit.experiment.experiment import Experiment


TITLES = ("Method", "Local training", "Federation", "Measurement", "Protection", "Run")


@click.command(cls=Declared, declared=(Settings, TrainOptions), titles=TITLES)
@file_argument
@dataset_option
@options_of(Settings, checked=False)
@options_of(TrainOptions)
@output_option("RUN.pt")
@click.pass_context
def command(ctx: click.Context, file: str, output: str, **options: Any) -> None:
    """Train a model with a federated method.

    The output is a run (.pt) with model, corrected labels and checkpoint, and RUN.metrics.jsonl with a line per round. After
    Ctrl-C the run can be resumed.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit train --method fedcorr --rounds 20 -o run.pt
    """
    must_differ({"-o": output, "--metrics": options["metrics"]}, file)
    if output == "-" and sys.stdout.isatty():
        raise InputError("a run is not written to a terminal; add -o run.pt, or pipe into `fnlkit evaluate`")
    chosen = {name: v for name, v in options.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if file != "-" and not os.path.exists(file):
        raise InputError(f"{file}: no such file")
    from fnlkit.pipeline.training import check_arguments  # torch, which --help does not need

    check_arguments(chosen)
    with ExitStack() as loading:
        progress = loading.enter_context(bar("loading the federation and the data set"))

        run = fnlkit.train(
            file,
            output=None if output == "-" else output,
            say=caution,
            progress=progress,
            watch=partial(watch, file=file, output=output, loading=loading),
            **chosen,
        )
    if output == "-":
        emit(run, output)
    else:
        console().print(f"wrote {output}{describe_result(run)}", style="dim", soft_wrap=True)
        suggest("evaluate", output)


@contextmanager
def watch(experiment: "Experiment", *, file: str, output: str, loading: Any) -> Iterator[Callable[[dict[str, Any]], None]]:
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
    with ending(experiment, file, output, notes, say), of_rounds(experiment) as advance:

        def on_round(row: dict[str, Any]) -> None:
            notes.update()
            advance(row)

        yield on_round


@contextmanager
def ending(experiment: "Experiment", file: str, output: str, notes: Any, say: Output) -> Iterator[None]:
    """Print the last notes; after an interruption, print the saved rounds and the command that resumes the run."""
    try:
        yield
    except BaseException:
        rounds = len(experiment.history)
        why = "there is no -o" if output == "-" else "" if rounds else "no round was finished"
        if why or not os.path.isfile(output):
            say.print(f"nothing was saved: {why or f'{output} could not be written'}", style="yellow")
        else:
            command = ["fnlkit", *click.get_current_context().meta[WORDS]]
            if not any(word == "--resume" or word.startswith("--resume=") for word in command):
                command += ["--resume", output]
            line = shlex.join(command) if file != "-" else f"... | {shlex.join(command)}"
            say.print(f"{rounds} rounds are saved in {output}; continue with: {line}", style="yellow", soft_wrap=True)
        raise
    notes.update()


def describe_result(run: Run) -> str:
    """Describe the scores of a finished run, and the round that `--select` kept."""
    name = score_name(run)
    scored = [row[name] for row in run.history if name in row]
    called = "agreement with given labels" if name == "agreement" else name
    text = f": {called} {scored[-1]:.4f}, best {max(scored):.4f}" if scored else ""
    chosen = describe_choice(run, name)
    return f"{text}; kept round {chosen['chosen_round']}" if chosen else text
