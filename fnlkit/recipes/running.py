"""Run a recipe or rows of a published table: train, resume, compare with stored results, and tabulate."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fnlkit.artifacts.run import Run
from fnlkit.errors import InputError, WorkStopped, list_names
from fnlkit.kernels.threads import core_count
from fnlkit.recipes import belonging, cells, published
from fnlkit.recipes import recipe as recipes
from fnlkit.recipes import reproduce as running
from fnlkit.results import comparison, names, tidy
from fnlkit.results import tables as results_tables
from fnlkit.results.grouping import baseline_among

if TYPE_CHECKING:
    from fnlkit.recipes.reproduce import Job


@dataclass
class Options:
    """What to run of a recipe or a published table, and where.

    Attributes
    ----------
    output : str or None
        Folder of the runs.  Default: ``runs/NAME``.
    dataset, embeddings, only, seeds :
        As for `fnlkit.recipes.reproduce.jobs`.
    rounds, model, precision :
        Options of `train` that replace the recipe's, if not None.
    scale : float
        Of a published table: share of the paper's rounds.
    jobs : int or None
        Runs to train at once.  Default: one per core.
    shard : str or None
        Part of the runs, as for `fnlkit.recipes.belonging.shard`.
    no_train : bool
        Use finished runs only.
    add : sequence of str
        Train these methods instead of the recipe's and compare them with stored results.
    stored : str or None
        File of stored results.  Default: included with fnlkit.
    baseline : str or None
        Method with which others are compared.
    """

    output: str | None = None
    dataset: str | None = None
    embeddings: str | None = None
    only: str | None = None
    seeds: int | None = None
    rounds: int | None = None
    model: str | None = None
    precision: str | None = None
    scale: float = 1.0
    jobs: int | None = None
    shard: str | None = None
    no_train: bool = False
    add: tuple[Any, ...] = ()
    stored: str | None = None
    baseline: str | None = None


@dataclass
class Reproduction:
    """Result of `fnlkit.recipes`.

    Attributes
    ----------
    title : str
    rows : list of dict
        A row per regime and method (`fnlkit.recipes.reproduce.rows`), or per row of a published table
        (`fnlkit.recipes.published.measure_rows`).
    failed : dict of str to Exception
        Errors of runs, by name.
    notes : dict of str to str
        Of a published table: differences from the paper, by the row's title.
    folder : str
    jobs : list of fnlkit.recipes.reproduce.Job
    """

    title: str
    rows: list[Any]
    folder: str
    jobs: Sequence[Job]
    failed: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def summary(self) -> results_tables.Table:
        """Return a `fnlkit.results.tables.Table` of methods and regimes with the scores of the kept models."""
        return running.summarize(self.rows)

    def tidy(self, each: str = "run") -> list[dict[str, Any]]:
        """Return one flat dict per run or per evaluation, as `fnlkit.results.tidy.rows`, with the names of the recipe's rows.

        Raises
        ------
        InputError
            If no run is finished.
        """
        missing = belonging.missing(self.jobs, self.folder)
        paths = [str(Path(self.folder) / job.file) for job in self.jobs if job.train and job.name not in missing]
        if not paths:
            raise InputError(f"no run in {self.folder} is finished")
        runs = [names.attach(Run.read(path), names.name_of(path)) for path in paths]
        rows = [{"run": path} | comparison.row(run) for path, run in zip(paths, runs, strict=True)]
        return tidy.rows(runs, rows, each)

    def must_be_complete(self) -> None:
        """Raise WorkStopped if a run failed."""
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            raise WorkStopped(f"{len(self.failed)} of {len(self.jobs)} runs failed, the first, {name}: {reason}")


def reproduce(recipe: str, *, say: Callable[[str], object] | None = None, **options: Any) -> Reproduction:
    """Run a recipe, or rows of a published table, and return a `Reproduction`.

    Parameters
    ----------
    recipe : str
        A name, the path of a .toml file, or a published table such as ``fedcorr/table2``.
    say : callable (text) or None
        Receives the progress and notes.
    **options
        Fields of `Options`, which are the options of `fnlkit reproduce`.

    Raises
    ------
    InputError
        If the recipe or an option is invalid.  A failed run does not raise: see `Reproduction.must_be_complete`.

    Examples
    --------
    >>> import fnlkit
    >>> fnlkit.reproduce("fedcorr/table10", only="fedcorr, 0.6, 0.5", no_train=True, output="nowhere").rows
    []
    """
    return open_recipe(recipe, Options(**options), say or (lambda text: None)).run()


def open_recipe(recipe: str, options: Options, say: Callable[[str], object]) -> Plan | Table:
    """Return a `Plan`, or a `Table` for the name of a published table."""
    return (Table if is_table(recipe) else Plan)(recipe, options, say)


def is_table(recipe: str) -> bool:
    """Return whether a name is that of a published table."""
    return "/table" in recipe and not recipe.endswith(".toml")


Part = TypeVar("Part")


class _Work:
    """The folder and the options of runs."""

    def __init__(self, name, options, say):
        self.options, self.say = options, say
        self.folder = options.output or os.path.join("runs", self.usual_folder(name))
        self.dataset = (
            os.path.abspath(options.dataset) if options.dataset and os.path.exists(options.dataset) else options.dataset
        )
        self.embeddings = options.embeddings and os.path.abspath(options.embeddings)

    def part(self, jobs: Sequence[Part]) -> Sequence[Part]:
        """Return the jobs of this shard."""
        selected = belonging.shard(jobs, self.options.shard) if self.options.shard else jobs
        if jobs and not selected:
            self.say(f"`shard` {self.options.shard} of {len(jobs)} runs has no runs")
        return selected

    def make(self, jobs: Sequence[Job]) -> dict[str, InputError | WorkStopped]:
        """Run the jobs, or check the finished ones; return {name: error} of failed jobs."""
        if not self.options.no_train:
            self._write_names(jobs)
            return self.train(jobs) if jobs else {}
        belonging.must_belong_together(jobs, self.folder)
        if os.access(self.folder, os.W_OK):
            self._write_names(jobs)
        if missing := belonging.missing(jobs, self.folder):
            self.say(f"{len(missing)} of {len(jobs)} runs are missing or not finished, the first is {missing[0]}")
        return {}

    def _write_names(self, jobs):
        if jobs:
            names.record_names(self.folder, {job.name: {"regime": job.regime, "name": job.label} for job in jobs})

    def train(self, jobs: Sequence[Job]) -> dict[str, InputError | WorkStopped]:
        """Train jobs in the folder; return {name: error} of failed jobs."""
        done = [0]

        def on_done(job: Job, error: Exception | None) -> None:
            done[0] += 1
            self.say(f"{done[0]}/{len(jobs)} {job.name}: {error or 'done'}")

        def on_changed(job: Job, why: str) -> None:
            self.say(f"{job.name}: {why}; trained again, and the old run is kept as {job.name}.pt.old")

        at_once = self.options.jobs or core_count()
        return running.run(jobs, self.folder, at_once=at_once, on_done=on_done, on_changed=on_changed)


class Plan(_Work):
    """A recipe with `Options`."""

    def __init__(self, name, options, say):
        super().__init__(name, options, say)
        self.recipe, self.header, self.cells = recipes.load_recipe(name), None, []
        self.replaced = {key: getattr(options, key) for key in ("rounds", "model", "precision")}
        self.given = {"dataset": self.dataset, "only": options.only, "embeddings": self.embeddings, **self.replaced}
        self.title = self.recipe.get("title", name)
        if options.stored and not options.add:
            raise InputError(f"`stored` {options.stored} is for `add`")
        if options.add:
            self.stored = options.stored or cells.path_of(name)
            if self.stored is None:
                raise InputError(
                    f"`add`: fnlkit has no stored results of {name}, only of {list_names(cells.list_included())}; write some "
                    "with `export`, then name `stored`"
                )
            self.header, self.cells = cells.read_cells(self.stored)
            if not options.stored:
                self.title += f", compared with {name}@{cells.version_of(name)}"
            self.recipe = cells.adding(self.recipe, options.add, options.only)
            recipes.check_components(self.recipe)

    @staticmethod
    def usual_folder(name: str) -> str:
        return os.path.basename(name).removesuffix(".toml")

    def commands(self) -> list[str]:
        """Return the commands of all runs."""
        jobs = self.part(running.jobs(self.recipe, seeds=self.options.seeds, **self.given))
        return list(dict.fromkeys(line for job in jobs for line in running.commands(job)))

    def run(self) -> Reproduction:
        """Train, and return a Reproduction."""
        jobs = running.jobs(self.recipe, seeds=self.options.seeds, **self.given)
        known = [*(cell["method"] for cell in self.cells), *(job.label for job in jobs)]
        baseline = baseline_among(known, self.options.baseline)
        jobs = self.part(jobs)
        failed = self.make(jobs)
        if self.header:
            cells.must_fit(self.header, self.stored, self.recipe, jobs, self.folder, **self.replaced)
        regimes = {regime["name"] for regime in self.recipe["regime"]}
        rows = running.rows(jobs, self.folder, baseline, [cell for cell in self.cells if cell["regime"] in regimes])
        return Reproduction(self.title, rows, self.folder, jobs, failed)

    def export(self, jobs: list[Job], target: str | os.PathLike[str]) -> int:
        """Write the scores of finished runs to a file; return their number."""
        return cells.write_cells(self.recipe, jobs, self.folder, target, **self.replaced)


class Table(_Work):
    """Rows of a published table with `Options`."""

    def __init__(self, name, options, say):
        super().__init__(name, options, say)
        for word in ("baseline", "add", "stored"):
            if getattr(options, word):
                raise InputError(f"`{word}` is for recipes; {name} is compared with published numbers")
        self.name = name
        more = {key: getattr(options, key) for key in ("only", "scale", "seeds", "rounds", "model", "precision")}
        self.jobs, self.notes = published.jobs(name, dataset=self.dataset, embeddings=self.embeddings, **more)
        self.jobs = self.part(self.jobs)

    def usual_folder(self, name: str) -> str:
        scale = self.options.scale
        return name.replace("/", "-") + ("" if scale == 1 else f"-scale-{scale:g}")

    def commands(self) -> list[str]:
        """Return an independent line per run or estimate."""
        return [*map(running.pipeline, self.jobs)]

    def run(self) -> Reproduction:
        """Train, and return a Reproduction."""
        failed = self.make(self.jobs)
        names_of = {"scale": None if self.options.scale == 1 else f"{self.options.scale:g}"}
        names_of |= {word: getattr(self.options, word) for word in ("rounds", "model", "precision", "dataset", "embeddings")}
        changed = {word: value for word, value in names_of.items() if value is not None}
        rows = published.measure_rows(self.name, self.jobs, self.folder, changed, self.options.only)
        title = published.papers()[self.name.partition("/")[0]]["title"]
        return Reproduction(f"{title}, {self.name}", rows, self.folder, self.jobs, failed, self.notes)
