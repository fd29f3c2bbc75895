"""Run recipes as the commands that a user would type, and compare results with published numbers."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.components.spec import parse
from fnlkit.datasets.features import embed_samples, names_backbone
from fnlkit.errors import InputError, WorkStopped, list_names
from fnlkit.estimators.rows import read_rows
from fnlkit.experiment.assembly import sources_of
from fnlkit.experiment.plan import BoundMethod
from fnlkit.kernels.threads import core_count
from fnlkit.recipes.belonging import difference
from fnlkit.recipes.children import Children
from fnlkit.recipes.matching import hint, mentions
from fnlkit.recipes.recipe import entries
from fnlkit.recipes.recipe import step as recipe_step
from fnlkit.recipes.specifications import Specifications
from fnlkit.results import evaluation
from fnlkit.results.comparison import score_name
from fnlkit.results.grouping import baseline_among, pivot
from fnlkit.results.statistics import compare_pairs, holm, significant, spread

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset
    from fnlkit.results.tables import Table


DIGITS = 4  # of stored scores, in percent


@dataclass(frozen=True)
class Job:
    """One run of a recipe, or one estimate of a published table.

    Attributes
    ----------
    regime, label, method : str
        `label` names the method with the options in tables.
    seed : int
    prepare : tuple of (arguments of fnlkit, output name)
        Commands that make the federation; jobs of the same regime and seed share these commands.
    train : tuple of str
        Arguments of `fnlkit train` without input and output.  Empty for an estimate, which the last command of `prepare` makes.
    name : str
        Of the run's file, without suffix.
    published : (mean, standard deviation) or None
        In percent.
    """

    regime: str
    label: str
    method: str
    seed: int
    prepare: tuple[Any, ...]
    train: tuple[Any, ...]
    name: str
    published: tuple[Any, ...] | None

    @property
    def file(self) -> str:
        """Name of the file with the result: a run, or a federation with estimates."""
        return f"{self.name}.pt" if self.train else self.prepare[-1][1]

    @property
    def dataset(self) -> str:
        """Name or path of the data set, relative to the folder of the runs."""
        return next(word.partition("=")[2] for word in self.prepare[0][0] if word.startswith("--dataset="))


def jobs(
    recipe: dict[str, Any],
    *,
    dataset: str | None = None,
    seeds: int | None = None,
    only: str | None = None,
    embeddings: str | None = None,
    **train: Any,
) -> list[Job]:
    """Return the Jobs of a recipe.

    Parameters
    ----------
    recipe : dict
    dataset : str or None
        Replaces the recipe's data set, for example an .npz file of the same data.
    seeds : int or None
        Use this number of seeds: the first ones of the recipe, or 0..seeds-1 if the recipe lists fewer.
    only : str or None
        Select the regime of this name, or all regimes with these words in the name, or a pattern with ``*`` and ``?``.
    embeddings : str or None
        A file of vectors, which replaces the embeddings that a regime computes with its backbone.
    **train
        Options of `train` that replace the recipe's, if not None.
    """
    listed = recipe["seeds"]
    used = listed if seeds is None else (listed[:seeds] if seeds <= len(listed) else list(range(seeds)))
    replacing = {key: value for key, value in train.items() if value is not None}
    out = []
    for number, regime in select_regimes(recipe, only):
        for seed in used:
            data = Federated(recipe, regime, number, seed, dataset, embeddings)
            if "estimate" in regime:
                out.append(data.estimate(regime["estimate"], replacing))
                continue
            for place, entry in enumerate(entries(regime)):
                options = recipe["train"] | regime.get("train", {}) | entry.train | replacing
                word = re.sub("[^A-Za-z0-9.+_-]+", "-", os.path.basename(parse(entry.method).name))  # of FILE.py:NAME
                place = regime.get("places", {}).get(entry.label, place)
                out.append(data.job(entry.label, entry.method, options, f"{data.number}-{place}-{word}-{seed}"))
    return out


def select_regimes(recipe: dict[str, Any], only: str | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Return [(number, regime)] of the regimes that a text selects; parameters as for `jobs`.

    Raises
    ------
    InputError
        If no regime matches.
    """
    names = [regime["name"] for regime in recipe["regime"]]
    # A name can be the beginning of another name; an exact match is preferred.
    exact = [name for name in names if only and name.lower() == only.lower()]
    wanted = exact or [name for name in names if not only or mentions(name, only)]
    selected = [pair for pair, name in zip(enumerate(recipe["regime"]), names, strict=True) if name in wanted]
    if not selected:
        raise InputError(f"no regime has {only!r} in the name{hint(names, only or '')}; write one of {list_names(names)}")
    return selected


