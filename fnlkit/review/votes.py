"""Read the votes of annotators from arrays, data frames and tables: a label by sample and annotator, -1 for no vote."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts import files, paths
from fnlkit.datasets.class_names import vote_finder
from fnlkit.datasets.manifest import SPLITS, VOTE_ROLES
from fnlkit.datasets.table import Table, read_table
from fnlkit.errors import InputError

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation


def read_votes(path: str | os.PathLike[str], federation: "Federation") -> tuple[np.ndarray, list[str]]:
    """Return (votes (n, A) int64, names of the annotators) of a file.

    Parameters
    ----------
    path : str
        npz or npy with an array ``votes`` (n, A) as for `to_votes`, optionally ``annotators`` (A,); or a table (CSV, Parquet).
        The table has a column with the samples and one column per annotator, or one row per vote: columns for the sample, the
        annotator and the label, named as `fnlkit.datasets.manifest.VOTE_ROLES` lists.  Cells are class names; an empty cell,
        ``nan``, ``NA`` or -1 is no vote unless it is the name of a class.  An id is the federation's ``sample_id``, else its
        ``sample_path``, or the position of the sample if it has neither.
    federation : fnlkit.artifacts.federation.Federation

    Raises
    ------
    InputError
        Naming the file and the row.
    """
    name = os.fspath(path)
    if not name.lower().endswith((".npz", ".npy")):
        return _of_table(read_table(path), federation)
    arrays = files.read_arrays(path)
    votes = to_votes(files.pick({k: v for k, v in arrays.items() if k != "annotators"}, "", path), federation)[0]
    names = [str(each) for each in np.asarray(arrays.get("annotators", range(votes.shape[1]))).reshape(-1)]
    if len(names) != votes.shape[1] or len(set(names)) < len(names):
        raise InputError(f"{paths.display_path(name)}: `annotators` must be {votes.shape[1]} different names")
    return votes, names


def to_votes(values: Any, federation: "Federation") -> tuple[np.ndarray, list[str]]:
    """Return (votes (n, A) int64, names of the annotators) of an array or data frame.

    Parameters
    ----------
    values : array (n, A) or pandas.DataFrame
        Whole numbers, or texts with class names.  No vote is -1, NaN, None, or a text such as ``NA``.  A data frame has a
        column per annotator, and the samples are its column of ids or its index; or a row per vote, as a table.
    federation : fnlkit.artifacts.federation.Federation

    Raises
    ------
    InputError
        If values are neither classes nor missing, or if the shape does not fit the federation.
    """
    if hasattr(values, "columns"):
        return _of_table(_frame(values, len(federation.given)), federation)
    votes, size = np.asarray(values), len(federation.given)
    if votes.ndim != 2 or len(votes) != size or not votes.shape[1] or votes.dtype.kind not in "iufUOT":
        found = f"{votes.dtype} {votes.shape}"
        raise InputError(f"`votes` is {found}; expected labels ({size:,}, A), one column per annotator")
    if votes.dtype.kind in "UOT":
        find = _reader(federation)
        texts, place = np.unique(["" if each is None else str(each) for each in votes.reshape(-1)], return_inverse=True)
        classes = [find(text) for text in texts.tolist()]
        if None in classes:
            raise InputError(
                f"`votes` has {str(texts[classes.index(None)])[:40]!r}; expected one of the classes {_words(federation)}"
            )
        return np.array(classes, np.int64)[place].reshape(votes.shape), _numbers(votes)
    if votes.dtype.kind == "f":
        votes = np.where(np.isnan(votes), -1, votes)
        if (odd := votes[(votes != np.round(votes)) | np.isinf(votes)]).size:
            raise InputError(
                f"`votes` has {odd[0]}; expected whole numbers from 0 to {federation.classes - 1}, NaN for no vote"
            )
    if votes.min() < -1 or votes.max() >= federation.classes:
        raise InputError(
            f"`votes` has values {votes.min()} to {votes.max()}; expected 0 to {federation.classes - 1}, or -1 for no vote"
        )
    return votes.astype(np.int64), _numbers(votes)


def _numbers(votes):
    return [str(a) for a in range(votes.shape[1])]


def _words(federation):
    return ", ".join(list(map(str, federation.meta.get("class_names") or range(federation.classes)))[:12])


def _reader(federation) -> Callable[[str], int | None]:
    return vote_finder(federation.meta.get("class_names") or range(federation.classes))


def _frame(frame, size):
    """Return the Table of a data frame; its index is the column ``id`` unless a column names the samples."""
    columns = {str(name): ["" if value is None else str(value) for value in frame[name].tolist()] for name in frame.columns}
    table = Table("`votes`", columns, list(range(1, len(frame) + 1)))
    if not table.find_columns(*VOTE_ROLES["id"], *VOTE_ROLES["path"]):
        table.columns = {"id": [str(value) for value in frame.index.tolist()], **columns}
    return table


def _of_table(table, federation):
    annotator, label = (table.find_columns(*VOTE_ROLES[role]) for role in ("annotator", "label"))
    samples, cast = _by_row(table, annotator[0], label[0]) if annotator and label else _by_column(table)
    place, find = _places(federation), _reader(federation)
    votes = np.full((len(federation.given), len(cast)), -1, np.int64)
    labels = {name: {row: found for row, word in words.items() if (found := find(word)) != -1} for name, words in cast.items()}
    if unknown := [row for votes_of in labels.values() for row in votes_of if samples[row] not in place]:
        table.fail(sorted(set(unknown)), f"no sample {samples[min(unknown)]!r} in the federation")
    for a, (name, votes_of) in enumerate(labels.items()):
        for row, found in votes_of.items():
            if found is None:
                table.fail([row], f"vote of {name} is {cast[name][row]!r}; expected one of the classes {_words(federation)}")
            if votes[place[samples[row]], a] >= 0:
                table.fail([row], f"{name} has a vote on {samples[row]!r} in an earlier row; one vote per sample and annotator")
            votes[place[samples[row]], a] = found
    return votes, list(cast)


def _by_column(table):
    """Return (samples, {annotator: {row: label}}) of a table with a column per annotator."""
    ids = table.find_columns(*VOTE_ROLES["id"]) or table.find_columns(*VOTE_ROLES["path"])
    if len(ids) != 1:
        table.must_have("id", "votes")
    names = [name for name in table.columns if name != ids[0]]
    if not names:
        raise InputError(f"{paths.display_path(table.source)}: no column except id; expected one column per annotator")
    return table.texts(ids[0]), {name: dict(enumerate(table.texts(name))) for name in names}


def _by_row(table, annotator, label):
    """Return (samples, {annotator: {row: label}}) of a table with a row per vote; rows of test samples are skipped."""
    named = table.find_columns(*VOTE_ROLES["id"]) or table.find_columns(*VOTE_ROLES["path"])
    if not named:
        table.must_have("id", "votes")
    split, out = table.find_columns(*VOTE_ROLES["split"]), {}
    parts: Sequence[str] = table.texts(split[0]) if split else [""] * len(table)
    for row, (name, word, part) in enumerate(zip(table.texts(annotator), table.texts(label), parts, strict=True)):
        if word and SPLITS.get(part.lower()) != "test":
            if not name:
                table.fail([row], f"no {annotator}; each vote is somebody's")
            out.setdefault(name, {})[row] = word
    return table.texts(named[0]), out


def _places(federation):
    """Return the position of each sample by its id and by its path; by its position for a federation without either."""
    known = [federation.extra[name] for name in ("sample_path", "sample_id") if name in federation.extra]
    return {str(text): i for part in known or [range(len(federation.given))] for i, text in enumerate(part)}
