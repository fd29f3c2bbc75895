"""Read a folder with one npz per site, such as site_a.npz and site_b.npz."""

from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from fnlkit.artifacts import large
from fnlkit.artifacts.paths import display_path
from fnlkit.artifacts.stored import Chosen, Joined, Rows
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset, split_unlabeled
from fnlkit.datasets.groups import as_texts, of_parts
from fnlkit.datasets.labels import DOUBTFUL, classes_of, doubts, whole_labels
from fnlkit.datasets.layout import LAYOUTS, lay_out, layout_of, rate_of
from fnlkit.datasets.places import cache_json
from fnlkit.datasets.spelling import is_number


def npz_per_site(path: Path, *, cache: Path) -> Dataset:
    """Load the data set of a folder with one npz per site.

    The file name is the site name, which becomes the field `site`.  Each file contains ``x`` (n, ...) and ``y`` (n,) of whole
    numbers or texts, where -1 or "" is a missing label.  Optional arrays are ``split`` (n,) of the texts train and test
    (default: all train), ``ids`` (n,), ``groups`` (n,), such as the patient of each sample (fnlkit.datasets.groups), ``y_true``
    (n,) in all files or in none, ``class_names`` (C,) for numeric labels, ``sample_rate`` (for waves), and ``layout`` of
    images, "channels-first" or "channels-last".

    Parameters
    ----------
    path, cache : pathlib.Path
        The folder, and the cache folder for decompressed arrays.

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    return _of_files(path, sorted(path.glob("*.npz")), cache)


def npz_of_one(path: Path, *, cache: Path) -> Dataset:
    """Load the data set of a single site's npz, with the same arrays as in `npz_per_site`.

    The site can have a single class or sample.

    Parameters
    ----------
    path, cache : pathlib.Path
        The file, and the cache folder for decompressed arrays.

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    return _of_files(path, [path], cache, of_site=True)


def _of_files(path, files, cache, of_site=False):
    parts = []
    for file in files:
        try:
            parts.append(_Part(file, cache))
        except InputError as error:
            text = str(error)
            raise InputError(text if str(file) in text else f"{display_path(file)}: {text}") from None
    first = parts[0]
    for part in parts[1:]:
        for attribute in ("kind", "shape", "dtype", "rate", "with_truth"):
            mine, theirs = getattr(part, attribute), getattr(first, attribute)
            if mine != theirs:
                difference = f"{attribute.replace('_', ' ')} is {mine} here, but {theirs} in {first.file.name}"
                raise InputError(f"{display_path(part.file)}: {difference}; all sites must use the same")
    numbered = next((part for part in parts if part.numbered and any(part.labels)), None)
    words = ({text for text in part.labels if text.lower() not in ("", *DOUBTFUL)} for part in parts)
    worded = next((part for part, texts in zip(parts, words, strict=True) if texts and not any(map(is_number, texts))), None)
    if numbered and worded:
        raise InputError(
            f"{display_path(numbered.file)}: `y` has numbers, but texts in {worded.file.name}; add `class_names`, or write all "
            "labels in one form"
        )
    data = _join(path, parts, of_site)
    if any(isinstance(part.x, Rows) for part in parts):
        data.remember = partial(cache_json, files=[part.file for part in parts], cache=cache)
    return split_unlabeled(data)


