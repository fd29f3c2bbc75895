"""Run a recipe or rows of a published table: train, resume and tabulate."""

import contextlib
import functools
import importlib
import io
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.core.options import option
from fnlkit.core.parameters import Count
from fnlkit.core.processes import end_with_parent, single_threads
from fnlkit.kernels.threads import core_count
from fnlkit.recipes import published, scores
from fnlkit.recipes import recipe as recipes
from fnlkit.recipes.jobs import Job, expand
from fnlkit.results import comparison, grouping, names, tidy
from fnlkit.results.tables import Table

# Imported once by the server that starts the workers; a command imports further modules when needed.
_COMMON = ["fnlkit.cli.train", "fnlkit.experiment", "fnlkit.federated.engines.fused", "torch._functorch.vmap"]
# Seconds that an interrupted worker gets to save the run.
_PATIENCE = 10
_STOPPED = (130, 143)


@dataclass
class Options:
    """What to run of a recipe or a published table, and where; `fnlkit reproduce --help` describes the fields with a help text.

    Attributes
    ----------
    output : str or None
        Folder of the runs.  Default: ``runs/NAME``.
    dataset : str or None
        Replaces the recipe's data set.
    baseline : str or None
        Method with which others are compared.
    """

    seeds: Count | None = option(None, "Number of seeds per run. Default: as in the recipe.")
    rounds: Count | None = option(None, "Rounds of each run instead of the recipe's.")
    model: str | None = option(None, "Network of each run instead of the recipe's.", metavar="SPEC")
    precision: Literal["fp32", "fp64", "tf32", "bf16"] | None = option(
        None, "Arithmetic of each run instead of the recipe's, for example bf16 on a GPU."
    )
    embeddings: str | None = option(None, "A file of vectors instead of the recipe's backbone.", metavar="FILE")
    only: str | None = option(
        None,
        "Run only regimes with these words in the name, or matching rows of a published table, for example 'fedcorr, 0.6, "
        "0.5'; * and ? make a pattern of the whole name.",
        metavar="TEXT",
    )
    methods: tuple[str, ...] = option(
        (),
        "Train this method instead of the recipe's, for example mine.py:m; can be repeated.",
        metavar="METHOD", flag="--method", many=True,
    )  # fmt: skip
    jobs: Count | None = option(None, "Runs to train at once. Default: one per core.")
    scale: float = option(1.0, "For published tables: share of the paper's rounds, above 0 and at most 1.")
    no_train: bool = option(False, "Print the table of finished runs without training.")
    output: str | None = None
    dataset: str | None = None
    baseline: str | None = None


@dataclass
class Reproduction:
    """Result of `reproduce`.

    Attributes
    ----------
    title : str
    rows : list of dict
        A row per regime and method (`fnlkit.recipes.scores`), or per row of a published table
        (`fnlkit.recipes.published.measure_rows`).
    jobs : list of fnlkit.recipes.jobs.Job
    failed : dict of str to Exception
        Errors of runs, by name.
    notes : dict of str to str
        Of a published table: differences from the paper, by the row's title.
    """

    title: str
    rows: list[Any]
    jobs: Sequence[Job]
    failed: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def table(self) -> Table:
        """Tabulate regimes and methods of a recipe with their scores (`fnlkit.results.tables.Table`)."""
        groups = scores.to_groups(self.rows)
        shown, columns = grouping.table(groups, self.title), {name for group in groups for name in group["measures"]}
        if any(name.endswith("_kept") for name in columns):
            shown.notes.append("kept: of the model that the run keeps")
        if any("memorized" in name for name in columns):
            shown.notes.append("memorized: of the wrong labels, at the last evaluation")
        return shown

    def summary(self) -> Table:
        """Tabulate methods and regimes with the scores of the kept models (`fnlkit.results.tables.Table`)."""
        groups = scores.to_groups(self.rows)
        kept = any(name.endswith("_kept") for group in groups for name in group["measures"])
        return grouping.pivot(groups, "regime", "kept" if kept else "late")

    def tidy(self, each: str = "run") -> list[dict[str, Any]]:
        """List one flat dict per run or per evaluation, as `fnlkit.results.tidy.rows`, with the names of the recipe's rows.

        Raises
        ------
        InputError
            If no run is finished.
        """
        paths = [str(Path(job.folder) / job.file) for job in self.jobs if job.method
                 and job.name not in self.failed and job.state() == "finished"]  # fmt: skip
        if not paths:
            raise InputError("no run is finished")
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
    return Plan(recipe, Options(**options)).run(say or (lambda text: None))


