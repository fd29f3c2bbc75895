"""Read data of the user: an npz, npy files, an image folder, or Clothing1M."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts import files, large
from fnlkit.artifacts.federation import MAX_CLASSES, must_be_dense, must_be_names
from fnlkit.artifacts.paths import display_path, from_home, resolve
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import Spec, parse
from fnlkit.datasets import places
from fnlkit.datasets.columns import note_values, order_texts
from fnlkit.datasets.dataset import Dataset, Unlabeled, split_unlabeled
from fnlkit.datasets.decoding import (
    IMAGES,
    Decoded,
    decode_files,
    digest_of,
    find_damaged,
    form_of,
    kind_of,
    load_small,
    must_be_used,
    note_damaged,
    note_pages,
    pixel_range,
    reader,
    sample_rate,
)
from fnlkit.datasets.dicom import choose_window, common_window, span
from fnlkit.datasets.groups import DOUBTFUL, NAMES, as_texts, class_of_groups, find_names, number_groups, of_parts
from fnlkit.datasets.identifying import note_columns
from fnlkit.datasets.labels import class_finder, classes_of, doubts, must_repeat, whole_labels
from fnlkit.datasets.layout import LAYOUTS, lay_out, layout_of, rate_of
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.sites import npz_per_site
from fnlkit.datasets.spelling import fold, merge_spellings
from fnlkit.datasets.votes import check_votes, most_votes, whole_votes
from fnlkit.kernels.streams import stream

UNLABELED = ("_unlabeled", "_unlabelled")  # folders next to the class folders, for samples without a label
_CLOTHING = ["T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket", "Down Coat", "Suit",
             "Shawl", "Dress", "Vest", "Underwear"]  # fmt: skip


def load_folder(path: Path, *, where: Path, of_site: bool = False) -> Dataset:
    """Load the data set in a folder.

    The folder contains x_train.npy and related files, Clothing1M's lists, one npz per site, or images.
    `of_site`: as for `folder`.
    """
    if (path / "x_train.npy").is_file():
        return npy(path, where=where, of_site=of_site)
    if _clothing_lists(path):
        return clothing1m(path=str(path), where=where)
    if next(path.glob("*.npz"), None) is not None:
        return npz_per_site(path, where=where)
    if next(path.glob("*.npy"), None) is not None and not _folders(path):
        return npy(path, where=where, of_site=of_site)  # which names the missing arrays
    return folder(path=str(path), where=where, of_site=of_site)


def npz(path: Path, *, where: Path, of_site: bool = False) -> Dataset:
    """Load the data set of an npz with x_train, y_train, and x_test, y_test if any.

    The labels are *observed*, that is, possibly wrong, unless ``y_train_true`` (n,) declares the true labels, or
    ``y_test_true`` the true labels of the test samples.  Labels are whole numbers from 0 on (also floats), booleans, or texts,
    of shape (n,) or (n, 1).  A missing label is -1, NaN or "" in ``y_train``.  Optional arrays are
    ``class_names`` (C,) texts, ``sample_rate`` (for waves), ``layout`` of images ("channels-first" or "channels-last"), and
    ``NAME_train`` (n,) for a field NAME: ``site_train`` is used by ``--scheme sites``, and ``ids_train`` contains the sample
    ids.  ``groups_train`` (n,) and ``groups_test`` contain the group of each sample, such as the patient
    (fnlkit.datasets.groups).
    ``votes_train`` (n, A) contains the labels of A annotators, -1 for no vote, and ``annotators`` (A,) their names.
    Without ``y_train`` the label of a sample is the majority vote, and ties go to the lower class.  Samples above 64 MiB stay
    on disk; if they are compressed, they are decompressed into the cache folder once.  The files of MedMNIST can be read too.

    Parameters
    ----------
    path : pathlib.Path
    where : pathlib.Path
        The cache folder.
    of_site : bool
        As for `folder`.
    """
    arrays = large.open_arrays(path, decoded=where / "decoded")
    return _name_arrays(path, arrays, [path], where, of_site)


def npy(path: Path, *, where: Path, of_site: bool = False) -> Dataset:
    """Load the data set of a folder with x_train.npy, y_train.npy and others.

    Each npy file is an array as in `npz`, with the same optional arrays.

    Parameters
    ----------
    path, where : pathlib.Path
    of_site : bool
        As for `folder`.
    """
    npy_files = sorted(path.glob("*.npy"))
    arrays = {file.stem: large.open_arrays(file, decoded=where / "decoded")["array"] for file in npy_files}
    return _name_arrays(path, arrays, npy_files, where, of_site)


def _name_arrays(path, arrays, array_files, where, of_site):
    try:
        data = from_arrays(str(path), _rename(arrays), of_site=of_site)
    except InputError as error:
        raise InputError(f"{display_path(path)}: {error}") from error
    if any(isinstance(array, Rows) for array in arrays.values()):
        data.remember = partial(cache_json, files=array_files, where=where)
    return data


def _rename(arrays):
    """Rename arrays with the names of MedMNIST's files to the names of `from_arrays`.

    MedMNIST has ``train_images``, ``train_labels`` (n, 1), the same for ``test`` and ``val``.  Validation samples are not used.
    """
    if "train_images" not in arrays or "x_train" in arrays:
        return arrays
    parts = [part for part in ("train", "test") if f"{part}_images" in arrays]
    if missing := [f"{part}_labels" for part in parts if f"{part}_labels" not in arrays]:
        raise InputError(f"has {missing[0].partition('_')[0]}_images, but no {missing[0]}")
    renamed = {key: value for key, value in arrays.items() if not key.endswith(("_images", "_labels"))}
    for part in parts:
        labels = np.asarray(arrays[f"{part}_labels"])
        if labels.ndim == 2 and labels.shape[1] > 1:
            raise InputError(f"`{part}_labels` has {labels.shape[1]} labels per sample; write an npz with one label per image")
        renamed |= {f"x_{part}": arrays[f"{part}_images"], f"y_{part}": labels.reshape(-1).astype(np.int64)}
    return renamed


def from_arrays(name: str, arrays: Mapping[str, Any], *, of_site: bool = False) -> Dataset:
    """Make the Dataset of arrays with the names that an npz file has: x_train, y_train, class_names, ...

    `of_site`: as for `folder`.

    Raises
    ------
    InputError
        If an array is missing or does not fit.
    """
    if "votes_train" in arrays and "y_train" not in arrays:
        arrays = {**arrays, "y_train": most_votes(_votes(arrays["votes_train"]))}
    alone = "x_test" not in arrays and "y_test" not in arrays
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays and not (alone and "test" in key)]
    if missing:
        raise InputError(f"has {list_names(arrays)}, but no {', '.join(missing)}; expected x_train, y_train, x_test and y_test")
    if alone:  # `partition` then holds out samples at each client
        arrays = {**arrays, "y_test": np.zeros(0, np.int64)}
    arrays = {key: value if key in ("x_train", "x_test") else np.asarray(value) for key, value in arrays.items()}
    arrays, merged = _name_labels(arrays)
    tested = "y_test_true" if "y_test_true" in arrays else "y_test"
    least = -1 if tested == "y_test" else 0
    test_labels = arrays["y_test"] if alone else _labels(arrays[tested], tested, least)
    labels = [_labels(arrays["y_train"], "y_train", least=-1), test_labels]
    true = _labels(arrays["y_train_true"], "y_train_true") if "y_train_true" in arrays else None
    if true is not None and len(true) != len(labels[0]):
        raise InputError(f"`y_train_true` has {len(true):,} labels but `y_train` {len(labels[0]):,}")
    classes = 1 + max(int(part.max()) for part in (*labels, *([] if true is None else [true])) if len(part))
    present = len(set(np.unique(np.concatenate(labels)).tolist()) - {-1})
    named = "class_names" in arrays
    must_be_dense(max(classes, arrays["class_names"].size if named else 0), present)
    names = arrays["class_names"].reshape(-1).astype(str).tolist() if named else list(map(str, range(classes)))
    if len(names) < classes:
        raise InputError(f"`class_names` has {len(names)} names but labels go up to {classes - 1}")
    least = 1 if of_site else 2
    if not least <= len(names) <= MAX_CLASSES:
        raise InputError(f"{len(names)} classes; expected {least} to {MAX_CLASSES:,}, labels counted from 0")
    must_be_names(names, len(names))
    must_repeat(names[:classes], int((labels[0] >= 0).sum()))
    rate = rate_of(arrays["sample_rate"]) if "sample_rate" in arrays else 0
    layout = layout_of(arrays["layout"]) if "layout" in arrays else ""
    train, kind, note = lay_out(arrays["x_train"], "x_train", rate, layout)
    test = train[:0] if alone else lay_out(arrays["x_test"], "x_test", rate, LAYOUTS[bool(note)])[0]
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype:
        raise InputError(f"`x_train` is {train.dtype} {train.shape[1:]} per sample but `x_test` {test.dtype} {test.shape[1:]}")
    for x, y, part in ((train, labels[0], "train"), (test, labels[1], "test")):
        if len(x) != len(y):
            raise InputError(f"`x_{part}` has {len(x):,} samples but `y_{part}` {len(y):,} labels")
    fields = _fields_of(arrays, "train", len(labels[0]))
    ids = fields.pop("ids", None)
    test_fields = {} if alone else _fields_of(arrays, "test", len(labels[1]), fields)
    if "site" in fields:
        (sites,), more = merge_spellings(as_texts(fields["site"]), what="sites")
        if "" in sites:
            raise InputError("`site_train` contains an empty text or NaN; every sample needs a site")
        fields["site"], merged = np.array(sites), merged + more
    groups = _groups_in(fields, test_fields, len(labels[1]))
    votes: tuple[np.ndarray | None, list[str]] = (None, [])
    if "votes_train" in arrays:
        votes = check_votes(arrays["votes_train"], arrays.get("annotators"), len(labels[0]), len(names))
    dataset = Dataset(
        name=name,
        kind=kind,
        y_train=labels[0],
        y_test=labels[1],
        class_names=names,
        samples=lambda: (train, test),
        sample_rate=rate,
        fields=fields,
        observed=true is None,
        y_train_true=true,
        ids=None if ids is None else ids.astype(np.str_),
        test_true=tested == "y_test_true",
        votes=votes[0],
        annotators=votes[1],
        groups=groups[0],
        groups_test=groups[1],
        notes=[
            *([note] if note else []),
            *(note_columns(arrays["x_train"], "x_train") if kind == "vector" else []),
            *(note_values(arrays["x_train"], "x_train") if kind == "vector" else []),
            *merged,
            *groups[2],
            *_note_empty_classes(names, labels, true, named),
            *doubts(names, labels[0], 'write "" as the label'),
        ],
        layout=LAYOUTS[0],
    )
    return split_unlabeled(dataset)


def _note_empty_classes(names, labels, true, named):
    """Note that no sample has some of the classes: labels counted from 1 have a class 0."""
    present = np.unique(np.concatenate([*labels, *([] if true is None else [true])]))
    empty = np.setdiff1d(np.arange(len(names)), present)
    if not len(empty):
        return []
    first = list_names([names[c] for c in empty], quote=True)
    if named:
        return [f"{len(empty):,} of {len(names):,} classes have no sample: {first}; remove them, unless other sites use them"]
    low, high = (int(end) for end in (present[present >= 0].min(), present.max()))
    return [
        f"labels {low} to {high} are {len(names):,} classes counted from 0, and {len(empty):,} have no sample: {first}; number "
        "the labels without gaps (numpy.unique(labels, return_inverse=True)), or name all classes in `class_names`"
    ]


def _fields_of(arrays, part, size, needed=("site", "ids", "groups")):
    """Read the arrays (n,) or (n, 1) NAME_train or NAME_test with a value per sample, by NAME.

    Other arrays are no fields, such as an embedding per sample or a list of names.  Those with a name in `needed` are refused,
    and those with the name of groups that have several whole numbers or texts per sample, or nearly `size` values in training.
    """
    fields = {}
    for key, value in arrays.items():
        name = key.removesuffix(f"_{part}")
        if name in (key, "x", "y", "votes"):
            continue
        near = part == "train" and size <= 2 * value.size < 4 * size
        near |= value.ndim == 2 and len(value) == size and value.dtype.kind != "f" and name.lower() in NAMES
        if value.shape in ((size,), (size, 1)):
            fields[name] = value.reshape(-1)
        elif name.lower() in ("site", "ids", *NAMES, *DOUBTFUL) and (near or name in needed):
            raise InputError(
                f"`{key}` has the shape {value.shape}; expected a value for each of the {size:,} samples of {part}"
            )
    return fields


def _groups_in(fields, test_fields, size):
    """Read the groups of training and test samples and notes, from `groups_train`, `patient_id_train`, ... and *_test."""
    names = find_names(fields, lambda name: as_texts(fields[name]))
    if len(names) > 1:
        both = " or ".join(f"`{name}_train`" for name in names)
        raise InputError(f"the groups of samples can be in {both}; keep one of these names")
    if not names:
        return None, None, []
    test = test_fields.get(names[0], np.zeros(size, "U1"))
    sites, test_sites = ([fold(text) for text in as_texts(part.get("site", ()))] for part in (fields, test_fields))
    # Without the sites of all test samples, only the names are compared.
    return of_parts(fields[names[0]], test, sites or None, test_sites if all(test_sites) and test_sites else None)


def _votes(values):
    """Read votes as an array, or raise InputError unless some annotator labeled a sample."""
    values = whole_votes(np.asarray(values))
    if values.ndim != 2 or values.dtype.kind not in "iu" or not values.size or values.max() < 0:
        raise InputError(f"`votes_train` is {values.dtype} {values.shape}; expected whole numbers (n, A), some of them labels")
    if values.max() >= MAX_CLASSES:
        raise InputError(f"`votes_train` contains {values.max()}; labels are counted from 0, and -1 or NaN is no vote")
    return values


def _labels(values, name, least=0):
    if not values.size:
        raise InputError(f"`{name}` is empty; expected a label for each sample")
    if values.min() < least:
        raise InputError(f"`{name}` contains {values.min()}; labels start at 0{', and -1 is a missing label' if least else ''}")
    if values.max() < 0 and name != "y_test":
        raise InputError(f"`{name}` contains no label, only -1")
    return values


def _name_labels(arrays):
    """Number labels (arrays, notes); texts are classes in the order of `class_names`, or sorted."""
    keys = [key for key in ("y_train", "y_test", "y_train_true", "y_test_true") if key in arrays and np.size(arrays[key])]
    labels = {key: whole_labels(arrays[key], key) for key in keys}
    in_words = [key for key in keys if labels[key].dtype.kind == "U"]
    if not in_words:
        return arrays | labels, []
    if len(in_words) < len(keys):
        raise InputError(f"`{in_words[0]}` has texts, and another array of labels has numbers; write all labels in one form")
    words = {key: labels[key].tolist() for key in keys}
    names, _, _, notes = classes_of(sum(words.values(), []), of_site=True)
    if "class_names" in arrays:
        names = arrays["class_names"].reshape(-1).astype(str).tolist()
    find = class_finder(names)
    index = {text: -1 if text == "" else find(text) for texts in words.values() for text in texts}
    if unknown := [text for text, place in index.items() if place is None]:
        if unknown[0] in names:
            raise InputError(f"label {unknown[0][:80]!r} names two of the `class_names`; rename one")
        raise InputError(f"label {unknown[0][:80]!r} is none of the `class_names`, {list_names(names)}")
    order = {key: np.array([index[text] for text in texts], np.int64) for key, texts in words.items()}
    return arrays | order | {"class_names": np.array(names)}, notes


def split(labels: np.ndarray, share: float = 0.2, groups: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Draw (train, test) positions of a fixed stratified split.

    The split is the same on every machine.

    Parameters
    ----------
    labels : (n,) int
    share : float
        Share of each class for the test set, rounded.  At least one sample per class stays in the training set.
    groups : (n,) int, optional
        Samples with equal numbers are in the same part.  The class of a group is its most frequent label.
    """
    if groups is not None:
        _, group, labels = class_of_groups(labels, groups)
        train, held = split(labels, share)
        return np.flatnonzero(np.isin(group, train)), np.flatnonzero(np.isin(group, held))
    test = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        size = min(round(share * len(members)), len(members) - 1)
        test.append(stream(0, "split", client=int(label)).permutation(members)[:size])
    test = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), test), test


