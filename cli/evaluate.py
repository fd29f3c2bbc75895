"""`fnlkit evaluate`: evaluate runs."""

import json
import sys
from dataclasses import replace
from typing import Any

import click
import numpy as np

import fnlkit
from fnlkit.artifacts.names import class_names
from fnlkit.cli.plumbing import (
    Table,
    baseline_option,
    caution,
    cross,
    dataset_option,
    json_option,
    ledger_option,
    must_differ,
    out_console,
    print_results,
    printable,
    runs_argument,
    suggest,
    takes_file,
    tidy_option,
    trust_option,
    verbose,
)
from fnlkit.core.errors import InputError
from fnlkit.estimators.intervals import is_uncertain
from fnlkit.results import evaluation, grouping
from fnlkit.results.comparison import CALLED, SHOWN, describe_share, list_runs, list_tests, percent, score_name
from fnlkit.results.tidy import write_tidy


@click.command()
@runs_argument
@dataset_option
@json_option
@ledger_option
@click.option("--target", type=float, default=None,
              help="Also print the client-rounds, bytes and seconds to reach this accuracy, from 0 to 1.")  # fmt: skip
@click.option("--cross-site", is_flag=True, help="Also train a model per site and test it on all sites.")
@click.option("--personal", is_flag=True,
              help="Also test each client's own model (local, ditto, fedbn) on its held-out samples.")  # fmt: skip
@click.option("--test", is_flag=True, help="Also test each run on the data set, for macro-F1, balanced "
                                           "accuracy, AUC, ECE and NLL.")  # fmt: skip
@click.option("--by", default=None, metavar="NAMES", help="Average runs that agree in these settings, for "
                                                          "example method,noise.")  # fmt: skip
@baseline_option
@click.option("--pivot", default=None, metavar="NAME",
              help="Print a column for each value of this setting, with counts of wins; the setting is in --by, for "
                   "example noise.")  # fmt: skip
@click.option("--show", type=click.Choice(["best", "last", "late", "chosen", "macro_f1", "balanced_accuracy", "auc"]),
              default="late", show_default=True, help="Score that --pivot shows; the last three require --test.")  # fmt: skip
@tidy_option("all runs")
@click.option("--each", type=click.Choice(["run", "evaluation"]), default="run", show_default=True,
              help="Write a row of --tidy per run or per evaluation.")  # fmt: skip
@click.option("--latex", is_flag=True, help="Print the groups as a LaTeX table.")
@click.option("--confusion", is_flag=True, help="Also print confusion matrices of predictions and of training labels.")
@trust_option
@click.option("-o", "--output", default=None, metavar="FILE.npz", callback=takes_file,
              help="Also write confusion matrices and all records as arrays; - writes nothing else.")  # fmt: skip
def command(
    runs: tuple[str, ...], as_json: bool, by: str | None, baseline: str | None, pivot: str | None, show: str, tidy: str | None,
    each: str, latex: bool, confusion: bool, output: str | None, **options: Any,
) -> None:  # fmt: skip
    """Print accuracy, corrected labels, estimated noise and traffic of runs.

    RUN can be a folder; without RUN stdin is read. -v prints all numbers of a run, by class and site. Several runs are
    combined in a table: runs that differ by the seed only form a group with mean and spread, and other differences are columns
    (`group` in --json). --by selects the columns and adds the difference of each group from the baseline in the same setting. A
    run that is given twice counts once.

    \b
    Example:
      fnlkit evaluate run.pt --json
      fnlkit evaluate runs/quickstart --by method --latex
    """
    must_differ({"-o": output, "--tidy": tidy}, *runs)
    grouped = latex or by is not None or pivot is not None
    if output and (grouped or len(runs) > 1):
        raise InputError(f"-o {output} writes the arrays of a single run; redirect a table with > FILE")
    if output == "-" and (as_json or confusion):
        raise InputError("-o - writes the arrays alone to stdout; leave out --json and --confusion, or name a file")
    if latex and as_json:
        raise InputError("--json and --latex exclude each other; choose one")
    if pivot is not None and by is None:
        raise InputError(f"--pivot {pivot} requires --by with two names, for example --by method,{pivot}")
    result = fnlkit.evaluate(*runs, say=caution, **options)
    rows = result.rows
    unfinished = [printable(row["run"]) for row in rows if not row["finished"]]
    if grouped and len(unfinished) == len(rows):
        raise InputError(f"not finished: {', '.join(unfinished)}; groups need finished runs, continue with train --resume")
    if tidy:
        write_tidy(result.tidy(each), tidy)
    if unfinished and (grouped or len(rows) > 1):
        caution(f"left out of groups, not finished: {', '.join(unfinished)}; continue with train --resume")
    if grouped and as_json:
        for group in result.groups(by, baseline):
            sys.stdout.write(json.dumps(group) + "\n")
    if grouped and not as_json:
        table = result.pivot(by or "", pivot, show=show, baseline=baseline) if pivot else result.table(by, baseline)
        sys.stdout.write(table.latex()) if latex else print_results(table)
    if grouped:
        return
    if output:
        result.save(output)
    if output == "-":
        return
    if as_json:
        for row in rows:
            sys.stdout.write(json.dumps(row) + "\n")
        return
    if len(rows) > 1:
        _show_many(result, baseline)
    else:
        run = result.runs[0]
        names = class_names(run.meta, run.meta["classes"])
        _show_one(rows[0], result.arrays, run, names, confusion)
    if not any(path == "-" for path in runs):
        suggest("report", *runs[:3], "-o", "report.html")