# A recipe trains on the samples themselves unless it names a backbone.
SAMPLES = {"backbone": "none"}


class Federated:
    """The commands that make the federation of a regime and a seed, and the jobs that train on it.

    Parameters
    ----------
    recipe, regime : dict
    number : int
        Place of the regime in the recipe.
    seed : int
    dataset, embeddings : str or None
        As for `jobs`.
    """

    def __init__(self, recipe, regime, number, seed, dataset=None, embeddings=None):
        data, self.number = dataset or regime.get("dataset") or recipe["dataset"], regime.get("key", number)
        self.regime, self.seed, self.prepare, source = regime, seed, [], f"--dataset={data}"
        for i, step in enumerate(regime["steps"]):
            target = f"{self.number}-{seed}-{i}.npz"
            self.prepare.append(((*recipe_step(step), source, f"--seed={seed}"), target))
            source = target
        self.vectors = embeddings or regime.get("backbone")

    def estimate(self, how: dict[str, Any], replacing: dict[str, Any]) -> Job:
        """Return the Job of an estimate: `estimate-noise`, with the model of a run if `how` has settings of a run.

        Parameters
        ----------
        how : dict
            ``estimator``, a spec; ``options`` of `estimate-noise`; and ``train``, the settings of the run or None.
        replacing : dict
            Settings that replace those of the training.
        """
        source, more, steps = self.prepare[-1][1], (), [*self.prepare]
        if self.vectors:
            more = (f"--embeddings={self.vectors}",)
        elif how["train"]:
            model = f"{self.number}-model-{self.seed}.pt"
            options = _options(SAMPLES | how["train"] | replacing)
            steps.append((("train", source, "--method=fedavg", f"--seed={self.seed}", *options, "--overwrite"), model))
            more = (f"--run={model}",)
        else:
            more = _options(SAMPLES | how["options"] | replacing)
        command = ("estimate-noise", source, f"--estimator={how['estimator']}", *more, f"--seed={self.seed}")
        steps.append((command, f"{self.number}-estimate-{self.seed}.npz"))
        name = f"{self.number}-estimate-{self.seed}"
        return Job(self.regime["name"], how["estimator"], "", self.seed, tuple(steps), (), name, None)

    def job(self, label: str, method: str, options: dict[str, Any], name: str) -> Job:
        """Return the Job of a method with options of `train`."""
        published = self.regime.get("published", {})  # by a label, a method's name, or its whole spec
        arguments = (f"--method={method}", f"--seed={self.seed}", *_options(SAMPLES | options))
        if self.vectors and "embedding" in BoundMethod.of(method).needs:
            arguments += (f"--embeddings={self.vectors}",)
        number = next((published[key] for key in (label, method, parse(method).name) if key in published), None)
        return Job(self.regime["name"], label, method, self.seed, tuple(self.prepare), arguments, name, number)


def _options(values):
    """Return options as command line words; a boolean is a switch."""
    options = {key.replace("_", "-"): value for key, value in values.items() if value is not False}
    return tuple(f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items())


