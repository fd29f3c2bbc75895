"""Evaluation of runs from Python, and the functions behind `fnlkit evaluate`."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

from numpy.typing import NDArray

from fnlkit.artifacts import files
from fnlkit.artifacts.display import Facts, frame, html_table, plain
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.files import Artifact
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.provenance import provenance, with_record
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.loading import ledger_path, to_dataset
from fnlkit.pipeline.inputs import FilePath, Model, Samples, Say, print_note
from fnlkit.results import comparison, evaluation, grouping, names, tidy
from fnlkit.results.scores import measure_run
from fnlkit.results.tables import Table
from fnlkit.results.trained_run import TrainedRun

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pandas


@dataclass
class Evaluation:
    """Result of `evaluate`.

    Attributes
    ----------
    runs : list of Run
    rows : list of dict
        Results of each run, as printed by `fnlkit evaluate --json`.
    arrays : dict of str to ndarray
        Confusion matrices, accuracy or agreement by class, noise levels and records of a single run. {} for several runs.
    notes : list of str
        Notes below the table of several runs.
    """

    runs: list[Run]
    rows: list[dict[str, object]]
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def groups(self, by: Sequence[str] | str | None = None, baseline: str | None = None) -> list[dict[str, object]]:
        """Group the finished runs: means, spreads and differences from the baseline.

        The baseline of a group has the same setting as the group.

        Parameters
        ----------
        by : sequence of str, or text with commas, optional
            Names as for `fnlkit.results.grouping.groups`, for example ``method,noise``.
        baseline : str, optional
            Method with which the others are compared. Default: ``fedavg`` if a run used it, else the first method.
        """
        return grouping.groups(self.runs, self.rows, _words(by), baseline)

    def table(self, by: Sequence[str] | str | None = None, baseline: str | None = None) -> Table:
        """Format the groups as a `fnlkit.results.tables.Table` (for a terminal, or LaTeX)."""
        table = grouping.table(self.groups(by, baseline), f"{len(self.runs)} runs")
        return replace(table, notes=[*table.notes, *self.notes])

    def pivot(self, by: Sequence[str] | str, word: str, *, show: str = "late", baseline: str | None = None) -> Table:
        """Format a `fnlkit.results.tables.Table` with a column per value of `word` and counts of wins.

        Parameters
        ----------
        by : sequence of str, or text with commas
            Two names, for example ``method,noise``.
        word : str
            The name whose values become columns.
        show : str
            best, last, late or chosen; macro_f1, balanced_accuracy or auc of tested runs.
        baseline : str, optional
            As for `groups`.
        """
        return grouping.pivot(self.groups(by, baseline), word, show)

    def tidy(self, each: str = "run") -> list[dict[str, object]]:
        """List one flat dict per run or per evaluation, with every option as an entry, as `fnlkit.results.tidy.rows`."""
        return tidy.rows(self.runs, self.rows, each)

    def to_pandas(self) -> "pandas.DataFrame":
        """Convert to a pandas DataFrame with a row per run."""
        return frame([{name: value for name, value in row.items() if name != "group"} for row in self.rows])

    def save(self, target: str | os.PathLike[str]) -> None:
        """Write the arrays of a single run as npz.

        Raises
        ------
        InputError
            If there are several runs.
        """
        if len(self.runs) != 1:
            raise InputError(f"{target} takes the arrays of one run, found {len(self.runs)}", parameter="output")
        meta = with_record({"provenance": self.runs[0].meta.get("provenance", [])}, provenance("evaluate"))
        files.write(files.Artifact("fnlkit.evaluation/1", self.arrays, meta), target)

    def __repr__(self):
        if len(self.rows) == 1:
            return repr(self._facts())
        table = self._table()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        return "\n".join("  ".join(map(str.ljust, cells, widths)).rstrip() for cells in table)

    def _repr_html_(self):
        if len(self.rows) == 1:
            return self._facts()._repr_html_()
        header, *rows = self._table()
        return html_table(f"{len(self.rows)} runs", header, rows)

    def _facts(self):
        row = self.rows[0]
        return Facts(
            f"Evaluation of {plain(row['run'])}",
            {k: v for k, v in row.items() if v is not None and k not in ("run", "measured", "cross_site", "personal")},
        )

    def _table(self):
        table = comparison.list_runs(self.rows)
        return [list(map(plain, cells)) for cells in (table.columns, *table.texts())]


def _words(by):
    """Split the names in a text such as ``method,noise``, or in a sequence of names."""
    if by is None:
        return None
    words = by.split(",") if isinstance(by, str) else list(by)
    words = list(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not words:
        raise InputError("names nothing; write what makes a group, for example method,noise", parameter="by")
    return words


def evaluate(
    *runs: Model,
    dataset: Samples | None = None,
    ledger: FilePath | None = None,
    target: float | None = None,
    test: bool = False,
    cross_site: bool = False,
    personal: bool = False,
    trust: bool = False,
    say: Say = print_note,
) -> Evaluation:
    """Evaluate runs: accuracy, corrected labels, estimated noise, traffic and privacy.

    Parameters
    ----------
    *runs : Run or path
        Runs, files or folders. A folder means all runs in the folder. A single run is also tested on its data set, for
        confusion matrices and accuracy by class.
    dataset : str, path or Dataset, optional
        Location of the samples. Default: the location recorded in the run.
    ledger : path or "none", optional
        As for `train`.
    target : float in (0, 1), optional
        Also report the traffic until this accuracy was reached.
    test : bool
        Also test each of several runs: macro-F1, balanced accuracy, AUC, ECE and NLL, and the results over clients if clients
        have held-out samples.
    cross_site : bool
        For a single run, also train a local model for each site and test it on the held-out samples of each site.
    personal : bool
        Also test each client's own model (of ``local``, Ditto or FedBN) on the client's held-out samples, and the common model
        on the same samples.
    trust : bool
        Allow a file to run user code that it names.
    say : callable(str) or None
        Called with a note for each file of a folder that is not a run, and for each duplicate run.

    Returns
    -------
    Evaluation

    Raises
    ------
    InputError

    Examples
    --------
    >>> import fnlkit
    >>> run = fnlkit.train(fnlkit.partition("digits"), rounds=1, engine="sequential", say=None)
    >>> int(fnlkit.evaluate(run).arrays["test_confusion"].sum())
    359
    """
    if not runs:
        raise InputError("evaluate needs a run; give what fnlkit.train returns, or a file's path")
    if target is not None and not 0 < target <= 1:
        raise InputError(f"{target:g} is no accuracy; write a share above 0 and at most 1, such as 0.7", parameter="target")
    labeled = _once_each([pair for run in runs for pair in open_runs(run, trust=trust, say=say)], say)
    loaded_runs = [run for _, run in labeled]
    rows = [{"run": label, **comparison.row(run, target=target)} for label, run in labeled]
    for row, spent in zip(rows, comparison.cost_of_releases(loaded_runs, lambda name: ledger_path(ledger, name)), strict=True):
        row |= spent

    @cache
    def dataset_of(name: str) -> Dataset:
        return to_dataset(name if dataset is None else dataset)

    if personal:
        _personal(rows, loaded_runs, dataset_of)
    if len(rows) > 1:
        if cross_site:
            raise InputError(f"is of one run, found {len(rows)}", parameter="cross_site")
        for row, group in zip(rows, evaluation.distinct(loaded_runs), strict=True):
            row["group"] = group
        if test:
            _test(rows, loaded_runs, dataset_of)
        return Evaluation(loaded_runs, rows, notes=_note_different_labels(rows, loaded_runs))
    away = loaded_runs[0].meta["dataset"] == REAL_SITES  # the run's records already contain its accuracy
    if away and (dataset is not None or cross_site):
        raise InputError(
            "a run over sites of their own is judged by what its server measured; leave `dataset` and `cross_site` out"
        )
    data = None if away else dataset_of(loaded_runs[0].meta["dataset"])
    alone = away or (cross_site or personal) and _has_own_models(loaded_runs[0])
    # Sites that trained alone have no global model.
    scores = {} if alone or data is None else measure_run(loaded_runs[0], data)
    arrays = evaluation.arrays(loaded_runs[0], scores)
    for part in list(scores.values())[:1]:
        rows[0][f"class_{part['measures']}"] = part["per_class"]
        rows[0]["class_f1"] = part["per_class_f1"]
    rows[0] |= grouping.flatten_scores(scores)
    rows[0]["measured"] = {name: {k: v for k, v in part.items() if k != "confusion"} for name, part in scores.items()}
    if cross_site and data is not None:
        from fnlkit.results.cross_site import cross_site as sites_beside

        rows[0]["cross_site"] = sites_beside(loaded_runs[0], data)
    return Evaluation(loaded_runs, rows, arrays)


def _has_own_models(run):
    from fnlkit.experiment.network import needs_of

    return "own" in needs_of(run)


def _note_different_labels(rows, runs):
    """Note each group of runs that measured agreement with different labels of the same held-out samples."""
    from fnlkit.results.held_out import compare_on_decided, differing

    notes = []
    for first, second in differing(runs).values():
        compared = compare_on_decided(runs[first], runs[second])
        how = "these numbers cannot be compared" if compared is None else compared.describe()
        names = f"{rows[first]['run']} and {rows[second]['run']}"
        notes.append(f"{names} measured agreement with different labels of the same held-out samples; {how}")
    return notes


def _test(rows, runs, dataset_of):
    """Add to each row the test results of the run's model."""
    for row, run in zip(rows, runs, strict=True):
        row |= grouping.flatten_scores(measure_run(run, dataset_of(run.meta["dataset"])))


