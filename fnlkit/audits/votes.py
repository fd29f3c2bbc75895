"""Read the votes of annotators from arrays, data frames and tables: a label by sample and annotator, -1 for no vote."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.artifacts.paths import display_path
from fnlkit.audits.annotation_exports import is_export, read_answers
from fnlkit.audits.answers import answers_of, is_answers, labels_of
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.dates import are_dates
from fnlkit.datasets.identifiers import Asked, can_name, find_samples, samples_of
from fnlkit.datasets.labels import vote_finder
from fnlkit.datasets.roles import VOTE_ROLES
from fnlkit.datasets.table import from_frame, read_table, read_text
from fnlkit.datasets.votes import whole_votes


def read_votes(
    path: str | os.PathLike[str],
    federation: Federation,
    *,
    control: str | None = None,
    sample_column: str | None = None,
    say: Callable[[str], object] | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Read (votes (n, A) int64, names of the annotators) of a file.

    Parameters
    ----------
    path : str
        npz or npy with an array ``votes`` (n, A) as for `to_votes`, optionally ``annotators`` (A,); an export of Label Studio
        (JSON) or CVAT (XML), see fnlkit.audits.annotation_exports; or a table (CSV, Parquet).  The table has a column with the
        samples and one column per annotator, or one row per vote: columns for the sample, the annotator and the label, named
        as `fnlkit.datasets.roles.VOTE_ROLES` lists.  Cells are class names; an empty cell, ``nan``, ``NA`` or -1 is no vote
        unless it is the name of a class.
    federation : fnlkit.artifacts.federation.Federation
    control, sample_column : str, optional
        Column or control with the labels, of a table with a row per vote or an export, and column that names the samples.
        Default: fnlkit.audits.answers.choose_control and fnlkit.datasets.identifiers.find_samples.
    say : callable(str), optional
        Receives notes on what was left out.

    Raises
    ------
    InputError
        Naming the file and the row.
    """
    name = os.fspath(path)
    if is_export(name):
        answers = read_answers(read_text(name), federation, name)
        if say is not None:
            for note in answers.notes:
                say(note)
        return _of_answers(answers, federation, control, sample_column)
    if not name.lower().endswith((".npz", ".npy")):
        return _of_table(read_table(path), federation, control, sample_column)
    arrays = files.read_arrays(path)
    votes = to_votes(files.pick({k: v for k, v in arrays.items() if k != "annotators"}, "", path), federation)[0]
    names = [str(each) for each in np.asarray(arrays.get("annotators", range(votes.shape[1]))).reshape(-1)]
    if len(names) != votes.shape[1] or len(set(names)) < len(names):
        raise InputError(f"{display_path(name)}: `annotators` must be {votes.shape[1]} different names")
    return votes, names


def to_votes(
    values: Any, federation: Federation, *, control: str | None = None, sample_column: str | None = None
) -> tuple[np.ndarray, list[str]]:
    """Convert an array or data frame to (votes (n, A) int64, names of the annotators).

    Parameters
    ----------
    values : array (n, A) or pandas.DataFrame
        Whole numbers, or texts with class names.  No vote is -1, NaN, None, masked, or a text such as ``NA``.  A data frame
        has a column per annotator, and the samples are its column of ids or its index; or a row per vote, as a table.
    federation : fnlkit.artifacts.federation.Federation
    control, sample_column : str, optional
        As for `read_votes`, of a data frame.

    Raises
    ------
    InputError
        If values are neither classes nor missing, or if the shape does not fit the federation.
    """
    if hasattr(values, "columns"):
        table, size = _frame(values), len(federation.given)
        in_order = values.index.tolist() == list(range(size)) and "index" in table.columns
        if is_answers(table) or not in_order:
            return _of_table(table, federation, control, sample_column)
        return to_votes(values.to_numpy(object), federation)[0], list(map(str, values.columns))
    votes, size = whole_votes(np.asanyarray(values)), len(federation.given)
    if votes.ndim != 2 or len(votes) != size or not votes.shape[1] or votes.dtype.kind not in "iufUOT":
        form = f"{votes.dtype} {votes.shape}"
        raise InputError(f"`votes` is {form}; expected labels ({size:,}, A), one column per annotator")
    if votes.dtype.kind in "UOT":
        names = class_names(federation.meta, federation.classes)
        find = vote_finder(names)
        texts, place = np.unique(["" if each is None else str(each) for each in votes.reshape(-1)], return_inverse=True)
        classes = [find(text) for text in texts.tolist()]
        if None in classes:
            raise InputError(f"`votes` has {str(texts[classes.index(None)])[:40]!r}; expected one of {list_names(names)}")
        return np.array(classes, np.int64)[place].reshape(votes.shape), _numbers(votes)
    if votes.dtype.kind == "f":
        odd = votes[~np.isnan(votes) & ((votes != np.round(votes)) | (np.abs(votes) >= 2**53))]
        raise InputError(f"`votes` has {odd[0]}; expected whole numbers from 0 to {federation.classes - 1}, NaN for no vote")
    if votes.min() < -1 or votes.max() >= federation.classes:
        raise InputError(
            f"`votes` has values {votes.min()} to {votes.max()}; expected 0 to {federation.classes - 1}, or -1 for no vote"
        )
    return votes.astype(np.int64), _numbers(votes)


