"""Agreement between the partners of a deployment.

It covers the project's settings and the conversion of a site's samples to the samples of the task.
"""

import os
import re
import tomllib
from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import files, large
from fnlkit.artifacts.paths import display_path, from_home
from fnlkit.artifacts.stored import Chosen
from fnlkit.datasets import cache_folder
from fnlkit.datasets.dates import FORMS, PARTS
from fnlkit.datasets.loading import load
from fnlkit.datasets.manifest import Manifest, is_manifest, open_manifest
from fnlkit.datasets.notation import is_notation
from fnlkit.datasets.sites import npz_of_one
from fnlkit.errors import InputError, list_names, nearest
from fnlkit.experiment.settings import Settings
from fnlkit.sites.backbone import encode_samples
from fnlkit.sites.releases import Withheld

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


# Settings that only the server uses, and the selection of one of the agreed tasks. A site does not compare them.
FREE = (
    "rounds",
    "seed",
    "min_replies",
    "max_update_ratio",
    "eval_every",
    "wait",
    "timeout",
    "server_data",
    "output",
    "task",
    "run",
    "scale",
)

# Setting of a refusal if only the file of the site contains it: its name stays at the site.
UNKNOWN = "UnknownEntry"

_UNIT = re.compile(r"(.*\S)\s*\[([^\[\]]*)\]\s*")  # age [years]


class NotAgreed(Withheld):
    """Error: the settings of a run differ from the settings that the site agreed to.

    Attributes
    ----------
    setting : str
        Name of the first setting that differs, which is sent to the server without the values. `UNKNOWN` for a name that only
        the file of the site contains.
    """

    code = "terms"

    def __init__(self, message, setting):
        super().__init__(message)
        self.setting = setting


def read_agreed_config(path: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration that a site agreed to, after comparing the run with it.

    Parameters
    ----------
    path : str
        The site's copy of the project's pyproject.toml.
    config : dict
        Configuration of the run, as written by its submitter.

    Raises
    ------
    NotAgreed
        If a setting differs, except those in `FREE`.
    InputError
        If the file cannot be read.
    """
    own = config_of(path)
    # A copy without keys comes from before the sites made them; keys bind client numbers at the server.
    free = FREE if own.get("keys") != "[]" else (*FREE, "keys")
    for name in sorted(set(own) | set(config)):
        if name not in free and (type(own.get(name)), own.get(name)) != (type(config.get(name)), config.get(name)):
            was, now = (repr(found.get(name))[:200] for found in (own, config))
            raise NotAgreed(
                f"agreed {display_path(path)}: {name} is {was}, in this run {now}; replace the file if you agree to the change",
                name if name in {*config, *(field.name for field in fields(Settings))} else UNKNOWN,
            )
    return {**config, **own} | {name: config[name] for name in ("task", "scale") if name in config}


def config_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the configuration in a project's pyproject.toml.

    Raises
    ------
    InputError
        If the file cannot be read.
    """
    text = files.read_text(from_home(path))
    try:
        own = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"agreed {display_path(path)}: is no pyproject.toml of `fnlkit flower-app` ({type(error).__name__}); "
            "give the site's copy of the project's"
        ) from None
    if not isinstance(own, dict):
        raise InputError(
            f"agreed {display_path(path)}: its [tool.flwr.app.config] is no table; give the site's copy of the project's"
        )
    return own


