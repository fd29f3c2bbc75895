"""Answers of annotators: rows that name a sample, an annotator and labels, from tables and exports of annotation tools."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.dates import are_dates, read_times
from fnlkit.datasets.identifiers import TOOLS, USUAL, Asked, find_samples, normal_name, samples_of
from fnlkit.datasets.labels import vote_finder
from fnlkit.datasets.manifest import SPLITS
from fnlkit.datasets.roles import VOTE_ROLES
from fnlkit.datasets.table import Table


@dataclass
class Answers:
    """Answers of annotators, a row each.

    Attributes
    ----------
    source : str
        Name of the file in messages.
    columns : dict of str to list of m str
        Columns that can name the sample.
    controls : dict of str to list of m str
        Labels by question; "" for no answer.
    annotators, updated : list of m str
        "" if unknown.  Times are in ISO 8601, or in another form of which day and month are not in doubt.
    updated_column : str
        Name of the column with the times, or "".
    fail : callable(rows, text)
        Raises InputError that names the first row.
    doubtful, tools : tuple of str
        Columns that can be, and columns that are the number of the task in the tool.
    named : tuple of str
        Controls with a usual name of labels.
    notes : list of str
        What was left out.
    """

    source: str
    columns: dict[str, list[str]]
    controls: dict[str, list[str]]
    annotators: list[str]
    updated: list[str]
    fail: Callable[[Sequence[int], str], NoReturn]
    doubtful: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    updated_column: str = ""


@dataclass
class Labels:
    """Labels of samples by annotator, one per pair.

    Attributes
    ----------
    positions, labels : int (m,)
    annotators : list of m str
    rows : int (m,)
        Rows of the answers.
    """

    positions: np.ndarray
    labels: np.ndarray
    annotators: list[str]
    rows: np.ndarray


def is_answers(table: Table) -> bool:
    """Whether a table has a row per vote: a column with the annotator."""
    return bool(table.find_columns(*VOTE_ROLES["annotator"]))


def answers_of(table: Table) -> Answers:
    """Read the Answers of a table with a row per vote; rows of test samples and canceled rows are left out."""
    texts = {name: table.texts(name) for name in table.columns}
    by_role = {role: table.find_columns(*VOTE_ROLES[role]) for role in ("annotator", "label", "split")}
    annotator = by_role["annotator"][0]
    parts = texts[by_role["split"][0]] if by_role["split"] else []
    canceled = next((texts[name] for name in texts if normal_name(name) == "was_cancelled"), [])
    rows = [row for row in range(len(table)) if SPLITS.get((parts[row] if parts else "").lower()) != "test"]
    skipped = [row for row in rows if canceled and canceled[row].lower() in ("true", "1")]
    rows = sorted(set(rows) - set(skipped))
    texts = {name: [cells[row] for row in rows] for name, cells in texts.items()}
    names = {normal_name(name): name for name in texts}
    taken = {annotator, *by_role["split"], *(names[tool] for tool in TOOLS if tool in names)}
    times = [name for name in texts if name not in taken and are_dates(texts[name])]
    free = [name for name in texts if name not in {*taken, *times}]
    changed = [*(names[name] for name in ("updated_at", "created_at") if name in names), *times]
    tool = {"annotation_id", "lead_time"} <= names.keys()  # of Label Studio
    return Answers(
        source=str(table.source),
        columns={name: texts[name] for name in free},
        controls={name: texts[name] for name in free},
        annotators=texts[annotator],
        updated=texts[changed[0]] if changed else [""] * len(rows),
        updated_column=changed[0] if changed else "",
        fail=lambda some, text: table.fail([rows[row] for row in some], text),
        doubtful=tuple(name for name in free if tool and normal_name(name) == "id"),
        named=tuple(name for name in by_role["label"] if name in free),
        notes=[f"{len(skipped):,} canceled annotations are left out"] if skipped else [],
    )


def labels_of(
    answers: Answers, federation: Federation, *, control: str | None = None, sample_column: str | None = None
) -> Labels:
    """Select the Labels of answers: one label per sample and annotator, the newest.

    Parameters
    ----------
    answers : Answers
    federation : fnlkit.artifacts.federation.Federation
    control : str, optional
        The question whose answers are the labels.  Default: the one whose answers are classes (`choose_control`).
    sample_column : str, optional
        The column that names the samples.  Default: fnlkit.datasets.identifiers.find_samples.

    Raises
    ------
    InputError
        If an answer is not a class, a sample is unknown, or an annotator gave two labels to a sample at the same time.
    """
    names = class_names(federation.meta, federation.classes)
    find = vote_finder(names)
    control = choose_control(answers, names, control)
    words = answers.controls[control]
    classes_of_rows = [find(word) for word in words]
    rows = [row for row, label in enumerate(classes_of_rows) if label != -1]
    if not rows:
        return Labels(np.zeros(0, np.int64), np.zeros(0, np.int64), [], np.zeros(0, np.int64))
    if wrong := [row for row in rows if classes_of_rows[row] is None]:
        content = "several choices" if words[wrong[0]].startswith(("{", "[")) else f"label {words[wrong[0]][:80]!r}"
        others = [name for name in answers.controls if name != control and _has_only_classes(answers.controls[name], find)]
        hint = "; another question can be chosen by `control=NAME`" if others else ""
        answers.fail(wrong, f"{content} of {control!r} is not a class; the classes are {list_names(names)}{hint}")
    taken = {control, *answers.named}
    columns = {name: [texts[row] for row in rows] for name, texts in answers.columns.items() if name not in taken}
    asked = Asked(
        lambda some, text: answers.fail([rows[row] for row in some], text),
        answers.source,
        sample_column,
        doubtful=answers.doubtful,
        tools=answers.tools,
    )
    positions = find_samples(columns, samples_of(federation), asked)[1]
    labels = np.array([classes_of_rows[row] for row in rows], np.int64)
    keep = _newest(positions, labels, rows, answers, federation)
    return Labels(positions[keep], labels[keep], [answers.annotators[rows[i]] for i in keep], np.array(rows)[keep])


def _newest(positions, labels, rows, answers, federation):
    """Find the indices of the newest label of each sample and annotator."""
    last: dict[tuple[int, str], int] = {}
    times = read_times(answers.updated) if len(set(positions.tolist())) < len(positions) else []
    for i, position in enumerate(positions.tolist()):
        name = answers.annotators[rows[i]]
        before = last.setdefault((position, name), i)
        if before == i:
            continue
        when = times[rows[before]], times[rows[i]]
        known = not np.isnat(when).any() and when[0] != when[1]
        if not known and labels[before] != labels[i]:
            sample = federation.ids_of([position])[0]
            who = name or "somebody"
            time = next(
                (answers.updated[row] for row, t in zip((rows[i], rows[before]), when[::-1], strict=True) if np.isnat(t)), ""
            )
            unread = f"; {answers.updated_column!r} holds {time[:40]!r}: write times as 2024-03-31 14:05" if time else ""
            text = f"{who} has a vote on {sample!r} in an earlier row; one vote per sample and annotator{unread}"
            answers.fail([rows[i]], text)
        if known and when[1] > when[0]:
            last[position, name] = i
    return sorted(last.values())


def choose_control(answers: Answers, names: Iterable[str], control: str | None = None) -> str:
    """Choose the question whose answers are the labels.

    `control` if it is given.  Otherwise the only question, or the only one whose answers are all classes, where a usual name
    of labels comes first.

    Raises
    ------
    InputError
        If none or several fit.
    """
    questions = answers.controls
    if control is not None:
        if control not in questions:
            raise InputError(f"{answers.source}: no control {control!r}; there are {_list(questions)}")
        return control
    if len(questions) == 1:
        return next(iter(questions))
    if len(answers.named) == 1:
        return answers.named[0]
    find = vote_finder(names)
    free = [name for name in questions if normal_name(name) not in USUAL]
    fit = [name for name in answers.named or free if _has_only_classes(questions[name], find)]
    if len(fit) != 1:
        which = (
            f"{list_names(fit, quote=True)} have only classes" if fit else f"no question has only classes: {_list(questions)}"
        )
        raise InputError(f"{answers.source}: {which}; choose one by `control=NAME`")
    return fit[0]


def _has_only_classes(words, find):
    labels = {find(word) for word in set(words)} - {-1}
    return bool(labels) and None not in labels


def _list(questions):
    texts = []
    for name, words in questions.items():
        some = sorted(set(words) - {""})[:3]
        texts.append(f"{name!r} ({', '.join(repr(word[:20]) for word in some)})")
    return list_names(texts) or "none"