def commands(job: Job) -> list[str]:
    """Return the shell lines of a job, as a user would type them."""
    lines = [_line(("fnlkit", *arguments, "-o", target)) for arguments, target in job.prepare]
    return [*lines, _line(("fnlkit", "train", job.prepare[-1][1], *job.train, "-o", job.file))] if job.train else lines


def pipeline(job: Job) -> str:
    """Return a job as one independent shell line for GNU parallel or Slurm.

    If the line is run again, it resumes.
    """
    if not job.train:
        return " && ".join(commands(job))
    made, target = {name for _, name in job.prepare}, job.file
    stages = [_line(("fnlkit", *("-" if word in made else word for word in arguments))) for arguments, _ in job.prepare]
    return " | ".join([*stages, _line(("fnlkit", "train", "-", *job.train, "--resume", target, "-o", target))])


def _line(words):
    return " ".join(shlex.quote(w) for w in words)


def run(
    all_jobs: Sequence[Job],
    folder: str | os.PathLike[str],
    *,
    at_once: int,
    on_done: Callable[[Job, Exception | None], object] | None = None,
    on_changed: Callable[[Job, str], object] | None = None,
) -> dict[str, InputError | WorkStopped]:
    """Run jobs in a folder, several at once, each in a single-threaded process; finished runs are kept.

    A federation or a run of another specification (options, steps, seeds, content of the data, code of the user's
    components) is made again.  The file of such a run is kept as NAME.pt.old.

    Parameters
    ----------
    all_jobs : list of Job
    folder : str or Path
        Contains federations and runs; a second call continues where the first stopped.
    at_once : int
    on_done : callable(Job, error or None) or None
    on_changed : callable(Job, text) or None
        Called with the difference before a run is made again.

    Returns
    -------
    dict of str to (InputError or WorkStopped)
        The error of each failed job, by its name.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "FNLKIT_THREADS": "1", "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    failed, children = {}, Children(folder, environment)
    known = Specifications(folder, dict.fromkeys(job.dataset for job in all_jobs))
    # Concurrent runs share the cores.
    cores = max(1, core_count() // at_once)

    def call(arguments: Sequence[str]) -> None:
        code, errors = children.run(arguments)
        if code:
            lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
            raise (InputError if code == 2 else WorkStopped)(lines[-1].removeprefix("fnlkit: error: "))

    def federation(step: tuple[tuple[str, ...], str]) -> None:
        arguments, target = step
        key = known.of_step(arguments)
        if not known.has(target, key):
            call([*arguments, "-o", target])
            known.add(target, key)

    def train(job: Job) -> None:
        error, file = None, job.file
        if not job.train or known.has(file, known.of_run(job, commands(job))):
            if on_done and not children.ending:
                on_done(job, None)
            return
        try:
            why = find_change(job, folder) if (folder / file).exists() else None
            if why:
                os.replace(folder / file, folder / f"{file}.old")
                if on_changed:
                    on_changed(job, why)
            if not ((folder / file).exists() and Run.read(str(folder / file)).finished):
                where = ["--resume", file, "-o", file]
                chosen = any(option.startswith(("--engine=", "--workers=")) for option in job.train)
                share = [] if chosen else [f"--workers={cores}"]
                call(["train", job.prepare[-1][1], *job.train, *share, *where])
            known.add(file, known.of_run(job, commands(job)))
        except (InputError, WorkStopped) as failure:
            error = failed[job.name] = failure
        if on_done and not children.ending:
            on_done(job, error)

    with ThreadPoolExecutor(at_once) as pool:
        try:
            # The steps are run level by level, so that steps shared by several jobs run once.
            levels = max(len(job.prepare) for job in all_jobs)
            for i in range(levels):
                list(pool.map(federation, dict.fromkeys(job.prepare[i] for job in all_jobs if i < len(job.prepare))))
            list(pool.map(train, all_jobs))
        except BaseException:  # also Ctrl-C and SIGTERM sent to this process alone
            pool.shutdown(wait=False, cancel_futures=True)
            children.end()
            raise
    return failed


def find_change(job: Job, folder: Path) -> str | None:
    """Return the difference of a run's specification in a folder from the job's, or None if they are equal.

    Parameters
    ----------
    job : Job
        The federation and the embeddings of the job are in the folder.
    folder : Path
    """
    run = Run.read(str(folder / f"{job.name}.pt"))
    if change := difference(job, run):
        return change
    federation = Federation.read(str(folder / job.prepare[-1][1]))
    vectors = next((word.partition("=")[2] for word in job.train if word.startswith("--embeddings=")), None)
    if vectors is not None and names_backbone(vectors):
        vectors = embed_samples(dataset_of(job, folder), vectors)
    elif vectors is not None:
        vectors = read_rows(str(folder / vectors), "embeddings", federation)
    own = vectors is None and "embedding" in BoundMethod.of(job.method).needs  # principal components of the samples
    now = sources_of(federation, job.method, vectors, dataset_of(job, folder) if own else None)
    words = {"dataset_checksum": "data set", "federation": "federation", "embedding": "embeddings"}
    return next((f"made from another {word}" for name, word in words.items() if run.meta.get(name) != now[name]), None)


def dataset_of(job: Job, folder: Path) -> Dataset:
    """Return the data set of a job in a folder."""
    return datasets.load(str(folder / job.dataset) if (folder / job.dataset).exists() else job.dataset)


def _mean_memorization(runs):
    """Return the mean shares, in percent, of wrong labels that global and local models repeat at the last evaluation."""
    out = {}
    for whose in ("global", "local"):
        name = f"{whose}_noisy_memorized"
        last = [next((row[name] for row in reversed(run.history) if name in row), None) for run in runs]
        out[f"{whose}_memorized"] = None if None in last else 100 * mean(last)
    return out


def cells(all_jobs: Iterable[Job], folder: str | os.PathLike[str], digits: int | None = None) -> list[dict[str, Any]]:
    """Return one dict per regime and method with finished runs: the scores of each seed in percent, and the cost.

    Runs that are not finished are left out, because half a run would look like a bad method.

    Parameters
    ----------
    all_jobs : list of Job
    folder : str or Path
    digits : int, optional
        Round the scores.  Default: not rounded.

    Returns
    -------
    list of dict
        regime, method (the label), measures (``accuracy``, or ``agreement`` with unverified labels), published, client_rounds,
        seconds, global_memorized, local_memorized; best, last, late and kept, each {seed: percent}.  ``kept`` is the score
        of the selected model: of the round that `--select` chose, or ``late``.

    Raises
    ------
    InputError
        If a run has no evaluation.
    """
    groups: dict[tuple[str, str], list[Any]] = {}
    for job in all_jobs:
        path = Path(folder) / f"{job.name}.pt"
        run = Run.read(str(path)) if path.exists() else None
        if run is not None and run.finished:
            members = evaluation.summary(run)
            groups.setdefault((job.regime, job.label), []).append((job, members, run))
    out = []
    for (regime, label), members in groups.items():
        measures, scores = _scores(members, digits)
        out.append({
            "regime": regime,
            "method": label,
            "measures": measures,
            "published": members[0][0].published,
            "client_rounds": round(mean(s["client_rounds"] for _, s, _ in members)),
            "seconds": mean(s["seconds"] for _, s, _ in members),
            **_mean_memorization([run for *_, run in members]),
            **scores,
        })  # fmt: skip
    return out


def rows(
    all_jobs: Iterable[Job], folder: str | os.PathLike[str], baseline: str | None = None, stored: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return one dict per regime and method: scores in percent, differences from the baseline, published scores, cost.

    ``measures`` is ``accuracy``, or ``agreement`` with unverified labels.  ``best`` is the best evaluation of each seed's
    run, ``late`` the mean of the evaluations in the last fifth of the client-rounds, ``kept`` the score of the
    selected model (`cells`).  ``baseline`` is the method that others are compared with. ``ahead`` is the mean difference from
    the baseline in the same regime, over common seeds, with the spread and half of the 95 % interval (Student's, of these
    paired differences); it is None for the baseline itself. ``p`` is the p-value of the paired t-test, ``holm`` the p-value
    after Holm's correction over all rows, and ``clear`` is true if ``holm`` is below 0.05.  ``global_memorized`` and
    ``local_memorized`` are shares of wrong labels that models repeat at the last evaluation (global models, and a cohort's
    local models on their samples), or None if `memorization` was off.

    Parameters
    ----------
    all_jobs : list of Job
    folder : str or Path
    baseline : str, optional
        A method of the jobs.  Default: ``fedavg`` if a job has this method, else the first method.
    stored : sequence of dict
        Further cells, for example of `fnlkit.recipes.cells.read_cells`.

    Raises
    ------
    InputError
        If a run has no evaluation.
    """
    # Rounded like stored scores, so that equal runs have equal scores.
    results = [*stored, *cells(all_jobs, folder, DIGITS if stored else None)]
    if not results:
        return []
    baseline = baseline or baseline_among([*(cell["method"] for cell in stored), *(job.label for job in all_jobs)])
    bases, out = {cell["regime"]: cell for cell in results if cell["method"] == baseline}, []
    for cell in results:
        base = bases.get(cell["regime"])
        row = cell | {"runs": len(cell["late"]), "baseline": baseline}
        row |= {"last_mean": mean(cell["last"].values()), "last_spread": spread(cell["last"].values())}
        for name in ("best", "late", "kept"):
            row[f"{name}_mean"], row[f"{name}_spread"] = mean(cell[name].values()), spread(cell[name].values())
            ahead = None if base is None or base is cell else compare_pairs(cell[name], base[name])
            ahead = ahead or {"mean": None, "spread": None, "half": None, "p": None}
            row |= {f"{name}_ahead": ahead["mean"], f"{name}_ahead_spread": ahead["spread"]}
            row |= {f"{name}_ahead_half": ahead["half"], f"{name}_p": ahead["p"]}
        out.append(row)
    for name in ("best", "late", "kept"):
        for row, corrected in zip(out, holm([row[f"{name}_p"] for row in out]), strict=True):
            row[f"{name}_holm"], row[f"{name}_clear"] = corrected, significant(corrected)
    return out


