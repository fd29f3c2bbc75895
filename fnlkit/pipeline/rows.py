"""Rows that a caller gives in addition to a federation: embeddings and probabilities, as arrays, tables or files."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from fnlkit.artifacts.paths import display_path
from fnlkit.encoders.features import embed_samples, names_backbone
from fnlkit.estimators.absent_classes import class_columns, drop_absent
from fnlkit.estimators.rows import of_table, read_rows
from fnlkit.pipeline.types import FilePath

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.artifacts.stored import Rows
    from fnlkit.datasets.dataset import Dataset


def is_path(value: object) -> TypeGuard[FilePath]:
    """Return whether a value is a path."""
    return isinstance(value, (str, os.PathLike))


def source_of(value: object) -> str | None:
    """Return the name of a value in the provenance: the path, the type of the object, or None for None."""
    if value is None or is_path(value):
        return None if value is None else os.fspath(value)
    return f"{type(value).__name__} in memory"


def vectors_of(
    value: object,
    federation: Federation,
    dataset: Callable[[], Dataset],
    *,
    device: str = "auto",
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Return embeddings (n, d) of the training samples: rows of a file or an array, or computed by a backbone.

    Parameters
    ----------
    value : path, spec of a backbone, or array (n, d)
    federation : fnlkit.artifacts.federation.Federation
    dataset : callable
        Returns the data set; called only for a backbone.
    device : str
    progress : callable (done, total), optional

    Raises
    ------
    InputError
    """
    if is_path(value) and names_backbone(os.fspath(value)):
        return embed_samples(dataset(), os.fspath(value), device=device, progress=progress)
    return rows_of(value, "embeddings", federation)[0]


def count_features(progress: Callable[..., object], done: int, total: int) -> None:
    """Report the number of encoded samples."""
    progress(done, total, "features")


def rows_of(
    value: object, name: str, federation: Federation, say: Callable[[str], object] | None = None
) -> tuple[np.ndarray | Rows | None, str | None]:
    """Return (rows (n, d) or None, name of the source in the provenance).

    Parameters
    ----------
    value : path, array (n, d), DataFrame or None
        The columns of a DataFrame of probabilities are named after the classes.
    name : str
        embeddings or probabilities.
    federation : fnlkit.artifacts.federation.Federation
    say : callable(str), optional
        Called once with the classes that have a column of probabilities and no label.

    Raises
    ------
    InputError
        If the rows do not fit the federation.
    """
    rows: Any = value
    if name == "probabilities" and hasattr(rows, "columns"):
        columns = {str(column): rows[column].tolist() for column in rows.columns}
        return of_table(columns, federation, "`probabilities`", say), source_of(value)
    rows = read_rows(os.fspath(value), name, federation, say) if is_path(value) else rows
    shape = np.shape(rows) if not hasattr(rows, "shape") else rows.shape
    if name == "probabilities" and rows is not None and len(shape) == 2 and shape[1] != federation.classes:
        source = display_path(value) if is_path(value) else "`probabilities`"
        places = class_columns(shape[1], federation, source)
        absent = [str(place) for place in range(shape[1]) if place not in places]
        rows = drop_absent(rows, places, absent, source, say)
    return rows, source_of(value)
