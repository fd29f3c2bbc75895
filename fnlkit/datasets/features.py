"""A data set seen through a frozen network: its embeddings in place of its samples, labels and truth as they are."""

import os
from dataclasses import replace
from functools import partial

from fnlkit.artefacts import files, large
from fnlkit.datasets.facts import remembered
from fnlkit.datasets.loading import cache_folder
from fnlkit.errors import InputError


def open_embeddings(path, option="--embeddings"):
    """Return the Artefact of `fnlkit embed`; arrays above 64 MiB stay in the file.

    Raises
    ------
    InputError
        When it is another file.
    """
    where = cache_folder()
    remember = partial(remembered, files=[path], where=where)
    found = large.open_artefact(path, kinds=["fnlkit.embeddings/1"], decoded=where / "decoded", remember=remember)
    if "embeddings" not in found.arrays:
        raise InputError(f"{option} {path}: has no array `embeddings` (n, d); make the file with `fnlkit embed`")
    width = found.arrays["embeddings"].shape[-1:]
    for name in ("embeddings", "test", "new"):
        rows = found.arrays.get(name)
        if rows is not None and (rows.ndim != 2 or rows.dtype.kind != "f" or rows.shape[1:] != width):
            raise InputError(
                f"{option} {path}: its array `{name}` is {rows.dtype} of shape {rows.shape}; expected floats (n, d), with the "
                "d of `embeddings`; make the file with `fnlkit embed`"
            )
    for name in ("checksum", "dataset", "backbone"):
        if not isinstance(found.meta.get(name, ""), str):
            raise InputError(f"{option} {path}: its `{name}` is no text; make the file with `fnlkit embed`")
    return found


def with_features(dataset, path):
    """Return the data set with embeddings, a row a sample, in place of its samples; its checksum stays the samples' own.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
    path : str
        A file of `fnlkit embed` over this data set, its test samples among it.

    Raises
    ------
    InputError
        When the file is of another data set or without test samples.
    """
    found = open_embeddings(path, "--features")
    train, test = found.arrays["embeddings"], found.arrays.get("test")
    if test is None and not len(dataset.y_test):
        test = train[:0]
    if test is None:
        raise InputError(f"--features {path}: holds no test samples; make it again with `fnlkit embed`")
    if len(train) != len(dataset.y_train) or len(test) != len(dataset.y_test):
        raise InputError(
            f"--features {path}: {len(train):,} and {len(test):,} vectors, {dataset.name} has {len(dataset.y_train):,} "
            f"training and {len(dataset.y_test):,} test samples; make them for this data set"
        )
    if found.meta.get("checksum") != dataset.checksum:
        raise InputError(
            f"--features {path}: made of {found.meta.get('dataset', 'another data set')}, whose content is another than "
            f"that of {dataset.name} (their checksums differ); make them for this data set"
        )
    own = dataset.checksum
    digest = remembered("digest", lambda: files.digest(found), files=[path], where=cache_folder())
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
