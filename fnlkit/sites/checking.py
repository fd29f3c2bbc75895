"""Check of a site's data before the site joins: problems, agreement with the project, and the data that would leave."""

import json
import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.stored import blocks
from fnlkit.client.inputs import intake
from fnlkit.datasets.manifest import is_manifest
from fnlkit.errors import InputError, list_names
from fnlkit.experiment.plan import Plan
from fnlkit.sites import gate_table, opening, replies, terms
from fnlkit.sites.agreement import config_of, load_for_task, samples_like, table_like

if TYPE_CHECKING:
    from fnlkit.experiment.settings import Settings
    from fnlkit.sites.terms import Task


_BYTES = {"float64": 8, "float32": 4, "int64": 8}


def read_agreed_task(path: str | os.PathLike[str], task: str | None = None) -> "tuple[Settings, Task]":
    """Return (Settings, Task) of a site's copy of the project, for one of the agreed tasks."""
    config = config_of(path)
    return terms.read_config(config if task is None else config | {"task": task})


def describe_data(text: str, path: str) -> dict[str, Any]:
    """Return a description of a site's data, which is read but not sent.

    Parameters
    ----------
    text : str
        The data, as for `fnlkit.sites.agreement.samples_like`.
    path : str
        The site's copy of the project's pyproject.toml.

    Returns
    -------
    dict
        kind, shape, samples, classes ({name: samples}), test, unlabeled, missing ({column of a table: empty cells}), notes,
        and problems (sentences).

    Raises
    ------
    InputError
        If the data cannot be read.
    """
    settings, task = read_agreed_task(path)
    data = samples_like(text, task)
    counts = np.bincount(data.y_train, minlength=len(data.class_names))
    missing, constant = _missing(text, task), _constant(data)
    out = {
        "kind": data.kind,
        "shape": list(map(int, data.x_train.shape[1:])),
        "samples": len(data.y_train),
        "test": len(data.y_test),
        "classes": dict(zip(map(str, data.class_names), counts.tolist(), strict=True)),
        "unlabeled": 0 if data.unlabeled is None else len(data.unlabeled),
        "missing": missing,
        "notes": list(map(str, data.notes)),
    }
    held = [name for name, count in out["classes"].items() if count]
    lacking = [name for name in task.classes if name not in held]
    problems, notes = [], out["notes"]
    if missing:
        listed = list_names(f"{name} {count:,}" for name, count in missing.items())
        problems.append(f"empty cells, which get the value that the partners agreed on: {listed}")
    if out["unlabeled"]:
        problems.append(f"{out['unlabeled']:,} samples have no label and are not used")
    if out["samples"] < 10:
        few = "1 sample" if out["samples"] == 1 else f"{out['samples']} samples"
        notes.append(f"{few} with a label: this is allowed, but the level of wrong labels of this site stays uncertain")
    if len(held) == 1:
        notes.append(f"all samples have the class {held[0]!r}; this is allowed")
    elif lacking:
        notes.append(f"no sample of the agreed classes {list_names(lacking)}; this is allowed")
    if task.backbone_checksum and data.features is None:
        notes.append(f"features by {task.backbone} are computed here, once; the images stay as they are")
    if "train" in task.judging.tasks and Plan.of(settings).reads_held_out and not out["test"]:
        problems.append(f"no test samples, which `select` {settings.select} of the project needs")
    if constant:
        problems.append(f"{constant:,} of {math.prod(out['shape']):,} columns are constant")
    return out | {"problems": problems}


def _missing(text, task):
    """Return {column: number of empty cells} of a table; {} without empty cells."""
    if task.columns is None or not is_manifest(text):
        return {}
    table = table_like(text, task.columns).table
    counts = {column["name"]: sum(not cell.strip() for cell in table.texts(column["name"])) for column in task.columns}
    return {name: count for name, count in counts.items() if count}


def _constant(data):
    """Return the number of constant columns of vectors."""
    if data.kind != "vector" or len(data.y_train) < 2:
        return 0
    low = high = np.asarray(data.x_train[:1])[0]
    for a, b in blocks(data.x_train):
        part = np.asarray(data.x_train[a:b])
        low, high = np.minimum(low, part.min(0)), np.maximum(high, part.max(0))
    return int((low == high).sum())


def leaving_of(text: str, path: str, leave_out: str = "", memory: str = "") -> list[dict[str, Any]]:
    """Return the data that would leave a site, after checking that its samples fit the project.

    Parameters
    ----------
    text, path : str
        As in `describe_data`.
    leave_out, memory : str
        As in `fnlkit.sites.agreement.load_for_task`.

    Returns
    -------
    list of dict
        task, name, shape, bytes (of one reply, at most; None if the size depends on all sites), what, when.

    Raises
    ------
    InputError
        If the samples do not fit. The one-line message names the column or the class.
    """
    _, first = read_agreed_task(path)
    data = load_for_task(text, first, leave_out=leave_out, memory=memory)
    samples, shape = len(data.y_train), intake(data)[2]
    rows = []
    for name in first.judging.tasks:
        settings, task = read_agreed_task(path, name)
        plan = Plan.of(settings)
        network = opening.network_of(plan, task, shape)
        dtype = str(network.dtype).removeprefix("torch.")
        sizes = {"classes": len(task.classes), "samples": samples, "width": getattr(network.module, "width", 0)}
        declared = replies.replies_of(task, plan)
        arrays = replies.declared_arrays(declared, **sizes, size=network.size, dtype=dtype)
        most = replies.open_sides(task)
        permitted = {reply for row in gate_table.table(plan, task) for reply in row.replies}
        for reply, (kind, sides) in arrays.items():
            if reply not in permitted:
                continue
            sent = declared.get(reply)
            known = [most.get(side, side) if isinstance(side, str) else side for side in sides]
            count = None if any(isinstance(side, str) for side in known) else _BYTES[kind] * math.prod(known)
            what, when = ("weights of the model", "each round") if sent is None else (sent.what, sent.when)
            rows.append({"task": name, "name": reply, "shape": list(sides), "bytes": count, "what": what, "when": when})
    return rows


def requests_of(path: str) -> list[gate_table.Row]:
    """Return the Rows of all agreed tasks, fnlkit.sites.gate_table.Row, that a site answers.

    Parameters
    ----------
    path : str
        The site's copy of the project's pyproject.toml.
    """
    _, first = read_agreed_task(path)
    rows: list[gate_table.Row] = []
    for name in first.judging.tasks:
        settings, task = read_agreed_task(path, name)
        rows += gate_table.table(Plan.of(settings), task)
    return rows


def set_keys(folder: Path, found: dict[str, str]) -> None:
    """Write the fingerprints of sites' keys into a project's pyproject.toml; other sites keep theirs.

    Parameters
    ----------
    folder : pathlib.Path
        The project.
    found : dict of str to str
        Fingerprint by the name of the site.
    """

    path = folder / "pyproject.toml"
    text = files.read_text(str(path))
    config = config_of(str(path))
    names = json.loads(config["names"])
    if unknown := [name for name in found if name not in names]:
        raise InputError(f"{unknown[0]}: is no site of the project ({list_names(names)}); name the file SITE.key.pub")
    keys = json.loads(config["keys"]) or [""] * len(names)
    keys = [found.get(name, key) for name, key in zip(names, keys, strict=True)]
    terms.must_be_of_sites(keys, len(names))
    line = f"keys = {json.dumps(json.dumps(keys))}"
    saving.write_bytes([re.sub(r"(?m)^keys = .*$", lambda match: line, text).encode()], str(path))
