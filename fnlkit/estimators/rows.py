"""Read embeddings or probabilities of the training samples from a file.

Probabilities can have columns for classes that have no label in a federation, such as those of a global model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np

from fnlkit.artifacts import large
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.names import class_names
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.stored import blocks
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.identifiers import TOOLS, Asked, can_name, find_samples, normal_name, samples_of
from fnlkit.datasets.labels import class_finder
from fnlkit.datasets.loading import cache_folder
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.table import ENDINGS, read_table

_ALSO = {"probabilities": ("probs", "pred_probs"), "embeddings": ("features",)}


def read_rows(path: str, name: str, federation: Federation, say: Callable[[str], object] | None = None) -> np.ndarray:
    """Read an array (n, d) with a row for each training sample; arrays above 64 MiB stay on disk.

    Parameters
    ----------
    path : str
        An npz or npy file, or a csv or parquet table of probabilities (`of_table`).  In an npz, the
        array called `name`, or the only array with two axes.  An array ``index`` (r,) gives the training samples of the r
        rows; the other samples then get rows of NaN, and the result is in memory.  An array ``class_names`` (C,) names the
        columns of probabilities.
    name : "embeddings" or "probabilities"
    federation : fnlkit.artifacts.federation.Federation
    say : callable(str), optional
        Called once with the classes that have a column and no label (`fnlkit.estimators.rows`).

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    if path == "-":
        raise InputError(f"{name} cannot come from the pipe, which carries the federation; name a file")
    if name == "probabilities" and str(path).lower().endswith(ENDINGS):
        table = read_table(path)
        return of_table({column: table.texts(column) for column in table.columns}, federation, display_path(path), say)
    cache = cache_folder()
    arrays = large.open_arrays(path, decoded=cache / "decoded")
    if arrays.get("kind") is not None:
        remember = partial(cache_json, files=[path], cache=cache)
        artifact = large.open_artifact(path, kinds=[f"fnlkit.{name}"], decoded=cache / "decoded", remember=remember)
        arrays, made_of = artifact.arrays, artifact.meta.get("checksum")
        ours = federation.meta.get("dataset_checksum")
        if made_of and ours and made_of != ours:
            raise InputError(
                f"{display_path(path)}: {name} of {artifact.meta.get('dataset', 'another data set')}, but the federation "
                f"is over {federation.dataset} (the checksums differ); make {name} of this data set"
            )
    wide = [key for key, values in arrays.items() if values.ndim == 2]
    key = next((key for key in (name, *_ALSO[name]) if key in arrays), wide[0] if len(wide) == 1 else None)
    if key is None:
        held = list_names(f"{key} {values.shape}" for key, values in arrays.items()) or "no arrays"
        raise InputError(f"{display_path(path)}: no array {name!r} (n, d); found {held}")
    values: Any = arrays[key]
    size = len(federation.given)
    if name == "probabilities" and "class_names" in arrays and values.ndim == 2:
        names = np.asarray(arrays["class_names"]).astype(str).tolist()
        if len(names) == values.shape[1]:
            places, absent = _columns(names, federation, display_path(path))
            values = drop_absent(values, places, absent, display_path(path), say)
    if "index" not in arrays:
        if values.ndim != 2 or len(values) != size:
            raise InputError(
                f"{display_path(path)}: array {key!r} has shape {values.shape}; expected {size:,} rows, one per training "
                f"sample of {federation.dataset}, or an array `index` with the sample of each row"
            )
        return values
    index = np.asarray(arrays["index"])
    fits = values.ndim == 2 and index.shape == (len(values),) and index.dtype.kind in "iu"
    if not fits or (len(index) and not 0 <= index.min() <= index.max() < size):
        raise InputError(
            f"{display_path(path)}: `index` is {index.dtype} {index.shape} for {key!r} {values.shape}; expected one "
            f"position below {size:,} for each row"
        )
    sample_rows = np.full((size, values.shape[1]), np.nan, np.result_type(values.dtype, np.float32))
    for a, b in blocks(values):
        sample_rows[index[a:b]] = values[a:b]
    return sample_rows