def _display(value):
    if isinstance(value, float):
        return f"{value:.4f}" if not 0 < abs(value) < 5e-5 else f"{value:.2g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(value)


def _show_one(row, values, run, classes, confusion):
    say, everything = out_console(), verbose() > 0
    apart = ("class_accuracy", "class_agreement", "class_f1", "measured", "cross_site", "personal")
    keys = [key for key in (row if everything else _order(row)) if key not in apart and row[key] is not None]
    say.print(Table("", "", rows=[(key.replace("_", " "), _display(row[key])) for key in keys], heads=False))
    if run.budget():
        say.print(f"{row['rounds']:,} rounds made {run.budget()}", soft_wrap=True)
    _show_measured(say, row["measured"], classes, everything)
    if "cross_site" in row:
        _show_cross_site(say, row["cross_site"])
    if "personal" in row:
        _show_personal(say, row["personal"])
    if confusion:
        _show_confusion(say, row, values, run, classes)
    if "record_transition_cosine" in values:
        rounds, cosines = values["record_transition_cosine_rounds"], values["record_transition_cosine"]
        say.print("estimated against true transition matrix")
        some = sorted({round(x) for x in np.linspace(0, len(rounds) - 1, 10)})
        say.print(Table("round", "cosine", rows=[(str(rounds[i]), f"{cosines[i]:.4f}") for i in some]))
    if "record_noise_level" in values and "client_level_given" in values:
        estimated, true = values["record_noise_level"][0], values["client_level_given"]
        cells = [(str(k), f"{true[k]:.3f}", f"{estimated[k]:.3f}") for k in true.argsort()[::-1][:10]]
        say.print(Table("client", "true noise level", "first estimate", rows=cells, title="noisiest clients"))


def _show_confusion(say, row, values, run, classes):
    """Print confusion matrices of at most 20 classes: of each kind of samples, and of the training labels of each stage."""
    for name, part in row["measured"].items():
        if len(values.get(f"{name}_confusion", range(99))) <= 20:
            rows = "true class" if part["measures"] == "accuracy" else "given label"
            title = f"{evaluation.SAMPLES[name]}, {rows} in rows, predicted in columns"
            say.print(cross(values[f"{name}_confusion"], title, classes))
    if "label_confusion_given" in values and len(values["label_confusion_given"]) <= 20:
        for stage, counts in evaluation.stage_confusions(run):
            say.print(cross(counts, f"training labels at the start of {stage}, true class in rows", classes))
        say.print(cross(values["label_confusion_corrected"], "training labels at the end, true class in rows", classes))


# Rows of a single run without -v: scores first.
_SHORT = (*(f"{what}_{at}" for at in ("late", "last", "best", "chosen") for what in ("accuracy", "agreement")),
          "chosen_round", "method", "dataset", "choice", "finished", "client_rounds", "label_accuracy_given",
          "label_accuracy_corrected", "labels_changed", "estimate_client_auc", "target_client_rounds", "target_bytes_up",
          "target_seconds")  # fmt: skip


def _order(row):
    """Order the names of the rows that are printed without -v: scores, settings, labels and costs of privacy."""
    hidden = {"finished": row["finished"], "labels_changed": "label_accuracy_given" in row}
    private = [key for key in row if key.startswith(("label_", "update_")) and key not in _SHORT]
    return [key for key in _SHORT if key in row and not hidden.get(key)] + private


def _show_measured(say, measured, classes, everything):
    """Print accuracies: a line per kind of samples, then sites, then classes."""
    if measured:
        print_results(list_tests(measured))
    for name, part in measured.items():
        if "assumes" in part:
            text = f"The {part['measures']} is no accuracy. It assumes: {'; '.join(part['assumes'])}."
            say.print(text, soft_wrap=True)
        elif part["measures"] == "agreement":
            say.print(
                "Agreement is the share of predictions equal to the given labels, which are not verified.", soft_wrap=True
            )
        if name == "gold" and "groups" not in part:
            say.print("The interval on verified samples is exact (Clopper-Pearson).", soft_wrap=True)
    if any("groups" in part for part in measured.values()):
        say.print("In intervals, all samples of a group count as one observation.", soft_wrap=True)
    if not everything:
        _show_lowest(say, measured, classes)
        return
    short = {"gold": "accuracy, verified", "held_out_true": "accuracy, true labels", "reviewed": "accuracy, random reviews"}
    heads = {name: short.get(name, part["measures"]) for name, part in measured.items()}
    sites = {name: {site["site"]: _of_site(site) for site in part["sites"]} for name, part in measured.items()}
    _show_beside(say, "site", heads, {name: cells for name, cells in sites.items() if cells})
    unknown = [None] * len(classes)
    shown = {name: map(_of_class, part["per_class"], part.get("per_class_f1", unknown)) for name, part in measured.items()}
    _show_beside(say, "class", heads, {name: dict(zip(classes, cells, strict=True)) for name, cells in shown.items()})


