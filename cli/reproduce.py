"""`fnlkit reproduce`: run recipes and published tables."""

import json
import sys
import time
from typing import Any

import click

from fnlkit.cli.dataclass_options import options_of
from fnlkit.cli.group import WORDS
from fnlkit.cli.plumbing import (
    Table,
    baseline_option,
    console,
    dataset_option,
    json_option,
    out_console,
    print_first,
    print_results,
    suggest,
    tidy_option,
    verbose,
)
from fnlkit.cli.progress import log
from fnlkit.core.errors import InputError
from fnlkit.recipes import published, running
from fnlkit.recipes import recipe as recipes
from fnlkit.results.tables import Table as Results
from fnlkit.results.tables import Value
from fnlkit.results.tidy import write_tidy


@click.command()
@click.argument("recipe", required=False)
@dataset_option
@json_option
@options_of(running.Options)
@click.option("--latex", is_flag=True, help="Print LaTeX; of a recipe, the scores of the kept models by method and regime.")
@tidy_option("all finished runs", "the names of the recipe's rows")
@baseline_option
@click.option("--dry-run", is_flag=True, help="Print the command of each run, which writes the same file, and stop.")
@click.option("-o", "--output", metavar="FOLDER", help="Folder of the runs; a second call continues there.")
def command(recipe: str | None, as_json: bool, latex: bool, tidy: str | None, dry_run: bool, **options: Any) -> None:
    """Run a recipe, or rows of a published table (fedcorr/table2), and print mean, spread and published number.

    Without a name, recipes and tables are listed. For a table, each row states whether the measured mean is within one
    published standard deviation, above or below. A second call continues.

    \b
    Example:
      fnlkit reproduce regimes --dry-run
      fnlkit reproduce fedcorr/table10 --only 'lenet, 0.6, 0.5' --seeds 3 --dry-run
    """
    if recipe is None or recipe in published.papers():
        _list(recipe)
        return
    if latex and as_json:
        raise InputError("--json and --latex exclude each other; choose one")
    latest, began = ["reading the data"], time.monotonic()

    def say(text: str) -> None:
        latest[0] = text
        console().print(text, soft_wrap=True)

    with log(lambda: f"{latest[0]}, {time.monotonic() - began:,.0f} s after the start"):
        plan: Any = running.Plan(recipe, running.Options(**options))
        result: Any = None if dry_run else plan.run(say)
    if dry_run:
        print_first([job.line for job in plan.jobs], "commands", 3)
        suggest(*(word for word in click.get_current_context().meta[WORDS] if word != "--dry-run"))
        return
    if tidy:
        write_tidy(result.tidy(), tidy)
    if as_json:
        for row in result.rows:
            note = {"note": result.notes.get(row["regime"], "")} if running.is_table(recipe) else {}
            sys.stdout.write(json.dumps(row | note) + "\n")
    elif running.is_table(recipe):
        compared = _compare_published(result.title, result.rows, result.notes)
        sys.stdout.write(compared.latex()) if latex else print_results(compared, result.title)
    elif latex and result.rows:
        sys.stdout.write(result.summary().latex())
    elif not latex:
        print_results(result.table(), result.title)
    result.must_be_complete()


def _list(paper=None):
    """Print the recipes, and the published tables with the numbers of rows and runs; without -v, their names."""
    say = out_console()
    if paper is None and not verbose():
        say.print(f"recipes: {', '.join(recipes.names())}", soft_wrap=True)
        tables: dict[str, list[str]] = {}
        for name in published.tables():
            tables.setdefault(name.partition("/")[0], []).append(name.partition("/")[2])
        say.print("tables of papers, as PAPER/TABLE (-v: titles and numbers of runs):")
        say.print(Table("", "", rows=[(each, ", ".join(numbers)) for each, numbers in tables.items()], heads=False))
        suggest("reproduce", published.tables()[0], "--dry-run")
        return
    for name in [] if paper else recipes.names():
        say.print(f"{name}: {recipes.load_recipe(name).get('title', '')}")
    table = Table("published table", "rows", "runs per seed", "what")
    for name in published.tables():
        if paper in (None, name.partition("/")[0]):
            rows = published.load_rows(name)
            measured = dict.fromkeys(f"{row.measure.partition(':')[0]} on {row.dataset}" for row in rows)
            table.add_row(name, str(len(rows)), str(len(published.recipe(name)["regime"])), "; ".join(measured))
    say.print(table)


def _compare_published(title, rows, differs):
    """Table of the published and the measured numbers."""
    columns = ["row", "runs", "published", "measured", "apart", "verdict", "late", "seconds"]
    lines = [
        [_overrides(row["overrides"]) + row["regime"], str(row["runs"]),
         Value(*row["published"]) if row["published"][0] is not None else "not reached",
         f"reached by {row['reached']}" if row["measured"] is None else Value(row["measured"], row["spread"]),
         Value(row["apart"], signed=True),
         row["verdict"] or ("not compared" if row["overrides"] else "no deviation printed"),
         Value(row.get("late_mean"), row.get("late_spread")), Value(row.get("seconds"), digits=0)] for row in rows
    ]  # fmt: skip
    units, notes = " and ".join(dict.fromkeys(row["unit"] for row in rows)), []
    if rows:
        notes = [
            f"in {units}, mean ± standard deviation; accuracy: {rows[0]['reports']} of each run, as the paper reports",
            "verdict: where the measured mean lies, seen from the published mean ± one standard deviation",
        ]
    if any(row["measured"] is None for row in rows):
        notes.append("not reached, reached by: runs whose accuracy reached the target of the row")
    if "hours" in units:
        notes.append("hours: of this machine, beside those of the paper's")
    if any(row["overrides"] for row in rows):
        notes.append("not compared: the settings before the colon replace those of the published number")
    notes += [f"differs: {row}: {why}" for row, why in differs.items()]
    return Results(title, columns, lines, notes)


def _overrides(changed):
    """Write the settings that replace a published row's, in front of its title."""
    words = [f"{value} x the rounds" if name == "scale" else f"{name} {value}" for name, value in changed.items()]
    return ", ".join(words) + ": " * bool(words)