def folder(
    *,
    path: str,
    size: int = 0,
    crop: bool = False,
    label: int = 0,
    group: int = 0,
    window: str = "",
    pixels: str = "",
    seconds: float = 0.0,
    skip_damaged: bool = False,
    where: Path,
    download: bool = False,
    of_site: bool = False,
) -> Dataset:
    """Load the data set of a folder of images or wav files.

    The folder has the form PATH/train/CLASS/* with PATH/test/CLASS/*, or PATH/CLASS/*, which is split 80 to 20.
    PATH/SITE/CLASS/* has no test set: `partition` holds out a share at each site.  Files are recognized by their extension, or
    by their content if the extension is unknown.  Files that are neither images nor sounds are listed in `Dataset.notes`.

    Parameters
    ----------
    path : str
    size : int
        Side in pixels after resizing.  Default: 0, if all images have the same size.
    crop : bool
        Keep proportions and cut off borders, as in earlier versions (fnlkit.datasets.decoding.image).
    label : 0, 1 or 2
        Level of the class folders.  1: PATH/CLASS/...; 2: PATH/SITE/CLASS/..., with the site as field `site`.  0 means 1, but
        raises an error if 2 is also possible: the first level contains only folders, and some of their sub-folders share names.
    group : int
        Level of the folders of groups, such as patients, whose files are never divided (fnlkit.datasets.groups).  2 with
        ``label=1``: PATH/CLASS/GROUP/...; 1 with ``label=2``: PATH/GROUP/CLASS/..., without sites; 3 with ``label=2``:
        PATH/SITE/CLASS/GROUP/....  A file above this level is a group of its own.  Default: 0, no groups.
    window : str
        Of DICOM images, ``center/width`` in physical units.  Default: the range of all files.
    pixels : str
        Of TIFF images with 32 bits per pixel, ``low/high``: the values that become 0 and 1.  Default: 0/1.
    seconds : float
        Length in seconds to which all sounds are cut or padded with silence.  Default: 0, if all have the same length.
    skip_damaged : bool
        Leave out files that cannot be read; a note names them.
    of_site : bool
        Whether the folder is that of a single site of a deployment, which can have one class and no test sample.

    Notes
    -----
    Files in a folder `_unlabeled` (or `_unlabelled`) next to the class folders have no label (`Dataset.unlabeled`).
    """
    path = _as_path(path)
    span(window)
    pixel_range(pixels)
    if label not in (0, 1, 2):
        raise InputError(f"folder: label is {label}; write 1 if the first level of folders is the class, or 2 for the second")
    parts = [path / "train", path / "test"]
    if not all(part.is_dir() for part in parts):
        parts = [path]
    if group == label != 0 or not 0 <= group <= 9:
        raise InputError(
            f"folder: group is {group}; write the level of the folders of groups, another one than that of the classes"
        )
    label = label or (2 if group == 1 else 1 if group else 0)
    names, inner = _names_below(parts), _names_below([child for part in parts for child in _folders(part)])
    if label == 0 and len(inner) > 1 and _can_be_sites(parts):
        raise InputError(
            f"{display_path(path)}: classes can be {', '.join(names[:4])} or the sub-folders {', '.join(inner[:4])}; "
            f"write the data set as 'folder(path=\"{display_path(path)}\", label=1)' for the first "
            "or label=2 for the second"
        )
    names = [name for name in (inner if label == 2 else names) if name not in UNLABELED]
    least = 1 if of_site else 2
    if len(names) < least:
        tables = "of tables, name one file, with a column `site` for several sites"
        raise InputError(f"{display_path(path)}: {len(names)} sub-folders; expected one per class, at least {least}; {tables}")
    per_class, skipped = [], _beside(path, parts, label)
    for part in parts:
        for number, name in enumerate(names):
            per_class.append([(f, number) for f in _samples_of(part, name, label, skipped)])
    spare = [file for part in parts for name in UNLABELED for file in _samples_of(part, name, label, skipped)]
    damaged: dict[str, str] = {}
    if skip_damaged:
        every = [*(file for part in per_class for file, _ in part), *spare]
        damaged = cache_json("damaged", lambda: find_damaged(every, pixels=pixels), files=every, where=where, reading=pixels)
        per_class = [[pair for pair in part if str(pair[0]) not in damaged] for part in per_class]
        spare = [file for file in spare if str(file) not in damaged]
    if len(parts) == 2:
        train, test = sum(per_class[: len(names)], []), sum(per_class[len(names) :], [])
    else:
        everything = sum(per_class, [])
        if everything and label == 2:  # `partition --holdout` holds out a share at each site
            train, test = everything, []
        elif everything:
            grouped = number_groups(_group_names([file for file, _ in everything], parts, label, group)) if group else None
            chosen = split(np.array([label for _, label in everything]), groups=grouped)
            train, test = ([everything[i] for i in half] for half in chosen)
        else:
            train = test = []
    # Positions and the split follow the names as texts, as in earlier versions; the numbers of classes follow their values.
    classes = order_texts(names)
    train, test = ([(file, classes.index(names[number])) for file, number in part] for part in (train, test))
    empty = [] if of_site else _note_empty_classes(classes, [np.array([label for _, label in [*train, *test]])], None, True)
    left = [*_note_skipped(path, skipped), *note_damaged(damaged), *empty]
    if not train or not (test or label == 2 or of_site):
        wanted = f"expected images ({', '.join(IMAGES)}, or other files with image content) or wav files"
        raise InputError("; ".join([f"{display_path(path)}: {len(train)} training, {len(test)} test files, {wanted}", *left]))

    every = [*(file for file, _ in (*train, *test)), *spare]
    dicoms = cache_json("dicom", lambda: common_window(every, window), files=every, where=where, reading=f"{bool(window)}")
    window, stored_window, more = choose_window(dicoms, window, display_path(path), of_site)
    left += more
    how = f"{size}{stored_window}{seconds or ''}"
    if size and (stored_window or seconds):  # without separators, size=1 and window=40/400 would equal size=14 and window=0/400
        how = f"size={size} window={stored_window} seconds={seconds}"
    how += " whole" if size and not crop else ""  # earlier versions cropped
    how += f" pixels={pixels}" if pixels else ""

    def content(order: np.ndarray) -> Iterator[bytes]:
        for file, label in (*train, *test):
            yield f"{file.relative_to(path).as_posix()} {order[label]} {how}\n".encode("utf-8", "surrogateescape")
            yield digest_of(file)

    options = {"size": size, "crop": crop, "label": label, "group": group, "window": window, "pixels": pixels,
               "seconds": seconds, "skip_damaged": skip_damaged}  # fmt: skip
    parameters = {name: value for name, value in options.items() if value}
    must_be_used(kind_of(train[0][0]), size=size, crop=crop, window=window, pixels=pixels, seconds=seconds)
    dataset, read = _of_files(path, parameters, train, test, classes, where, content)
    dataset.notes += left
    dataset.notes += (
        dataset.remember("pages", lambda: note_pages([file for file, _ in (*train, *test)])) if dataset.kind == "image" else []
    )
    dataset.paths = dataset.ids = np.array([file.relative_to(path).as_posix() for file, _ in train])
    if group:
        level = [_group_names([file for file, _ in half], parts, label, group) for half in (train, test)]
        if not any(level[0]):
            raise InputError(f"{display_path(path)}: no file is in a folder of level {group}, which `group` names")
        dataset.groups, dataset.groups_test, more = of_parts(*level)
        dataset.notes += more
    if label == 2 and group != 1:
        dataset.fields["site"] = np.array([_site_of(file, parts) for file, _ in train])
        known = {_site_of(file, parts) for file in (*dict(train), *dict(test), *spare)}
        bare = {home.name for part in parts for home in _folders(part)} - known
        dataset.notes += [f"no image or sound in {list_names(sorted(bare))}"] if bare else []
    if spare:
        sites = [_site_of(file, parts) for file in spare] if "site" in dataset.fields else None
        ids = [file.relative_to(path).as_posix() for file in spare]
        alike = lambda: decode_files([spare], read, shape=dataset.x_train.shape[1:])[0]  # noqa: E731
        dataset.unlabeled = Unlabeled(alike, ids, sites)
    return dataset


