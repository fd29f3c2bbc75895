"""Read new samples in the layout of a data set, with a name for each sample."""

import os
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from fnlkit.artifacts import files, large
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import parse
from fnlkit.datasets import columns
from fnlkit.datasets.class_folders import samples_in
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.decoding import decode_files, find_damaged, note_damaged, note_pages, reader
from fnlkit.datasets.layout import LAYOUTS, lay_out
from fnlkit.datasets.manifest import is_manifest, open_manifest, with_options
from fnlkit.datasets.scales import as_bytes, match_scale

# Standard deviations from the mean of the training samples beyond which half of the new values are noted, of so many rows.
_FAR, _MOST_ROWS = 5, 10_000


def new_samples(
    like: Any,
    source: str,
    *,
    cache: pathlib.Path,
    load: Callable[..., Dataset],
    unlabeled: bool = False,
    skip_damaged: bool = False,
    say: Callable[[str], object] | None = None,
) -> tuple[list[str], np.ndarray | Rows]:
    """Read (names, samples (n, ...)) of new data in the layout of a data set.

    Parameters
    ----------
    like : object
        With ``x_train`` (n, ...), ``kind``, ``sample_rate``, ``name`` and ``table``, as in a Dataset; if they are known, the
        ``mean`` (d,) and ``std`` of vectors, and ``dtype`` and ``range`` of images (fnlkit.datasets.scales.scale_of).
    source : str
        An npy file; an npz with one array, or with ``x``, ``x_new`` or ``x_test``; a folder of images, read in the order of
        their names; or a table with one row per sample (fnlkit.datasets.manifest), from which labels are ignored.
    cache : pathlib.Path
        The cache folder.
    load : callable
        fnlkit.datasets.load.
    unlabeled : bool
        Treat `source` as a data set and return only its samples without a label.
    skip_damaged : bool
        Leave out files that cannot be read.
    say : callable(str), optional
        Receives notes on categories of a table that the data set does not have, and on pages that are not read.

    Returns
    -------
    names : list of n str
        Ids or rows of a table, file names of a folder, otherwise positions.
    samples : array (n, ...)

    Raises
    ------
    InputError
        If the samples do not match the data set.
    """
    say = say or (lambda note: None)
    wanted, kind = tuple(like.x_train.shape[1:]), like.kind
    if is_manifest(source) and (like.table or kind != "vector" or source.startswith("manifest")):
        names, x = _of_table(like, _open_table(like, source, skip_damaged, cache, say), wanted, unlabeled, say)
    elif unlabeled:
        spare = load(with_options(source, "skip_damaged", skip_damaged=True) if skip_damaged else source).unlabeled
        if spare is None:
            raise InputError(f": every training sample of {source} has a label", parameter="unlabeled")
        names, x = list(spare.ids), spare.samples()
    elif os.path.isdir(source):
        names, x, kind = _of_folder(like, source, wanted, skip_damaged, say)
    else:
        x, kind = _of_arrays(source, like, cache, wanted)
        names = list(map(str, range(len(x))))
    if kind != like.kind or tuple(x.shape[1:]) != wanted:
        raise InputError(f"{display_path(source)}: {kind} samples of {x.shape[1:]}; the samples of {like.name} are {wanted}")
    if kind == "image" and len(x) and (known := getattr(like, "range", None)):
        x, converted = match_scale(x, like.dtype, known, display_path(source))
        if converted:
            say(converted)
    for note in note_scale(like, x):
        say(note)
    return names, x


def _open_table(like, source, skip_damaged, cache, say):
    manifest, known = open_manifest(source), _options_of(like)
    for role in ("id", "path"):
        if role not in manifest.roles and known.get(role) in manifest.table.columns:
            manifest.roles[role] = known[role]
    manifest.reading["skip_damaged"] |= skip_damaged
    for note in manifest.drop_damaged(cache):
        say(note)
    return manifest


