"""Read data sets of OpenML and of Hugging Face's hub through scikit-learn and `datasets`.

`download=True` fetches a data set once and stores its columns or images as npz in the cache folder; later reads use this file.
"""

import io
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fnlkit.artifacts import large, paths, saving
from fnlkit.components.parameters import Count, Text, check_arguments
from fnlkit.components.spec import Spec
from fnlkit.datasets.columns import order_texts
from fnlkit.datasets.decoding import upright
from fnlkit.datasets.groups import find_names
from fnlkit.datasets.local import from_arrays
from fnlkit.datasets.manifest import ROLES, Manifest
from fnlkit.datasets.table import Table
from fnlkit.errors import InputError, list_names, nearest

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


# Splits of the hub with test samples, in order of preference. Further splits are not used.
_TESTED = ("test", "validation")
# Modes of images with 8 bits per channel that are read as gray values; and those that are read as RGB.
_GRAY, _COLOR = ("1", "L"), ("LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "LAB")


@check_arguments
def openml(
    *,
    id: Count,
    label: Text = "",
    site: Text = "",
    group: Text = "",
    drop: Sequence[str] | None = None,
    text: Sequence[str] | None = None,
    where: Path,
    download: bool = False,
) -> "Dataset":
    """Return a table of OpenML by its number; all rows are training samples.

    Parameters
    ----------
    id : int
        Number of the data set at openml.org.
    label : str
        Column with the labels. Default: the target that OpenML declares.
    site : str
        Column with the sites. Default: a column with a usual name, if any.
    group : str
        Column with groups, such as patients, which are never divided. Default: a column with a usual name, if any.
    drop, text : list of columns, optional
        As for `manifest`.

    Raises
    ------
    InputError
        If the data set is not in the cache folder and `download` is False, or cannot be fetched.
    """
    options = {"label": label, "site": site, "group": group, "drop": drop, "text": text}
    spec, place = _spec("openml", {"id": id, **options}), where / "openml" / f"{id}.npz"
    if not place.is_file():
        if not download:
            raise _missing(spec, place)
        _store(place, _fetch_openml(id, where))
    return _dataset(_fetch_and_store(place, where), spec, options, where)


@check_arguments
def hf(
    *,
    name: Text,
    config: Text = "",
    label: Text = "",
    site: Text = "",
    group: Text = "",
    drop: Sequence[str] | None = None,
    text: Sequence[str] | None = None,
    where: Path,
    download: bool = False,
) -> "Dataset":
    """Return a data set of Hugging Face's hub, or a local folder or file that the library of the hub reads.

    The split ``train`` is used for training, ``test`` or else ``validation`` for testing. Images must have one size.

    Parameters
    ----------
    name : str
        Name at the hub, such as ``"ylecun/mnist"``, or the path of a folder of Parquet, CSV or JSON files or images.
    config : str
        Configuration of the data set. Default: the only configuration.
    label : str
        Column with the labels. Default: the only column of classes, or a column with a usual name.
    site : str
        Column with the sites. Default: a column with a usual name, if any.
    group : str
        Column with groups, such as patients, which are never divided. Default: a column with a usual name, if any.
    drop, text : list of columns, optional
        As for `manifest`, for data sets without images.

    Raises
    ------
    InputError
        If the data set is not in the cache folder and `download` is False, cannot be fetched, or has no labels.
    """
    options = {"label": label, "site": site, "group": group, "drop": drop, "text": text}
    fetch = partial(_fetch_hf, config=config, label=label, site=site, group=group, folder=where / "hf/library")
    local = paths.from_home(name)
    if local.exists():
        spec = _spec("hf", {"name": str(local.resolve()), "config": config, **options})
        return _dataset(fetch(str(local)), spec, options, where)
    spec = _spec("hf", {"name": name, "config": config, **options})
    parts = "/".join(filter(None, (name, config, label, site, group)))
    place = where / "hf" / f"{re.sub(r'[^A-Za-z0-9_.=-]', '--', parts)}.npz"
    if not place.is_file() or _is_turned(_fetch_and_store(place, where)):
        if not download:
            raise _missing(spec, place)
        _store(place, fetch(name))
    return _dataset(_fetch_and_store(place, where), spec, options, where)


def _spec(name, parameters):
    return str(Spec(name, {key: value for key, value in parameters.items() if value}))


def _missing(spec, place):
    found = "was stored before photos were turned upright" if place.is_file() else "does not exist"
    return InputError(f"{spec}: {paths.display_path(place)} {found}; run: fnlkit data get '{spec}'")


def _store(place, arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    place.parent.mkdir(parents=True, exist_ok=True)
    saving.write_bytes([content.getbuffer()], place)


def _is_turned(arrays):
    """Return whether images were stored by fnlkit 0.2, which did not apply their EXIF orientation."""
    return "x_train" in arrays and "upright" not in arrays


def _fetch_and_store(place, where):
    return large.open_arrays(place, decoded=where / "decoded")


def _dataset(arrays, name, options, where):
    """Return the Dataset of images (as in an npz) or of the columns of a table."""
    if "x_train" in arrays:
        data = from_arrays(name, {key: value for key, value in arrays.items() if key not in ("label", "upright")})
    else:
        names = np.asarray(arrays["columns"]).astype(str).tolist()
        cells = {}
        for i, column in enumerate(names):
            values = np.asarray(arrays[f"column_{i}"])
            cells[column] = values if values.dtype.kind == "f" else values.astype(str).tolist()
        given = {"label": options["label"] or str(arrays["label"]), "site": options["site"], "group": options["group"]}
        lists = {key: options[key] for key in ("drop", "text") if options[key]}
        table = Table(name, cells, list(range(1, 1 + len(next(iter(cells.values()))))))
        data = Manifest(name, given, lists=lists, table=table).dataset(where)
    data.name = name
    return data


def _columns(columns, label):
    """Return the arrays of a stored table: columns {name: float64 or texts} and the name of the label."""
    arrays = {f"column_{i}": values for i, values in enumerate(columns.values())}
    return {"columns": np.array(list(columns)), "label": np.array(label), **arrays}


def _fetch_openml(number, folder):
    from sklearn.datasets import fetch_openml

    try:
        # The target is read as a column of the data, because scikit-learn fails for targets with missing values.
        found = fetch_openml(data_id=number, data_home=str(folder), as_frame=False, parser="liac-arff", target_column=None)
    except (OSError, ValueError) as error:
        raise InputError(f"openml(id={number}): {str(error).splitlines()[0]}") from error
    label = found.details.get("default_target_attribute") or ""
    if label not in found.feature_names:
        declared = f"declares the target {label!r}" if label else "declares no target"
        raise InputError(f"openml(id={number}): {declared}; expected one of the columns {list_names(found.feature_names)}")
    if not isinstance(found.data, np.ndarray):
        raise InputError(f"openml(id={number}): sparse tables are not read; write a CSV with the columns that you use")
    columns = {}
    for name, values in zip(found.feature_names, found.data.T.astype(np.float64), strict=True):
        levels = (found.categories or {}).get(name)
        if levels is not None:
            columns[name] = np.array(["" if value != value else str(levels[int(value)]) for value in values])
        elif name == label:
            texts = (np.format_float_positional(value, trim="-") for value in values)
            columns[name] = np.array(["" if text == "nan" else text for text in texts])
        else:
            columns[name] = values
    return _columns(columns, label)


def _fetch_hf(name, *, config, label, site, group, folder):
    try:
        import datasets
    except ImportError:
        raise InputError("hf: package datasets is not installed; pip install 'fnlkit[hf]'") from None
    try:
        found = datasets.load_dataset(name, config or None, cache_dir=str(folder))
    except Exception as error:  # the library raises exceptions of many kinds
        raise InputError(f"hf(name={name}): {' '.join(str(error).split())[:300]}") from error
    if "train" not in found:
        raise InputError(f"hf(name={name}): has the splits {', '.join(found)}; expected train")
    parts = {"train": found["train"]}
    parts |= next(({"test": found[part]} for part in _TESTED if part in found), {})
    features = found["train"].features
    label = _label_of(name, features, label)
    for part, rows in parts.items():
        if rows.features.keys() != features.keys():
            raise InputError(f"hf(name={name}): the columns of {part} are {list_names(rows.features)}; expected those of train")
    images = [column for column, kind in features.items() if type(kind).__name__ == "Image"]
    if len(images) > 1:
        raise InputError(f"hf(name={name}): has {len(images)} columns of images: {list_names(images)}; expected one")
    if images:
        return _image_arrays(name, parts, images[0], label, site, group, features)
    return _table_arrays(name, parts, label, features)


def _label_of(name, features, label):
    """Return the column with the labels."""
    if label:
        if label not in features:
            raise InputError(f"hf(name={name}): no column {label!r}{nearest(label, features)}; columns: {list_names(features)}")
        return label
    classes = [column for column, kind in features.items() if type(kind).__name__ == "ClassLabel"]
    usual = [column for column in features if column.lower() in ROLES["label"]]
    for found in (classes, usual):
        if len(found) == 1:
            return found[0]
    raise InputError(f"hf(name={name}): which column has the labels? write label=... with one of {list_names(features)}")


def _names_of(rows, column):
    """Return the values (n,) of a column as texts: names of classes, "" if missing."""
    kind, values = rows.features[column], rows[column]
    names = getattr(kind, "names", None)
    if names is not None:
        return np.array(["" if value is None or value < 0 else names[value] for value in values])
    return np.array(["" if value is None else str(value) for value in values])


def _image_arrays(name, parts, image, label, site, group, features):
    """Return the arrays of an npz with images (n, H, W) or (n, H, W, 3) uint8."""
    if type(features[label]).__name__ not in ("Value", "ClassLabel"):
        raise InputError(f"hf(name={name}): column {label!r} has several labels per image; expected one label")
    names = getattr(features[label], "names", None)
    texts = {part: _names_of(rows, label) for part, rows in parts.items()}
    if names is None:
        names = order_texts(set(np.concatenate(list(texts.values())).tolist()) - {""})
    place = {text: i for i, text in enumerate(names)} | {"": -1}
    arrays = {"class_names": np.array(names), "label": np.array(label), "upright": np.array(True)}
    images = {part: list(rows[image]) for part, rows in parts.items()}
    groups = [group] if group else find_names(features, lambda column: _names_of(parts["train"], column).tolist())
    modes = {_mode_of(name, part, i, one) for part, rows in images.items() for i, one in enumerate(rows)}
    mode = "L" if modes <= set(_GRAY) else "RGB"
    for part, rows in images.items():
        pixels = [np.asarray(upright(one).convert(mode)) for one in rows]
        if len(sizes := {each.shape for each in pixels}) > 1:
            raise InputError(f"hf(name={name}): images of {len(sizes)} sizes; expected one size")
        y = np.array([place[text] for text in texts[part]])
        kept = np.ones(len(y), bool) if part == "train" else y >= 0
        if kept.any():
            arrays |= {f"x_{part}": np.stack(pixels)[kept], f"y_{part}": y[kept]}
            arrays |= {f"groups_{part}": _names_of(rows, groups[0])[kept] for rows in [parts[part]] if groups}
    usual = [column for column in features if column.lower() in ROLES["site"]]
    if site or usual:
        arrays["site_train"] = _names_of(parts["train"], site or usual[0])
    return arrays


def _mode_of(name, part, i, image):
    """Return the mode of an image; raise if it is missing or has more than 8 bits per channel."""
    if image is None:
        raise InputError(f"hf(name={name}): image {i} of {part} is missing; expected an image in each row")
    if image.mode not in _GRAY + _COLOR:
        raise InputError(f"hf(name={name}): image {i} of {part} has the mode {image.mode}; expected 8 bits per channel")
    return image.mode


def _table_arrays(name, parts, label, features):
    """Return the stored columns of a table, with a column of the split if there are test samples."""
    columns = {}
    for column, kind in features.items():
        number = getattr(kind, "dtype", "").startswith(("int", "uint", "float")) and not hasattr(kind, "names")
        if type(kind).__name__ not in ("Value", "ClassLabel"):
            raise InputError(f"hf(name={name}): column {column!r} is {type(kind).__name__}; expected numbers, texts or classes")
        if number and column != label:
            columns[column] = np.concatenate([np.array(rows[column], np.float64) for rows in parts.values()])
        else:
            columns[column] = np.concatenate([_names_of(rows, column) for rows in parts.values()])
    if len(parts) > 1:
        columns["split"] = np.repeat(list(parts), [len(rows) for rows in parts.values()])
    return _columns(columns, label)