def _personal(rows, runs, dataset_of):
    """Add to each row the scores of the clients' own models on their held-out samples."""
    from fnlkit.results.personal import personal

    for row, run in zip(rows, runs, strict=True):
        if run.meta["dataset"] == REAL_SITES:
            raise InputError(
                f": the clients' models of {row['run']} are at the sites; `fnlkit site predict` uses them", parameter="personal"
            )
        row["personal"] = personal(run, dataset_of(run.meta["dataset"]))


def _once_each(labeled, say):
    """Drop runs that are bit for bit equal to an earlier run from pairs (label, Run)."""
    first, distinct = {}, []
    for label, run in labeled:
        what = [run.settings, run.history, [run.meta.get(name) for name in ("dataset_checksum", "federation")]]
        key = evaluation.weights_digest(run), json.dumps(what, sort_keys=True)
        if key not in first:
            distinct.append((label, run))
        elif say:
            say(f"{label} is the same run as {first[key]}; it is counted once")
        first.setdefault(key, label)
    return distinct


def open_runs(
    run: Run | str | os.PathLike[str], *, trust: bool = False, say: Callable[[str], object] | None = None
) -> list[tuple[str, Run]]:
    """Open [(label in tables and figures, Run)] of a run, a path, or all runs of a folder.

    Raises
    ------
    InputError
        If a file is not a run. In a folder, such a file is skipped with a note to `say`.
    """

    if not isinstance(run, (str, os.PathLike)):
        if not hasattr(run, "settings"):
            raise InputError(
                f"evaluate takes runs, found {type(run).__name__}; give what fnlkit.train returns, or a file's path"
            )
        return [(f"{run.settings['method']}-{run.settings['seed']}", run)]
    path = os.fspath(run)
    if not os.path.isdir(path):
        return [(path, names.attach(TrainedRun.read(path, trust=trust, state=False), names.name_of(path)))]
    opened, rows = [], names.read_names(path)
    for name in sorted(os.listdir(path)):
        if name.endswith(".pt"):
            place = os.path.join(path, name)
            try:
                run = TrainedRun.read(place, trust=trust, state=False)
                opened.append((place, names.attach(run, rows.get(name.removesuffix(".pt"), {}))))
            except InputError as error:
                if say:
                    say(f"left out: {error}")
    if not opened:
        raise InputError(f"{path}: no run of `fnlkit train` (a .pt file) is in this folder")
    return opened


