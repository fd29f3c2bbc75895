"""Labels of all tasks: infer the task of a label column, read the labels, and write labels as text.

A task is ``classification``, ``ordinal`` (classes with an order), ``multilabel`` (any number of labels per sample),
``regression`` (numbers) or ``tokens`` (a tag for each word of a sentence).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fnlkit.artifacts.federation import TASKS, must_be_names
from fnlkit.datasets.columns import order_texts
from fnlkit.datasets.labels import classes_of, doubts
from fnlkit.errors import InputError, list_names, nearest

if TYPE_CHECKING:
    from fnlkit.datasets.table import Table


# A column of numbers with more distinct values is read as classes only if the user names the task.
FEW_NUMBERS = 20
JOIN, NONE = "|", "(none)"
_YES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1}
_HINT = 'write `fnlkit.partition(task="{}")`, or task="{}" in the data set\'s spec'


@dataclass
class Targets:
    """Labels of n rows.

    Attributes
    ----------
    task : str
    names : list of C str
        Names of the classes or labels, or the column of the number.
    labels : (n,) int64, (n, C) int8 for multilabel, or (n,) float64 for regression
        -1 or NaN if missing.
    true : like `labels`, or an empty array
    notes : list of str
    """

    task: str
    names: list[str]
    labels: np.ndarray
    true: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    notes: list[str] = field(default_factory=list)

    @property
    def missing(self) -> np.ndarray:
        """Mask (n,) of rows without a label."""
        bad = np.isnan(self.labels) if self.task == "regression" else self.labels < 0
        return np.asarray(bad.any(1) if bad.ndim == 2 else bad)


def read_targets(
    table: Table,
    columns: Sequence[str],
    *,
    task: str = "",
    levels: Sequence[str] | None = None,
    true: str | None = None,
    missing: str = "",
    others: Collection[str] = (),
    of_site: bool = False,
) -> Targets:
    """Return the Targets in the label columns of a table.

    Parameters
    ----------
    table : fnlkit.datasets.table.Table
    columns : sequence of str
        One label column, or several columns of 0 and 1.
    task : str
        One of `TASKS`.  Default: "", which infers the task by `task_of`.
    levels : sequence of str, optional
        Ordinal classes from the lowest to the highest.  Default: sorted numbers.
    true : str, optional
        Column of true labels; for classes only.
    missing : str
        Text of a missing label, in addition to the empty text.
    others, of_site
        As for `fnlkit.datasets.labels.classes_of`.

    Raises
    ------
    InputError
        If the task is unknown, or if the labels do not fit the task.
    """
    if task and task not in TASKS:
        raise InputError(f"task {task!r} is not supported{nearest(task, TASKS)}; supported are {', '.join(TASKS)}")
    chosen = task or task_of(table, columns, missing)
    if len(columns) > 1 and chosen != "multilabel":
        raise InputError(f"task {chosen!r} reads one label column, found {len(columns)}; several columns require multilabel")
    if levels and chosen != "ordinal":
        raise InputError('`levels` is the order of classes for task="ordinal"; omit `levels`')
    if true is not None and chosen in ("multilabel", "regression"):
        raise InputError(f"column {true!r}: true labels are read for classes only, and the task is {chosen}; omit the column")
    if chosen == "multilabel":
        found = _several(table, columns, missing)
    elif chosen == "regression":
        found = _numbers(table, columns[0], missing)
    else:
        texts, known = table.texts(columns[0]), () if true is None else table.texts(true)
        others = (*others, *(levels or ()))
        names, labels, truth = classes_of(texts, true=known, missing=missing, others=others, of_site=of_site)
        if chosen == "ordinal":
            names, labels, truth = _order(names, labels, truth, levels)
        notes = [text for text in doubts(names, labels) if chosen == "classification" or "ranges" not in text]
        found = Targets(chosen, names, labels, truth, notes)
    if chosen != "classification":
        found.notes.insert(0, f"task {chosen}: {_describe(found)}" + ("" if task else "; `task` selects another task"))
    return found


def task_of(table: Table, columns: Sequence[str], missing: str = "") -> str:
    """Return the task of label columns.

    Several columns, or cells that join several labels by ``|``, are multilabel.  A column with more than 20 distinct numbers
    is regression if any has a fraction, and must be declared if all are whole numbers.  Everything else is classification.

    Raises
    ------
    InputError
        If more than 20 distinct whole numbers can be classes, grades or amounts.
    """
    if len(columns) > 1:
        return "multilabel"
    texts = {text for text in table.texts(columns[0]) if text not in ("", missing)}
    if any(JOIN in text.strip(JOIN) for text in texts):
        return "multilabel"
    values, odd = table.numbers(columns[0])
    odd = [row for row in odd if table.texts(columns[0])[row] not in ("", missing)]
    distinct = np.unique(values[np.isfinite(values)])
    if odd or len(distinct) <= FEW_NUMBERS:
        return "classification"
    if (distinct % 1 != 0).any():
        return "regression"
    raise InputError(
        f"{len(distinct):,} different whole numbers, {distinct[0]:.0f} to {distinct[-1]:.0f}, can be classes or amounts; "
        f"{_HINT.format('classification', 'classification')} (or ordinal, or regression)"
    )


def _several(table, columns, missing):
    """Return the Targets of columns of 0 and 1, or of one column of labels joined by ``|``."""
    if len(columns) == 1:
        texts = table.texts(columns[0])
        bare = {"", missing}
        if {text for text in texts if text not in bare} <= _YES.keys():
            return _binary(table, columns, missing)
        parts = [None if text in bare else _parts(text) for text in texts]
        names = order_texts({part for each in parts if each for part in each})
        if not names:
            raise InputError("no label occurs; expected labels such as A|B")
        must_be_names(names, len(names))
        index = {name: c for c, name in enumerate(names)}
        labels = np.zeros((len(texts), len(names)), np.int8)
        for i, each in enumerate(parts):
            labels[i, [index[part] for part in each or ()]] = 1
            if each is None:
                labels[i] = -1
        return Targets("multilabel", names, labels)
    return _binary(table, columns, missing)


def _binary(table, columns, missing):
    labels, gaps = np.zeros((len(table), len(columns)), np.int8), 0
    for c, name in enumerate(columns):
        if JOIN in name:
            raise InputError(f"label column {name!r} contains {JOIN!r}; rename it")
        texts = [text.lower() for text in table.texts(name)]
        for i, text in enumerate(texts):
            if text in ("", missing.lower(), "nan"):
                labels[i, c] = -1
            elif text in _YES:
                labels[i, c] = _YES[text]
            else:
                table.fail([i], f"label column {name!r} is {text[:40]!r}; expected 0 or 1")
    gaps = int(((labels < 0).any(1) & (labels >= 0).any(1)).sum())
    notes = [f"{gaps:,} rows have some labels and lack others; they are treated as unlabeled"] if gaps else []
    empty = [name for c, name in enumerate(columns) if not (labels[:, c] == 1).any()]
    notes += [f"no sample has the label {', '.join(map(repr, empty))}"] if empty else []
    return Targets("multilabel", list(columns), labels, notes=notes)


def _numbers(table, column, missing):
    texts = table.texts(column)
    values, odd = table.numbers(column)
    odd = [row for row in odd if texts[row] != missing]
    if odd:
        table.fail(odd, f"target {column!r} is {texts[odd[0]][:40]!r}; expected a number")
    values = np.array(values, np.float64)
    values[[i for i, text in enumerate(texts) if missing and text == missing]] = np.nan
    known = values[np.isfinite(values)]
    if len(known) and (known == known[0]).all():
        raise InputError(f"all targets are {known[0]:g}; expected different numbers")
    lost = int(np.isnan(values).sum())
    return Targets("regression", [column], values, notes=[f"{lost:,} targets are missing"] if lost else [])


def _order(names, labels, true, levels):
    """Return (names, labels, true) in the order of `levels`."""
    if not levels:
        try:
            [float(name) for name in names]
        except ValueError:
            raise InputError(
                f"ordinal classes {list_names(names)} have no order; write levels=[LOWEST, ..., HIGHEST] in the data set's spec"
            ) from None
        return names, labels, true
    if sorted(levels) != sorted(names):
        odd = sorted(set(names) ^ set(levels)) or list(levels)
        raise InputError(f"`levels` and the labels differ in {odd[0]!r}; write each class once, from the lowest to the highest")
    place = np.array([list(levels).index(name) for name in names] + [-1])
    return list(levels), place[labels], place[true] if len(true) else true


def _describe(found):
    rows = int((~found.missing).sum())
    if found.task == "regression":
        known = found.labels[~found.missing]
        span = f"{known.min():g} to {known.max():g}" if len(known) else "none"
        return f"{rows:,} targets {found.names[0]!r}, {span}"
    return f"{rows:,} samples, {list_names(found.names)}"


def words(task: str, names: Sequence[str], labels: ArrayLike) -> list[str]:
    """Return labels (n, ...) as n texts.

    Examples
    --------
    >>> words("multilabel", ["edema", "nodule"], np.array([[1, 1], [0, 0]]))
    ['edema|nodule', '(none)']
    """
    if task == "regression":
        return [f"{value:.15g}" for value in np.asarray(labels).tolist()]
    if task == "multilabel":
        return [JOIN.join(names[c] for c in np.flatnonzero(row).tolist()) or NONE for row in np.asarray(labels)]
    return [names[label] for label in np.asarray(labels).tolist()]


def value_of(task: str, names: Sequence[str], text: str) -> int | float | np.ndarray | None:
    """Parse a text to a label, or return None if the text is no label of this task."""
    if task == "regression":
        try:
            value = float(text)
        except ValueError:
            return None
        return value if np.isfinite(value) and "_" not in text else None
    if task == "multilabel":
        row, parts = np.zeros(len(names), np.int8), _parts(text)
        if not text.strip() or not set(parts) <= set(names):
            return None
        row[[names.index(part) for part in parts]] = 1
        return row
    return names.index(text) if text in names else None


def _parts(text):
    return [] if text.strip() == NONE else [part.strip() for part in text.split(JOIN) if part.strip()]
