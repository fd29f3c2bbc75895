"""`fnlkit reproduce`: a published experiment, with the published number beside ours."""

import json
import os
import sys

import click

from fnlkit.cli.plumbing import Table, console, dataset_option, json_option, out_console, trust_option
from fnlkit.errors import WorkStopped


@click.command()
@click.argument("recipe", required=False)
@dataset_option
@json_option
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=None,
    help="How often to repeat each run with another seed; as the recipe says without it.",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=None, help="Rounds of each run instead of the recipe's, to try it out."
)
@click.option("--model", default=None, metavar="SPEC", help="Network of each run instead of the recipe's.")
@click.option(
    "--embeddings", metavar="EMB.npz", default=None, help="Embeddings made by `fnlkit embed`, instead of the recipe's backbone."
)
@click.option(
    "--only", default=None, metavar="TEXT", help="Run the regime of this name alone, or all with this text in their names."
)
@click.option(
    "--jobs",
    "at_once",
    type=click.IntRange(min=1),
    default=None,
    help="How many runs to train at once; one for each core without it.",
)
@click.option("--dry-run", is_flag=True, help="Print the commands and stop.")
@trust_option
@click.option("-o", "--output", default=None, metavar="FOLDER", help="Where runs are kept; a second call continues there.")
def command(recipe, dataset, as_json, seeds, rounds, model, embeddings, only, at_once, dry_run, trust, output):
    """Run a recipe and print mean, spread, published number, client-rounds and time; list recipes without a name.

    \b
    Example:
      fnlkit reproduce regimes --dry-run
    """
    from fnlkit.results import recipe as recipes
    from fnlkit.results import reproduce

    if recipe is None:
        for name in recipes.names():
            out_console().print(f"{name}: {recipes.load(name).get('title', '')}")
        return
    found = recipes.load(recipe, trust=trust)
    if dataset and os.path.exists(dataset):
        dataset = os.path.abspath(dataset)
    embeddings = embeddings and os.path.abspath(embeddings)
    jobs = reproduce.jobs(found, dataset=dataset, seeds=seeds, only=only, embeddings=embeddings, rounds=rounds, model=model)
    if dry_run:
        shown = dict.fromkeys(line for job in jobs for line in reproduce.commands(job))
        sys.stdout.write("\n".join(shown) + "\n")
        return
    folder = output or os.path.join("runs", os.path.basename(recipe).removesuffix(".toml"))
    say, done = console(), [0]

    def on_done(job, error):
        done[0] += 1
        say.print(f"{done[0]}/{len(jobs)} {job.name}: {error or 'done'}")

    at_once = at_once or len(os.sched_getaffinity(0))
    failed = reproduce.run(jobs, folder, at_once=at_once, on_done=on_done)
    table = reproduce.rows(jobs, folder)
    if as_json:
        for row in table:
            sys.stdout.write(json.dumps(row) + "\n")
    else:
        _show(found.get("title", recipe), table)
    if failed:
        name, reason = next(iter(failed.items()))
        raise WorkStopped(f"{len(failed)} of {len(jobs)} runs failed, the first, {name}: {reason}")


def _plus_minus(mean, spread=None, sign=""):
    if mean is None:
        return ""
    return f"{mean:{sign}.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def _memorized(row):
    found = [row["global_memorized"], row["local_memorized"]]
    return "" if None in found else " and ".join(f"{share:.1f}" for share in found)


def _show(title, rows):
    columns = (
        "regime",
        "method",
        "runs",
        "best",
        "over first",
        "late",
        "over first",
        "memorized",
        "published",
        "client-rounds",
        "seconds",
    )
    table = Table(*columns, title=title)
    for row in rows:
        cells = []
        for name in ("best", "late"):
            cells.append(_plus_minus(row[f"{name}_mean"], row[f"{name}_spread"]))
            ahead = _plus_minus(row[f"{name}_over_first"], row[f"{name}_over_first_half"], sign="+")
            cells.append(f"{ahead} *" if row[f"{name}_clear"] else ahead)
        table.add_row(
            row["regime"],
            row["method"],
            str(row["runs"]),
            *cells,
            _memorized(row),
            _plus_minus(*(row["published"] or [None])),
            f"{row['client_rounds']:,}",
            f"{row['seconds']:.0f}",
        )
    say = out_console()
    say.print(table)
    say.print("in %, mean ± spread over runs; best: a run's best evaluation; late: mean of those in its last fifth of rounds")
    say.print("over first: of runs with the same seed, ± half a 95 % interval; * the interval lies above 0")
    say.print("memorized: of the wrong labels, by the global model and by local models, at the last evaluation")
