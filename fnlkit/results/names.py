"""Names of a recipe's rows next to its runs: the regime and the method's name in tables and figures."""

import json
import os
from typing import Any

from fnlkit.artifacts import saving
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError

FILE = "rows.json"
_MAX_BYTES = 2**26


def record_names(folder: str, rows: dict[str, dict[str, Any]]) -> None:
    """Record the names of runs in a folder; earlier names of other runs are kept.

    Parameters
    ----------
    folder : str
        Created if it is missing.
    rows : dict of str to dict
        ``regime`` and ``name`` by the run's file name without suffix.
    """
    os.makedirs(folder, exist_ok=True)
    before = read_names(folder)
    if before == before | rows:
        return
    saving.write_bytes([(json.dumps(before | rows, indent=0) + "\n").encode()], os.path.join(folder, FILE))


def read_names(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the names of the runs in a folder as `record_names` takes them, {} without a recipe.

    Raises
    ------
    InputError
        If the file has another form.
    """
    path = os.path.join(folder, FILE)
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            rows = json.loads(file.read(_MAX_BYTES))
        return {str(run): {word: str(row[word]) for word in ("regime", "name")} for run, row in rows.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not the names of a recipe's rows; remove it and start the recipe again") from error


def name_of(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the ``regime`` and ``name`` of a run's file, {} for a run of no recipe."""
    folder, file = os.path.split(os.path.abspath(path))
    return read_names(folder).get(file.removesuffix(".pt"), {})


def attach(run: Run, row: dict[str, Any]) -> Run:
    """Record the regime and the name of a recipe's row in a run, and return the run.

    A name that equals the method's text is left out.
    """
    row = {word: text for word, text in row.items() if word != "name" or text != run.settings["method"]}
    if row:
        run.meta["row"] = row
    return run
