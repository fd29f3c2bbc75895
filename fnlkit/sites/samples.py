"""Samples of a site in the form that the partners agreed on: columns of a table, classes by name, features of a backbone."""

import re
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.artifacts import large
from fnlkit.artifacts.paths import display_path, from_home
from fnlkit.artifacts.stored import Chosen
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.datasets import cache_folder
from fnlkit.datasets.columns import unseen_rows
from fnlkit.datasets.copies import find_copies, separate
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.loading import load
from fnlkit.datasets.manifest import Manifest, is_manifest, open_manifest
from fnlkit.datasets.sites import npz_of_one
from fnlkit.sites.backbone import encode_samples

_UNIT = re.compile(r"(.*\S)\s*\[([^\[\]]*)\]\s*")  # age [years]


@large.discard_on_error()
def samples_like(text: str, project) -> Dataset:
    """Read the Dataset of a site or of the server.

    If the project describes a table, the Dataset has the columns of the project.

    Parameters
    ----------
    text : str
        A table, a folder, an npz of a single site (x, y) or of all sites (x_train, y_train), or a spec.
    project : fnlkit.sites.project.Project

    Raises
    ------
    InputError
        If the samples do not fit the task. The message is a single line that names the file, and the column if a column is
        missing or contains an unknown category.
    """
    path = from_home(text)
    if is_manifest(text):
        table = table_like(text, project.columns)
        if ("path" in table.roles) != (project.columns is None):
            content = "names files" if "path" in table.roles else "holds features"
            wanted = f"{project.kind} samples without named columns" if project.columns is None else "rows of a table"
            raise InputError(f"{display_path(text)}: the table {content}, and the task is about {wanted}; give such samples")
        _must_have_levels(table.table, project.columns or ())
        return table.dataset(cache_folder(), learned=project.columns, of_site=True)
    if project.columns is not None:
        if not path.exists():
            raise InputError(f"{display_path(text)}: no such file; give the table of this site")
        names = list_names(column["name"] for column in project.columns)
        raise InputError(f"{display_path(text)}: the task is about columns of a table ({names}); give a CSV or Parquet file")
    if (
        path.suffix == ".npz"
        and path.is_file()
        and {"x", "y"} <= set(large.open_arrays(path, decoded=cache_folder() / "decoded"))
    ):
        return npz_of_one(path, cache=cache_folder())
    return load(text, of_site=True)


def table_like(text: str, columns: list[dict[str, Any]] | None) -> Manifest:
    """Read a site's table with the agreed names of columns.

    A column name can end with a unit in brackets, as in ``age [years]``.  If only the project or only the site states a unit,
    the columns match, and a note of the table states it.

    Parameters
    ----------
    text : str
        As for `fnlkit.datasets.manifest.open_manifest`.
    columns : list of dict or None
        Agreed columns.

    Raises
    ------
    InputError
        If a column has another unit than agreed.  The message names the column and both units.
    """
    manifest = open_manifest(text)
    table, agreed = manifest.table, [column["name"] for column in columns or ()]
    for name in agreed:
        base, unit = _base_and_unit(name)
        alike = [other for other in table.columns if other not in agreed and _base_and_unit(other)[0] == base]
        if name in table.columns or len(alike) != 1:
            continue
        theirs = _base_and_unit(alike[0])[1]
        if unit and theirs and theirs != unit:
            raise InputError(
                f"{display_path(text)}: column {base!r} is in {theirs}, and the partners agreed on {unit}; convert the values, "
                f"and name the column {name!r}"
            )
        table.columns = {name if other == alike[0] else other: values for other, values in table.columns.items()}
        table.notes.append(f"column {base!r} is in {theirs or unit} {'here' if theirs else 'at the partners'}, "
                           f"and {'they state' if theirs else 'this table states'} no unit; compare the values")  # fmt: skip
    return manifest


def _base_and_unit(name):
    """Split the name of a column into the name without the unit in brackets, and the unit; "" if there is none."""
    match = _UNIT.fullmatch(name)
    return (match[1].strip(), match[2].strip()) if match else (name.strip(), "")


