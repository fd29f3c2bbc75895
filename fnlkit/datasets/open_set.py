"""Data sets with inputs of no class, which the noise model ``openset-inputs`` gives to clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from fnlkit.artifacts.stored import Chosen, Joined
from fnlkit.components.spec import Spec
from fnlkit.datasets.dataset import Dataset, rows_at
from fnlkit.datasets.layout import LAYOUTS
from fnlkit.errors import InputError, list_names
from fnlkit.kernels.streams import stream

SHUFFLED = "shuffled"


def add_inputs(dataset: Dataset, source: str, load: Callable[[str], Dataset], *, size: int = 0, number: int = 0) -> Dataset:
    """Return the data set with inputs of no class after its training samples.

    Parameters
    ----------
    dataset : Dataset
    source : str
        A data set whose training samples are the inputs, or ``shuffled``: each value of an input is the value of a random
        training sample at the same place, so that single features are distributed as in the data, and are independent.
    load : callable
        Returns the data set of a name.
    size : int
        Number of inputs, drawn at random.  Default: 0, all training samples of `source`, or as many as `dataset` has.
    number : int
        Another number draws other inputs.

    Raises
    ------
    InputError
        If the inputs have another shape or type than the samples, or if there are fewer than `size`.
    """
    _must_be_plain(dataset)
    base, rng = len(dataset.y_train), stream(number, "open-set")
    if source == SHUFFLED:
        count, origin = size or base, dataset.checksum
        inputs = lambda: _shuffle(dataset.x_train, count, stream(number, "open-set", 1))  # noqa: E731
    else:
        other = load(source)
        count, origin = size or len(other.y_train), other.checksum
        if count > len(other.y_train):
            raise InputError(f"open-set: size is {size:,}, but {source} has {len(other.y_train):,} training samples")
        rows = np.sort(rng.choice(len(other.y_train), count, replace=False))
        inputs = lambda: Chosen(_must_match(dataset, other), rows)  # noqa: E731

    def samples() -> tuple[np.ndarray | Joined, Any]:
        both = dataset.x_train, inputs()
        arrays = all(isinstance(part, np.ndarray) for part in both)
        return np.concatenate(both) if arrays else Joined(both), dataset.x_test

    def pad(values: np.ndarray | None, empty: object) -> np.ndarray | None:
        return None if values is None else np.concatenate([values, np.full(count, empty, np.asarray(values).dtype)])

    ids = None if dataset.ids is None else np.concatenate([dataset.ids, [f"no class {i}" for i in range(count)]])
    return _derive(
        dataset,
        {"source": source, "size": size, "number": number},
        origin,
        y_train=pad(dataset.y_train, 0),
        y_train_true=pad(dataset.y_train_true, 0),
        samples=samples,
        fields={name: np.concatenate([values, np.zeros(count, values.dtype)]) for name, values in dataset.fields.items()},
        ids=ids,
        paths=pad(dataset.paths, ""),
        shown=None if dataset.shown is None else [*dataset.shown, *([] for _ in range(count))],
        no_class=np.arange(base + count) >= base,
        groups=None if dataset.groups is None else np.append(dataset.groups, dataset.groups.max() + 1 + np.arange(count)),
    )


def hold_out(dataset: Dataset, classes: list[str | int]) -> Dataset:
    """Return the data set without some classes: their training samples have no class, and their test samples are dropped.

    Parameters
    ----------
    dataset : Dataset
    classes : list of str or int
        Names of classes.  At least two other classes must remain.

    Raises
    ------
    InputError
        If a class does not exist, if fewer than two remain, or if the data set has wrong labels.
    """
    _must_be_plain(dataset)
    if dataset.y_train_true is not None:
        raise InputError(f"open-set: {dataset.name} declares true labels next to others; `classes` requires one kind of label")
    names = [str(name) for name in classes]
    if unknown := [name for name in names if name not in dataset.class_names]:
        raise InputError(f"open-set: no class {unknown[0]!r}; known: {list_names(dataset.class_names)}")
    held = np.isin(dataset.class_names, names)
    if (~held).sum() < 2:
        raise InputError(f"open-set: {(~held).sum()} classes would remain; hold out fewer, so that 2 or more remain")
    code, tested = np.where(held, 0, np.cumsum(~held) - 1), np.flatnonzero(~held[dataset.y_test])
    return _derive(
        dataset,
        {"classes": names},
        "",
        y_train=code[dataset.y_train],
        y_test=code[dataset.y_test[tested]],
        groups_test=None if dataset.groups_test is None else dataset.groups_test[tested],
        class_names=[name for name, out in zip(dataset.class_names, held, strict=True) if not out],
        superclass=None if dataset.superclass is None else dataset.superclass[~held],
        samples=lambda: (dataset.x_train, rows_at(dataset.x_test, tested)),
        no_class=held[dataset.y_train],
    )


def _derive(dataset: Dataset, parameters: dict[str, Any], origin: str, **changes: Any) -> Dataset:
    """Return a changed copy with the name, the statistics and the checksum of an open-set data set."""
    spec = str(Spec("open-set", {"data": dataset.name, **parameters}))

    def content() -> Iterator[bytes]:
        yield from (text.encode() for text in (dataset.checksum, origin, str(parameters)))

    return replace(
        dataset,
        name=spec,
        statistics=(dataset.mean, dataset.std),  # inputs of no class do not affect them
        content=content,
        remember=lambda name, compute: compute(),
        layout=LAYOUTS[0],
        **changes,
    )


def _must_be_plain(dataset: Dataset) -> None:
    if dataset.votes is not None or dataset.sample_of is not None or dataset.no_class is not None:
        raise InputError(f"open-set: {dataset.name} must have one class per sample, no votes, and no inputs of no class yet")


def _must_match(dataset: Dataset, other: Dataset) -> Any:
    """Return the training samples of `other`; raise InputError unless they have the form of the samples of `dataset`."""
    here, there = dataset.x_train, other.x_train
    if dataset.kind != other.kind or here.shape[1:] != there.shape[1:] or here.dtype != there.dtype:
        raise InputError(
            f"open-set: the samples of {other.name} are {other.kind} {there.dtype} {tuple(there.shape[1:])}, those of "
            f"{dataset.name} {dataset.kind} {here.dtype} {tuple(here.shape[1:])}; choose a source of the same form"
        )
    return there


def _shuffle(x: Any, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return inputs (count, ...) with each value drawn from the values of x (n, ...) at the same place."""
    flat = np.asarray(x[:]).reshape(len(x), -1)
    out = np.empty((count, flat.shape[1]), flat.dtype)
    for j in range(flat.shape[1]):
        out[:, j] = flat[rng.integers(0, len(flat), count), j]
    return out.reshape(count, *x.shape[1:])
