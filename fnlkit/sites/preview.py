"""Check of a site's data before the site joins: problems, agreement with the project, and the data that would leave."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fnlkit.artifacts import message
from fnlkit.artifacts.stored import blocks
from fnlkit.client.inputs import intake
from fnlkit.datasets.manifest import is_manifest
from fnlkit.errors import list_names
from fnlkit.experiment.plan import Plan
from fnlkit.sites import project, replies, steps
from fnlkit.sites.folder import read_file
from fnlkit.sites.limits import Row
from fnlkit.sites.samples import load_for_task, samples_like, table_like
from fnlkit.sites.site import network_of

_BYTES = {"float64": 8, "float32": 4, "int64": 8}


def describe_data(text: str, path: str) -> dict[str, Any]:
    """Return a description of a site's data, which is read but not sent.

    Parameters
    ----------
    text : str
        The data, as for `fnlkit.sites.samples.samples_like`.
    path : str
        The site's copy of the project.

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
    agreed = project.read(path)
    settings = project.settings_of(agreed)
    data = samples_like(text, agreed)
    counts = np.bincount(data.y_train, minlength=len(data.class_names))
    missing, constant = _missing(text, agreed.columns), _constant(data)
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
    lacking = [name for name in agreed.classes if name not in held]
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
    if agreed.backbone_checksum and data.features is None:
        notes.append(f"features by {agreed.backbone} are computed here, once; the images stay as they are")
    if "train" in agreed.tasks and Plan.of(settings).reads_held_out and not out["test"]:
        problems.append(f"no test samples, which `select` {settings.select} of the project needs")
    if constant:
        problems.append(f"{constant:,} of {math.prod(out['shape']):,} columns are constant")
    return out | {"problems": problems}


def _missing(text, columns):
    """Return {column: number of empty cells} of a table; {} without empty cells."""
    if columns is None or not is_manifest(text):
        return {}
    table = table_like(text, columns).table
    counts = {column["name"]: sum(not cell.strip() for cell in table.texts(column["name"])) for column in columns}
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


def list_replies(text: str, path: str, leave_out: str = "", memory: str = "") -> list[dict[str, Any]]:
    """Return the replies that would leave a site, after checking that its samples fit the project.

    Parameters
    ----------
    text, path : str
        As in `describe_data`.
    leave_out, memory : str
        As in `fnlkit.sites.samples.load_for_task`.

    Returns
    -------
    list of dict
        task, name, shape, bytes (of one reply, at most; None if the size depends on all sites), what, when.

    Raises
    ------
    InputError
        If the samples do not fit. The one-line message names the column or the class.
    """
    agreed = project.read(path)
    data = load_for_task(text, agreed, leave_out=leave_out, memory=memory)
    samples, shape, out = len(data.y_train), intake(data)[2], []
    for task in agreed_tasks(agreed):
        network = network_of(task, shape)
        dtype = str(network.dtype).removeprefix("torch.")
        sizes = {"classes": len(agreed.classes), "samples": samples, "width": getattr(network.module, "width", 0)}
        declared, most = replies.replies_of(task), replies.open_sides(task)
        permitted = {reply for row in steps.table(task) for reply in row.replies}
        for reply, (kind, sides) in replies.declared_arrays(declared, **sizes, size=network.size, dtype=dtype).items():
            if reply not in permitted:
                continue
            known = [most.get(side, side) if isinstance(side, str) else side for side in sides]
            count = None if any(isinstance(side, str) for side in known) else _BYTES[kind] * math.prod(known)
            sent = declared.get(reply)
            what, when = ("weights of the model", "each round") if sent is None else (sent.what, sent.when)
            out.append({"task": task.name, "name": reply, "shape": list(sides), "bytes": count, "what": what, "when": when})
    return out


def list_rows(path: str) -> list[Row]:
    """Return the Rows of all agreed tasks that a site answers.

    Parameters
    ----------
    path : str
        The site's copy of the project.
    """
    return [row for task in agreed_tasks(project.read(path)) for row in steps.table(task)]


def agreed_tasks(agreed: project.Project) -> list[project.Task]:
    """Return the agreed tasks of a project, without the scale of the sites."""
    settings = project.deployable(project.settings_of(agreed), agreed)
    plan = Plan.of(settings)
    return [project.Task(name, agreed, settings, plan) for name in project.agreed_tasks(agreed, settings)]


def describe_reply(path: str, request: str, line: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each array of a reply.

    Parameters
    ----------
    path : str
        The site's copy of the project.
    request : str
        File with the request.
    line : dict
        Entry of the ledger about the reply.
    """
    if "arrays" not in line:
        return
    name = message.about_of(read_file(request))["task"]
    (task,) = (task for task in agreed_tasks(project.read(path)) if task.name == name)
    declared = replies.replies_of(task)
    for name, array in line["arrays"].items():
        what = declared[name].what if name in declared else "weights of the model"
        yield f"{name} {tuple(array['shape'])}, {array['bytes']:,} bytes: {what}"