def is_table(recipe: str) -> bool:
    """Whether a name is that of a published table."""
    return "/table" in recipe and not recipe.endswith(".toml")


class Plan:
    """The jobs of a recipe, or of rows of a published table.

    Attributes
    ----------
    title : str
    jobs : list of fnlkit.recipes.jobs.Job
    notes : dict of str to str
        As in `Reproduction`.
    """

    def __init__(self, name: str, options: Options):
        self.name, self.options = name, options
        replaced = {word: getattr(options, word) for word in ("rounds", "model", "precision")}
        if options.model:
            recipes.must_be_components({"model": options.model})
        dataset = options.dataset and recipes.must_be_data(options.dataset, "`dataset`")
        if options.embeddings and not os.path.exists(options.embeddings):
            raise InputError(f"{options.embeddings}: no such file", parameter="embeddings")
        only, usual = options.only, os.path.basename(name).removesuffix(".toml")
        if is_table(name):
            for word in ("baseline", "methods"):
                if getattr(options, word):
                    raise InputError(f"`{word}` is for recipes; {name} is compared with published numbers")
            recipe = published.recipe(name, only=only, scale=options.scale, dataset=dataset, embeddings=options.embeddings)
            only, usual = None, name.replace("/", "-") + ("" if options.scale == 1 else f"-scale-{options.scale:g}")
        else:
            if options.scale != 1:
                raise InputError(f"shortens published tables; `rounds` shortens the recipe {name}", parameter="scale")
            recipe = recipes.load_recipe(name, dataset=dataset, methods=options.methods)
        self.title = recipe.get("title", name)
        self.notes = {regime["name"]: regime["note"] for regime in recipe["regime"] if regime.get("note")}
        embeddings = options.embeddings and os.path.abspath(options.embeddings)
        folder = options.output or os.path.join("runs", usual)
        self.jobs = expand(recipe, folder, seeds=options.seeds, only=only, embeddings=embeddings, **replaced)
        self.baseline = grouping.baseline_among([job.label for job in self.jobs], options.baseline)
        changed = {"scale": None if options.scale == 1 else f"{options.scale:g}"} | replaced
        changed |= {"dataset": options.dataset, "embeddings": options.embeddings}
        self.changed = {word: value for word, value in changed.items() if value is not None}

    def run(self, say: Callable[[str], object]) -> Reproduction:
        """Run the jobs, or check the finished ones, and return a Reproduction."""
        folder = self.jobs[0].folder
        if os.access(folder, os.W_OK) or not self.options.no_train:
            names.record_names(folder, {job.name: {"regime": job.regime, "name": job.label} for job in self.jobs})
        failed: dict[str, Exception] = {}
        if self.options.no_train:
            must_belong(self.jobs)
            if missing := [job.name for job in self.jobs if job.state() != "finished"]:
                say(f"{len(missing)} of {len(self.jobs)} runs are missing or not finished, the first is {missing[0]}")
        else:
            failed = run_jobs(self.jobs, at_once=self.options.jobs or core_count(), say=say)
        done = [job for job in self.jobs if job.name not in failed]
        if is_table(self.name):
            rows = published.measure_rows(self.name, done, self.changed, self.options.only)
        else:
            rows = scores.compare(scores.measure(done), self.baseline)
        return Reproduction(self.title, rows, self.jobs, failed, self.notes)


def must_belong(jobs: Sequence[Job]) -> None:
    """Raise InputError if a file in the folder of the runs was made by other commands than those of the job."""
    for job in jobs:
        if job.state() == "other":
            raise InputError(
                f"{Path(job.folder) / job.file}: made by other commands than {job.name}: another option, code, data set or "
                "recipe; train it again without `no_train`, or use another `output`"
            )


