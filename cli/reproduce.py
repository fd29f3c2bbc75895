"""`fnlkit reproduce`: run recipes and published tables."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import click

from fnlkit import datasets
from fnlkit.cli.plumbing import (
    Table,
    baseline_option,
    console,
    dataset_option,
    json_option,
    out_console,
    print_first,
    suggest,
    takes_file,
    verbose,
)
from fnlkit.cli.progress import log
from fnlkit.components.spec import bind, find, parse
from fnlkit.errors import InputError, nearest
from fnlkit.models import NETWORKS
from fnlkit.results.grouping import LEGEND
from fnlkit.results.statistics import METHOD
from fnlkit.results.tidy import write_tidy


@click.command()
@click.argument("recipe", required=False)
@dataset_option
@json_option
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=None,
    help="Number of seeds per run. Default: as in the recipe.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=None, help="Rounds of each run instead of the recipe's.")
@click.option("--model", default=None, metavar="SPEC", help="Network of each run instead of the recipe's.")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "fp64", "tf32", "bf16"]),
    default=None,
    help="Arithmetic of each run instead of the recipe's, for example bf16 on a GPU.",
)
@click.option("--embeddings", metavar="FILE", default=None, help="A file of vectors instead of the recipe's backbone.")
@click.option(
    "--only",
    default=None,
    metavar="TEXT",
    help="Run only regimes with these words in the name, or matching rows of a published table, for example "
    "'fedcorr, 0.6, 0.5'; * and ? make a pattern of the whole name.",
)
@click.option(
    "--jobs",
    "jobs",
    type=click.IntRange(min=1),
    default=None,
    help="Runs to train at once. Default: one per core.",
)
@click.option(
    "--scale",
    type=float,
    default=1.0,
    show_default=True,
    help="For published tables: share of the paper's rounds, above 0 and at most 1.",
)
@click.option(
    "--shard",
    metavar="I/N",
    default=None,
    help="Run part I of N parts of the runs, for example 3/8, to divide a recipe among machines.",
)
@click.option(
    "--add",
    multiple=True,
    metavar="METHOD",
    help="Train only this method, for example mine.py:m, and compare it with stored results; can be repeated.",
)
@click.option(
    "--stored",
    default=None,
    metavar="FILE",
    help="Results for --add, written by --export. Default: those included in fnlkit, of league.",
)
@click.option(
    "--export",
    default=None,
    metavar="FILE",
    callback=takes_file,
    help="Also write the scores of all finished runs to this file, for --stored.",
)
@click.option("--latex", is_flag=True, help="Print a LaTeX table of methods and regimes with the scores of the kept models.")
@click.option(
    "--tidy",
    default=None,
    metavar="FILE",
    callback=takes_file,
    help="Also write all finished runs as a .csv or .parquet table with every option and the names of the recipe's rows.",
)
@click.option("--no-train", is_flag=True, help="Print the table of finished runs without training.")
@baseline_option
@click.option("--dry-run", is_flag=True, help="Print the commands and stop.")
@click.option("-o", "--output", default=None, metavar="FOLDER", help="Folder of the runs; a second call continues there.")
def command(
    recipe: str | None, as_json: bool, export: str | None, latex: bool, tidy: str | None, dry_run: bool, **options: Any
) -> None:
    """Run a recipe, or rows of a published table (fedcorr/table2), and print mean, spread and published number.

    Without a name, recipes and tables are listed. For a table, each row states whether the measured mean is within one
    published standard deviation, above or below. A second call continues.

    \b
    Example:
      fnlkit reproduce regimes --dry-run
      fnlkit reproduce fedcorr/table10 --only 'lenet, 0.6, 0.5' --seeds 3 --dry-run
    """
    from fnlkit.recipes import published, running

    if recipe is None:
        _list()
        return
    _must_exist(options["dataset"], options["model"], options["embeddings"])
    if latex and as_json:
        raise InputError("--json and --latex exclude each other; choose one")
    if recipe in published.papers():
        _list(recipe)
        return
    table = running.is_table(recipe)
    if extra := next((option for option, given in {"--latex": latex, "--export": export}.items() if given and table), None):
        raise InputError(f"{extra} is for recipes; {recipe} is compared with published numbers")
    if not table and options["scale"] != 1:
        raise InputError(f"--scale shortens published tables; --rounds shortens the recipe {recipe}")
    latest, began = ["no run is finished"], time.monotonic()

    def say(text: str) -> None:
        latest[0] = text
        _say(text)

    with log(lambda: f"{latest[0]}, {time.monotonic() - began:,.0f} s after the start"):
        plan: Any = running.open_recipe(recipe, running.Options(**options), say)
        result: Any = None if dry_run else plan.run()
    if dry_run:
        lines = list(plan.commands())
        print_first(lines, "commands", 3)
        suggest("reproduce", recipe, "-o", "runs")
        return
    if export:
        _say(f"wrote {export}: {plan.export(result.jobs, export)} cells")
    if tidy:
        write_tidy(result.tidy(), tidy)
    if table:
        _print_published(result, as_json)
    elif latex and result.rows:
        sys.stdout.write(result.summary().latex())
    elif not latex:
        _print(result.title, result.rows, as_json)
    result.must_be_complete()


def _say(text):
    console().print(text, style="dim" if text.startswith("wrote ") else None, soft_wrap=True)


def _print(title, table, as_json):
    if as_json:
        for row in table:
            sys.stdout.write(json.dumps(row) + "\n")
    else:
        _show(title, table)


def _must_exist(dataset, model, embeddings):
    """Refuse unknown names before the first command, so that --dry-run prints only commands that can run."""
    from fnlkit.recipes import checking

    if model:
        spec = parse(model, "--model")
        bind(spec, find(spec, NETWORKS, "model"), "model", given=("input_shape", "classes"))
    if dataset:
        checking.must_be_stored(dataset, "--dataset")
    if dataset and not os.path.exists(dataset) and dataset.partition("(")[0] not in datasets.registry():
        known = datasets.registry()
        raise InputError(
            f"--dataset {dataset}: no such file or data set{nearest(dataset, known)}; `fnlkit data list` lists all"
        )
    if embeddings and not os.path.exists(embeddings):
        raise InputError(f"--embeddings {embeddings}: no such file")


def _list(paper=None):
    """Print the recipes, and the published tables with the numbers of rows and runs; without -v, their names."""
    from fnlkit.recipes import published
    from fnlkit.recipes import recipe as recipes

    say = out_console()
    if paper is None and not verbose():
        say.print(f"recipes: {', '.join(recipes.names())}", soft_wrap=True)
        tables: dict[str, list[str]] = {}
        for name in published.tables():
            tables.setdefault(name.partition("/")[0], []).append(name.partition("/")[2])
        say.print("tables of papers, as PAPER/TABLE (-v: titles and numbers of runs):")
        paper_table = Table("", "", heads=False)
        for each, numbers in tables.items():
            paper_table.add_row(each, ", ".join(numbers))
        say.print(paper_table)
        suggest("reproduce", published.tables()[0], "--dry-run")
        return
    for name in [] if paper else recipes.names():
        say.print(f"{name}: {recipes.load_recipe(name).get('title', '')}")
    table = Table("published table", "rows", "runs per seed", "what")
    for name in published.tables():
        if paper in (None, name.partition("/")[0]):
            rows = published.load_rows(name)
            what = dict.fromkeys(f"{row['measure'].partition(':')[0]} on {row['dataset']}" for row in rows)
            table.add_row(name, str(len(rows)), str(len(published.recipe(name)["regime"])), "; ".join(what))
    say.print(table)


def _print_published(found, as_json):
    """Print the rows of a published table."""
    if as_json:
        for row in found.rows:
            sys.stdout.write(json.dumps(row | {"note": found.notes.get(row["regime"], "")}) + "\n")
    else:
        _show_published(found.title, found.rows, found.notes)


def _show_published(title, rows, notes):
    say = out_console()
    columns = ("row", "runs", "published", "measured", "apart", "verdict", "late", "seconds")
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(
            _overrides(row["overrides"]) + row["regime"],
            str(row["runs"]),
            _plus_minus(*row["published"]) or "not reached",
            _plus_minus(row["measured"], row["spread"]) or f"reached by {row['reached']}",
            _plus_minus(row["apart"], sign="+"),
            row["verdict"] or ("not compared" if row["overrides"] else "no deviation printed"),
            _plus_minus(row.get("late_mean"), row.get("late_spread")),
            f"{row['seconds']:.0f}" if "seconds" in row else "",
        )
    if rows:
        say.print(table)
        units = " and ".join(dict.fromkeys(row["unit"] for row in rows))
        say.print(f"in {units}, mean ± standard deviation; accuracy: {rows[0]['reports']} of each run, as the paper reports")
        say.print(
            "verdict: where the measured mean lies, seen from the published mean ± one standard deviation", soft_wrap=True
        )
    if any(row["measured"] is None for row in rows):
        say.print("not reached, reached by: runs whose accuracy reached the target of the row", soft_wrap=True)
    if any(row["unit"] == "hours" for row in rows):
        say.print("hours: of this machine, beside those of the paper's", soft_wrap=True)
    if any(row["overrides"] for row in rows):
        say.print("not compared: the settings before the colon replace those of the published number", soft_wrap=True)
    for row, why in notes.items():
        say.print(f"differs: {row}: {why}", soft_wrap=True, style="dim")


def _overrides(changed):
    """Return the settings that replace a published row's, in front of its title."""
    words = [f"{value} x the rounds" if name == "scale" else f"{name} {value}" for name, value in changed.items()]
    return ", ".join(words) + ": " * bool(words)