def load_for_task(text: str, project, *, leave_out: str = "", memory: str = "") -> Dataset:
    """Load the Dataset of a site with the classes of the task, matched by name.

    Parameters
    ----------
    text : str
        As for `samples_like`.
    project : fnlkit.sites.project.Project
    leave_out : str
        Names of classes of this site whose samples are not used, separated by commas.
    memory : str
        Folder for features of the project's backbone.  Without it, images are not accepted in place of features.

    Raises
    ------
    InputError
        If the samples do not fit the task. The one-line message names the column or the class.
    """
    data = samples_like(text, project)
    used, groups = separate(data, find_copies(data), "together", data.groups)
    if project.backbone_checksum and data.features is None and memory:
        data = encode_samples(data, project, text)
    shape = tuple(data.x_train.shape[1:])
    if (data.kind, shape) != (project.kind, tuple(project.shape)):
        raise InputError(
            f"{display_path(text)}: the samples are {data.kind} {shape}, and the partners agreed on {project.kind} "
            f"{tuple(project.shape)}; give samples of this shape"
        )
    theirs = "" if data.features is None else str(data.features["backbone"])
    if theirs != project.backbone:
        raise InputError(
            f"{display_path(text)}: the samples are {theirs and f'features of {theirs}' or 'no features of a backbone'}, and "
            f"the partners agreed on {project.backbone or 'samples without a backbone'}; give the samples themselves"
        )
    names, left = list(map(str, data.class_names)), [name.strip() for name in leave_out.split(",") if name.strip()]
    find = class_finder(project.classes)
    if unknown := [name for name in left if find(name) is not None or name not in names]:
        raise InputError(f"leave_out: {unknown[0]!r} is no additional class of this site; correct the name")
    extra = [name for name in names if find(name) is None and name not in left]
    if extra:
        count, known = int((data.y_train == names.index(extra[0])).sum()), list_names(project.classes)
        raise InputError(
            f"{display_path(text)}: the class {extra[0]!r} ({count:,} samples) is none of the partners' classes ({known})"
            f"{nearest(extra[0], project.classes)}; rename it, "
            "or leave its samples out with leave_out"
        )
    number = np.array([-1 if (c := find(name)) is None else c for name in names], np.int64)
    train, test = number[data.y_train], number[data.y_test]
    used_train, used_test = np.flatnonzero((train >= 0) & used), np.flatnonzero(test >= 0)
    if not len(used_train):
        raise InputError(f"{display_path(text)}: no sample has a label of the partners' classes; check the labels")
    if len(used_train) > project.max_samples:
        raise InputError(
            f"{display_path(text)}: {len(used_train):,} samples here, more than the {project.max_samples:,} that the partners "
            "agreed on; write the project with a larger `max_samples`"
        )
    x = data.x_train, data.x_test
    return replace(
        data,
        y_train=train[used_train],
        y_test=test[used_test],
        class_names=list(project.classes),
        order=np.arange(len(names)) if data.order is None else data.order,  # the checksum is that of the site's own labels
        samples=lambda: (_select_samples(x[0], used_train), _select_samples(x[1], used_test)),
        ids=None if data.ids is None else np.asarray(data.ids)[used_train],
        paths=None if data.paths is None else np.asarray(data.paths)[used_train],
        fields={name: np.asarray(values)[used_train] for name, values in data.fields.items()},
        groups=None if groups is None else groups[used_train],
        forms=None,
        whole=None if data.whole is None else lambda position: data.whole(used_train[position]),
        groups_test=None if data.groups_test is None else data.groups_test[used_test],
        y_train_true=None,
        observed=True,
        remember=lambda name, compute: compute(),
    )


def load_for_display(text: str, project, *, leave_out: str, memory: str) -> Dataset:
    """Load the Dataset of a site for a page: as `load_for_task`, with images instead of their features.

    The checksum is that of the features, with which runs compare the labels.

    Parameters
    ----------
    text, project, leave_out, memory
        As for `load_for_task`.
    """
    data = load_for_task(text, project, leave_out=leave_out, memory=memory)
    read = samples_like(text, project)
    if not project.backbone_checksum or read.features is not None:
        return data
    shape = tuple(read.x_train.shape[1:])
    shown = replace(project, kind=read.kind, shape=shape, backbone="", backbone_checksum="")
    images = load_for_task(text, shown, leave_out=leave_out)
    return replace(images, remember=lambda name, compute: data.checksum if name == "checksum" else compute())


def _select_samples(x, positions):
    if len(positions) == len(x):
        return x
    return x[positions] if isinstance(x, np.ndarray) else Chosen(x, positions)


def _must_have_levels(table, columns):
    """Raise InputError for a missing column, or for an unknown category with the row."""
    for column in columns:
        name = column["name"]
        table.must_have(name, "a column that the partners agreed on")
        texts = table.texts(name)
        odd = [row for row in unseen_rows(column, table, range(len(table))) if texts[row]]
        if odd:
            text, levels = texts[odd[0]][:40], list_names(column["levels"])
            both = "correct the cell, or, if it is right, ask the coordinator to write the project from a table that has it"
            table.fail(odd, f"column {name!r} holds {text!r}, which the partners did not agree on ({levels}); {both}")
