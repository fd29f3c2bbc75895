"""`fnlkit estimate-noise`: estimate wrong labels of a federation."""

import json

import click
from click.core import ParameterSource

from fnlkit.cli.plumbing import (
    Listing,
    console,
    dataset_option,
    device_option,
    emit,
    engine_option,
    file_argument,
    json_option,
    output_option,
    seed_option,
    setting_options,
    trust_option,
    verbose,
)
from fnlkit.cli.progress import bar
from fnlkit.cli.source import need_input
from fnlkit.estimators import ESTIMATORS, WARM_UP


@click.command(cls=Listing, title="Estimators", parts=lambda: ESTIMATORS)
@file_argument
@click.option("--estimator", default="knn", show_default=True, metavar="SPEC",
              help="Estimator from the list above, or FILE.py:NAME.")  # fmt: skip
@click.option(
    "--embeddings",
    metavar="EMB.npz",
    default=None,
    help="Embeddings by `fnlkit embed` for the estimator knn.",
)
@click.option(
    "--probs",
    metavar="FILE",
    default=None,
    help="Out-of-sample class probabilities (samples, classes) as npz or npy.",
)
@click.option("--run", metavar="RUN.pt", default=None, help="Use the model of this run instead of training one.")
@click.option("--form", type=click.Choice(["pooled", "federated"]), default="pooled", show_default=True,
              help="pooled uses all samples in one place (simulation only); federated uses declared replies "
                   "of clients.")  # fmt: skip
@dataset_option
@click.option("--apply", "applied", type=click.Choice(["none", "relabel"]), default="none", show_default=True,
              help="With relabel, replace labels judged wrong by suggestions; `received` keeps the old "
                   "labels.")  # fmt: skip
@setting_options("model", "augment", "rounds", "fraction", "epochs", "batch_size", "lr", "momentum", **WARM_UP)
@device_option
@engine_option
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="Number of clients to show, the noisiest first."
)
@json_option
@seed_option
@trust_option
@output_option("JUDGED.npz")
@click.pass_context
def command(
    ctx,
    file,
    estimator,
    embeddings,
    probs,
    run,
    form,
    dataset,
    applied,
    device,
    engine,
    top,
    as_json,
    seed,
    trust,
    output,
    **warm_up,
):
    """Estimate wrong labels, noise levels and the transition matrix of a federation.

    The output is the federation with arrays estimate_*: noise level of each client with a sampling range, transition matrix,
    and issue score, flag and suggested label of each sample. A summary is printed on stderr, with the quality of the estimates
    if true labels are known. With --json all results are printed on stdout as one object, and -o writes the federation. If
    the estimator needs a model and --run is not given, the command trains one; the options from --model to --momentum control
    this training. At least 10 clients take part per round unless --fraction is given.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise --estimator confident -o judged.npz
    """
    need_input(file)
    from fnlkit import pipeline
    from fnlkit.cli import tables
    from fnlkit.estimators.compare import compare

    talk, notes = console(), []

    def say(text):
        notes.append(text)
        if not as_json:
            talk.print(text, style="dim", soft_wrap=True)

    with bar("warm-up") as progress:
        out = pipeline.estimate_noise(
            file,
            estimator,
            embeddings=embeddings,
            probabilities=probs,
            run=run,
            form=form,
            relabel=applied == "relabel",
            seed=seed,
            dataset=dataset,
            engine=engine,
            device=device,
            trust=trust,
            say=say,
            progress=progress,
            **{name: v for name, v in warm_up.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT},
        )
    facts = compare(out)
    if as_json:
        click.echo(json.dumps({**out.meta["estimate"], **tables.estimate_facts(out), **facts, "notes": notes}))
    else:
        for part in (*tables.of_estimates(out, top, verbose() > 0), *([_against_truth(facts)] if facts else [])):
            talk.print(part)
    if output != "-" or not as_json:
        emit(out, output, shown=True)


def _against_truth(facts):
    """Return a sentence about the quality of the estimates, if true labels are known."""

    def said(name):
        return "-" if facts[name] is None else f"{facts[name]:.3f}"

    return (
        f"against the truth: AUC of samples {said('sample_auc')}, of clients {said('client_auc')}; "
        f"level {said('level_true')}, off by {said('level_error')}; "
        f"flags right {said('flag_precision')}, wrong labels found {said('flag_recall')}; "
        f"transition cosine {said('transition_cosine')}, error {said('transition_error')}; "
        f"labels right {said('label_accuracy')}, with --apply relabel {said('suggested_accuracy')}"
    )
