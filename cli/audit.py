"""`fnlkit audit`: find sites with wrong labels."""

import json
from typing import Any

import click

import fnlkit
from fnlkit.artifacts.federation import Federation
from fnlkit.cli import tables
from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.plumbing import (
    LINES,
    Table,
    console,
    dataset_option,
    emit,
    file_argument,
    height,
    json_option,
    must_differ,
    output_option,
    printable,
    seed_option,
    takes_file,
    verbose,
)
from fnlkit.cli.progress import bar
from fnlkit.core.errors import MOST_NAMES
from fnlkit.pipeline.auditing import Auditing

# More sites than this are counted, unless something was found at them.
MOST_SITES = 6
# Sentences about findings.
MOST_TEXTS = 2


@click.command()
@file_argument
@dataset_option
@options_of(Auditing)
@click.option("--html", metavar="FILE.html", default=None, callback=takes_file,
              help="Also write the results as a page.")  # fmt: skip
@click.option("--pictures", type=click.IntRange(min=0), default=6, show_default=True,
              help="Number of suspicious images or sounds of each noisy site that the --html page shows.")  # fmt: skip
@json_option
@seed_option
@output_option("JUDGED.npz")
def command(file: str, html: str | None, pictures: int, as_json: bool, output: str, **options: Any) -> None:
    """Find sites with wrong labels, their number, and the classes that are confused, without true labels.

    Each site is judged by a classifier from sums of the other sites. The output is the federation with a judgment of each
    sample, which `fnlkit review` and `fnlkit correct` read; the results are printed on stderr, and with -v also the ranges,
    the assumptions and everything that leaves a site. With --json the results are printed on stdout as one object, and -o
    writes the federation.

    \b
    Example:
      fnlkit partition --clients 5 --labels observed | fnlkit audit --json
    """
    from fnlkit.encoders.features import check_backbone

    check_backbone(options["backbone"])
    must_differ({"-o": output, "--html": html})
    must_differ({"--html": html}, file)
    talk = console()
    say = lambda text: talk.print(text, style="dim", soft_wrap=True)  # noqa: E731
    with bar("sites") as progress:
        audited = fnlkit.audit(Federation.read(file), say=say, progress=progress, **options)
    judged = "judged.npz" if output == "-" else output
    if html:
        audited.write_html(html, judged, pictures=pictures)
    if as_json:
        click.echo(json.dumps(audited.facts))
    else:
        for part in fit_results(audited.facts, judged, page=html):
            talk.print(part, soft_wrap=isinstance(part, str))
    if output != "-" or not as_json:
        emit(audited.federation, output, shown=not as_json)


def fit_results(facts: dict[str, Any], judged: str = "", page: str | None = None) -> list[Any]:
    """Print `results` of as many sites as fit into the lines of a command's output, or everything with -v."""
    if verbose():
        return results(facts, judged, everything=True, page=page)
    for most in range(MOST_SITES, 0, -1):
        parts = results(facts, judged, page=page, most=most)
        if height(console(), *parts) <= LINES:
            break
    return parts


def results(
    facts: dict[str, Any], judged: str = "", everything: bool = False, page: str | None = None, most: int = MOST_SITES
) -> list[Any]:
    """Format the results of an audit as rich renderables: the answer, a line per site, the findings, the next command.

    Parameters
    ----------
    facts : dict
        From fnlkit.audits.report.facts.
    judged : str
        The file with the judgment, which the next command reads. "" if the sites keep it.
    everything : bool
        Also ranges, detectors, assumptions and the arrays that left the sites.
    page : str or None
        The page that was written.
    most : int
        Number of sites in the table, unless `everything`.
    """
    from fnlkit.audits import report

    sites = report.sites_of(facts)
    lines: list[Any] = [printable(report.answer(sites, None if everything else MOST_NAMES))]
    listed = sites if everything or len(sites) <= MOST_SITES else [row for row in sites if report.needs_a_look(row)]
    heads = ["site", "samples", "wrong labels", "range", "finding", *(["p", "skill"] if everything else []), "confused"]
    heads += ["also"] if everything else []
    table = Table(*heads)
    for row in listed if everything else listed[:most]:
        more = [report.chance(row.p), f"{row.skill['others'].kappa:.2f}"] if everything else []
        cells = [row.site, f"{row.samples:,}", report.level(row), report.ends(row), report.short_finding(row), *more]
        cells += [report.describe_confusions(row), *([report.odd(row)] if everything else [])]
        table.add_row(*map(printable, cells), style="bold" if row.noisier else "")
    lines += [table] if table.rows else []
    if not everything and len(table.rows) < len(sites):
        lines.append(f"{len(sites) - len(table.rows):,} other sites; `-v` lists them.")
    texts = report.findings(sites, every=everything)
    lines += [printable(text) for text in (texts if everything else texts[:MOST_TEXTS])]
    lines += [printable(text) for text in facts.get("shared", ())]
    if (suggestions := facts.get("suggestions")) and suggestions["all"]:
        sure = f"{suggestions['confident']:,} with a confidence of at least 0.8"
        lines.append(f"{suggestions['all']:,} labels have a suggestion, {sure}; `fnlkit review suspects` lists them.")
    if everything:
        lines += [facts["range"], facts["basis"], *([facts["mode"]] if facts.get("mode") else [])]
        lines += [printable(f"{row.site}: {report.detectors(row)}") for row in sites if len(row.detectors) > 1]
        lines += [*facts["notes"], f"Assumed: {'; '.join(facts['assumptions'])}.", tables.of_sent(facts["sent"], "sites")]
        lines.append("Suspicious samples, copies and outliers are known only at their site.")
    else:
        lines.append("Assumed: most sites are nearly clean, and their errors are not shared (-v prints all assumptions).")
    lines += [printable(f"wrote {page}; open it in a browser")] if page else []
    lines += [f"next: {printable(report.following(sites, judged)[0])}"] if report.following(sites, judged) else []
    return lines
