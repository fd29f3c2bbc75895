"""cleanlab's report of data, with a row per site: `from fnlkit import Datalab`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fnlkit.artifacts.display import frame
from fnlkit.cleanlab.feature_issues import (
    Issue,
    copy_issues,
    imbalance_issues,
    neighbor_shares,
    neighbors_of,
    null_issues,
    order_issues,
    outlier_issues,
    read_features,
)
from fnlkit.cleanlab.filter import PRUNING, Filter, class_sizes, find_label_issues, warn_of_small_classes
from fnlkit.cleanlab.rank import get_label_quality_scores, group_by_site
from fnlkit.errors import InputError, list_names, nearest

# Kinds of issues in cleanlab's order, and those that need features.
KINDS = ("null", "label", "outlier", "near_duplicate", "non_iid", "class_imbalance")
_OF_FEATURES = ("null", "outlier", "near_duplicate", "non_iid")


class Datalab:
    """Find wrong labels, outliers, copies and other issues of samples, and report them per site.

    Parameters
    ----------
    data : DataFrame, dict of sequences, or Dataset of the package datasets
        Columns of equal length.
    label_name : str, optional
        Column with the given labels. Default: no labels.
    sites : str or sequence of n, optional
        Column with the site of each sample, or the sites. Default: all samples are at one site, as in cleanlab.
    class_names : sequence, optional
        All classes, in the order of the columns of `pred_probs`. Default: the labels that occur, sorted; for whole numbers and
        more columns of `pred_probs` than labels, 0, 1, ..., as a site can lack classes.
    task : str
        Only ``"classification"``, cleanlab's default.

    Raises
    ------
    InputError
        If a column is missing, if the lengths differ, if a label or site is missing, if a label is no class, or if `task` is
        another one.

    Notes
    -----
    Each site is judged without data of the other sites. Labels with `pred_probs` and imbalance equal ``cleanlab.Datalab`` 2.9;
    other kinds have its columns and the audit's thresholds (`fnlkit.cleanlab.feature_issues`).

    Examples
    --------
    >>> probs = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.1, 0.9]]
    >>> lab = Datalab({"finding": ["no", "no", "no", "yes", "yes"], "ward": list("aabab")}, "finding", sites="ward")
    >>> lab.find_issues(pred_probs=probs, filter_by="predicted_neq_given", issue_types={"label": {}})
    >>> lab.get_site_summary().values.tolist()
    [['b', 2, 1, 0.5], ['a', 3, 0, 1.0]]
    """

    def __init__(
        self,
        data: Any,
        label_name: str | None = None,
        *,
        sites: str | ArrayLike | None = None,
        class_names: Iterable[Any] | None = None,
        task: str = "classification",
    ) -> None:
        if task != "classification":
            raise InputError(f"`task` must be 'classification', found {task!r}; cleanlab's own Datalab has other tasks")
        if not isinstance(data, Mapping) and not hasattr(data, "columns") and not hasattr(data, "column_names"):
            raise InputError(f"`data` must be a DataFrame or a dict of columns, found {type(data).__name__}")
        self.label_name = label_name
        self.class_names: list[Any] = []
        self.labels: NDArray[np.int64] | None = None
        if label_name is not None:
            values = _column(data, label_name, "label_name")
            classes, labels = np.unique(values, return_inverse=True)
            self.class_names, self.labels = classes.tolist(), labels.astype(np.int64)
            if class_names is not None:
                self._use_names(list(class_names))
        names = _names(data)
        self._size = len(values) if label_name is not None else len(np.asarray(data[names[0]])) if names else 0
        self.sites: NDArray[Any] | None = None
        if sites is not None:
            site_names = _column(data, sites, "sites") if isinstance(sites, str) else _complete(np.asarray(sites), "sites")
            if site_names.shape != (self._size,):
                raise InputError(f"`sites` must have shape ({self._size:,},), one a sample; found {site_names.shape}")
            self.sites = site_names
        self._results: dict[str, list[Issue]] = {}

    def _use_names(self, names):
        """Number the labels by their position in all class names."""
        if unknown := [name for name in self.class_names if name not in names]:
            raise InputError(f"`class_names` lacks the label {unknown[0]!r} of {self.label_name!r}")
        if len(set(names)) != len(names):
            raise InputError("`class_names` has a name twice")
        self.labels = np.array([names.index(name) for name in self.class_names], np.int64)[self.labels]
        self.class_names = names

    def find_issues(
        self,
        *,
        pred_probs: ArrayLike | None = None,
        features: ArrayLike | None = None,
        issue_types: Mapping[str, Mapping[str, Any]] | None = None,
        filter_by: Filter = "prune_by_noise_rate",
        min_examples_per_class: int = 10,
    ) -> None:
        """Find issues; kinds of an earlier call remain unless they are searched again.

        Parameters
        ----------
        pred_probs : array (n, C), optional
            Out-of-sample class probabilities for the kind ``label``; columns in the order of `class_names`. Default: the shares
            of classes among the 10 nearest neighbors by `features`.
        features : array (n, D), optional
            Numbers of each sample, NaN for missing values; scale columns of different units first. For the kinds ``null``,
            ``outlier``, ``near_duplicate`` and ``non_iid``. Samples with a missing value get the score NaN in the last three.
        issue_types : dict, optional
            Kinds to search, as ``{"label": {}}``. Default: all kinds for which there are labels or features.
        filter_by : str
            Filter of `fnlkit.find_label_issues`.
        min_examples_per_class : int
            Labels with at most this number of samples (at a site) have no issues; for the first three filters. Default: that of
            cleanlab's Datalab.

        Raises
        ------
        InputError
            As `fnlkit.find_label_issues`; for kinds that are unknown or need other arguments; if `pred_probs` has another
            number of columns than there are classes.

        Warns
        -----
        UserWarning
            Once for all classes (of all sites) without labels or with too few labels for issues.
        """
        points = None if features is None else read_features(features, self._size)
        kinds = self._kinds(issue_types, pred_probs is not None, points is not None)
        order, offsets = group_by_site(self.sites, self._size)
        order = np.arange(self._size)[order]
        rows_of_sites = [order[start:stop] for start, stop in zip(offsets[:-1], offsets[1:], strict=True)]
        probs = self._read_probs(pred_probs) if "label" in kinds and pred_probs is not None else None
        shares = np.zeros((self._size, len(self.class_names))) if "label" in kinds and probs is None else None
        parts = [self._judge(rows, points, kinds, shares) for rows in rows_of_sites]
        results = {kind: _join(self._size, rows_of_sites, [part[kind] for part in parts]) for kind in parts[0]}
        if "label" in kinds:
            results["label"] = self._judge_labels(shares if probs is None else probs, filter_by, min_examples_per_class)
        self._results |= results

    def _kinds(self, issue_types, probs, features):
        """Return the kinds of issues to search."""
        possible = {kind for kind in _OF_FEATURES if features}
        if self.labels is not None:
            possible |= {"class_imbalance"} | ({"label"} if probs or features else set())
        if issue_types is None:
            if not possible - {"class_imbalance"}:
                raise InputError("`pred_probs` and `features` are missing; give at least one of them")
            return possible
        if not issue_types:
            warnings.warn("`issue_types` is empty: nothing is searched", stacklevel=3)
        for kind, options in issue_types.items():
            if kind not in KINDS:
                raise InputError(
                    f"`issue_types`: {kind!r} is not searched{nearest(str(kind), KINDS)}; kinds: {', '.join(KINDS)}"
                )
            if options:
                raise InputError(f"`issue_types`: {kind!r} has no options here, found {options!r}; use {{}}")
            if kind not in possible:
                needs = (
                    "`features`" if kind in _OF_FEATURES else "labels" if self.labels is None else "`pred_probs` or `features`"
                )
                raise InputError(f"`issue_types`: {kind!r} needs {needs}")
        return set(issue_types)

    def _read_probs(self, pred_probs):
        """Return probabilities with a column per class; number the labels by their values if columns of classes lack labels."""
        shape = np.shape(pred_probs)
        columns, names = shape[1] if len(shape) == 2 else 0, self.class_names
        if columns > len(names) and all(type(name) is int and 0 <= name < columns for name in names):
            self._use_names(list(range(columns)))
        if columns != len(self.class_names):
            raise InputError(
                f"`pred_probs` has {columns} columns, but {len(names)} classes occur in {self.label_name!r}; give a column for "
                "each class in sorted order, or name the classes of all columns with Datalab(class_names=...)"
            )
        return np.asarray(pred_probs)

    def _judge(self, rows, points, kinds, shares):
        """Return the issues of a site by kind, without labels; write the shares of neighbors into `shares` (n, C)."""
        issues: dict[str, Issue] = {}
        if "class_imbalance" in kinds:
            issues["class_imbalance"] = imbalance_issues(self.labels[rows], len(self.class_names))
        if points is None or not kinds - {"class_imbalance"}:
            return issues
        members = points[rows]
        if "null" in kinds:
            issues["null"] = null_issues(members)
        complete = np.flatnonzero(~np.isnan(members).any(1))
        near = neighbors_of(members[complete])
        judges = {
            "outlier": lambda: outlier_issues(members[complete], near),
            "near_duplicate": lambda: copy_issues(near),
            "non_iid": lambda: order_issues(near),
        }
        for kind in kinds & judges.keys():
            issues[kind] = _spread(len(rows), complete, judges[kind]() if near else None, rows)
        if shares is not None:
            classes = len(self.class_names)
            shares[rows] = np.eye(classes)[self.labels[rows]]  # no neighbors: the label itself, which is no issue
            if near:
                shares[rows[complete]] = neighbor_shares(self.labels[rows[complete]], classes, near)
        return issues

    def _judge_labels(self, probs, filter_by, least):
        """Return the label issues of all sites."""
        order, offsets = group_by_site(self.sites, self._size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of classes, which have names here
            issues = find_label_issues(
                self.labels, probs, sites=self.sites, filter_by=filter_by, min_examples_per_class=least
            )  # fmt: skip
            confident = find_label_issues(self.labels, probs, sites=self.sites, filter_by="confident_learning")
        sizes = class_sizes(self.labels[order], len(self.class_names), offsets)
        if filter_by != "predicted_neq_given":  # does not depend on other labels
            warn_of_small_classes(sizes, self.sites, least if filter_by in PRUNING else 0, self.class_names)
        scores = get_label_quality_scores(self.labels, probs)
        right = 1 - np.add.reduceat(confident[order], offsets[:-1], dtype=np.float64) / np.diff(offsets)
        return _Result(issues, scores, right, {"predicted_label": probs.argmax(1)})

    def get_issues(self, issue_name: str | None = None) -> Any:
        """Return a DataFrame with a row per sample.

        Parameters
        ----------
        issue_name : str, optional
            A kind of issue. Default: all kinds that were searched.

        Returns
        -------
        pandas.DataFrame
            Columns is_KIND_issue and KIND_score (0..1, lower is worse), and site if there are sites. For a single kind,
            further columns: given_label and predicted_label; distance_to_nearest_neighbor and nearest_neighbor (position).
        """
        kinds = self._searched(issue_name)
        columns: dict[str, Any] = {} if self.sites is None else {"site": self.sites}
        for kind in kinds:
            columns |= {f"is_{kind}_issue": self._results[kind].flags, f"{kind}_score": self._results[kind].scores}
        if issue_name is not None:
            names = np.array([*self.class_names, None], object)[:-1]
            if issue_name in ("label", "class_imbalance"):
                columns["given_label"] = names[self.labels]
            for name, values in self._results[issue_name].columns.items():
                columns[name] = names[values] if name == "predicted_label" else values
        return frame(columns)

    @property
    def issues(self) -> Any:
        """The DataFrame of `get_issues`, empty before `find_issues`."""
        return self.get_issues() if self._results else frame({})

    @property
    def issue_summary(self) -> Any:
        """The DataFrame of `get_issue_summary`, empty before `find_issues`."""
        return self.get_issue_summary() if self._results else frame({"issue_type": [], "score": [], "num_issues": []})

    def get_issue_summary(self, issue_name: str | None = None) -> Any:
        """Return a DataFrame with a row per kind.

        Returns
        -------
        pandas.DataFrame
            Columns issue_type, score, num_issues. Score of labels: the share without a confident other class; of non_iid: the
            p-value; of class_imbalance: the share of the rarest class; else the mean score. With `sites`, the mean over all
            samples.
        """
        kinds = self._searched(issue_name)
        sizes = np.array([self._size]) if self.sites is None else np.unique(self.sites, return_counts=True)[1]
        return frame(
            {
                "issue_type": kinds,
                "score": [float(np.average(self._results[kind].of_sites, weights=sizes)) for kind in kinds],
                "num_issues": [int(self._results[kind].flags.sum()) for kind in kinds],
            }
        )

    def get_site_summary(self) -> Any:
        """Return a DataFrame with a row per site, largest share of label issues first.

        Returns
        -------
        pandas.DataFrame
            Columns site, num_examples, num_issues and score of labels, and num_KIND_issues of other kinds.

        Raises
        ------
        InputError
            If no sites were given.
        """
        kinds = self._searched(None)
        if self.sites is None:
            raise InputError("`sites` was not given; name the column with the site of each sample in Datalab(...)")
        names, owner, sizes = np.unique(self.sites, return_inverse=True, return_counts=True)
        numbers = {kind: np.bincount(owner, self._results[kind].flags, len(names)).astype(int) for kind in kinds}
        first = numbers.get("label", sum(numbers.values()))
        order = np.argsort(-first / sizes, kind="stable")
        columns = {"site": names, "num_examples": sizes}
        if "label" in kinds:
            columns |= {"num_issues": first, "score": self._results["label"].of_sites}
        columns |= {f"num_{kind}_issues": number for kind, number in numbers.items() if kind != "label"}
        return frame({name: values[order] for name, values in columns.items()})

    def report(self, *, num_examples: int = 5) -> None:
        """Print the number of issues of each kind, the table of sites and the samples with the lowest scores.

        Parameters
        ----------
        num_examples : int
            Number of samples of each kind.
        """
        summary = self.get_issue_summary()
        classes = f" of {len(self.class_names)} classes" if self.labels is not None else ""
        for kind, number in zip(summary.issue_type, summary.num_issues, strict=True):
            print(f"{number:,} {kind} issues in {self._size:,} samples{classes}")
        if self.sites is not None:
            print(f"\n{self.get_site_summary().to_string(index=False, float_format='{:.3f}'.format)}")
        for kind in summary.issue_type[summary.num_issues > 0]:
            issues = self.get_issues(kind)
            first = issues[issues[f"is_{kind}_issue"]].sort_values(f"{kind}_score", kind="stable").head(num_examples)
            print(f"\n{first.drop(columns=f'is_{kind}_issue').to_string(float_format='{:.4f}'.format)}")

    def __repr__(self) -> str:
        numbers = [f"{int(self._results[kind].flags.sum()):,} {kind} issues" for kind in self._searched(None, ())]
        classes = f", {len(self.class_names)} classes" if self.labels is not None else ""
        return f"Datalab: {self._size:,} samples{classes}; {', '.join(numbers) or 'call find_issues'}"

    def _searched(self, issue_name, default=None):
        """Return the kinds that were searched, or the named one."""
        if issue_name is not None and issue_name not in KINDS:
            raise InputError(f"`issue_name` must be {', '.join(KINDS)}, found {issue_name!r}{nearest(str(issue_name), KINDS)}")
        kinds = [kind for kind in KINDS if kind in self._results and issue_name in (None, kind)]
        if not kinds and default is None:
            what = f"{issue_name} issues" if issue_name else "issues"
            raise InputError(f"no {what} yet; call find_issues(pred_probs=..., features=...) first")
        return kinds


@dataclass(frozen=True)
class _Result:
    """Flags and scores (n,) of a kind, scores of the sites (S,), and further columns."""

    flags: NDArray[np.bool_]
    scores: NDArray[np.floating]
    of_sites: NDArray[np.floating]
    columns: dict[str, np.ndarray]


def _join(size, rows_of_sites, parts):
    """Return the `_Result` of the issues of all sites."""
    flags, scores = np.zeros(size, bool), np.zeros(size)
    columns = {name: np.zeros(size, values.dtype) for name, values in parts[0].columns.items()}
    for rows, part in zip(rows_of_sites, parts, strict=True):
        flags[rows], scores[rows] = part.flags, part.scores
        for name, values in part.columns.items():
            columns[name][rows] = values
    return _Result(flags, scores, np.array([part.score for part in parts]), columns)


def _spread(size, complete, issue, rows):
    """Return an issue of all samples of a site from that of its complete samples; positions become the caller's."""
    flags, scores = np.zeros(size, bool), np.full(size, np.nan)
    columns = {"distance_to_nearest_neighbor": np.full(size, np.nan), "nearest_neighbor": np.full(size, -1)}
    if issue is None:  # a single sample
        return Issue(flags, scores, 1.0)
    flags[complete], scores[complete] = issue.flags, issue.scores
    columns = {name: columns[name] for name in issue.columns}
    for name, values in issue.columns.items():
        columns[name][complete] = rows[complete[values]] if name == "nearest_neighbor" else values
    return Issue(flags, scores, issue.score, columns)


def _names(data):
    """Return the names of the columns."""
    names = data if isinstance(data, Mapping) else data.columns if hasattr(data, "columns") else data.column_names
    return [str(name) for name in names]


def _column(data: Any, name: str, argument: str) -> NDArray[Any]:
    """Return the values (n,) of a column."""
    columns = _names(data)
    if name not in columns:
        raise InputError(f"`{argument}`: no column {name!r}{nearest(str(name), columns)}; columns: {list_names(columns)}")
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