def load(path: FilePath, *, trust: bool = False) -> Federation | TrainedRun | Artifact:
    """Load a file of fnlkit: a Federation, a TrainedRun, or any other kind as an Artifact.

    Parameters
    ----------
    path : str or os.PathLike
    trust : bool
        Allow a run to use user code that the run file names.

    Raises
    ------
    InputError
        If the file is not a file of fnlkit, or if it is damaged.

    Examples
    --------
    >>> import fnlkit, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "fed.npz")
    >>> fnlkit.save(fnlkit.partition("digits", clients=5), path)
    >>> len(fnlkit.load(path))
    5
    """
    artifact = files.read(os.fspath(path), values=False)
    if artifact.kind.startswith("fnlkit.federation/"):
        return Federation.read(os.fspath(path))
    if artifact.kind.startswith("fnlkit.run/"):
        return TrainedRun.read(os.fspath(path), trust=trust, state=find_spec("torch") is not None)
    return files.read(os.fspath(path))


def save(thing: Federation | Run | Evaluation | Artifact, path: FilePath) -> None:
    """Write a Federation, a run, an Evaluation's arrays or an Artifact to a file atomically.

    Raises
    ------
    InputError
        If the object has any other type, or if the folder does not exist.
    """
    if isinstance(thing, files.Artifact):
        files.write(thing, os.fspath(path))
    elif isinstance(thing, Evaluation):
        thing.save(os.fspath(path))
    elif hasattr(thing, "to_artifact"):
        thing.write(os.fspath(path))
    else:
        raise InputError(f"save cannot write {type(thing).__name__}; give a federation, a run or an evaluation")
