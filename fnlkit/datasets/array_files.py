"""Read arrays of the user: an npz file, a folder of npy files, or arrays in memory."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fnlkit.artifacts import large
from fnlkit.artifacts.federation import MAX_CLASSES, must_be_dense, must_be_names
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.columns import note_values
from fnlkit.datasets.dataset import Dataset, split_unlabeled
from fnlkit.datasets.groups import DOUBTFUL, NAMES, as_texts, find_names, of_parts
from fnlkit.datasets.identifying import note_columns
from fnlkit.datasets.labels import class_finder, classes_of, doubts, must_repeat, note_empty_classes, whole_labels
from fnlkit.datasets.layout import LAYOUTS, lay_out, layout_of, rate_of
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.spelling import fold, merge_spellings
from fnlkit.datasets.votes import check_votes, most_votes, whole_votes


def npz(path: Path, *, cache: Path, of_site: bool = False) -> Dataset:
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
    cache : pathlib.Path
        The cache folder.
    of_site : bool
        As for `folder`.
    """
    arrays = large.open_arrays(path, decoded=cache / "decoded")
    return _name_arrays(path, arrays, [path], cache, of_site)


def npy(path: Path, *, cache: Path, of_site: bool = False) -> Dataset:
    """Load the data set of a folder with x_train.npy, y_train.npy and others.

    Each npy file is an array as in `npz`, with the same optional arrays.

    Parameters
    ----------
    path, cache : pathlib.Path
    of_site : bool
        As for `folder`.
    """
    npy_files = sorted(path.glob("*.npy"))
    arrays = {file.stem: large.open_arrays(file, decoded=cache / "decoded")["array"] for file in npy_files}
    return _name_arrays(path, arrays, npy_files, cache, of_site)


def _name_arrays(path, arrays, array_files, cache, of_site):
    try:
        data = from_arrays(str(path), _rename(arrays), of_site=of_site)
    except InputError as error:
        raise InputError(f"{display_path(path)}: {error}") from error
    if any(isinstance(array, Rows) for array in arrays.values()):
        data.remember = partial(cache_json, files=array_files, cache=cache)
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
            *note_empty_classes(names, labels, true, named),
            *doubts(names, labels[0], 'write "" as the label'),
        ],
        layout=LAYOUTS[0],
    )
    return split_unlabeled(dataset)


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