def run_jobs(jobs: Sequence[Job], *, at_once: int, say: Callable[[str], object]) -> dict[str, Exception]:
    """Run jobs in worker processes; return {name: error} of failed jobs.

    Finished files of the same commands, data and code are kept, and unfinished runs are resumed.  The file of another job is
    renamed to FILE.old.  After Ctrl-C or SIGTERM, the workers save their runs and end.

    Parameters
    ----------
    jobs : list of Job
    at_once : int
        Number of workers; each runs one job at a time, in a single thread.
    say : callable (text)
        Receives a line for each finished job.
    """
    done, failed, waiting = 0, {}, []
    folder = jobs[0].folder
    _make_federation.cache_clear()

    def finish(job: Job, error: Exception | None = None) -> None:
        nonlocal done
        done += 1
        failed.update({job.name: error} if error else {})
        say(f"{done}/{len(jobs)} {job.name}: {error or 'done'}")

    for job in jobs:
        try:
            if (state := job.state()) == "other":
                os.replace(Path(folder) / job.file, Path(folder) / f"{job.file}.old")
                say(f"{job.name}: other options, code or data; trained again, and the old run is kept as {job.file}.old")
        except InputError as error:
            finish(job, error)
        else:
            if state == "finished":
                finish(job)
            else:
                waiting.append(job)
    if waiting:
        others = set(multiprocessing.active_children())
        with _start_workers(min(at_once, len(waiting)), folder) as pool:
            futures = {pool.submit(run_job, job.in_folder(), max(1, core_count() // at_once)): job for job in waiting}
            try:
                for future in as_completed(futures):
                    finish(futures[future], _error_of(future))
            except BaseException:  # also Ctrl-C and SIGTERM sent to this process alone
                pool.shutdown(wait=False, cancel_futures=True)
                workers = set(multiprocessing.active_children()) - others
                for process in workers:
                    process.terminate()  # it saves the run
                for process in workers:
                    process.join(_PATIENCE)
                    process.kill()
                raise
    return failed


def _error_of(future):
    """Error of a finished job, or None."""
    try:
        return future.result()
    except BrokenProcessPool:
        return WorkStopped("a worker process was ended, perhaps because memory is short; start the recipe again to continue")


@contextlib.contextmanager
def _start_workers(count: int, folder: str) -> Iterator[Executor]:
    """Start processes forked from a server that has imported the libraries; without fork, each imports them itself."""
    known = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in known else "spawn")
    if "forkserver" in known:
        context.set_forkserver_preload(_COMMON)
    with single_threads(), ProcessPoolExecutor(count, context, _start_worker, (folder,)) as pool:
        yield pool


# ---- in a worker
def _start_worker(folder):
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the workers
    end_with_parent(_PATIENCE)


def run_job(job: Job, workers: int) -> Exception | None:
    """Run the commands of a job in this process; return the error or None."""
    try:
        if job.before and job.before.state() != "finished":
            _run_last(job.before, workers)
        _run_last(job, workers)
    except (InputError, WorkStopped) as error:
        return error
    return None


def _run_last(job, workers):
    *steps, (verb, *words) = job.stages
    if verb == "train" and not any(word.startswith(("--engine=", "--workers=")) for word in words):
        words.append(f"--workers={workers}")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "federation.npz"
        source.write_bytes(_make_federation(tuple(steps)))
        _call([verb, str(source), *words, *job.output])


@functools.lru_cache(2)
def _make_federation(steps):
    """Make the file of the steps of a recipe; methods of one regime and seed share it."""
    with tempfile.TemporaryDirectory() as folder:
        source: list[str] = []
        for i, (verb, *words) in enumerate(steps):
            target = os.path.join(folder, f"{i}.npz")
            _call([verb, *source, *words, "-o", target])
            source = [target]
        return Path(source[0]).read_bytes()


def _call(words):
    """Run `fnlkit` in this process; raise InputError or WorkStopped with the last line of the messages if it fails."""
    output, messages = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(messages):
            importlib.import_module("fnlkit.cli").main(words)
    except SystemExit as end:
        if end.code in _STOPPED:
            os._exit(end.code)  # the run was saved; the parent has stopped
        if end.code:
            line = messages.buffer.getvalue().decode(errors="replace").strip().rpartition("\n")[2]
            raise (InputError if end.code == 2 else WorkStopped)(line.removeprefix("fnlkit: error: ")) from end