def _of_class(share, f1):
    share = share["share"] if isinstance(share, dict) else share
    return " " if share is None else percent(share) if f1 is None else f"{percent(share)}, F1 {percent(f1)}"


def _of_site(site):
    return ", ".join(describe_share(site)) + (f", F1 {percent(site['macro_f1'])}" if "macro_f1" in site else "")


def _show_lowest(say, measured, classes):
    """Print the class and the site with the lowest share, on the first kind of samples that has both or one of them."""
    texts: dict[str, str] = {}
    for part in (one for one in measured.values() if not is_uncertain(one["low"], one["high"])):
        shares = [v["share"] if isinstance(v, dict) else v for v in part["per_class"]]
        known = [(share, name) for share, name in zip(shares, classes, strict=True) if share is not None]
        for kind, pairs in (("class", known), ("site", [(site["share"], site["site"]) for site in part["sites"]])):
            if len(pairs) > 1:
                texts.setdefault(kind, f"lowest {kind} {printable(min(pairs)[1])}, {percent(min(pairs)[0])}")
    if texts:
        say.print("; ".join(texts.values()) + " (-v: all)", soft_wrap=True)


def _show_cross_site(say, accuracies):
    """Print the accuracy of the local model of each site and of the federated model on each site's held-out samples."""
    title = f"{CALLED[accuracies['measures']]}: model of a row on held-out samples of a column"
    models = zip([*accuracies["sites"], "all, federated"], [*accuracies["own"], accuracies["federated"]], strict=True)
    rows = [[printable(name), *map(percent, row)] for name, row in models if row is not None]
    say.print(Table("model of", *map(printable, accuracies["sites"]), rows=rows, title=title))


def _show_personal(say, scores):
    """Print the share of each client's held-out samples that its own model and the common model predict, at most 40."""
    kinds = [name for name in ("own", "common") if name in scores]
    table = Table("client", "samples", *(f"{name} model" for name in kinds), title=f"{scores['measures']} on held-out samples")
    for i, name in enumerate(scores["clients"][:40]):
        table.add_row(printable(name), str(scores["samples"][i]), *[percent(scores[kind][i]) for kind in kinds])
    table.add_row("all", sum(scores["samples"]), *[percent(scores[f"{kind}_share"]) for kind in kinds])
    say.print(table)


def _show_personal_of(say, rows):
    """Print a line per run with the scores of the clients' own models and of the common model."""
    shares = [[percent(row["personal"].get(f"{kind}_share")) for kind in ("own", "common")] for row in rows]
    cells = [(printable(row["run"]), row["method"], *share) for row, share in zip(rows, shares, strict=True)]
    say.print(Table("run", "method", "own model", "common model", rows=cells, title="held-out samples of all clients"))


def _show_beside(say, heading, heads, columns):
    """Print columns {name: {row: text}} as a table of at most 40 rows."""
    if columns:
        names = list(dict.fromkeys(row for cells in columns.values() for row in cells))[:40]
        rows = [[printable(row), *[cells.get(row) for cells in columns.values()]] for row in names]
        say.print(Table(heading, *[heads[name] for name in columns], rows=rows))


def _show_many(evaluation, baseline):
    rows, say = evaluation.rows, out_console()
    print_results(list_runs(rows, evaluation.notes))
    if "personal" in rows[0]:
        _show_personal_of(say, rows)
    groups = evaluation.groups(baseline=baseline)
    for group in groups:  # --by prints the differences of scores
        group["ahead"] = {name: value for name, value in group["ahead"].items() if name.startswith("target_")}
    if groups:
        ends = (*(f"_{kind}" for kind in SHOWN), *grouping.TESTED)
        names = [name for name in grouping.MEASURES if name.endswith(ends) or name.startswith("target_")]
        table = grouping.table(groups, measures=names)
        whats = " and ".join(dict.fromkeys(map(score_name, rows)))
        notes = table.notes if any(group["ahead"] for group in groups) else table.notes[1:]  # the first is on differences
        print_results(replace(table, notes=notes), f"{whats} in %, mean ± standard deviation over runs")
    for sentence in dict.fromkeys(r["label_together_statement"] for r in rows if "label_together_statement" in r):
        say.print(f"All recorded releases of these labels: {sentence}")
    for row in rows:
        if "choice" in row:
            say.print(f"{printable(row['run'])}: {row['choice']}", soft_wrap=True)