def _group_names(files, parts, label, group):
    """Folder of each file at the level `group`, with the site, or "" for a file above this level."""
    names = []
    for file in files:
        below = next(file.relative_to(part) for part in parts if file.is_relative_to(part)).parts[:-1]
        site = below[0] if label == 2 and group > 1 else ""
        names.append(f"{site}/{below[group - 1]}" if len(below) >= group else "")
    return names


def with_options(source: str, parameter: str, **options: Any) -> str:
    """Write the spec of a folder of images or wav files with further options of `folder`.

    Raises
    ------
    InputError
        If the source is not such a folder; `parameter` is the option in the message.
    """
    spec = Spec("folder", {"path": source}) if os.path.isdir(from_home(source)) else parse(source, "`dataset`")
    if spec.name != "folder":
        raise InputError(f"describes a folder of files, and {source} is none", parameter=parameter)
    return str(Spec("folder", {**spec.parameters, **options}))


def _samples_of(part, name, label, skipped):
    """List the samples in the folders of a class, sorted by name.

    A class has one folder, or one at each site.  Other files are appended to `skipped`.
    """
    files = []
    for home in [part / name] if label != 2 else [site / name for site in _folders(part)]:
        samples, others = samples_in(home)
        files += samples
        skipped += others
    return files


def _beside(path, parts, label):
    """List the files outside all class folders.

    They are at the top, next to train and test, or next to the class folders of a site.
    """
    homes = {path, *parts, *(site for part in parts for site in _folders(part) if label == 2)}
    files = [file for home in sorted(homes) for file in home.iterdir() if file.is_file()]
    unused = [] if parts == [path] else [home for home in _folders(path) if home not in parts]
    return files + [file for home in unused for file in home.rglob("*") if file.is_file()]


