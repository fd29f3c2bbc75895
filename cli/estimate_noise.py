"""`fnlkit estimate-noise`: a federation in, the same federation with a judgement of its labels out."""

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
)
from fnlkit.cli.source import need_input
from fnlkit.estimators import ESTIMATORS, WARM_UP


@click.command(cls=Listing, title="Estimators", parts=lambda: ESTIMATORS)
@file_argument
@click.option("--estimator", default="knn", show_default=True, metavar="SPEC",
              help="How labels are judged: one of the estimators above, or FILE.py:NAME of your own.")  # fmt: skip
@click.option(
    "--embeddings", metavar="EMB.npz", default=None, help="A vector for each sample, made by `fnlkit embed`, for knn."
)
@click.option(
    "--probs",
    metavar="FILE",
    default=None,
    help="Class probabilities (n, C) by a model that did not train on the sample, as npz or npy.",
)
@click.option("--run", metavar="RUN.pt", default=None, help="A trained run whose model judges, so that none is trained here.")
@dataset_option
@click.option("--apply", "applied", type=click.Choice(["none", "relabel"]), default="none", show_default=True,
              help="With relabel, labels judged wrong become the suggested ones; `received` keeps the old.")  # fmt: skip
@setting_options("model", "augment", "rounds", "fraction", "epochs", "batch_size", "lr", "momentum", **WARM_UP)
@device_option
@engine_option
@click.option(
    "--top", type=click.IntRange(min=0), default=10, show_default=True, help="How many clients to show, the noisiest first."
)
@json_option
@seed_option
@trust_option
@output_option("JUDGED.npz")
@click.pass_context
def command(
    ctx, file, estimator, embeddings, probs, run, dataset, applied, device, engine, top, as_json, seed, trust, output, **warm_up
):
    """Judge labels, clients and the noise transition of a federation.

    Writes the federation with arrays estimate_*: noise level of each client with its sampling range, transition matrix,
    issue score, flag and suggested label of each sample. A summary goes to stderr, with --json as one JSON object;
    where true labels are known it says how good the estimates are. An estimator that needs a model trains one first,
    unless --run gives it; the options from --model to --momentum are for that training, in whose rounds at least 10
    clients take part unless --fraction says otherwise.

    \b
    Example:
      fnlkit partition | fnlkit inject-noise | fnlkit estimate-noise --estimator confident -o judged.npz
    """
    need_input(file)
    from fnlkit import pipeline
    from fnlkit.estimators.compare import compare

    talk, notes = console(), []

    def say(text):
        notes.append(text)
        if not as_json:
            talk.print(text, style="dim", soft_wrap=True)

    out = pipeline.estimate_noise(
        file,
        estimator,
        embeddings=embeddings,
        probabilities=probs,
        run=run,
        relabel=applied == "relabel",
        seed=seed,
        dataset=dataset,
        engine=engine,
        device=device,
        trust=trust,
        say=say,
        **{name: v for name, v in warm_up.items() if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT},
    )
    facts = {"estimator": estimator, **summary(out), **compare(out)}
    if as_json:
        click.echo(json.dumps(facts | {"notes": notes}), err=True)
    else:
        show(talk, out, facts, top)
    emit(out, output)


_RANGE = (
    "sampling range: where the level would lie, 95 times of 100, with other samples of the same client; the estimator's own "
    "bias is not in it, so that it need not hold the true level"
)


def summary(federation):
    """Return what the estimates say of the whole federation, as plain values."""
    import numpy as np

    extra, held = federation.extra, federation.client_indices
    sizes = np.diff(federation.client_offsets)
    level, flagged = extra["estimate_client_level"], extra["estimate_flagged"][held]
    return {
        "clients": len(federation),
        "samples": len(held),
        "level": float(level @ sizes / sizes.sum()),
        "level_lowest": float(level.min()),
        "level_highest": float(level.max()),
        "flagged": int(flagged.sum()),
    }


def show(talk, federation, facts, top):
    """Print the noisiest clients, what is most often taken for what, and the errors where the truth is known."""
    import numpy as np
    from rich.table import Table

    extra, sizes = federation.extra, np.diff(federation.client_offsets)
    level, low, high = (extra[f"estimate_client_{name}"] for name in ("level", "level_low", "level_high"))
    judged = extra.get("estimate_judged_label", federation.given)
    truth = federation.wrong_share(judged)
    columns = ["client", "samples", "noise level", "sampling range", "score"]
    table = Table(*columns, *(["true level"] if truth is not None else []), box=None)
    score = extra["estimate_client_score"]
    for k in np.argsort(-score, kind="stable")[:top]:
        row = [str(k), f"{sizes[k]:,}", f"{level[k]:.3f}", f"{low[k]:.3f} to {high[k]:.3f}", f"{score[k]:.3f}"]
        table.add_row(*row, *([f"{truth[k]:.3f}"] if truth is not None else []))
    if top:
        talk.print(table)
        talk.print(_RANGE, style="dim", soft_wrap=True)
    names = federation.meta.get("class_names") or [str(c) for c in range(federation.classes)]
    off = np.where(np.eye(federation.classes, dtype=bool), 0, extra["estimate_transition"])
    pairs = [np.unravel_index(i, off.shape) for i in np.argsort(-off, axis=None, kind="stable")[:3]]
    confused = ", ".join(f"{names[i]} as {names[j]} {off[i, j]:.3f}" for i, j in pairs if off[i, j] > 0)
    line = (
        f"{facts['estimator']}: noise level {facts['level']:.3f} of {facts['samples']:,} samples, "
        f"{facts['level_lowest']:.3f} to {facts['level_highest']:.3f} in {facts['clients']} clients; "
        f"{facts['flagged']:,} flagged"
    )
    talk.print(line + (f"; most often {confused}" if confused else ""), soft_wrap=True)
    if "sample_auc" in facts:

        def said(name):
            return "-" if facts[name] is None else f"{facts[name]:.3f}"

        talk.print(
            f"against the truth: AUC of samples {said('sample_auc')}, of clients {said('client_auc')}; "
            f"level {said('level_true')}, off by {said('level_error')}; "
            f"flags right {said('flag_precision')}, wrong labels found {said('flag_recall')}; "
            f"transition cosine {said('transition_cosine')}, error {said('transition_error')}; "
            f"labels right {said('label_accuracy')}, with --apply relabel {said('suggested_accuracy')}",
            soft_wrap=True,
        )
