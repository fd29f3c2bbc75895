"""Check of a site's data before the site joins: problems, agreement with the project, and the data that would leave."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fnlkit.artifacts import message
from fnlkit.core.errors import list_names
from fnlkit.datasets.manifest import is_manifest
from fnlkit.experiment.plan import Plan
from fnlkit.federated.client.inputs import intake
from fnlkit.sites import project
from fnlkit.sites.message_files import read_file
from fnlkit.sites.network import network_of
from fnlkit.sites.samples import load_for_task, samples_like, table_like
from fnlkit.sites.site import replies, steps

_WEIGHTS = "weights of the model", "each round"  # content and time of this reply


def describe_data(text: str, path: str) -> dict[str, Any]:
    """Describe a site's data, which is read but not sent.

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
    settings, data = project.settings_of(agreed), samples_like(text, agreed)
    counts = np.bincount(data.y_train, minlength=len(data.class_names)).tolist()
    classes = dict(zip(map(str, data.class_names), counts, strict=True))
    samples, unlabeled = len(data.y_train), 0 if data.unlabeled is None else len(data.unlabeled)
    missing, notes, problems = _missing(text, agreed.columns), list(map(str, data.notes)), []
    if missing:
        listed = list_names(f"{name} {count:,}" for name, count in missing.items())
        problems.append(f"empty cells, which get the value that the partners agreed on: {listed}")
    if unlabeled:
        problems.append(f"{unlabeled:,} samples have no label and are not used")
    if "train" in agreed.tasks and Plan.of(settings).reads_held_out and not len(data.y_test):
        problems.append(f"no test samples, which `select` {settings.select} of the project needs")
    if samples < 10:
        few = "1 sample" if samples == 1 else f"{samples} samples"
        notes.append(f"{few} with a label: this is allowed, but the level of wrong labels of this site stays uncertain")
    held = [name for name, count in classes.items() if count]
    if len(held) == 1:
        notes.append(f"all samples have the class {held[0]!r}; this is allowed")
    elif lacking := [name for name in agreed.classes if name not in held]:
        notes.append(f"no sample of the agreed classes {list_names(lacking)}; this is allowed")
    if agreed.backbone_checksum and data.features is None:
        notes.append(f"features by {agreed.backbone} are computed here, once; the images stay as they are")
    shape = list(map(int, data.x_train.shape[1:]))
    return {"kind": data.kind, "shape": shape, "samples": samples, "test": len(data.y_test), "classes": classes,
            "unlabeled": unlabeled, "missing": missing, "notes": notes, "problems": problems}  # fmt: skip


def _missing(text, columns):
    """Count the empty cells of a table {column: number}; {} without empty cells."""
    if columns is None or not is_manifest(text):
        return {}
    table = table_like(text, columns).table
    counts = {column["name"]: sum(not cell.strip() for cell in table.texts(column["name"])) for column in columns}
    return {name: count for name, count in counts.items() if count}


def list_replies(text: str, path: str, leave_out: str = "", memory: str = "") -> list[dict[str, Any]]:
    """List the replies that would leave a site, after checking that its samples fit the project.

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
    shape, rows = intake(data)[2], []
    for task in agreed_tasks(path):
        declared, most = replies.replies_of(task), replies.open_sides(task)
        arrays = replies.declared_arrays(task, network_of(task, shape), len(data.y_train))
        permitted = {reply for row in steps.table(task) for reply in row.replies}
        for name, (kind, sides) in arrays.items():
            if name in permitted:
                known: list[int | str] = [most.get(side, side) if isinstance(side, str) else side for side in sides]
                size = None if any(isinstance(side, str) for side in known) else np.dtype(kind).itemsize * math.prod(known)
                what, when = (declared[name].what, declared[name].when) if name in declared else _WEIGHTS
                rows.append({"task": task.name, "name": name, "shape": list(sides), "bytes": size, "what": what, "when": when})
    return rows


def agreed_tasks(path: str) -> list[project.Task]:
    """Read the agreed tasks of a site's copy of the project, without the scale of the sites."""
    agreed = project.read(path)
    settings = project.deployable(project.settings_of(agreed), agreed)
    return [project.Task(name, agreed, settings, Plan.of(settings)) for name in project.agreed_tasks(agreed, settings)]


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
    (declared,) = (replies.replies_of(task) for task in agreed_tasks(path) if task.name == name)
    for name, array in line["arrays"].items():
        content = declared[name].what if name in declared else _WEIGHTS[0]
        yield f"{name} {tuple(array['shape'])}, {array['bytes']:,} bytes: {content}"
