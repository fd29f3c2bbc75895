"""Tidy tables: one row per run or per evaluation, every option as a column, unique names with units."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fnlkit.artifacts import saving
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.results import evaluation
from fnlkit.results.grouping import MEASURES

EACH = ("run", "evaluation")
FORMATS = (".csv", ".parquet")
# Numbers of an evaluation: column of the history, name with its unit, factor.
_EVALUATION = {
    "accuracy": ("accuracy_percent", 100),
    "agreement": ("agreement_percent", 100),
    "held_out_agreement": ("held_out_agreement_percent", 100),
    "label_accuracy": ("label_accuracy_percent", 100),
    "loss": ("loss_nats", 1),
    "client_rounds": ("client_rounds", 1),
    "bytes_up": ("bytes_up", 1),
    "bytes_down": ("bytes_down", 1),
}
_PLAIN = ("rounds", "bytes_down", "rejected", "peak_bytes", "labels_changed", "chosen_round")


def rows(runs: list[Run], numbers: list[dict[str, Any]], each: str = "run") -> list[dict[str, Any]]:
    """List one flat dict per run or per evaluation; all dicts have the same keys.

    Parameters
    ----------
    runs : list of Run
    numbers : list of dict
        Numbers of each run, as `fnlkit.results.comparison.row` returns them, with the name of the run in ``run``.
    each : str
        ``run`` or ``evaluation``.

    Returns
    -------
    list of dict
        run, finished, then options as ``option_NAME`` and parameters of earlier commands as ``partition_NAME``,
        ``inject_noise_NAME``; then numbers with their unit: shares in percent (``_percent``), traffic in bytes, times in
        seconds.  Missing values are None.

    Raises
    ------
    InputError
        If `each` is unknown.
    """
    if each not in EACH:
        raise InputError(f"{each}: write {' or '.join(EACH)}", parameter="each")
    tidy_rows = []
    for run, row in zip(runs, numbers, strict=True):
        facts = {"run": str(row["run"]), "finished": bool(row["finished"]), **_options(run)}
        tidy_rows += (
            [facts | _of_run(row)] if each == "run" else [facts | facts_of_row for facts_of_row in _of_evaluations(run)]
        )
    names = dict.fromkeys(name for facts_of_row in tidy_rows for name in facts_of_row)
    return [{name: facts_of_row.get(name) for name in names} for facts_of_row in tidy_rows]


def _options(run):
    facts = evaluation.deciding_settings(run) | {"seed": run.settings["seed"]}
    options = {}
    for name, value in facts.items():
        command, _, option = name.partition(" --")
        plain = name in ("dataset", "regime", "name")
        name = f"{command}_{option}" if option else name if plain else f"option_{name}"
        value = value if isinstance(value, (str, int, float)) or value is None else json.dumps(value)
        options["".join(c if c.isalnum() else "_" for c in name)] = value
    return options


def _of_run(row):
    numbers = {}
    for name, (_, factor, _) in MEASURES.items():
        if row.get(name) is not None:
            unit = "_percent" if factor == 100 else "_nats" if name == "nll" else ""
            numbers[f"{name}{unit}"] = factor * row[name] if factor == 100 else row[name]
    return numbers | {name: row[name] for name in _PLAIN if row.get(name) is not None}


def _of_evaluations(run):
    name, times = evaluation.score_name(run), run.meta["machine"].get("row_seconds") or []
    for place, row in enumerate(run.history):
        if name in row:
            about = {"round": row["round"] + (row["stage"] != "final"), "stage": row["stage"]}
            about["seconds"] = times[place] if place < len(times) else None
            known = _EVALUATION.items()
            yield about | {column: factor * row[key] for key, (column, factor) in known if key in row}


def must_be_table(target: str | os.PathLike[str]) -> None:
    """Raise InputError unless a file has the ending of a table."""
    if Path(target).suffix not in FORMATS:
        raise InputError(f"{target}: write a name that ends in {' or '.join(FORMATS)}", parameter="tidy")


def write_tidy(rows: Sequence[dict[str, Any]], target: str | os.PathLike[str]) -> None:
    """Write tidy rows as .csv or .parquet.

    Raises
    ------
    InputError
        If the extension is unknown, or a library is missing.
    """
    import pandas

    must_be_table(target)
    table = pandas.DataFrame(rows, dtype=object)
    if Path(target).suffix == ".csv":
        data = table.to_csv(index=False, lineterminator="\n").encode()
    else:
        kinds = {name: set(map(type, column.dropna())) for name, column in table.items()}
        # A column of a file has one type.
        mixed = [name for name, types in kinds.items() if str in types and len(types) > 1]
        table[mixed] = table[mixed].map(str, na_action="ignore")
        try:
            data = table.infer_objects().to_parquet()
        except ImportError:
            raise InputError(f"{target} requires pyarrow; run: pip install 'fnlkit[parquet]'", parameter="tidy") from None
    saving.write_bytes([data], target)
