"""Compare runs: one row of numbers per run."""

from collections.abc import Callable, Sequence
from typing import Any

from fnlkit.artifacts import ledger
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import list_names
from fnlkit.estimators.intervals import is_uncertain
from fnlkit.estimators.judgment import compare
from fnlkit.federated import privacy
from fnlkit.results import calibration, evaluation
from fnlkit.results.grouping import MEASURES
from fnlkit.results.statistics import worst_tenth
from fnlkit.results.tables import Table, Value, shorten

CALLED = {"agreement": "agreement with given labels"}
# Scores of a run in a table of runs.
SHOWN = ("best", "last", "chosen")


def row(run: Run, *, target: float | None = None) -> dict[str, Any]:
    """Collect the numbers of a run without the data set.

    They cover accuracy, labels, estimates, traffic, privacy and a digest.

    Parameters
    ----------
    run : fnlkit.artifacts.run.Run
    target : float or None
        As in `fnlkit.results.evaluation.summary`.
    """
    numbers = evaluation.summary(run, target=target) | privacy.statement(run) | estimates(run)
    return numbers | {"weights_sha256": evaluation.weights_digest(run)}


def estimates(run: Run) -> dict[str, Any]:
    """Measure the quality of the noise estimates in a run's federation; {} without true labels."""
    return {f"estimate_{name}": value for name, value in compare(run.federation()).items()}


def federation(thing: Run | Federation) -> Federation:
    """Rebuild the federation of a run from the run's arrays; a federation is returned unchanged."""
    return thing if isinstance(thing, Federation) else thing.federation()


def cost_of_releases(runs: list[Run], ledger_of: Callable[[str], Any]) -> list[dict[str, Any]]:
    """Sum for each run the cost of all known releases of the data set's labels.

    The entry is {} if no other release is known.

    Parameters
    ----------
    runs : list of Run
    ledger_of : callable (data set's name) -> path or None
    """
    groups: dict[str, list[int]] = {}
    costs: list[dict[str, Any]] = [{} for _ in runs]
    for i, run in enumerate(runs):
        if privacy.releases(run):
            groups.setdefault(run.meta["dataset_checksum"], []).append(i)
    for members in groups.values():
        path = ledger_of(runs[members[0]].meta["dataset"])
        statement = privacy.statement([runs[i] for i in members], known=ledger.read_ledger(path) if path else ())
        for i in members:
            if statement["label_releases"] > privacy.statement(runs[i])["label_releases"]:
                costs[i] = {name.replace("label_", "label_together_", 1): value for name, value in statement.items()}
    return costs


def score_name(row: dict[str, Any]) -> str:
    """Name of a row's scores: ``agreement`` with unverified labels, or ``accuracy``."""
    return "agreement" if any(name.startswith("agreement_") for name in row) else "accuracy"


def list_runs(
    rows: list[dict[str, Any]],
    notes: Sequence[str] = (),
    *,
    kinds: Sequence[str] = SHOWN,
    seconds: bool = False,
) -> Table:
    """Tabulate runs, one per line (`fnlkit.results.tables.Table`); columns without any number are left out.

    Parameters
    ----------
    rows : list of dict
        As `row` returns them, with ``run``.
    notes : sequence of str
        Sentences below the table.
    kinds : sequence of str
        Scores.
    seconds : bool
        Show the seconds of training.
    """
    columns: dict[str, list[Any]] = {
        "run": shorten([str(row["run"]) for row in rows]),
        "method": shorten([str(row.get("name", row["method"])) for row in rows]),
        "measures": [score_name(row) if row.get(f"{score_name(row)}_last") is not None else "" for row in rows],
    }
    columns |= {kind: [_value(row, f"{score_name(row)}_{kind}") for row in rows] for kind in kinds}
    targets = [name for name in MEASURES if name.startswith("target_")]
    for name in ("client_rounds", "bytes_up", "label_accuracy_corrected", *["seconds"] * seconds, *targets):
        columns[MEASURES[name][0]] = [_value(row, name) for row in rows]
    if "target" in rows[0]:
        reached = columns["client-rounds to target"]
        columns["client-rounds to target"] = ["never" if value.mean is None else value for value in reached]
    return Table("", list(columns), list(map(list, zip(*columns.values(), strict=True))), list(notes))


def _value(row, name):
    _, factor, digits = MEASURES[name]
    return Value(None if row.get(name) is None else factor * row[name], None, digits)


def percent(share: float | None) -> str:
    """Format a share in percent, "" for None."""
    return "" if share is None else f"{100 * share:.1f} %"


def describe_share(part: dict[str, Any]) -> list[str]:
    """Format share and 95 % interval of a test; a share that the samples leave open is a dash."""
    share = "-" if is_uncertain(part["low"], part["high"]) else percent(part["share"])
    return [share, f"{100 * part['low']:.1f} to {100 * part['high']:.1f} %"]


def list_tests(measured: dict[str, Any]) -> Table:
    """Tabulate the findings of `fnlkit.results.scores.measure_run`: a line per kind of samples."""
    numbers = {"macro_f1": "macro-F1", "balanced": "balanced", "auc": "AUC", "ece": "ECE"}
    columns, rows = ["measure", "on", "samples", "share", "95 % interval", *numbers.values(), "NLL", "worst tenth of sites"], []
    for name, part in measured.items():
        count = f"{part['samples']:,}" + (f" of {part['groups']:,} groups" if "groups" in part else "")
        sites = f" of {list_names([site['site'] for site in part['sites']])}" if name == "reviewed" else ""
        shares = [site["share"] for site in part["sites"]]
        cells = [CALLED.get(part["measures"], part["measures"]), evaluation.SAMPLES[name] + sites, count, *describe_share(part)]
        cells += [percent(part.get(number)) for number in numbers]
        cells += [f"{part['nll']:.3f}" if "nll" in part else "", percent(worst_tenth(shares) if shares else None)]
        rows.append(cells)
    explained = f"AUC: mean over classes, each against the rest; ECE: {calibration.BINS} bins of equal width"
    return Table("", columns, rows, [explained] if any("ece" in part for part in measured.values()) else [])
