"""`fnlkit evaluate`: judge runs."""

import json
import sys

import click

from fnlkit.cli.plumbing import (
    caution,
    console,
    cross,
    dataset_option,
    json_option,
    ledger_option,
    out_console,
    printable,
    trust_option,
)
from fnlkit.cli.source import need_input
from fnlkit.errors import InputError


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN.pt]...")
@dataset_option
@json_option
@ledger_option
@click.option(
    "--target", type=float, default=None, help="Also say after which traffic this accuracy, from 0 to 1, was reached."
)
@click.option("--by", default=None, metavar="NAMES", help="Group runs by these, for example method,noise; any option of the "
              "commands before, seeds apart.")  # fmt: skip
@click.option("--csv", "form", flag_value="csv", help="Print the groups as csv, numbers at full precision.")
@click.option("--latex", "form", flag_value="latex", help="Print the groups as a LaTeX table.")
@click.option("--markdown", "form", flag_value="markdown", help="Print the groups as a Markdown table.")
@trust_option
@click.option("-o", "--output", default=None, metavar="FILE.npz", help="Write confusion matrices and records as arrays.")
def command(runs, dataset, as_json, ledger, target, by, form, trust, output):
    """Judge runs: accuracy best and last, per class, corrected labels, estimated noise, traffic.

    Without RUN reads stdin; of a folder it takes all runs. Several runs make one table with a mean and spread of those that
    differ by their seeds alone; every other difference is a column of it, and `group` in --json. --by chooses the columns
    and adds what each group is ahead of the first method in the same setting.

    \b
    Example:
      fnlkit evaluate run.pt --json
      fnlkit evaluate runs/quickstart --by method --markdown
    """
    from fnlkit import pipeline

    runs = runs or ("-",)
    for path in runs:
        need_input(path)
    if output and len(runs) > 1:
        raise InputError(f"-o {output} takes the arrays of one run, found {len(runs)}")
    if output and (form or by is not None):
        raise InputError(f"-o {output} takes the arrays of one run; a table goes to stdout, write > FILE")
    if form and as_json:
        raise InputError(f"--json and --{form} are two forms of one answer; write one of them")
    found = pipeline.evaluate(*runs, dataset=dataset, ledger=ledger, target=target, trust=trust, say=caution)
    rows = found.rows
    if form or by is not None:
        _show_groups(found, by, form, as_json)
        return
    if output:
        found.save(output)
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
        return
    if len(rows) > 1:
        _show_many(rows)
    else:
        _show_one(rows[0], found.arrays, found.runs[0])


def _show_groups(found, by, form, as_json):
    """Print the groups on stdout in one of four forms, and what was left out on stderr."""
    from rich.table import Table

    unfinished = [row["run"] for row in found.rows if not row["finished"]]
    if unfinished:
        caution(f"left out, not finished: {', '.join(map(printable, unfinished))}; continue with train --resume")
    if as_json:
        for group in found.groups(by):
            sys.stdout.write(json.dumps(group) + "\n")
        return
    table = found.table(by)
    if form:
        sys.stdout.write(getattr(table, form)())
        return
    shown = Table(*map(printable, table.columns), box=None)
    for row in table.texts():
        shown.add_row(*map(printable, row))
    say = out_console()
    say.print(shown)
    for note in table.notes:
        say.print(printable(note), style="dim", soft_wrap=True)


def _shown(value):
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(value)


def _show_one(row, values, run):
    import numpy as np
    from rich.table import Table

    from fnlkit.results import evaluation

    say = out_console()
    table = Table(show_header=False, box=None)
    for key, value in row.items():
        if key != "class_accuracy" and value is not None:
            table.add_row(key.replace("_", " "), _shown(value))
    say.print(table)
    if "class_accuracy" in row:
        say.print("accuracy per class: " + " ".join(f"{v:.3f}" for v in row["class_accuracy"]))
    if "test_confusion" in values and len(values["test_confusion"]) <= 20:
        say.print(cross(values["test_confusion"], "test samples, true class in rows, predicted in columns"))
    if "label_confusion_given" in values and len(values["label_confusion_given"]) <= 20:
        for stage, counts in evaluation.stage_confusions(run):
            say.print(cross(counts, f"training labels as {stage} began, true class in rows"))
        say.print(cross(values["label_confusion_corrected"], "training labels at the end, true class in rows"))
    if "record_transition_cosine" in values:
        rounds, cosines = values["record_transition_cosine_rounds"], values["record_transition_cosine"]
        say.print("estimated against true transition matrix")
        table = Table("round", "cosine", box=None)
        for i in sorted({round(x) for x in np.linspace(0, len(rounds) - 1, 10)}):
            table.add_row(str(rounds[i]), f"{cosines[i]:.4f}")
        say.print(table)
    if "record_noise_level" in values and "client_level_given" in values:
        estimated, true = values["record_noise_level"][0], values["client_level_given"]
        table = Table("client", "true noise level", "first estimate", box=None, title="noisiest clients")
        for k in true.argsort()[::-1][:10]:
            table.add_row(str(k), f"{true[k]:.3f}", f"{estimated[k]:.3f}")
        say.print(table)


def _percent(mean, spread):
    return f"{100 * mean:.2f}" + ("" if spread is None else f" ± {100 * spread:.2f}")


def _show_many(rows):
    from rich.table import Table

    from fnlkit.results import comparison

    table = Table("run", "method", "best", "last", "client-rounds", "MB up", "labels right", box=None)
    for row in rows:
        table.add_row(
            printable(row["run"]),
            printable(row["method"]),
            *(f"{100 * row[k]:.2f}" if row[k] is not None else "" for k in ("accuracy_best", "accuracy_last")),
            f"{row['client_rounds']:,}",
            f"{row['bytes_up'] / 1e6:,.1f}",
            f"{100 * row['label_accuracy_corrected']:.2f}" if "label_accuracy_corrected" in row else "",
        )
    say = out_console()
    say.print(table)
    names = [{"dataset": "data set"}.get(name, name.replace("_", " ")) for name in rows[0]["group"]]
    table = Table(*names, "runs", "best accuracy", "last accuracy", box=None, title="mean ± standard deviation, in %")
    for group in comparison.groups(rows):
        cells = [_percent(*group[name]) for name in ("accuracy_best", "accuracy_last")]
        values = ["" if value is None else str(value) for value in group["group"].values()]
        table.add_row(*map(printable, values), str(group["runs"]), *cells)
    say.print(table)
    for sentence in dict.fromkeys(r["label_together_statement"] for r in rows if "label_together_statement" in r):
        say.print(f"All that is known of these labels together: {sentence}")
    unfinished = [row["run"] for row in rows if not row["finished"]]
    if unfinished:
        console().print(f"not finished: {', '.join(map(printable, unfinished))}; continue with train --resume", style="yellow")
