"""`fnlkit audit`: a federation in, what is wrong with its sites out."""

import json

import click

from fnlkit.cli.plumbing import (
    console,
    data_of,
    dataset_option,
    emit,
    file_argument,
    json_option,
    out_console,
    output_option,
    printable,
    provenance,
    seed_option,
)
from fnlkit.cli.source import need_input


@click.command()
@file_argument
@dataset_option
@click.option(
    "--embeddings", metavar="EMB.npz", default=None, help="From `fnlkit embed`: copies and outliers are sought in it."
)
@click.option("--folds", type=click.IntRange(min=2), default=5, show_default=True, help="Models that judge sites unseen.")
@click.option("--rounds", type=int, default=25, show_default=True, help="Rounds of training of each of these models.")
@click.option("--fraction", type=float, default=1.0, show_default=True, help="Share of the sites in a round.")
@click.option("--model", default="auto", show_default=True, metavar="SPEC", help="Network, as `fnlkit train --model`.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu or cuda.")
@click.option("--html", metavar="FILE.html", default=None, help="Also write a page that a browser shows.")
@json_option
@seed_option
@output_option("JUDGED.npz")
def command(file, dataset, embeddings, folds, device, html, as_json, seed, output, **warm_up):
    """Say which sites have wrong labels, how many, and what is taken for what; nobody needs to know the truth.

    Each site is judged by a model that was trained on the others. With -o it writes the federation with the judgement
    of every sample, which `fnlkit review` and `fnlkit correct` take.

    \b
    Example:
      fnlkit partition --clients 5 --labels observed | fnlkit audit --rounds 5 --json
    """
    need_input(file)
    from fnlkit.artefacts import files
    from fnlkit.artefacts.federation import Federation
    from fnlkit.estimators.apply import judged
    from fnlkit.estimators.rows import read_rows
    from fnlkit.review import report
    from fnlkit.review.audit import audit

    federation, talk = Federation.read(file), console()
    vectors = read_rows(embeddings, "embeddings", federation) if embeddings else None
    data = data_of(federation, dataset)
    say = lambda text: talk.print(text, style="dim", soft_wrap=True)  # noqa: E731
    found = audit(federation, data, embeddings=vectors, folds=folds, seed=seed, warm_up=warm_up, device=device, say=say)
    facts = report.facts(found, federation, data)
    if html:
        files.write_bytes([report.page(facts).encode()], html)
        say(f"wrote {html}")
    if as_json:
        click.echo(json.dumps(facts))
    else:
        say_out = out_console()
        for part in report.tables(facts, printable):
            say_out.print(part)
    if output != "-":
        record = provenance("audit", seed, dataset=dataset, embeddings=embeddings, folds=folds, **warm_up)
        emit(judged(federation, found.judgement.arrays(federation.whole()), provenance=record), output)