def _numbers(votes):
    return [str(a) for a in range(votes.shape[1])]


def _frame(frame):
    """Convert a data frame to a Table; its index is the column ``index`` unless a column names the samples."""
    table = from_frame(frame, "`votes`", list(range(1, len(frame) + 1)))
    if not table.find_columns(*VOTE_ROLES["id"], *VOTE_ROLES["path"]):
        table.columns = {"index": [str(value) for value in frame.index.tolist()], **table.columns}
    return table


def _of_table(table, federation, control, sample_column):
    if is_answers(table):
        return _of_answers(answers_of(table), federation, control, sample_column)
    samples, classes = samples_of(federation), class_names(federation.meta, federation.classes)
    find = vote_finder(classes)
    texts = {name: table.texts(name) for name in table.columns}
    names = [name for name in texts if name != sample_column and not can_name(name, texts[name], samples)]
    if not names:
        raise InputError(f"{display_path(table.source)}: no column with votes; expected one column per annotator")
    labels = {name: [find(word) for word in texts[name]] for name in names}
    rows = [row for row in range(len(table)) if any(labels[name][row] != -1 for name in names)]
    others = [name for name in texts if name not in names and (name == sample_column or not are_dates(texts[name]))]
    columns = {name: [texts[name][row] for row in rows] for name in others}
    asked = Asked(lambda some, text: table.fail([rows[row] for row in some], text), display_path(table.source), sample_column)
    place = find_samples(columns, samples, asked)[1].tolist() if rows else []
    votes = np.full((len(federation.given), len(names)), -1, np.int64)
    for a, name in enumerate(names):
        for row, position in zip(rows, place, strict=True):
            if (label := labels[name][row]) == -1:
                continue
            if label is None:
                word = texts[name][row][:80]
                table.fail([row], f"vote of {name} is {word!r}; expected one of the classes {list_names(classes)}")
            if votes[position, a] >= 0:
                sample = federation.ids_of([position])[0]
                table.fail([row], f"{name} has a vote on {sample!r} in an earlier row; one vote per sample and annotator")
            votes[position, a] = label
    return votes, names


def _of_answers(answers, federation, control, sample_column):
    """Convert Answers to (votes (n, A), names of the annotators)."""
    newest = labels_of(answers, federation, control=control, sample_column=sample_column)
    if "" in newest.annotators:
        answers.fail([int(newest.rows[newest.annotators.index("")])], "no annotator; each vote is somebody's")
    voters = set(newest.annotators)
    names = [name for name in dict.fromkeys(answers.annotators) if name in voters]
    column = {name: a for a, name in enumerate(names)}
    votes = np.full((len(federation.given), len(names)), -1, np.int64)
    votes[newest.positions, [column[name] for name in newest.annotators]] = newest.labels
    return votes, names
