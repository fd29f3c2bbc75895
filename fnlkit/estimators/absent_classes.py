"""Probabilities with columns for classes that have no label in a federation, such as those of a global model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.core.errors import InputError, list_names

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


def class_texts(federation: Federation) -> list[str]:
    """Name the classes (C,) by texts; by numbers if they have no names."""
    return [str(name).strip() for name in federation.meta.get("class_names") or range(federation.classes)]


def select_classes(values: Any, federation: Federation, source: str, say: Callable[[str], object] | None) -> Any:
    """Drop the columns of classes without labels from probabilities (n, M) whose columns have no names.

    If there are more columns than classes, classes that are whole numbers are the numbers of their columns.

    Raises
    ------
    InputError
        If the columns of the classes are unknown.
    """
    names, shape = class_texts(federation), values.shape if hasattr(values, "shape") else np.shape(values)
    if len(shape) != 2 or shape[1] == len(names):
        return values
    number = shape[1]
    if number > len(names) and all(name.isdecimal() and int(name) < number for name in names):
        places = [int(name) for name in names]
        return drop_absent(values, places, [str(place) for place in range(number) if place not in places], source, say)
    raise InputError(
        f"{source} has {number} columns, but the federation has labels of {federation.classes} classes: "
        f"{list_names(names)}; name the columns (a csv with these names, or `class_names` in an npz)"
    )


def drop_absent(
    values: np.ndarray, places: Sequence[int], absent: Sequence[str], source: str, say: Callable[[str], object] | None
) -> np.ndarray:
    """Select the columns `places` of probabilities (n, M), divided by their sums, and print the absent classes once.

    A row without probability for the other classes becomes uniform. Rows of NaN, which are no samples of the table, remain.

    Raises
    ------
    InputError
        If a row of all columns does not sum to 1 within 0.001.
    """
    values = np.asarray(values)
    if not absent:
        return values if list(places) == list(range(values.shape[1])) else values[:, places]
    values = values.astype(np.float64)
    sums = values.sum(1)
    if (np.abs(sums - 1) > 1e-3).any():
        worst = int(np.nanargmax(np.abs(sums - 1)))
        raise InputError(
            f"{source}: row {worst + 1} sums to {sums[worst]:.6g}; expected 1 over the classes and {list_names(absent)}"
        )
    present = values[:, places]
    present[present.sum(1) <= 0] = 1
    if say is not None:
        say(f"{source}: no label of the federation is of class {list_names(absent)}; these columns are left out")
    return present / present.sum(1, keepdims=True)
