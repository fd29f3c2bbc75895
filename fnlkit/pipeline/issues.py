"""Audit of arrays, tables and folders in one call, for notebooks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fnlkit.artifacts.display import frame
from fnlkit.artifacts.federation import Federation
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.array_files import from_arrays
from fnlkit.datasets.loading import cache_folder, to_dataset
from fnlkit.datasets.manifest import Manifest
from fnlkit.datasets.spelling import order_texts
from fnlkit.datasets.table import Table
from fnlkit.pipeline.auditing import Audited, audit
from fnlkit.pipeline.inputs import ArrayLike, FilePath, Say, print_note
from fnlkit.pipeline.labels import partition

# Without sites, the samples are divided at random into this many groups.
GROUPS = 5


@dataclass
class LabelIssues:
    """Result of `audit_samples`.

    Attributes
    ----------
    issues : pandas.DataFrame
        A row per sample with the index of the input: site, given, suggested, score (higher is more likely wrong), confidence
        (probability that the suggestion is right), flagged, detectors (number of detectors that flag the
        sample).
    sites : pandas.DataFrame or None
        A row per site, noisiest first; None without sites.
    audited : fnlkit.pipeline.auditing.Audited
    dataset : fnlkit.datasets.Dataset
    """

    issues: object
    sites: object
    audited: Audited
    dataset: object

    @property
    def federation(self) -> Federation:
        """The judged federation, for `correct`, and with `dataset` for `export_review`."""
        return self.audited.federation

    def __repr__(self):
        return f"LabelIssues: {int(self.issues.flagged.sum()):,} of {len(self.issues):,} labels flagged"


def audit_samples(
    x: FilePath | ArrayLike,
    labels: ArrayLike | None = None,
    sites: ArrayLike | None = None,
    *,
    classes: Sequence[str] | None = None,
    sample_rate: int = 0,
    seed: int = 0,
    say: Say = print_note,
    **options: object,
) -> LabelIssues:
    """Find wrong labels in arrays, a DataFrame or files, and return tables with a row per sample and per site.

    Parameters
    ----------
    x : array, DataFrame, str or path
        Vectors (n, d), images (n, H, W) or (n, H, W, channels), or waves (n, T) with `sample_rate`; a DataFrame, whose other
        columns are the features; or a data set as for `partition`.
    labels : sequence of n, or column of the DataFrame
        Class names or numbers; samples with a missing label are left out. Not for a data set, which contains labels.
    sites : sequence of n, or column of the DataFrame, optional
        The site of each sample. Default: the samples are divided at random into five groups, as in cross-validation.
    classes : sequence of str, optional
        Names of the classes, in the order of `probabilities`. Default: the labels that occur, sorted.
    sample_rate : int
        Sample rate of waves, in Hz.
    seed : int
    say : callable(str) or None
        Receives notes, also the number of samples that are left out because the test set has copies of them.
    **options
        As for `audit`: embeddings, probabilities, backbone, detectors.

    Returns
    -------
    LabelIssues

    Raises
    ------
    InputError
        If the input has no labels or does not fit.

    Examples
    --------
    >>> import fnlkit
    >>> from fnlkit import datasets
    >>> digits = datasets.load("digits")
    >>> found = fnlkit.audit_samples(digits.x_train[:300], digits.y_train[:300], say=None)
    >>> len(found.issues)
    300
    """
    data, index, used = _data(x, labels, sites, classes, sample_rate)
    keywords: dict[str, Any] = dict(options)
    for name in ("embeddings", "probabilities"):
        if used is not None and hasattr(keywords.get(name), "__len__") and not isinstance(keywords[name], (str, os.PathLike)):
            keywords[name] = keywords[name][used]
    named = len(set(data.fields.get("site", ()))) > 1
    split: dict[str, Any] = {"scheme": "sites"} if named else {"clients": min(GROUPS, len(data.y_train))}
    federation = partition(data, **split, holdout=0.0, labels="observed", seed=seed, say=None)
    audited = audit(federation, dataset=data, seed=seed, say=say, **keywords)
    judged, names = audited.federation, list(map(str, data.class_names))
    values = {
        name: np.asarray(judged.extra[f"estimate_{name}"])
        for name in ("issue_score", "flagged", "suggested_label", "confidence")
    }
    by = [flags for name, flags in judged.extra.items() if name.startswith("estimate_by_")]
    owner = np.full(len(judged.given), -1)
    owner[judged.client_indices] = np.repeat(np.arange(len(judged)), np.diff(judged.client_offsets))
    columns = {
        "site": [judged.names[k] for k in owner],
        "given": [names[c] for c in judged.given],
        "suggested": [names[c] for c in values["suggested_label"]],
        "score": values["issue_score"],
        "confidence": values["confidence"],
        "flagged": values["flagged"].astype(bool),
        "detectors": np.sum(by, 0).astype(int),
    }
    if not named:
        del columns["site"]
    table = frame(columns)
    table.index = data.ids if index is None else index
    if say and (left_out := int((owner < 0).sum())):
        say(f"{left_out:,} samples are not judged: the test set has copies of them")
    return LabelIssues(table[owner >= 0], audited.to_pandas() if named else None, audited, data)


def _data(x, labels, sites, classes, sample_rate):
    """Read (Dataset, index of its samples or None for their ids, mask of the samples with labels or None)."""
    if isinstance(x, (str, os.PathLike)):
        if labels is not None or sites is not None:
            raise InputError("the data set contains `labels` and `sites`; give these arguments with arrays or a DataFrame only")
        data = to_dataset(os.fspath(x))
        return data, None if data.ids is not None else np.arange(len(data.y_train)), None
    if labels is None:
        raise InputError(
            "is missing; give the label of each sample, or the name of the column with the labels", parameter="labels"
        )
    columns = hasattr(x, "columns")
    index, size = (x.index if columns else np.arange(len(x))), len(x)
    taken = [name for name in (labels, sites) if columns and isinstance(name, str)]
    for name in taken:
        if name not in x.columns:
            raise InputError(f"no column {name!r}; the columns are {list_names(x.columns)}")
    cells = [
        None if part is None else _texts(x[part] if isinstance(part, str) and columns else part) for part in (labels, sites)
    ]
    for name, part in zip(("labels", "sites"), cells, strict=True):
        if part is not None and len(part) != size:
            raise InputError(f"`{name}` has {len(part):,} entries for {size:,} samples")
    used = np.array([text != "" for text in cells[0]])
    cells = [None if part is None else [text for text, keep in zip(part, used, strict=True) if keep] for part in cells]
    if columns:
        data = _of_frame(x.drop(columns=taken)[used], *cells, classes)
    else:
        data = _of_array(np.asarray(x)[used], *cells, classes, sample_rate)
    return data, index[used], used


def _texts(values):
    """Convert values to texts; a missing value is an empty text and a whole number has no decimal point."""
    import pandas

    cells, texts = np.asarray(values, object), []
    for value, missing in zip(cells.tolist(), pandas.isna(cells), strict=True):
        whole = isinstance(value, float) and not missing and value.is_integer()
        texts.append("" if missing else str(int(value)) if whole else str(value).strip())
    return texts


def _of_array(x, labels, sites, classes, sample_rate):
    names = list(map(str, classes)) if classes is not None else order_texts(set(labels))
    unknown = next((label for label in labels if label not in set(names)), None)
    if unknown is not None:
        raise InputError(f"label {unknown!r} is not in `classes`")
    place = {name: i for i, name in enumerate(names)}
    if x.dtype == np.float64:
        x = x.astype(np.float32)
    arrays = {"x_train": x, "y_train": np.array([place[label] for label in labels]), "class_names": np.array(names)}
    arrays |= {} if sites is None else {"site_train": np.array(sites)}
    arrays |= {"sample_rate": np.array(sample_rate)} if sample_rate else {}
    return from_arrays("arrays in memory", arrays)


def _of_frame(x, labels, sites, classes):
    if classes is not None:
        raise InputError("`classes` is for arrays; the classes of a DataFrame are the labels that occur; omit it")
    cells = {}
    for name in x.columns:
        numeric = x[name].dtype.kind in "biuf"
        cells[str(name)] = x[name].to_numpy(np.float64) if numeric else _texts(x[name])
    role = {"label": "given label", "site": "given site"}
    cells |= {role["label"]: labels} | ({} if sites is None else {role["site"]: sites})
    roles = {"label": role["label"], "site": role["site"] if sites is not None else "-", "split": "-", "id": "-"}
    source = os.path.join(os.getcwd(), "DataFrame")
    return Manifest(source, roles, table=Table("DataFrame", cells, list(range(len(labels))))).dataset(cache_folder())
