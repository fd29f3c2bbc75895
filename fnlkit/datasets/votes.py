"""Labels of several annotators: a data set with one row per vote instead of one row per sample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fnlkit.artifacts.federation import must_be_names
from fnlkit.artifacts.stored import SMALL, Chosen, Rows
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import Spec
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.labels import class_finder


def by_vote(dataset: Dataset) -> Dataset:
    """Load a data set with one row per vote.

    The samples of a row are those of the voted sample, the label is the vote, and the fields ``annotator`` and the id name the
    annotator.  A sample with three votes has three rows.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
        With `votes` (n, A).

    Raises
    ------
    InputError
        If the data set has no votes.
    """
    if dataset.sample_of is not None:
        return dataset
    if dataset.votes is None:
        raise InputError(
            f"{dataset.name}: contains no votes of annotators; give an npz with `votes_train` (n, A), -1 for no vote, or a "
            "table with a column `annotator` and one row per vote"
        )
    sample, annotator = np.nonzero(dataset.votes >= 0)
    names, truth = np.array(dataset.annotators), dataset.truth
    ids = np.arange(len(dataset.y_train)) if dataset.ids is None else dataset.ids

    def repeat(train: np.ndarray | Rows, test: np.ndarray | Rows) -> tuple[np.ndarray | Rows, np.ndarray | Rows]:
        small = isinstance(train, np.ndarray) and train.nbytes <= SMALL  # larger samples are not copied for each vote
        return (train[sample] if small else Chosen(train, sample)), test

    def content(order: np.ndarray) -> Iterator[bytes]:
        yield dataset.checksum.encode()
        yield np.ascontiguousarray(dataset.votes).tobytes()

    return replace(
        dataset,
        name=str(Spec("votes", {"data": dataset.name})),
        y_train=dataset.votes[sample, annotator].astype(np.int64),
        y_train_true=None if truth is None else truth[sample],
        observed=truth is None,
        test_true=dataset.test_verified,
        samples=lambda: repeat(dataset.x_train, dataset.x_test),
        encode=None if dataset.encode is None else lambda table: repeat(*dataset.encode(table)),
        shown=None if dataset.shown is None else [dataset.shown[i] for i in sample],
        content=content,
        remember=lambda name, compute: compute(),
        fields={name: values[sample] for name, values in dataset.fields.items()} | {"annotator": names[annotator]},
        ids=np.array([f"{ids[i]} by {name}" for i, name in zip(sample.tolist(), names[annotator].tolist(), strict=True)]),
        paths=None if dataset.paths is None else dataset.paths[sample],
        votes=None,
        forms=None if dataset.forms is None else lambda: ([dataset.forms()[0][i] for i in sample], dataset.forms()[1]),
        whole=None if dataset.whole is None else lambda position: dataset.whole(sample[position]),
        sample_of=sample,
        groups=None if dataset.groups is None else dataset.groups[sample],
    )


def whole_votes(values: np.ndarray) -> np.ndarray:
    """Convert votes of floats to whole numbers, NaN and masked entries to -1; other arrays are unchanged.

    Floats that are neither whole nor NaN are returned as they are.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = np.ma.filled(values.astype(np.float64), np.nan)
    if values.dtype.kind != "f":
        return values
    filled = np.where(np.isnan(values), -1, values)
    return filled.astype(np.int64) if (np.abs(filled) < 2**53).all() and (filled == np.round(filled)).all() else values


def check_votes(values: np.ndarray, names: np.ndarray | None, size: int, classes: int) -> tuple[np.ndarray, list[str]]:
    """Check (votes (n, A) int64, names of the annotators) of arrays, or raise InputError.

    Parameters
    ----------
    values : (n, A) int, or whole floats
        Labels by sample and annotator, -1 or NaN for no vote.
    names : (A,) texts or None
        Default: the numbers of the columns.
    size, classes : int
    """
    values = whole_votes(values)
    if values.ndim != 2 or values.dtype.kind not in "iu" or len(values) != size or not values.shape[1]:
        raise InputError(f"`votes_train` is {values.dtype} {values.shape}; expected whole numbers ({size:,}, A)")
    values = values.astype(np.int64)
    if values.min() < -1 or values.max() >= classes:
        raise InputError(f"`votes_train` has {values.min()} to {values.max()}; expected 0 to {classes - 1}, -1 for no vote")
    names = [str(a) for a in range(values.shape[1])] if names is None else names.reshape(-1).astype(str).tolist()
    must_be_names(names, values.shape[1], "annotator")
    return values, names


def as_matrix(cast: Sequence[Mapping[str, str]], class_names: Sequence[str]) -> tuple[np.ndarray, list[str]]:
    """Convert votes in words to (votes (n, A), names of the annotators).

    Parameters
    ----------
    cast : list of n dict
        Name of an annotator to the name of a class.
    class_names : list of C str
    """
    annotators = sorted({name for row in cast for name in row})
    column, find = {name: a for a, name in enumerate(annotators)}, class_finder(class_names)
    votes = np.full((len(cast), len(annotators)), -1, np.int64)
    for i, row in enumerate(cast):
        for name, word in row.items():
            label = find(word)
            if label is None:
                raise InputError(f"vote {word[:40]!r} of {name} is not a class; the classes are {list_names(class_names)}")
            votes[i, column[name]] = label
    return votes, annotators


def most_votes(values: np.ndarray) -> np.ndarray:
    """Find the most frequent vote (n,) of each sample, ties to the lower class, and -1 without a vote."""
    counts = count_votes(values, int(values.max()) + 1)
    return np.where((values >= 0).any(1), counts.argmax(1), -1)


def count_votes(values: np.ndarray, classes: int) -> np.ndarray:
    """Count the votes (n, C) int64 by sample and class.

    Parameters
    ----------
    values : int (n, A)
        -1 for no vote.
    classes : int
    """
    counts = np.zeros((len(values), classes), np.int64)
    sample, annotator = np.nonzero(values >= 0)
    np.add.at(counts, (sample, values[sample, annotator]), 1)
    return counts