def summarize(table: list[dict[str, Any]]) -> Table:
    """Return rows as a `fnlkit.results.tables.Table`: methods by regimes, with the score of the kept model and counts of wins.

    Parameters
    ----------
    table : list of dict
        From `rows`.
    """
    groups = []
    for row in table:
        number = f"{row['measures']}_kept"
        spread = row["kept_spread"]
        value = {"mean": row["kept_mean"] / 100, "spread": None if spread is None else spread / 100, "runs": row["runs"]}
        ahead = None if row["kept_ahead"] is None else {"mean": row["kept_ahead"] / 100, "holm": row["kept_holm"]}
        group = {"method": row["method"], "regime": row["regime"]}
        groups.append({"group": group, "measures": {number: value}, "ahead": {number: ahead}, "baseline": row["baseline"]})
    return pivot(groups, "regime", "kept")


def _scores(found, digits):
    """Return (``accuracy`` or ``agreement``, {best, last, late, kept: {seed: percent}}) of the runs of one cell."""
    measures, out = score_name(found[0][1]), {"best": {}, "last": {}, "late": {}, "kept": {}}
    for job, summary, _ in found:
        for name, values in out.items():
            value = summary.get(f"{measures}_{name}")
            if name == "kept":
                value = summary.get(f"{measures}_chosen", summary.get(f"{measures}_late"))
            if value is None:
                raise InputError(
                    f"{job.name}: the run has no {measures} to compare; its federation needs test or held-out samples"
                )
            values[job.seed] = 100 * value if digits is None else round(100 * value, digits)
    return measures, out
