"""Labels of people for a data set whose own labels are true, from a file next to it, for example CIFAR-10N."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fnlkit.artifacts import files, paths
from fnlkit.components.spec import Spec
from fnlkit.datasets.dataset import Dataset, rows_at
from fnlkit.datasets.repositories import checked_file
from fnlkit.datasets.table import read_table
from fnlkit.errors import InputError, nearest

_MOST = 2**28


def relabel(dataset: Dataset, path: str, column: str) -> Dataset:
    """Return a data set with the labels of a file as given labels; its own labels are the true labels.

    Parameters
    ----------
    dataset : Dataset
    path : str
        An npz or a .pt with arrays (n,), or a CSV file with a header; one label per training sample, in the order of the data
        set.
    column : str
        Name of the array or of the column: classes as numbers from 0, or as names.

    Raises
    ------
    InputError
        If the file lacks the column or has another number of rows, or if a label is no class.
    """
    if dataset.task != "classification" or dataset.votes is not None:
        raise InputError(f"relabeled: {dataset.name} has no single class per sample; use a data set for classification")
    labels = classes_of(read_column(path, column), dataset.class_names, f"{path}, {column}")
    if len(labels) != len(dataset.y_train):
        raise InputError(
            f"{path}: {column!r} has {len(labels):,} labels, {dataset.name} has {len(dataset.y_train):,} training samples; "
            "give one label per sample, in the order of the data set"
        )

    def content() -> Iterator[bytes]:
        yield dataset.checksum.encode()
        yield np.ascontiguousarray(labels).tobytes()

    return replace(
        dataset,
        name=str(Spec("relabeled", {"data": dataset.name, "labels": path, "column": column})),
        y_train=labels,
        y_train_true=dataset.truth,
        observed=dataset.truth is None,
        test_true=True,
        content=content,
        remember=lambda name, compute: compute(),
    )


def cifar_n(dataset: Dataset, classes: int, column: str, *, where: Path, path: str = "") -> Dataset:
    """Return CIFAR-10 or CIFAR-100 with labels of CIFAR-N as given labels.

    A worker of CIFAR-100N labeled five consecutive images at a time and is their site.  The batches of CIFAR-10N fit no
    published order of the images, so that these images have no site.

    Parameters
    ----------
    dataset : Dataset
    classes : 10 or 100
    column : str
        As for `relabel`.
    where, path
        As for `fnlkit.datasets.repositories.checked_file`.

    Raises
    ------
    InputError
        If a file is missing or changed, or if its true labels are not those of the data set.
    """
    name = f"cifar{classes}n"
    labels = str(checked_file(name, f"data/CIFAR-{classes}_human.pt", where=where, path=path))
    if not np.array_equal(relabel(dataset, labels, "clean_label").y_train, dataset.y_train):
        raise InputError(f"{name}: {dataset.name} has other labels than CIFAR-{classes}; use all its images in their order")
    out = relabel(replace(dataset, observed=False), labels, column)  # also the labels of a user's npz are true here
    chosen = {"data": dataset.name} | ({"column": column} if classes == 10 else {})
    out.name = str(Spec(name, chosen | _absolute(path)))
    if classes == 100:
        batches = read_table(checked_file(name, "side_info_cifar100N.csv", where=where, path=path))
        out.fields = {**out.fields, "site": np.repeat(batches.texts("Worker-id"), 5)}
    return out


def judged_test_set(dataset: Dataset, name: str, *, where: Path, path: str = "") -> Dataset:
    """Return the test samples of a data set as training samples: published labels, and the verdict of five people.

    Northcutt 2021 asked five people about each label that cleanlab suspected.  The true label is the one that at least three
    of them chose; a sample without such a majority, or with one for both or neither label, is left out.  The labels of all
    other samples count as true.  The training samples of the data set are the test samples.

    Parameters
    ----------
    dataset : Dataset
    name : str
        mnist, cifar10 or cifar100.
    where, path
        As for `fnlkit.datasets.repositories.checked_file`.

    Raises
    ------
    InputError
        If the file is missing or changed, or if its labels are not those of the test set.
    """
    file = checked_file("label-errors", f"mturk/{name}_mturk.json", where=where, path=path)
    given, true, keep = dataset.y_test, dataset.y_test.copy(), np.ones(len(dataset.y_test), bool)
    for entry in json.loads(files.read_text(file)):
        i, votes = entry["id"], entry["mturk"]
        if i >= len(given) or given[i] != entry["given_original_label"]:
            raise InputError(f"label-errors: {dataset.name} has other labels than the test set of {name}; use all its images")
        keep[i] = max(votes["given"], votes["guessed"]) >= 3
        if votes["guessed"] >= 3:
            true[i] = entry["our_guessed_label"]
    rows = np.flatnonzero(keep)

    def content() -> Iterator[bytes]:
        yield dataset.checksum.encode()
        yield np.ascontiguousarray(true[rows]).tobytes() + rows.tobytes()

    return replace(
        dataset,
        name=str(Spec("label-errors", {"name": name, "data": dataset.name} | _absolute(path))),
        y_train=given[rows],
        y_train_true=true[rows],
        y_test=dataset.y_train if dataset.truth is None else dataset.truth,
        test_true=dataset.truth is not None,
        samples=lambda: (rows_at(dataset.x_test, rows), dataset.x_train),
        ids=rows.astype(str),
        paths=None,
        fields={},
        content=content,
        remember=lambda name, compute: compute(),
    )


def _absolute(path):
    return {"path": str(paths.resolve(path))} if path else {}


def read_column(path: str, column: str) -> np.ndarray:
    """Return an array (n,) of a file, or a column of a table; a pickle is never executed.

    Raises
    ------
    InputError
        If the file is unusable, or lacks the column.
    """
    found = {name: values for name, values in files.read_arrays(path, max_bytes=_MOST).items() if np.ndim(values) == 1}
    if column not in found:
        raise InputError(f"{path}: no column {column!r}{nearest(column, found)}; it has {', '.join(found) or 'none'}")
    return np.asarray(found[column])


def classes_of(values: np.ndarray, names: list[str], what: str) -> np.ndarray:
    """Return labels (n,) int64 of class names or of numbers from 0 to C - 1."""
    number = {name: i for i, name in enumerate(names)} | {str(i): i for i in range(len(names)) if str(i) not in names}
    if values.dtype.kind in "iu":
        if values.size and not 0 <= values.min() <= values.max() < len(names):
            raise InputError(f"{what}: labels are {values.min()} to {values.max()}, expected 0 to {len(names) - 1}")
        return values.astype(np.int64)
    try:
        return np.array([number[str(value)] for value in values.tolist()], np.int64)
    except KeyError as error:
        raise InputError(f"{what}: no class {error.args[0]!r}{nearest(error.args[0], names)}") from error