def _plus_minus(mean, spread=None, sign=""):
    if mean is None:
        return ""
    return f"{mean:{sign}.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def _format_memorization(row):
    shares = [row["global_memorized"], row["local_memorized"]]
    return "" if None in shares else " and ".join(f"{share:.1f}" for share in shares)


_MEASURES = {"accuracy": "accuracy", "agreement": "agreement with unverified labels"}


def _show(title, rows):
    # With --select last, the kept model has the late score.
    shown = ["best", "late"] + (["kept"] if any(row["kept_mean"] != row["late_mean"] for row in rows) else [])
    scores = [column for name in shown for column in (name, "ahead", "p")]
    columns = ("regime", "method", "runs", *scores, "memorized", "published", "client-rounds", "seconds")
    table = Table(*columns, title=title)
    for row in rows:
        cells = []
        for name in shown:
            cells.append(_plus_minus(row[f"{name}_mean"], row[f"{name}_spread"]))
            ahead = _plus_minus(row[f"{name}_ahead"], row[f"{name}_ahead_half"], sign="+")
            cells.append(f"{ahead} *" if row[f"{name}_clear"] else ahead)
            cells.append("" if row[f"{name}_holm"] is None else f"{row[f'{name}_holm']:.2g}")
        table.add_row(
            row["regime"],
            row["method"],
            str(row["runs"]),
            *cells,
            _format_memorization(row),
            _plus_minus(*(row["published"] or [None])),
            f"{row['client_rounds']:,}",
            f"{row['seconds']:.0f}",
        )
    say = out_console()
    say.print(table)
    if rows:
        kinds = " and ".join(dict.fromkeys(_MEASURES[row["measures"]] for row in rows))
        say.print(f"{kinds} in {LEGEND.format(baseline=rows[0]['baseline']).removeprefix('in ')}", soft_wrap=True)
        say.print(METHOD, soft_wrap=True)
        say.print("p: paired t-test, corrected for all rows by Holm's method; kept: the score of the model that the run keeps")
    say.print("memorized: of the wrong labels, by the global model and by local models, at the last evaluation")
