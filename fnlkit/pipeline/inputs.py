"""Inputs of a command: the federation, its data set, rows beside its samples, and the backbone that encodes them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeGuard

from numpy.typing import ArrayLike as ArrayLike

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.loading import to_dataset
from fnlkit.encoders.features import choose_backbone, embed_samples, names_backbone, with_backbone
from fnlkit.estimators.absent_classes import select_classes
from fnlkit.estimators.rows import of_table, read_rows

TYPE_CHECKING = False
if TYPE_CHECKING:  # Run imports torch, which many functions do not need
    from fnlkit.artifacts.run import Run

FilePath = str | os.PathLike[str]
# A name of `fnlkit data list`, a file or folder, or a data set in memory.
Samples = FilePath | Dataset
Labels = FilePath | Federation
Model: TypeAlias = "FilePath | Run"
# Receives a note; None prints nothing.
Say = Callable[[str], object] | None
# Receives the numbers of finished and of all steps, and what is computed.
Progress = Callable[[int, int, str], object] | None


def print_note(text: str) -> None:
    """Print a note as a line on stderr. This is the default of every ``say``."""
    print(text, file=sys.stderr)


def is_path(value: object) -> TypeGuard[FilePath]:
    """Return whether a value is a path."""
    return isinstance(value, (str, os.PathLike))


def name_source(value: object) -> str | None:
    """Return the name of an input in the provenance: path, name of a data set, type of another object, or None for None."""
    if value is None or isinstance(value, Dataset):
        return None if value is None else value.name
    return os.fspath(value) if is_path(value) else f"{type(value).__name__} in memory"


@dataclass(frozen=True, kw_only=True)
class Given:
    """Inputs of a command, each read once, on first use.

    Attributes
    ----------
    federation : Federation
    options : dict
        Options of the command; `dataset`, `embeddings` and `probabilities` are paths, specs, objects or None.
    backbone : str
        As for `fnlkit.encoders.features.choose_backbone`.
    device : str
    say : callable(str) or None
        Receives notes on unverified assumptions and on the choice of the backbone.
    progress : callable(done, total) or None
        Called while a backbone encodes samples.
    """

    federation: Federation
    options: Mapping[str, Any]
    backbone: str = "auto"
    device: str = "auto"
    say: Say = print_note
    progress: Callable[[int, int], object] | None = None

    @cached_property
    def dataset(self) -> Dataset:
        """The data set, by default from the location recorded in the federation."""
        chosen = self.options.get("dataset")
        return to_dataset(self.federation.dataset if chosen is None else chosen)

    @cached_property
    def checked(self) -> Dataset:
        """The data set, after a check that it is the one of the federation."""
        trust = must_be(self.dataset, self.federation.meta, len(self.federation.given), what="the federation")
        if trust and self.say:
            self.say(trust)
        return self.dataset

    @cached_property
    def encoded(self) -> Dataset:
        """The data set, encoded by the backbone if there is one."""
        return self.encode(choose_backbone(self.dataset, self.backbone, say=self.say))

    def encode(self, spec: str | None) -> Dataset:
        """Return the data set, encoded by another backbone."""
        return with_backbone(self.dataset, spec, device=self.device, progress=self.progress)

    def embed(self, spec: str) -> Any:
        """Return the vectors (n, d) of the training samples by another backbone."""
        return embed_samples(self.dataset, spec, device=self.device, progress=self.progress)

    @cached_property
    def embeddings(self) -> Any:
        """Vectors (n, d) of the training samples from a file, an array or the backbone that `embeddings` names; or None."""
        value = self.options.get("embeddings")
        if not is_path(value):
            return value
        path = os.fspath(value)
        return self.embed(path) if names_backbone(path) else read_rows(path, "embeddings", self.federation)

    @cached_property
    def probabilities(self) -> Any:
        """Class probabilities (n, C) from a file, an array or a DataFrame with a column for each class; or None."""
        rows: Any = self.options.get("probabilities")
        source = display_path(rows) if is_path(rows) else "`probabilities`"
        if hasattr(rows, "columns"):
            columns = {str(column): rows[column].tolist() for column in rows.columns}
            return of_table(columns, self.federation, source, self.say)
        rows = read_rows(os.fspath(rows), "probabilities", self.federation, self.say) if is_path(rows) else rows
        return None if rows is None else select_classes(rows, self.federation, source, self.say)


def read_inputs(federation: Labels, options: object = None, **changes: Any) -> Given:
    """Read the federation of a command, and compare it with a data set in `options`, even if no sample is needed.

    Parameters
    ----------
    federation : Federation, path or ``-``
    options : dataclass, optional
        Its fields `dataset`, `embeddings`, `probabilities`, `backbone`, `device`, `say` and `progress` are used.
    **changes
        Fields that differ from `options`.
    """
    if is_path(federation):
        federation = Federation.read(os.fspath(federation))
    elif not isinstance(federation, Federation):
        raise InputError(f"`federation` is {type(federation).__name__}; pass a Federation or the path of a file")
    chosen = {**({} if options is None else vars(options)), **changes}
    how: dict[str, Any] = {name: chosen[name] for name in ("backbone", "device", "say") if name in chosen}
    if progress := chosen.get("progress"):
        how["progress"] = lambda done, total: progress(done, total, "features")
    given = Given(federation=federation, options=chosen, **how)
    if chosen.get("dataset") is not None:
        _ = given.checked
    return given
