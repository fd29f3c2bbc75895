"""cleanlab's report of wrong labels, with a row per site: `from fnlkit import Datalab`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.artifacts.shown import frame
from fnlkit.errors import InputError, nearest
from fnlkit.filter import Filter, find_label_issues
from fnlkit.rank import get_label_quality_scores

_ISSUE = "label"


@dataclass(frozen=True)
class _Found:
    """Per sample: issue, score in 0..1, most probable class, and whether the model is confident in another class."""

    issues: NDArray[np.bool_]
    scores: NDArray[np.floating]
    predicted: NDArray[np.int64]
    confident: NDArray[np.bool_]


class Datalab:
    """Find wrong labels from class probabilities and report them per site.

    Parameters
    ----------
    data : DataFrame, or dict of sequences
        Columns of equal length.
    label_name : str
        Column with the given labels. The classes are the labels that occur, sorted.
    sites : str or sequence of n, optional
        Column with the site of each sample, or the sites. Default: all samples are at one site, as in cleanlab.
    task : str
        Only ``"classification"``, cleanlab's default.

    Raises
    ------
    InputError
        If a column is missing, if the lengths differ, if a label or site is missing, or if `task` is another one.

    Notes
    -----
    Results for labels equal ``cleanlab.Datalab`` 2.9 with ``pred_probs``; with `sites`, a separate call for each site.
    Other kinds of issues (outliers, duplicates, class imbalance) are not searched.

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.1, 0.9]]
    >>> lab = Datalab({"finding": ["no", "no", "no", "yes", "yes"], "ward": list("aaabb")}, "finding", sites="ward")
    >>> lab.find_issues(pred_probs=probs, filter_by="predicted_neq_given")
    >>> lab.get_site_summary().values.tolist()
    [['a', 3, 1, 1.0], ['b', 2, 0, 1.0]]
    """

    def __init__(
        self, data: Any, label_name: str, *, sites: str | ArrayLike | None = None, task: str = "classification"
    ) -> None:
        if task != "classification":
            raise InputError(f"`task` must be 'classification', found {task!r}; see docs/other-labels.md for other labels")
        if not isinstance(data, Mapping) and not hasattr(data, "columns"):
            raise InputError(f"`data` must be a DataFrame or a dict of columns, found {type(data).__name__}")
        values = _column(data, label_name, "label_name")
        self.label_name = label_name
        classes, labels = np.unique(values, return_inverse=True)
        self.class_names: list[Any] = classes.tolist()
        self.labels: NDArray[np.int64] = labels.astype(np.int64)
        self.sites: NDArray[Any] | None = None
        if sites is not None:
            given = _column(data, sites, "sites") if isinstance(sites, str) else _complete(np.asarray(sites), "sites")
            if given.shape != labels.shape:
                raise InputError(f"`sites` must have shape ({len(labels):,},), one a sample; found {given.shape}")
            self.sites = given
        self._found: _Found | None = None

    def find_issues(
        self,
        *,
        pred_probs: ArrayLike | None = None,
        filter_by: Filter = "prune_by_noise_rate",
        min_examples_per_class: int = 10,
        issue_types: Mapping[str, Mapping[str, Any]] | None = None,
        features: ArrayLike | None = None,
    ) -> None:
        """Find samples whose label is likely wrong.

        Parameters
        ----------
        pred_probs : array (n, C)
            Out-of-sample class probabilities; columns in the order of `class_names`.
        filter_by : str
            Filter of `fnlkit.find_label_issues`.
        min_examples_per_class : int
            Labels with at most this number of samples (at a site) have no issues; for the first three filters. Default: that of
            cleanlab's Datalab.
        issue_types : dict, optional
            Only ``{"label": {}}``, cleanlab's selection of label issues.
        features : array, optional
            Not supported; the error names the function that reads features.

        Raises
        ------
        InputError
            As `fnlkit.find_label_issues`; if `pred_probs` is missing or has another number of columns than there are classes;
            and for `features` or other `issue_types`.
        """
        if features is not None:
            raise InputError(
                "`features` is not supported; call fnlkit.audit_samples(features, labels, sites), or cleanlab's Datalab"
            )
        if issue_types is not None and (set(issue_types) != {_ISSUE} or issue_types[_ISSUE]):
            raise InputError(
                f"`issue_types` must be {{{_ISSUE!r}: {{}}}}, found {issue_types!r}; use cleanlab for other kinds of issues"
            )
        if pred_probs is None:
            raise InputError("`pred_probs` is missing; give the out-of-sample class probabilities (n, C)")
        shape = np.shape(pred_probs)
        if len(shape) == 2 and shape[1] != len(self.class_names):
            raise InputError(
                f"`pred_probs` has {shape[1]} columns, but {len(self.class_names)} classes occur in {self.label_name!r}; "
                "give the columns of these classes in sorted order"
            )
        issues = find_label_issues(
            self.labels, pred_probs, sites=self.sites, filter_by=filter_by, min_examples_per_class=min_examples_per_class
        )
        confident = find_label_issues(self.labels, pred_probs, sites=self.sites, filter_by="confident_learning")
        scores = get_label_quality_scores(self.labels, pred_probs)
        self._found = _Found(issues.astype(bool), scores, np.asarray(pred_probs).argmax(1), confident.astype(bool))

    def get_issues(self, issue_name: str | None = None) -> Any:
        """Return a DataFrame with a row per sample.

        Parameters
        ----------
        issue_name : str, optional
            Only ``"label"``.

        Returns
        -------
        pandas.DataFrame
            Columns is_label_issue, label_score (0..1, lower is more likely wrong), given_label and predicted_label, and site if
            there are sites.
        """
        found = self._read(issue_name)
        names = np.array(self.class_names, object)
        columns = {
            "is_label_issue": found.issues,
            "label_score": found.scores,
            "given_label": names[self.labels],
            "predicted_label": names[found.predicted],
        }
        return frame(columns if self.sites is None else {"site": self.sites, **columns})

    @property
    def issues(self) -> Any:
        """The DataFrame of `get_issues`."""
        return self.get_issues()

    @property
    def issue_summary(self) -> Any:
        """The DataFrame of `get_issue_summary`."""
        return self.get_issue_summary()

    def get_issue_summary(self, issue_name: str | None = None) -> Any:
        """Return a DataFrame with one row: issue_type, score (share of labels without a confident other class), num_issues."""
        found = self._read(issue_name)
        return frame(
            {
                "issue_type": [_ISSUE],
                "score": [1 - float(found.confident.mean())],
                "num_issues": [int(found.issues.sum())],
            }
        )

    def get_site_summary(self) -> Any:
        """Return a DataFrame with a row per site, largest share of issues first.

        Returns
        -------
        pandas.DataFrame
            Columns site, num_examples, num_issues, score (as in `get_issue_summary`).

        Raises
        ------
        InputError
            If no sites were given.
        """
        found = self._read(None)
        if self.sites is None:
            raise InputError("`sites` was not given; name the column with the site of each sample in Datalab(...)")
        names, owner, sizes = np.unique(self.sites, return_inverse=True, return_counts=True)
        issues = np.bincount(owner, found.issues, len(names)).astype(int)
        order = np.argsort(-issues / sizes, kind="stable")
        scores = 1 - np.bincount(owner, found.confident, len(names)) / sizes
        columns = {"site": names, "num_examples": sizes, "num_issues": issues, "score": scores}
        return frame({name: values[order] for name, values in columns.items()})

    def report(self, *, num_examples: int = 5) -> None:
        """Print the number of issues, the table of sites and the samples with the lowest scores.

        Parameters
        ----------
        num_examples : int
            Number of samples.
        """
        summary = self.get_issue_summary()
        print(f"{summary.num_issues[0]:,} label issues in {len(self.labels):,} samples of {len(self.class_names)} classes")
        if self.sites is not None:
            print(f"\n{self.get_site_summary().to_string(index=False, float_format='{:.3f}'.format)}")
        issues = self.get_issues()
        first = issues[issues.is_label_issue].sort_values("label_score", kind="stable").head(num_examples)
        if len(first):
            print(f"\n{first.drop(columns='is_label_issue').to_string(float_format='{:.4f}'.format)}")

    def __repr__(self) -> str:
        found = "call find_issues" if self._found is None else f"{int(self._found.issues.sum()):,} label issues"
        return f"Datalab: {len(self.labels):,} samples, {len(self.class_names)} classes; {found}"

    def _read(self, issue_name: str | None) -> _Found:
        """Return the result of `find_issues`."""
        if issue_name not in (None, _ISSUE):
            raise InputError(f"`issue_name` must be {_ISSUE!r}, found {issue_name!r}; use cleanlab for other kinds of issues")
        if self._found is None:
            raise InputError("no issues yet; call find_issues(pred_probs=...) first")
        return self._found


def _column(data: Any, name: str, argument: str) -> NDArray[Any]:
    """Return the values (n,) of a column."""
    columns = list(map(str, data.columns if hasattr(data, "columns") else data))
    if name not in columns:
        raise InputError(f"`{argument}`: no column {name!r}{nearest(str(name), columns)}; columns: {', '.join(columns)}")
    return _complete(np.asarray(data[name]), argument)


def _complete(values: NDArray[Any], argument: str) -> NDArray[Any]:
    """Return values (n,), objects as numbers or texts; raise if one is missing."""
    flat = values.ravel().tolist()
    # pandas.NA is neither equal nor unequal to itself.
    missing = [value is None or type(value).__name__ == "NAType" or value != value for value in flat]
    if any(missing):
        raise InputError(f"`{argument}`: the value of sample {missing.index(True)} is missing; leave such samples out")
    if values.ndim != 1 or not len(values):
        raise InputError(f"`{argument}` must have a value per sample, found shape {values.shape}")
    if values.dtype != object:
        return values
    numbers = all(isinstance(value, (bool, int, float, np.number)) for value in flat)
    return np.array(flat) if numbers else values.astype(str)
