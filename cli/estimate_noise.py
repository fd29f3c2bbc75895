"""`fnlkit estimate-noise`: estimate wrong labels of a federation."""

import json
from typing import Any

import click
from click.core import ParameterSource

import fnlkit
from fnlkit.cli import tables
from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.group import name_options
from fnlkit.cli.plumbing import (
    console,
    dataset_option,
    emit,
    file_argument,
    json_option,
    output_option,
    seed_option,
    suggest,
    trust_option,
    verbose,
)
from fnlkit.cli.progress import bar
from fnlkit.estimators import ESTIMATORS, WARM_UP, EstimateOptions
from fnlkit.estimators.judgment import compare
from fnlkit.experiment.settings import Settings, TrainOptions

# Settings of the training of estimators that need a model.
_TRAINING = ("model", "augment", "rounds", "fraction", "epochs", "batch_size", "lr", "momentum")


@click.command()
@file_argument
@click.option("--estimator", default="knn", show_default=True, metavar="SPEC",
              help=f"{', '.join(ESTIMATORS)} (`fnlkit methods estimator` describes them), or FILE.py:NAME.")  # fmt: skip
@options_of(EstimateOptions)
@click.option("--backbone", default="auto", show_default=True, metavar="SPEC",
              help="Pretrained network that encodes the samples, as for `fnlkit train`.")  # fmt: skip
@dataset_option
@click.option("--apply", "applied", type=click.Choice(["none", "relabel"]), default="none", show_default=True,
              help="With relabel, replace labels judged wrong by suggestions; `received` keeps the old "
                   "labels.")  # fmt: skip
@options_of(Settings, *_TRAINING, checked=False, **WARM_UP)
@options_of(TrainOptions, "device", "engine")
@click.option("--top", type=click.IntRange(min=0), default=5, show_default=True,
              help="Number of clients to show, the noisiest first.")  # fmt: skip
@click.option("--fingerprint", metavar="TEXT", hidden=True, help="Identity of a recipe's job, recorded in the file.")
@json_option
@seed_option
@trust_option
@output_option("JUDGED.npz")
@click.pass_context
def command(
    ctx: click.Context, file: str, estimator: str, applied: str, top: int, as_json: bool, output: str, **options: Any
) -> None:
    """Estimate wrong labels, noise levels and the transition matrix of a federation.

    The output is the federation with arrays estimate_*: noise level of each client with a sampling range, transition matrix,
    and issue score, flag and suggested label of each sample. A summary is printed on stderr, with the quality of the estimates
    if true labels are known. With --json all results are printed on stdout as one object, and -o writes the federation. If
    the estimator needs a model and --run is not given, the command trains one; the options from --model to --momentum control
    this training (`lid` and `energy`: 25 rounds). At least 10 clients take part per round unless --fraction is given.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise --estimator confident -o judged.npz
    """
    from fnlkit.encoders.features import check_backbone

    check_backbone(options["backbone"])
    # Defaults of training are left to the library, because the default of --fraction depends on the number of clients.
    chosen = {name: v for name, v in options.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    terminal, notes = console(), []

    with bar("estimate") as progress:
        chosen |= {"relabel": applied == "relabel", "say": lambda text: notes.append(name_options(text)), "progress": progress}
        judged = fnlkit.estimate_noise(file, estimator, **chosen)
    facts = compare(judged)
    if as_json:
        click.echo(json.dumps({**judged.meta["estimate"], **tables.estimate_facts(judged), **facts, "notes": notes}))
    else:
        for part in (*tables.of_estimates(judged, top, verbose() > 0), *([_against_truth(facts)] if facts else [])):
            terminal.print(part, soft_wrap=isinstance(part, str))
        for text in notes:
            terminal.print(text, style="dim", soft_wrap=True)
    if output != "-" or not as_json:
        emit(judged, output, shown=True)
    if not as_json:
        suggest("train", output, "-o", "run.pt", output=output)


def _against_truth(facts):
    """Write a sentence about the quality of the estimates, if true labels are known."""

    def display(name: str) -> str:
        return "-" if facts[name] is None else f"{facts[name]:.3f}"

    return (
        f"against the truth: AUC of samples {display('sample_auc')}, of clients {display('client_auc')}; "
        f"level {display('level_true')}, off by {display('level_error')}; "
        f"flags right {display('flag_precision')}, wrong labels found {display('flag_recall')}; "
        f"transition cosine {display('transition_cosine')}, error {display('transition_error')}; "
        f"labels right {display('label_accuracy')}, with --apply relabel {display('suggested_accuracy')}"
    )
