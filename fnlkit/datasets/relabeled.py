"""Labels of people for a data set whose own labels are true, from a file next to it, for example CIFAR-10N."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fnlkit.artifacts import files
from fnlkit.components.spec import Spec
from fnlkit.datasets.dataset import Dataset
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