def of_table(
    columns: dict[str, Any], federation: Federation, source: str, say: Callable[[str], object] | None = None
) -> np.ndarray:
    """Read probabilities (n, C) from a table with a column for each class, by the name of the class.

    Columns of classes without labels are left out (`fnlkit.estimators.rows`). Another column can name the samples
    (fnlkit.datasets.identifiers); samples without a row get NaN. Without it, the rows are all training samples in order.

    Parameters
    ----------
    columns : dict of str to sequence
        Cells by column, as texts or numbers.
    federation : fnlkit.artifacts.federation.Federation
    source : str
        Name of the table in messages.

    Raises
    ------
    InputError
        If a class or a sample is missing, unknown or listed twice, or if a cell is not a number.
    """
    find = class_finder(class_texts(federation))
    others = {name: [str(cell) for cell in columns[name]] for name in columns if find(name) is None}
    samples = samples_of(federation)
    others = {name: texts for name, texts in others.items() if can_name(name, texts, samples)}
    names = [name for name in columns if name not in others]
    others = {name: texts for name, texts in others.items() if normal_name(name) not in TOOLS}
    places, absent = _columns(names, federation, source)
    try:
        values = np.column_stack([np.asarray(columns[name], np.float64) for name in names])
    except ValueError as error:
        raise InputError(f"{source}: probabilities must be numbers ({error})") from None
    values = drop_absent(values, places, absent, source, say)
    size = len(federation.given)
    if not others:
        if len(values) != size:
            raise InputError(f"{source}: {len(values):,} rows; expected {size:,} training samples, or a column `sample`")
        return values

    def fail(rows: Sequence[int], text: str) -> NoReturn:
        raise InputError(f"{source}, row {rows[0] + 1} of the values: {text}")

    positions = find_samples(others, samples, Asked(fail, source, option="leaving the others out of the table"))[1]
    if len(np.unique(positions)) < len(positions):
        raise InputError(f"{source}: a sample is listed twice")
    sample_rows = np.full((size, values.shape[1]), np.nan)
    sample_rows[positions] = values
    return sample_rows


def _columns(names, federation, source):
    """Find the place of the column of each class of the federation, and the names of other columns."""
    classes = class_texts(federation)
    find = class_finder(classes)
    places = {name if (c := find(name)) is None else classes[c]: place for place, name in enumerate(map(str.strip, names))}
    missing = [name for name in classes if name not in places]
    if missing or len(places) < len(names):
        wrong = f"no column of the class {missing[0]!r}" if missing else "two columns have the same name"
        raise InputError(f"{source}: {wrong}; name the columns {list_names(classes)}")
    return [places[name] for name in classes], [name for name in places if name not in set(classes)]


def class_texts(federation: Federation) -> list[str]:
    """Name the classes (C,) by texts; by numbers if they have no names."""
    return [name.strip() for name in class_names(federation.meta, federation.classes)]


def select_classes(values: Any, federation: Federation, source: str, say: Callable[[str], object] | None) -> Any:
    """Drop the columns of classes without labels from probabilities (n, M) whose columns have no names.

    If there are more columns than classes, classes that are whole numbers are the numbers of their columns.

    Raises
    ------
    InputError
        If the columns of the classes are unknown.
    """
    names, shape = class_texts(federation), values.shape if hasattr(values, "shape") else np.shape(values)
    if len(shape) != 2 or shape[1] == len(names):
        return values
    number = shape[1]
    if number > len(names) and all(name.isdecimal() and int(name) < number for name in names):
        places = [int(name) for name in names]
        return drop_absent(values, places, [str(place) for place in range(number) if place not in places], source, say)
    raise InputError(
        f"{source} has {number} columns, but the federation has labels of {federation.classes} classes: "
        f"{list_names(names)}; name the columns (a csv with these names, or `class_names` in an npz)"
    )


def drop_absent(
    values: np.ndarray, places: Sequence[int], absent: Sequence[str], source: str, say: Callable[[str], object] | None
) -> np.ndarray:
    """Select the columns `places` of probabilities (n, M), divided by their sums, and print the absent classes once.

    A row without probability for the other classes becomes uniform. Rows of NaN, which are no samples of the table, remain.

    Raises
    ------
    InputError
        If a row of all columns does not sum to 1 within 0.001.
    """
    values = np.asarray(values)
    if not absent:
        return values if list(places) == list(range(values.shape[1])) else values[:, places]
    values = values.astype(np.float64)
    sums = values.sum(1)
    if (np.abs(sums - 1) > 1e-3).any():
        worst = int(np.nanargmax(np.abs(sums - 1)))
        raise InputError(
            f"{source}: row {worst + 1} sums to {sums[worst]:.6g}; expected 1 over the classes and {list_names(absent)}"
        )
    present = values[:, places]
    present[present.sum(1) <= 0] = 1
    if say is not None:
        say(f"{source}: no label of the federation is of class {list_names(absent)}; these columns are left out")
    return present / present.sum(1, keepdims=True)
