"""Classes of a label column, and labels as text."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.core.errors import InputError, nearest
from fnlkit.datasets.labels import classes_of, doubts
from fnlkit.datasets.table import Table

# A column of numbers with more distinct values is no column of classes, unless the spec names the task.
FEW_NUMBERS = 20
JOIN = "|"
OTHERS = "numbers, tags and several labels per sample are not read; cleanlab has functions for them"


@dataclass
class Targets:
    """Labels of n rows.

    Attributes
    ----------
    names : list of C str
        Names of the classes.
    labels : (n,) int64
        -1 if missing.
    true : like `labels`, or an empty array
    notes : list of str
    """

    names: list[str]
    labels: np.ndarray
    true: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    notes: list[str] = field(default_factory=list)

    @property
    def missing(self) -> np.ndarray:
        """Mask (n,) of rows without a label."""
        return np.asarray(self.labels < 0)


def read_targets(
    table: Table, column: str, *, task: str = "", true: str | None = None, others: Collection[str] = (), of_site: bool = False
) -> Targets:
    """Read the Targets in the label column of a table.

    Parameters
    ----------
    table : fnlkit.datasets.table.Table
    column : str
    task : str
        ``classification`` states that a column of many numbers has classes.
    true : str, optional
        Column of true labels.
    others, of_site
        As for `fnlkit.datasets.labels.classes_of`.

    Raises
    ------
    InputError
        If the task is another one, or if the labels are no classes.
    """
    if task not in ("", "classification"):
        raise InputError(f"task {task!r} is not supported{nearest(str(task), ['classification'])}; {OTHERS}")
    if not task:
        _must_be_classes(table, column)
    texts, known = table.texts(column), () if true is None else table.texts(true)
    names, labels, truth, notes = classes_of(texts, true=known, others=others, of_site=of_site)
    return Targets(names, labels, truth, [*notes, *doubts(names, labels)])


def _must_be_classes(table, column):
    """Raise InputError if a column has more than FEW_NUMBERS distinct numbers, or cells that join labels by ``|``."""
    if any(JOIN in text.strip(JOIN) for text in set(table.texts(column))):
        raise InputError(f'cells join several labels by {JOIN!r}; {OTHERS}, or write task="classification" in the spec')
    values, odd = table.numbers(column)
    distinct = np.unique(values[np.isfinite(values)])
    if not odd and len(distinct) > FEW_NUMBERS:
        raise InputError(
            f"{len(distinct):,} different numbers, {distinct[0]:g} to {distinct[-1]:g}; if they are classes, write "
            f'task="classification" in the data set\'s spec; {OTHERS}'
        )


def words(names: Sequence[str], labels: ArrayLike) -> list[str]:
    """Write labels (n,) as n texts."""
    return [names[label] for label in np.asarray(labels).tolist()]