def _of_folder(like, source, wanted, skip_damaged, say):
    root = pathlib.Path(source)
    samples, others = samples_in(root)
    if skip_damaged:
        damaged = find_damaged(samples, pixels=_scales_of(like).get("pixels", ""))
        samples = [file for file in samples if str(file) not in damaged]
        for note in note_damaged(damaged):
            say(note)
    if not samples:
        raise InputError(f"{display_path(source)}: no image or wav file among {len(others):,} files")
    if like.kind not in ("image", "wave"):
        raise InputError(f"{display_path(source)}: contains images or sounds; the samples of {like.name} are {like.kind}s")
    if like.kind == "image":
        kind, read = reader(samples, size=wanted[0] if wanted[0] == wanted[1] else 0, **_scales_of(like))
        for note in note_pages(samples):
            say(note)
    else:
        kind, read = reader(samples, seconds=wanted[0] / like.sample_rate)
    shape = wanted if kind == like.kind else None
    return [file.relative_to(root).as_posix() for file in samples], decode_files([samples], read, shape=shape)[0], kind


def _scales_of(like):
    """Read the options `window`, `pixels` and `crop` of a data set, which give new images the same scale."""
    options = _options_of(like)
    scales: dict[str, Any] = {name: str(options[name]) for name in ("window", "pixels") if name in options}
    return scales | ({"crop": True} if options.get("crop") is True else {})


def _options_of(like):
    """Read the options in the spec of a data set."""
    try:
        return parse(like.name).parameters
    except InputError:  # a path with characters of a spec
        return {}


def note_scale(like: Any, x: np.ndarray | Rows) -> list[str]:
    """Note that features of new vectors (n, d) are far from those of the training samples.

    A feature is noted if half of its values are more than `_FAR` standard deviations from the mean.  Features of 0 and 1, such
    as categories, are left out.
    """
    mean, std = np.asarray(getattr(like, "mean", ())), np.asarray(getattr(like, "std", ()))
    if like.kind != "vector" or not mean.size or not len(x):
        return []
    rows = np.asarray(x[:_MOST_ROWS], np.float64)
    away = np.median(np.abs(rows - mean) / std, 0) > _FAR
    away &= ((rows != 0) & (rows != 1)).any(0)
    names = columns.features(like.table) if like.table else [f"feature {j}" for j in range(rows.shape[1])]
    far = [repr(names[j]) if like.table else names[j] for j in np.flatnonzero(away)]
    if not far:
        return []
    return [f"{list_names(far)}: most new values are far from those of the training samples; compare the units and the scale"]


def _of_arrays(source, like, cache, wanted):
    arrays = large.open_arrays(source, decoded=cache / "decoded")
    key = next((key for key in ("x", "x_new", "x_test") if key in arrays), "")
    if not key and len(arrays) > 1:
        names = list_names(ascii(name)[1:-1] for name in arrays)
        raise InputError(f"{display_path(source)}: has no array x, x_new or x_test, but {names}; name the new samples x")
    raw = files.pick(arrays, key, source)
    if like.kind == "image" and (known_range := getattr(like, "range", None)):
        raw = as_bytes(raw, known_range)
    try:
        known = raw.ndim == 4 and {wanted: LAYOUTS[0], (wanted[-1], *wanted[:-1]): LAYOUTS[1]}.get(tuple(raw.shape[1:]), "")
        return lay_out(raw, key or "array", like.sample_rate, known or "")[:2]
    except InputError as error:
        raise InputError(f"{display_path(source)}: {error}") from error


def _of_table(like, new, wanted, unlabeled, say):
    known = _options_of(like)
    if not new.reading["missing"]:
        new.blank(known.get("missing", ""))
    rows = new.bare() if unlabeled else list(range(len(new.table)))
    if not rows:
        raise InputError(f": every row of {display_path(new.file)} has a label", parameter="unlabeled")
    if like.table is None and "path" not in new.roles:
        raise InputError(f"{display_path(new.file)}: no column contains file paths; {like.name} has {like.kind} samples")
    if like.kind == "image" and not new.reading["size"] and wanted[0] == wanted[1]:
        new.reading["size"] = wanted[0]
    if like.kind == "image":
        new.reading |= {name: value for name, value in _scales_of(like).items() if not new.reading[name]}
        for note in note_pages([new.paths[row] for row in rows]):
            say(note)
    if like.kind == "wave" and not new.reading["seconds"]:
        new.reading["seconds"] = wanted[0] / like.sample_rate
    names, x = new.ids(), new.samples([rows], like.table, wanted)[0]
    if like.table:
        for note in columns.note_unseen(like.table, new.table, rows, "rows") + columns.note_codes(new.table, like.table):
            say(note)
    return [names[row] or f"row {new.table.rows[row]}" for row in rows], x
