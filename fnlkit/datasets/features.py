"""Replace the samples of a data set by embeddings of a frozen network."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fnlkit.artifacts import files, large
from fnlkit.artifacts.stored import Rows
from fnlkit.datasets.file_cache import cache_json
from fnlkit.datasets.loading import cache_folder
from fnlkit.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from fnlkit.artifacts.files import Artifact
    from fnlkit.datasets.dataset import Dataset


def open_embeddings(path: str | os.PathLike[str], option: str = "`embeddings`") -> Artifact:
    """Return the Artifact of `fnlkit embed`; arrays above 64 MiB stay on disk.

    Raises
    ------
    InputError
        If `fnlkit embed` has not written the file.
    """
    where = cache_folder()
    remember = partial(cache_json, files=[path], where=where)
    found = large.open_artifact(path, kinds=["fnlkit.embeddings/1"], decoded=where / "decoded", remember=remember)
    if "embeddings" not in found.arrays:
        raise InputError(f"{option} {path}: contains no array 'embeddings' (n, d); create the file with `fnlkit embed`")
    width = found.arrays["embeddings"].shape[-1:]
    for name in ("embeddings", "test", "new"):
        rows = found.arrays.get(name)
        if rows is not None and (rows.ndim != 2 or rows.dtype.kind != "f" or rows.shape[1:] != width):
            raise InputError(
                f"{option} {path}: array {name!r} is {rows.dtype} of shape {rows.shape}; expected floats (n, d) with the d of "
                "'embeddings'; create the file with `fnlkit embed`"
            )
    for name in ("checksum", "dataset", "backbone"):
        if not isinstance(found.meta.get(name, ""), str):
            raise InputError(f"{option} {path}: {name!r} is not a text; create the file with `fnlkit embed`")
    return found


def with_features(dataset: Dataset, path: Path) -> Dataset:
    """Return the data set with embeddings (one row per sample) instead of its samples.

    Labels, true labels and the checksum of the original samples are unchanged.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    path : str
        A file that `fnlkit embed` has computed from this data set, including the test samples.

    Raises
    ------
    InputError
        If the file belongs to another data set or lacks test samples.
    """
    found = open_embeddings(path, "`features`")
    train, test = found.arrays["embeddings"], found.arrays.get("test")
    if test is None and not len(dataset.y_test):
        test = train[:0]
    if test is None:
        raise InputError(f"`features` {path}: contains no test samples; create it again with `fnlkit embed`")
    if len(train) != len(dataset.y_train) or len(test) != len(dataset.y_test):
        raise InputError(
            f"`features` {path}: {len(train):,} and {len(test):,} vectors, but {dataset.name} has {len(dataset.y_train):,} "
            f"training and {len(dataset.y_test):,} test samples; run `fnlkit embed` for this data set"
        )
    if found.meta.get("checksum") != dataset.checksum:
        raise InputError(
            f"`features` {path}: computed from {found.meta.get('dataset', 'another data set')}, not from "
            f"{dataset.name}: the checksums differ; run `fnlkit embed` for this data set"
        )
    own = dataset.checksum
    digest = cache_json("digest", lambda: files.digest(found), files=[path], where=cache_folder())
    about = {"path": os.path.abspath(path), "sha256": digest, "backbone": found.meta.get("backbone")}
    return replace(
        dataset,
        kind="vector",
        samples=lambda: (train, test),
        statistics=None,
        sample_rate=0,
        features=about,
        remember=lambda name, compute: own if name == "checksum" else compute(),
    )


def with_vectors(dataset: Dataset, vectors: np.ndarray | Rows) -> Dataset:
    """Return the data set with vectors (n, d) of the training samples instead of its samples, and without test samples.

    Labels and the checksum of the original samples are unchanged. Networks standardize the vectors.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    vectors : float (n, d)
    """
    return replace(
        dataset,
        kind="vector",
        y_test=dataset.y_test[:0],
        samples=lambda: (vectors, vectors[:0]),
        statistics=None,
        sample_rate=0,
        features=None,
        columns=None,
        table=None,
        in_files=False,
        remember=lambda name, compute: dataset.checksum if name == "checksum" else compute(),
    )