def _note_skipped(path, skipped):
    """Note skipped files in one sentence, or an empty list."""
    if not skipped:
        return []
    names = list_names(display_path(file.relative_to(path).as_posix()) for file in sorted(skipped))
    return [f"{len(skipped):,} files skipped that are not images or sounds in a class folder: {names}"]


def _site_of(file, parts):
    return next(home.name for home in file.parents if home.parent in parts)


def _folders(path):
    return sorted(child for child in path.iterdir() if child.is_dir() and child.name[0] != ".")


def _names_below(paths):
    return sorted({child.name for path in paths for child in _folders(path)})


def _can_be_sites(parts):
    """Whether the first level can be sites.

    It contains only folders, without samples, and some of their sub-folders share names.
    """
    first = _folders(parts[0])
    if any(f.is_file() and kind_of(f) for child in first for f in child.iterdir()):
        return False
    below = [child.name for home in first for child in _folders(home)]
    return len(first) > 1 and len(set(below)) < len(below)


def samples_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """List (images or wav files, other files) of a folder and sub-folders, sorted; files in hidden folders are others.

    Raises
    ------
    InputError
        If a sample is not a regular file, such as a pipe, which has no end.
    """
    taken, others = [], []
    for file in sorted(_walk(folder)):
        if _is_hidden(file.parent, folder):
            others += [file] if file.is_file() else []
        elif kind_of(file):
            if not file.is_file():
                name = "an image" if kind_of(file) == "image" else "a sound"
                raise InputError(f"{display_path(file)}: has the name of {name} but is not a regular file; remove it")
            taken.append(file)
        elif file.is_file():
            others.append(file)
    return taken, others


