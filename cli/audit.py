"""`fnlkit audit`: find sites with wrong labels."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import Any

import click

from fnlkit import pipeline
from fnlkit.artifacts.federation import TASKS, Federation
from fnlkit.cli import tables
from fnlkit.cli.declared import options_of
from fnlkit.cli.plumbing import (
    Table,
    console,
    dataset_option,
    emit,
    file_argument,
    json_option,
    output_option,
    printable,
    seed_option,
    takes_file,
)
from fnlkit.cli.progress import bar
from fnlkit.cli.source import need_input
from fnlkit.experiment.output import lock_output
from fnlkit.pipeline.options import AuditOptions


@click.command()
@file_argument
@dataset_option
@options_of(AuditOptions)
@click.option("--html", metavar="FILE.html", default=None, callback=takes_file,
              help="Also write the results as a page.")  # fmt: skip
@click.option("--pictures", type=click.IntRange(min=0), default=6, show_default=True,
              help="Number of suspicious images or sounds of each noisy site that the --html page shows.")  # fmt: skip
@json_option
@seed_option
@output_option("JUDGED.npz")
def command(file: str, html: str | None, pictures: int, as_json: bool, output: str, **options: Any) -> None:
    """Find sites with wrong labels, their number, and the classes that are confused, without true labels.

    Models trained on the other sites judge each site. The output is the federation with a judgment of each sample, which
    `fnlkit review` and `fnlkit correct` read; the table is printed on stderr. With --json the results are printed on stdout as
    one object, and -o writes the federation. After Ctrl-C the same command with -o continues.

    \b
    Example:
      fnlkit partition --clients 5 --labels observed | fnlkit audit --rounds 5 --json
    """
    need_input(file)
    talk = console()
    say = lambda text: talk.print(text, style="dim", soft_wrap=True)  # noqa: E731
    with _resumable(output, say) as checkpoints:
        with bar("sites" if options["quick"] else "model 1") as progress:
            found = pipeline.audit(
                Federation.read(file, TASKS),
                checkpoints=checkpoints,
                say=say,
                progress=progress,
                **options,
            )
        if html:
            found.write_html(html, "judged.npz" if output == "-" else output, pictures=pictures)
            say(f"wrote {html}")
        if as_json:
            click.echo(json.dumps(found.facts))
        else:
            for part in _tables(found.facts):
                talk.print(part)
        if output != "-" or not as_json:
            emit(found.federation, output, shown=True)


@contextmanager
def _resumable(output, say):
    """Yield the folder of the audit's models, or None without a file at -o; remove it at the end.

    After an interruption, the folder stays, and a line with the saved models is printed.
    """
    from fnlkit.estimators.checkpoints import Checkpoints

    if output == "-":
        yield None
        return
    saved = Checkpoints(f"{output}.checkpoints")
    with lock_output(output):
        try:
            yield saved.folder
        except BaseException:
            if len(saved):
                say(f"{len(saved)} models are saved in {saved.folder}; the same command continues the audit")
            raise
        saved.remove()


def _suggestions(facts):
    """Yield a line with the numbers of suggested labels."""
    if found := facts.get("suggestions"):
        sure = f"{found['confident']:,} with a confidence of at least 0.8"
        yield f"{found['all']:,} labels have a suggestion, {sure}; `fnlkit review suspects` lists them."


def _tables(facts):
    """Return the results of an audit as rich renderables."""
    from fnlkit.audits import report

    if "labels_are" in facts:
        return tables.of_task(facts)

    table = Table("site", "samples", "estimated wrong", "range", "p", "confused", "skill", "odd")
    sites = report.sites_of(facts)
    for row in sites:
        cells = printable(row.site), f"{row.samples:,}", report.level(row), report.ends(row), report.chance(row.p)
        skill = f"{row.skill['others'].kappa:.2f}"
        more = printable(report.describe_confusions(row)), skill, printable(report.odd(row))
        table.add_row(*cells, *more, style="bold" if row.noisier else "")
    found = [printable(f"{row.site}: {' '.join(row.words)}") for row in sites]
    found += [printable(f"{row.site}: {report.detectors(row)}") for row in sites if row.noisier and len(row.detectors) > 1]
    found += [printable(f"Next at {row.site}: {'; '.join(row.next)}.") for row in sites if row.next]
    left = tables.of_sent(facts["sent"], "sites")
    stays = "Suspicious samples, copies and outliers are known only at their site."
    return [
        printable(facts["words"]),
        table,
        *([facts["mode"]] if facts.get("mode") else []),
        *found,
        facts["range"],
        facts["basis"],
        *_suggestions(facts),
        f"Assumed: {'; '.join(facts['assumptions'])}.",
        left,
        stays,
    ]