@large.discard_on_error()
def samples_like(text: str, task) -> "Dataset":
    """Return the Dataset of a site or of the server.

    If the task describes a table, the Dataset has the columns of the task.

    Parameters
    ----------
    text : str
        A table, a folder, an npz of a single site (x, y) or of all sites (x_train, y_train), or a spec.
    task : fnlkit.sites.project.Task

    Raises
    ------
    InputError
        If the samples do not fit the task. The message is a single line that names the file, and the column if a column is
        missing or contains an unknown category.
    """
    path = from_home(text)
    if is_manifest(text):
        table = table_like(text, task.columns)
        if ("path" in table.roles) != (task.columns is None):
            found = "names files" if "path" in table.roles else "holds features"
            wanted = f"{task.kind} samples without named columns" if task.columns is None else "rows of a table"
            raise InputError(
                f"{display_path(text)}: the table {found}, and the task is about {wanted}; give the samples in that form"
            )
        _must_have_levels(table.table, task.columns or ())
        return table.dataset(cache_folder(), learned=task.columns, of_site=True)
    if task.columns is not None:
        names = list_names(column["name"] for column in task.columns)
        raise InputError(f"{display_path(text)}: the task is about columns of a table ({names}); give a CSV or Parquet file")
    if (
        path.suffix == ".npz"
        and path.is_file()
        and {"x", "y"} <= set(large.open_arrays(path, decoded=cache_folder() / "decoded"))
    ):
        return npz_of_one(path, where=cache_folder())
    return load(text, of_site=True)