class _Part:
    """Content of one file."""

    def __init__(self, file, cache):
        self.file = file
        arrays = large.open_arrays(file, decoded=cache / "decoded")
        missing = [key for key in ("x", "y") if key not in arrays]
        if missing:
            raise InputError(f"has no {', '.join(missing)}; expected x and y in the npz of a site")
        flat = {key: np.asarray(value).reshape(-1) for key, value in arrays.items() if key != "x"}
        self.rate = rate_of(flat["sample_rate"]) if "sample_rate" in flat else 0
        layout = layout_of(flat["layout"]) if "layout" in flat else ""
        self.x, self.kind, self.note = lay_out(arrays["x"], "x", self.rate, layout)
        self.shape, self.dtype = tuple(self.x.shape[1:]), str(self.x.dtype)
        names = flat["class_names"].astype(str).tolist() if "class_names" in flat else None
        self.class_names, self.with_truth = names, "y_true" in flat
        self.numbered = names is None and whole_labels(flat["y"], "y").dtype.kind != "U"
        self.labels = self._texts(flat["y"], "y", names)
        self.true = self._texts(flat["y_true"], "y_true", names) if self.with_truth else []
        self.ids = [str(text) for text in flat["ids"]] if "ids" in flat else [f"{file.name} x[{i}]" for i in range(len(self.x))]
        self.split = [str(text).lower() for text in flat["split"]] if "split" in flat else ["train"] * len(self.x)
        self.groups = as_texts(flat["groups"]) if "groups" in flat else [""] * len(self.x)
        for name, values in (("y", self.labels), ("ids", self.ids), ("split", self.split), ("y_true", self.true),
                             ("groups", self.groups)):  # fmt: skip
            if len(values) != len(self.x) and (self.with_truth or name != "y_true"):
                raise InputError(f"`{name}` has {len(values):,} entries but `x` {len(self.x):,} samples")
        unknown = next((text for text in self.split if text not in ("train", "test")), None)
        if unknown is not None:
            raise InputError(f"`split` contains {unknown[:40]!r}; write train or test")
        if len(set(self.ids)) < len(self.ids):
            twin = Counter(self.ids).most_common(1)[0][0]
            raise InputError(f"`ids` contains {display_path(twin)} twice; ids must be unique")

    def _texts(self, values, name, names):
        """Convert labels to texts; "" is a missing label."""
        values = whole_labels(values, name)
        if values.dtype.kind == "U":
            return values.tolist()
        if len(values) and (values.min() < -1 or (names is not None and values.max() >= len(names))):
            low, high = values.min(), values.max()
            raise InputError(f"`{name}` has labels {low} to {high}; expected 0 to C - 1 for C class_names, or -1 if missing")
        return ["" if v < 0 else str(v) if names is None else names[v] for v in values.tolist()]


def _join(path, parts, of_site):
    """Join all files to a Dataset, including samples without a label."""
    texts, true = (sum((getattr(part, name) for part in parts), []) for name in ("labels", "true"))
    try:
        names, labels, true, merged = classes_of(texts, true=true, of_site=of_site)
    except InputError as error:
        raise InputError(f"{display_path(path)}: {error}") from None
    x = Joined([part.x for part in parts])
    if not any(isinstance(part.x, Rows) for part in parts):
        x = x[:]
    in_test = np.array(sum((part.split for part in parts), [])) == "test"
    in_test &= labels >= 0  # samples without a label cannot be used for evaluation
    train, test = np.flatnonzero(~in_test), np.flatnonzero(in_test)
    if not (labels[train] >= 0).any():
        raise InputError(f"{display_path(path)}: no training sample has a label")
    sites = np.repeat([part.file.stem for part in parts], [len(part.x) for part in parts])
    group = np.array(sum((part.groups for part in parts), []))
    groups, groups_test, notes = of_parts(group[train], group[test], sites[train], sites[test])
    return Dataset(
        name=str(path),
        kind=parts[0].kind,
        y_train=labels[train],
        y_test=labels[test],
        class_names=names,
        samples=lambda: (x[train], x[test]) if isinstance(x, np.ndarray) else (Chosen(x, train), Chosen(x, test)),
        sample_rate=parts[0].rate,
        fields={"site": sites[train]},
        observed=not parts[0].with_truth,
        y_train_true=true[train] if parts[0].with_truth else None,
        ids=np.array(sum((part.ids for part in parts), []))[train],
        groups=groups,
        groups_test=groups_test,
        notes=[
            *(f"{part.file.name}: {part.note}" for part in parts if part.note),
            *merged,
            *doubts(names, labels, 'write "" as the label'),
            *notes,
        ],
        layout=LAYOUTS[0],
    )
