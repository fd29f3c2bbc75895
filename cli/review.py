"""`fnlkit review`: export suspicious samples and import decisions."""

import os
from collections.abc import Iterator
from typing import Any

import click
import numpy as np

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.audits.reviews import Review, read_reviews
from fnlkit.audits.suspects import Selection, client_of
from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.group import Group
from fnlkit.cli.plumbing import (
    caution,
    console,
    control_option,
    csv_option,
    dataset_option,
    emit,
    emit_table,
    must_differ,
    output_option,
    printable,
    sample_column_option,
    seed_option,
    suggest,
    takes_file,
)
from fnlkit.pipeline.reviewing import Reviewing

# Options of a review with a guarantee.
GUARANTEE = ("guarantee", "confidence", "reviewer_errors", "candidates", "of_class")


@click.group(cls=Group)
def command() -> None:
    """Review suspicious samples of a site.

    \b
    Example:
      fnlkit review export judged.npz --client 3 -o review
      fnlkit review import judged.npz review/decisions.csv -o reviewed.npz
    """


@command.command("export")
@click.argument("file", metavar="JUDGED.npz")
@dataset_option
@click.option("--client", required=True, metavar="NAME|NUMBER", help="Name or number of the site.")
@options_of(Reviewing)
@seed_option
@click.option("-o", "--output", required=True, metavar="FOLDER", help="Folder for review.html and decisions.csv.")
def export(file: str, dataset: str | None, client: str, output: str, **options: Any) -> None:
    """Write a page with suspicious samples and a table for decisions.

    Open review.html in a browser, decide with the keyboard and save decisions.csv. Or fill in decisions.csv: keep, drop,
    relabel or unsure in the column `decision`, and the right class of relabel in the column `label`.

    \b
    Example:
      fnlkit review export judged.npz --client 3 --budget 100 --guarantee 0.2 -o review
    """
    federation = Federation.read(file)
    chosen = fnlkit.export_review(federation, client, output, dataset=dataset, say=caution, **options)
    many = describe_selection(chosen)
    title = printable(federation.names[client_of(federation, client)])
    console().print(f"{output}: review.html and decisions.csv, {many} of {title}", style="dim", soft_wrap=True)
    page, table = (os.path.join(output, name) for name in ("review.html", "decisions.csv"))
    console().print(printable(f"open {page} in a browser, decide, and save {table}"), style="dim", soft_wrap=True)
    suggest("review", "import", file, table, "-o", "reviewed.npz")


def describe_selection(chosen: Selection) -> str:
    """Write the numbers of a Selection as text."""
    kind = "suspects" if chosen.design is None else f"of {chosen.design.candidates:,} candidates"
    return f"{int(chosen.suspect.sum())} {kind} and {int((~chosen.suspect).sum())} drawn at random"


@command.command("import")
@click.argument("file", metavar="JUDGED.npz")
@click.argument("table", metavar="DECISIONS")
@control_option
@sample_column_option
@dataset_option
@csv_option
@output_option("REVIEWED.npz")
def import_(file: str, table: str, sheet: str | None, output: str, **options: Any) -> None:
    """Import decisions: write a federation with the decided labels and a record of the previous labels.

    DECISIONS is the table that the review page saves, or an export of Label Studio (.json, a choice per task) or of CVAT
    (.xml, "CVAT for images", a tag per image). Samples of exports are identified by id or path.

    \b
    Example:
      fnlkit review import judged.npz review/decisions.csv -o reviewed.npz
    """
    must_differ({"-o": output, "--csv": sheet})
    must_differ({"--csv": sheet}, file, table)

    reviewed = fnlkit.import_review(file, table, say=caution, **options)
    reviews = read_reviews(reviewed)
    new = [one for one in reviews if one.sha256 == reviews[-1].sha256]
    for last in new:
        decisions = f"{last.decided} decided: {len(last.changed)} changed, {len(last.dropped)} left out"
        decisions = f"{printable(reviewed.names[last.client])}: {decisions}" if len(new) > 1 else decisions
        console().print(f"{decisions}; share of labels that people would change: {_interval(last.level)} before the "
                        f"review, {_interval(last.after)} after it", soft_wrap=True)  # fmt: skip
        for line in describe_list(last, reviewed):
            console().print(line, soft_wrap=True)
    if sheet:
        fnlkit.cleaned(reviewed).write(sheet)
    emit(reviewed, output, shown=True)
    if any(last.guarantee is not None and last.guarantee.listed for last in new):
        suggest("correct", output, "--list", "-o", "corrected.npz", output=output)
    else:
        suggest("train", output, "-o", "run.pt", output=output)


def describe_list(review: Review, federation: Federation, command: str = "fnlkit correct --list") -> Iterator[str]:
    """Yield lines about the list of a review with a guarantee."""
    from fnlkit.audits.designs import statement, statement_on_groups
    from fnlkit.datasets.groups import count_groups

    guarantee = review.guarantee
    if guarantee is None:
        return
    how = f"{guarantee.reviews} of {guarantee.candidates:,} candidates reviewed, {guarantee.wrong} wrong"
    if not guarantee.listed:
        yield f"no list: no prefix of the candidates has few enough right labels ({how}); review more, or allow a larger share"
        return
    yield f"list of {statement(len(guarantee.listed), guarantee.q, guarantee.confidence)} ({how}); `{command}` applies it"
    if "group" in federation.extra:
        count = count_groups(federation, np.array(guarantee.listed, np.int64))
        yield statement_on_groups(len(guarantee.listed), count, guarantee.q, guarantee.confidence)
    if guarantee.together.labels > len(guarantee.listed):
        together = guarantee.together
        yield f"all lists of this site together: {statement(together.labels, together.q, together.confidence)}"


@command.command("suspects")
@click.argument("file", metavar="JUDGED.npz")
@click.option("-o", "--output", default="-", metavar="FILE.csv", callback=takes_file,
              help="Output file. Default: stdout.")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="List all samples with their scores, not only flagged samples.")
def suspects(file: str, output: str, every: bool) -> None:
    """List all flagged samples of all sites as CSV, the most suspicious first.

    \b
    Example:
      fnlkit review suspects judged.npz -o suspects.csv
    """
    must_differ({"-o": output}, file)
    suspicious = fnlkit.suspects(file, every=every)
    emit_table(suspicious, output)
    if output != "-":
        console().print(f"{output}: {len(suspicious):,} {'samples' if every else 'suspects'}", style="dim", soft_wrap=True)
    if suspicious.rows:
        suggest("review", "export", file, "--client", str(suspicious.rows[0][1]), "-o", "review")


def _interval(level):
    from fnlkit.estimators.intervals import is_uncertain

    share = f"{100 * level.low:.1f} to {100 * level.high:.1f} %"
    if level.level is None or is_uncertain(level.low, level.high):
        return f"95 % interval {share}"
    return f"{100 * level.level:.1f} % (95 % interval {share})"