def table_like(text: str, columns: list[dict[str, Any]] | None) -> Manifest:
    """Return the Manifest of a site's table with the agreed names of columns.

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
    found = open_manifest(text)
    table, agreed = found.table, [column["name"] for column in columns or ()]
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
    return found


def _base_and_unit(name):
    """Return the name of a column without the unit in brackets, and the unit; "" if there is none."""
    match = _UNIT.fullmatch(name)
    return (match[1].strip(), match[2].strip()) if match else (name.strip(), "")


def load_for_task(text: str, task, *, leave_out: str = "", memory: str = "") -> "Dataset":
    """Return the Dataset of a site with the classes of the task, matched by name.

    Parameters
    ----------
    text : str
        As for `samples_like`.
    task : fnlkit.sites.project.Task
    leave_out : str
        Names of classes of this site whose samples are not used, separated by commas.
    memory : str
        Folder for features of the project's backbone.  Without it, images are not accepted in place of features.

    Raises
    ------
    InputError
        If the samples do not fit the task. The one-line message names the column or the class.
    """
    data = samples_like(text, task)
    if task.backbone_checksum and data.features is None and memory:
        data = encode_samples(data, task, text)
    shape = tuple(data.x_train.shape[1:])
    if (data.kind, shape) != (task.kind, task.shape):
        raise InputError(
            f"{display_path(text)}: the samples are {data.kind} {shape}, and the partners agreed on {task.kind} {task.shape}; "
            "give samples of this shape"
        )
    theirs = "" if data.features is None else str(data.features["backbone"])
    if theirs != task.backbone:
        raise InputError(
            f"{display_path(text)}: the samples are {theirs and f'features of {theirs}' or 'no features of a backbone'}, and "
            f"the partners agreed on {task.backbone or 'samples without a backbone'}; give the samples themselves"
        )
    names, left = list(map(str, data.class_names)), [name.strip() for name in leave_out.split(",") if name.strip()]
    if unknown := [name for name in left if name in task.classes or name not in names]:
        raise InputError(f"leave_out: {unknown[0]!r} is no additional class of this site; correct the name")
    extra = [name for name in names if name not in task.classes and name not in left]
    if extra:
        count, known = int((data.y_train == names.index(extra[0])).sum()), list_names(task.classes)
        raise InputError(
            f"{display_path(text)}: the class {extra[0]!r} ({count:,} samples) is none of the partners' classes ({known})"
            f"{nearest(extra[0], task.classes)}; rename it, "
            "or leave its samples out with leave_out"
        )
    number = np.array([task.classes.index(name) if name in task.classes else -1 for name in names], np.int64)
    train, test = number[data.y_train], number[data.y_test]
    kept, kept_test = np.flatnonzero(train >= 0), np.flatnonzero(test >= 0)
    if not len(kept):
        raise InputError(f"{display_path(text)}: no sample has a label of the partners' classes; check the labels")
    if len(kept) > task.most:
        raise InputError(
            f"{display_path(text)}: {len(kept):,} samples here, more than the {task.most:,} that the partners agreed on; write "
            "the project with a larger `max_samples`"
        )
    x = data.x_train, data.x_test
    return replace(
        data,
        y_train=train[kept],
        y_test=test[kept_test],
        class_names=list(task.classes),
        samples=lambda: (_select_samples(x[0], kept), _select_samples(x[1], kept_test)),
        ids=None if data.ids is None else np.asarray(data.ids)[kept],
        paths=None if data.paths is None else np.asarray(data.paths)[kept],
        fields={name: np.asarray(values)[kept] for name, values in data.fields.items()},
        groups=None if data.groups is None else data.groups[kept],
        groups_test=None if data.groups_test is None else data.groups_test[kept_test],
        y_train_true=None,
        observed=True,
        remember=lambda name, compute: compute(),
    )


def load_for_display(text: str, task, *, leave_out: str, memory: str) -> "Dataset":
    """Return the Dataset of a site for a page that people read: as `load_for_task`, with images instead of their features.

    The checksum is that of the features, with which runs compare the labels.

    Parameters
    ----------
    text, task, leave_out, memory
        As for `load_for_task`.
    """
    data = load_for_task(text, task, leave_out=leave_out, memory=memory)
    read = samples_like(text, task)
    if not task.backbone_checksum or read.features is not None:
        return data
    shape = tuple(read.x_train.shape[1:])
    shown_task = replace(task, kind=read.kind, shape=shape, backbone="", backbone_checksum="")
    images = load_for_task(text, shown_task, leave_out=leave_out)
    return replace(images, remember=lambda name, compute: data.checksum if name == "checksum" else compute())


def _select_samples(x, kept):
    if len(kept) == len(x):
        return x
    return x[kept] if isinstance(x, np.ndarray) else Chosen(x, kept)


def _must_have_levels(table, columns):
    """Raise InputError for a missing column, or for an unknown category with the row."""
    for column in columns:
        name = column["name"]
        table.must_have(name, "a column that the partners agreed on")
        if column["kind"] in ("number", "text", "date"):
            continue
        known = {*column["levels"], ""}
        odd = [row for row, text in enumerate(table.texts(name)) if text not in known]
        if odd:
            text, levels = table.texts(name)[odd[0]][:40], list_names(column["levels"])
            both = "correct the cell, or, if it is right, ask the coordinator to write the project from a table that has it"
            table.fail(odd, f"column {name!r} holds {text!r}, which the partners did not agree on ({levels}); {both}")


def columns_of(value: Any) -> list[dict[str, Any]] | None:
    """Return the checked column descriptions of a project's table.

    The format is described in fnlkit.datasets.columns.learn.

    Raises
    ------
    ValueError
    """
    if value is None:
        return None
    fields = {"number": ("fill", "missing"), "rank": ("levels", "fill", "missing"), "one-hot": ("levels",),
              "date": ("form", "fill", "missing")}  # fmt: skip
    right = {"fill": _is_number, "missing": lambda v: isinstance(v, bool), "levels": _are_texts,
             "form": lambda v: v in FORMS, "notation": is_notation}  # fmt: skip
    if not isinstance(value, list) or not value or len(value) > 10_000:
        raise ValueError("columns")
    for column in value:
        if not isinstance(column, dict) or not isinstance(column.get("name"), str) or column.get("kind") not in fields:
            raise ValueError("columns")
        wanted = fields[column["kind"]]
        right["fill"] = _are_three_numbers if column["kind"] == "date" else _is_number
        wanted = (*wanted, *({"notation"} & column.keys() if column["kind"] == "number" else ()))
        if set(column) != {"name", "kind", *wanted} or not all(right[name](column[name]) for name in wanted):
            raise ValueError("columns")
    if max(Counter(column["name"] for column in value).values()) > 1:
        raise ValueError("columns")
    return value


def _is_number(value):
    return isinstance(value, float | int) and not isinstance(value, bool) and abs(value) < float("inf")


def _are_three_numbers(value):
    return isinstance(value, list) and len(value) == len(PARTS) and all(map(_is_number, value))


def _are_texts(value):
    return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
