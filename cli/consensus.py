"""`fnlkit consensus`: combine the votes of several annotators."""

import json
from typing import Any, cast

import click

import fnlkit
from fnlkit.cli.plumbing import (
    Table,
    caution,
    console,
    control_option,
    emit,
    json_option,
    must_differ,
    out_console,
    output_option,
    printable,
    sample_column_option,
    suggest,
    take_inputs,
    verbose,
)
from fnlkit.core.errors import list_names

MOST = 4  # sites, and annotators, that the tables show without -v


@click.command()
@click.argument("file", metavar="FED.npz", callback=take_inputs)
@click.argument("votes", metavar="[VOTES]", required=False)
@click.option("--method", default="dawid-skene", show_default=True, metavar="NAME",
              help="Consensus: majority; dawid-skene, which estimates the reliability of each annotator; or "
                   "crowdlab, which also uses --probs.")  # fmt: skip
@click.option("--probs", "probabilities", metavar="FILE", default=None,
              help="For crowdlab: out-of-sample class probabilities (samples, classes) as npz or npy.")  # fmt: skip
@click.option("--csv", "table_file", metavar="FILE.csv", default=None,
              help="Write the consensus labels as csv: sample, class, name, probability.")  # fmt: skip
@control_option
@sample_column_option
@json_option
@output_option("FED.npz")
def command(
    file: str, votes: str | None, method: str, table_file: str | None, as_json: bool, output: str, **options: Any
) -> None:
    """Give each sample the consensus label of its annotators, site by site, and print their agreement.

    VOTES is a table with a column that names the samples and a column per annotator, or with a row per vote (columns of the
    sample, annotator and label), an export of Label Studio (.json) or CVAT (.xml), or an npz with an array `votes` (n, A), -1
    for no vote. Without VOTES, the votes of the data set are used. The federation file keeps the votes; a sample without votes
    keeps its label.

    \b
    Example:
      fnlkit consensus fed.npz votes.csv --method dawid-skene -o agreed.npz
    """
    must_differ({"-o": output, "--csv": table_file}, votes)
    must_differ({"--csv": table_file}, file)
    agreed = fnlkit.consensus(file, votes, cast(Any, method), say=caution, **options)
    facts = agreed.sites
    if table_file is not None:
        agreed.labels().write(table_file)
    if as_json:
        click.echo(json.dumps({"method": method, "annotators": agreed.annotators, "sites": facts}), err=output == "-")
    else:
        heads = ["site", "samples", "with votes", "Krippendorff's alpha", "Fleiss's kappa", "labels other than received"]
        table, most = Table(*heads), None if verbose() else MOST
        for row in facts[:most]:
            agreement = ["" if row.get(name) is None else f"{row[name]:.3f}" for name in ("alpha", "kappa")]
            table.add_row(printable(row["site"]), row["samples"], row["voted"], *agreement, row["changed"])
        talk = console() if output == "-" else out_console()
        talk.print(table)
        if len(table.rows) < len(facts):
            talk.print(f"and {len(facts) - len(table.rows):,} more sites; -v prints all")
        talk.print("Agreement of annotators is not accuracy; the consensus labels are not verified.")
        quality: list[dict[str, Any]] = sorted(
            agreed.quality(), key=lambda row: (row["accuracy"] is None, row["accuracy"] or 0)
        )
        people = Table("site", "annotator", "votes", "expected share of true labels")
        for row in quality[:most]:
            share = "" if row["accuracy"] is None else f"{100 * row['accuracy']:.0f} %"
            people.add_row(printable(row["site"]), printable(row["annotator"]), row["votes"], share)
        talk.print(people)
        if alone := [row["site"] for row in facts if row["voted"] and not row["shared"]]:
            talk.print(
                f"no sample has two votes at {printable(list_names(alone))}: nothing shows which votes are right",
                soft_wrap=True,
            )
        if len(people.rows) < len(quality):
            talk.print(f"and {len(quality) - len(people.rows):,} more with larger shares; -v prints all")
    emit(agreed.federation, output, shown=not as_json)
    if not as_json:
        suggest("audit", output, "--html", "audit.html", "-o", "judged.npz", output=output)