def _walk(folder):
    """Yield the files and folders below a folder.

    Links to folders outside hidden folders are followed, after all other folders, so that no folder is read twice.  A link to
    a folder that contains it, or contains a link on its path, is skipped.
    """
    read: set[str] = set()  # real folders
    homes = [folder]
    for start in homes:
        end = os.path.realpath(start)
        if start != folder and any(Path(os.path.realpath(above)).is_relative_to(end) for above in start.parents):
            continue
        for home, folders, names in os.walk(start):
            real = os.path.realpath(home)
            if real in read:
                folders.clear()
                continue
            folders.sort()
            yield from (Path(home, name) for name in (*folders, *names))
            if not _is_hidden(Path(home), folder):
                read.add(real)
                homes += [child for name in folders if name[0] != "." and (child := Path(home, name)).is_symlink()]


def _is_hidden(file, folder):
    """Whether a file or folder is hidden, or in a hidden folder below `folder`."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def clothing1m(*, path: str = "", size: int = 224, where: Path, download: bool = False) -> Dataset:
    """Load Clothing1M from a folder with images/ and the published lists.

    The lists are in the folder or in annotations/.  The training set has one million noisy labels without known true labels.
    The test set consists of the 10,526 clean test images.

    Parameters
    ----------
    path : str
        Default: the folder clothing1m in the cache folder.
    size : int
        Side in pixels.  Images are resized to 8/7 of this side and center-cropped, as usual for 256 and 224.
    """
    path = _as_path(path or places.first("clothing1m", where), must_exist=False)
    lists = _clothing_lists(path)
    if not lists:
        raise InputError(
            f"clothing1m: no noisy_train_key_list.txt in {display_path(path)}; the authors send it on request: "
            "unpack it there, or write `dataset=PATH`"
        )
    noisy, clean = (_key_values(lists / f"{kind}_label_kv.txt") for kind in ("noisy", "clean"))
    parts = []
    for keys, labels in (("noisy_train", noisy), ("clean_test", clean)):
        chosen = files.read_text(lists / f"{keys}_key_list.txt", max_bytes=2**28).split()
        unknown = [key for key in chosen if key not in labels or labels[key] >= len(_CLOTHING)]
        if unknown:
            raise InputError(f"clothing1m: {len(unknown):,} keys of {keys}_key_list.txt have no label, first {unknown[0]!r}")
        if any(key.startswith("/") or ".." in key for key in chosen):
            raise InputError(f"clothing1m: {keys}_key_list.txt names files outside its folder")
        parts.append([(path / key, labels[key]) for key in chosen])

    def content(order: np.ndarray) -> Iterator[bytes]:
        yield b"upright\n"  # since photos are decoded by their EXIF orientation; the files themselves are not read here
        for file, label in (*parts[0], *parts[1]):
            yield f"{file.relative_to(path).as_posix()} {label} {size}\n".encode("utf-8", "surrogateescape")

    train, test = parts
    data, read = _of_files(path, {"size": size, "crop": True} if size else {}, train, test, _CLOTHING, where, content)
    shape = (size, size, 3) if size else read(parts[0][0][0]).shape
    # Checking a million files before work begins would take too long.
    data.samples = lambda: tuple(load_small(Decoded([file for file, _ in part], read, shape, np.uint8)) for part in parts)
    data.name = str(path) if size == 224 else str(Spec("clothing1m", {"path": str(path), "size": size}))
    data.in_files, data.forms, data.test_true = False, None, True
    return data


def _clothing_lists(path):
    places = (path, path / "annotations")
    return next((place for place in places if (place / "noisy_train_key_list.txt").is_file()), None)


def _key_values(path):
    labels = {}
    try:
        for line in files.read_text(path, max_bytes=2**28).splitlines():
            if line.strip():
                key, label = line.rsplit(maxsplit=1)
                labels[key] = int(label)
    except InputError as error:
        raise InputError(f"{error}; the lists of Clothing1M must be in the same folder") from error
    except ValueError as error:
        raise InputError(f"{display_path(path)}: expected a key and a label per line: {error}") from error
    return labels


def _as_path(path, must_exist=True):
    path = path.name if isinstance(path, Spec) else path
    if not isinstance(path, (str, os.PathLike)):
        raise InputError(f'`path` is {path}; write path="FOLDER"')
    path = resolve(path)
    if must_exist and not path.is_dir():
        raise InputError(f"{display_path(path)}: no such folder")
    return path


def _of_files(path, parameters, train, test, names, where, content):
    """Make (Dataset of images or sounds, the function that reads one file)."""
    must_be_names(list(names), len(names))
    labels, files = np.array([label for _, label in train], np.int64), [file for file, _ in (*train, *test)]
    kinds = {}
    for file in files:
        kinds.setdefault(kind_of(file), []).append(file)
    if {"image", "wave"} <= kinds.keys():
        both = " and ".join(
            f"{len(kinds[kind]):,} {kind}s such as {display_path(kinds[kind][0])}" for kind in ("image", "wave")
        )
        raise InputError(f"{display_path(path)}: contains {both}; a data set has one kind of samples: remove the others")
    how = {name: value for name, value in parameters.items() if name not in ("label", "group", "skip_damaged")}
    kind, read = reader(files, **how)
    whole = reader(files, **how | {"size": 0})[1] if parameters.get("size") and kind == "image" else None
    remember = partial(cache_json, files=files, where=where, reading=f"4 {parameters}")  # the form of the checksum
    dataset = Dataset(
        name=str(Spec("folder", {"path": str(path), **parameters})) if parameters else str(path),
        kind=kind,
        y_train=labels,
        y_test=np.array([label for _, label in test], np.int64),
        observed=True,
        class_names=list(names),
        sample_rate=sample_rate(files) if kind == "wave" else 0,
        notes=doubts(names, labels, f"name the folder {UNLABELED[0]}"),
        samples=lambda: tuple(decode_files([[file for file, _ in part] for part in (train, test)], read, remember=remember)),
        content=content,
        remember=remember,
        in_files=True,
        whole=None if whole is None else lambda position: whole(train[position][0]),
        forms=lambda: tuple(remember("forms", lambda: [[form_of(file) for file, _ in part] for part in (train, test)])),
        layout=LAYOUTS[0],
    )
    return dataset, read
