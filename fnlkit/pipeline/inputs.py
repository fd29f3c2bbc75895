"""Inputs of a command: the federation, its data set, groups, ledger and rows, and the backbone that encodes samples."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

from numpy.typing import ArrayLike as ArrayLike

from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset, must_be
from fnlkit.datasets.groups import of_federation
from fnlkit.datasets.loading import ledger_path, to_dataset
from fnlkit.encoders.features import choose_backbone, embed_samples, names_backbone, with_backbone
from fnlkit.estimators.rows import of_table, read_rows, select_classes

FilePath = str | os.PathLike[str]
Samples = FilePath | Dataset  # a name of `fnlkit data list`, a file or folder, or a data set in memory
Labels = FilePath | Federation
Model = FilePath | Run
Say = Callable[[str], object] | None  # receives a note; None prints nothing
Progress = Callable[[int, int, str], object] | None  # receives the numbers of finished and of all steps, and their name


def print_note(text: str) -> None:
    """Print a note as a line on stderr. This is the default of every ``say``."""
    print(text, file=sys.stderr)


def is_path(value: object) -> TypeGuard[FilePath]:
    """Whether a value is a path."""
    return isinstance(value, (str, os.PathLike))


def name_source(value: object) -> str | None:
    """Name an input in the provenance: path, name of a data set, type of another object, or None for None."""
    if value is None or is_path(value):
        return None if value is None else os.fspath(value)
    return value.name if isinstance(value, Dataset) else f"{type(value).__name__} in memory"


@dataclass(frozen=True, kw_only=True)
class Given:
    """Inputs of a command, each read once, on first use.

    Attributes
    ----------
    federation : Federation
    options : dict
        Of the command; `dataset`, `embeddings`, `probabilities` and `ledger` are paths, specs, objects or None.
    backbone, device : str
        As for `fnlkit.encoders.features.choose_backbone`.
    say, progress : callable or None
        Receive notes, and (done, total) while a backbone encodes samples.
    """

    federation: Federation
    options: Mapping[str, Any]
    backbone: str = "auto"
    device: str = "auto"
    say: Say = print_note
    progress: Callable[[int, int], object] | None = None

    @cached_property
    def dataset(self) -> Dataset:
        """The data set of the federation."""
        return self._dataset[0]

    @cached_property
    def _dataset(self) -> tuple[Dataset, str | None]:
        chosen = self.options.get("dataset")
        dataset = to_dataset(self.federation.dataset if chosen is None else chosen)
        return dataset, must_be(dataset, self.federation.meta, len(self.federation.given), what="the federation")

    @cached_property
    def checked(self) -> Dataset:
        """The data set, after the warning is printed; experiments and estimators print it themselves."""
        if (warning := self._dataset[1]) and self.say:
            self.say(warning)
        return self.dataset

    @cached_property
    def encoded(self) -> Dataset:
        """The data set, encoded by the backbone if there is one."""
        spec = choose_backbone(self.dataset, self.backbone, say=self.say)
        return with_backbone(self.dataset, spec, device=self.device, progress=self.progress)

    @cached_property
    def groups(self) -> Any:
        """The group (n,) of each training sample, or None."""
        return of_federation(self.federation)

    @cached_property
    def ledger(self) -> FilePath | None:
        """Path of the ledger, or None. Without `privacy_key`, draws follow from the seed, and nothing is released."""
        chosen, key = self.options.get("ledger"), self.options.get("privacy_key")
        return None if chosen is None and key is None else ledger_path(chosen, self.federation.dataset)

    @cached_property
    def embeddings(self) -> Any:
        """Vectors (n, d) of the training samples from a file, an array or the backbone that `embeddings` names; or None."""
        value = self.options.get("embeddings")
        if is_path(value) and names_backbone(os.fspath(value)):
            return embed_samples(self.dataset, os.fspath(value), device=self.device, progress=self.progress)
        return read_rows(os.fspath(value), "embeddings", self.federation) if is_path(value) else value

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
        Options of the command, as for `Given`; `changes` replace its fields.
    """
    if is_path(federation):
        federation = Federation.read(os.fspath(federation))
    elif not isinstance(federation, Federation):
        raise InputError(f"`federation` is {type(federation).__name__}; pass a Federation or the path of a file")
    chosen = {**({} if options is None else vars(options)), **changes}
    how: dict[str, Any] = {name: chosen[name] for name in ("backbone", "device", "say") if name in chosen}
    if progress := chosen.get("progress"):
        how["progress"] = lambda done, total: progress(done, total, "features")
    inputs = Given(federation=federation, options=chosen, **how)
    if chosen.get("dataset") is not None:
        _ = inputs.checked
    return inputs
