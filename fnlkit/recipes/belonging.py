"""Divide a recipe among machines, and check that the runs in a folder belong to it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.components import own, presets
from fnlkit.components.spec import data_files, parse, rename_components
from fnlkit.datasets.partitioning import federation
from fnlkit.datasets.votes import by_vote
from fnlkit.errors import InputError
from fnlkit.experiment.plan import BoundMethod
from fnlkit.experiment.settings import Settings

JobLike = TypeVar("JobLike")


def shard(all_jobs: Sequence[JobLike], text: str) -> Sequence[JobLike]:
    """Return part I of N of the jobs, for `I/N` from 1/N to N/N.

    Every job is in exactly one part, and sizes differ by at most one. A part is a contiguous piece of the list, so that few
    federations and embeddings are computed on several machines.

    Parameters
    ----------
    all_jobs : list of Job
    text : str
        For example ``3/8``.

    Raises
    ------
    InputError
        If the text has another form.
    """
    part, slash, of = text.partition("/")
    if not (slash and part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        raise InputError(f"`shard` {text}: write the part and the number of parts, from 1/8 to 8/8")
    part, of = int(part), int(of)
    return all_jobs[len(all_jobs) * (part - 1) // of : len(all_jobs) * part // of]


def missing(all_jobs: Iterable[Any], folder: str | os.PathLike[str]) -> list[str]:
    """Return the names of the jobs without a finished run or an estimate in a folder."""

    def is_finished(job: Any) -> bool:
        path = Path(folder) / job.file
        return path.exists() and (not job.train or Run.read(str(path)).finished)

    return [job.name for job in all_jobs if not is_finished(job)]


def must_belong_together(all_jobs: Sequence[Any], folder: str | os.PathLike[str]) -> None:
    """Raise InputError unless the runs in a folder belong to a recipe and have the same data and labels.

    Parameters
    ----------
    all_jobs : list of Job
    folder : str or Path
    """
    same: dict[str, Any] = {}
    checksums = functools.cache(functools.partial(_checksums, folder))
    for job in all_jobs:
        if (path := Path(folder) / job.file).exists():
            if not job.train:
                _must_be_estimate(job, path)
                continue
            run = Run.read(str(path))
            if change := difference(job, run):
                raise InputError(f"{path}: {change}")
            source = next(word for word in job.prepare[0][0] if word.startswith("--dataset="))
            _must_agree(same, ("data set", source), run.meta["dataset_checksum"], path)
            if (known := checksums(source)) and run.meta["dataset_checksum"] not in known:
                raise InputError(f"{path}: made from another data set than {source.partition('=')[2]}, which the recipe names")
            pooled = "pooled" in BoundMethod.of(job.method).needs  # a different federation, derived from the same one
            _must_agree(same, ("federation", job.prepare[-1], pooled), run.meta.get("federation"), path)


def _must_be_estimate(job, path):
    """Raise InputError unless a federation with estimates was made by the steps of a job."""
    steps = [step for step, _ in job.prepare if step[0] != "train"]
    if change := _other_steps(steps, Federation.read(str(path)).meta.get("provenance", [])):
        raise InputError(f"{path}: {change}")


def _must_agree(same, what, value, path):
    first, seen = same.setdefault(what, (path, value))
    if seen != value:
        raise InputError(f"{path}: made from another {what[0]} than {first}; they do not belong in one table")


def _checksums(folder, source):
    """Return the checksums that runs on ``--dataset=NAME`` can have, relative to a folder; none if it is not on this machine.

    A data set with votes has a second checksum, because the scheme `annotators` makes a row of each vote.
    """
    try:
        with contextlib.chdir(folder) if os.path.isdir(folder) else contextlib.nullcontext():
            data = datasets.load(source.partition("=")[2])
            return [data.checksum, *([by_vote(data).checksum] if data.votes is not None and data.sample_of is None else [])]
    except InputError:
        return []


def difference(job: Any, run: Run) -> str | None:
    """Return the difference between a run and a job in options, steps or user components, or None.

    Parameters
    ----------
    job : fnlkit.recipes.reproduce.Job
    run : Run
        Only its records are compared; the caller compares data and labels.
    """
    recorded = run.meta.get("own") or {}
    if not _equal(job.method, run.settings["method"], recorded):
        return f"a run of {run.settings['method']}, where the recipe has {job.method}"
    options = dict(_split(word) for word in job.train)
    if "--preset" in options:
        flags = [name.removeprefix("--").replace("-", "_") for name in options]
        options |= {_flag(name): value for name, value in presets.remaining_options(options["--preset"], flags)[0].items()}
    for field in fields(Settings):
        wanted, actual = options.get(_flag(field.name), field.default), run.settings.get(field.name, field.default)
        if field.name != "method" and not _equal(wanted, actual, recorded):
            return f"trained with {_flag(field.name)} {actual}, where the recipe has {wanted}"
    return _other_steps([step for step, _ in job.prepare], run.meta.get("provenance", []))


# Defaults of the options that a recipe can give to a step, as a file's provenance records them.
_PARTITION = inspect.signature(federation).parameters
_NOISE = ("clients(rho=0.6, tau=0.5)", "symmetric(eta=0.4)")  # with clients, and before there are any
_DEFAULTS = {
    "partition": {
        name: _PARTITION[name].default for name in ("scheme", "clients", "min_samples", "labels", "public", "holdout")
    },
    "inject-noise": {"noise": None},
    "estimate-noise": {"estimator": "knn", "apply": "none"},
}


def _other_steps(wanted, provenance):
    """Return the difference of recorded steps from a job's steps, or None."""
    made = [step for step in provenance if step["command"] in _DEFAULTS]
    verbs, commands = [step[0] for step in wanted], [step["command"] for step in made]
    if verbs != commands:
        return f"made by {', '.join(commands) or 'no step'}, where the recipe has {', '.join(verbs)}"
    for (verb, *words), step in zip(wanted, made, strict=True):
        wanted_options, parameters = dict(_options_of(words)), step.get("parameters") or {}
        pairs = [("--seed", wanted_options.get("--seed", 0), step.get("seed"))]
        for name, default in _DEFAULTS[verb].items():
            pairs.append((_flag(name), wanted_options.get(_flag(name), default), parameters.get(name, default)))
        for name, value, before in pairs:
            if name == "--noise" and value is None and before in _NOISE:
                continue
            if not _equal(value, before, step.get("own") or {}):
                return f"made by {verb} {name} {before}, where the recipe has {value}"
    return None


def _flag(name):
    """Return the flag of a setting, as a step of a recipe contains it."""
    return f"--{name.replace('_', '-')}"


def _split(word):
    name, equals, value = word.partition("=")
    return name, value if equals else True


def _options_of(words):
    """Yield (option, value) of a step, written `--option value` or `--option=value`, without files that it reads."""
    words = iter(words)
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield name, value if equals else next(words, "")


def _equal(wanted, found, recorded):
    """Return whether a written option equals the value in a file: equal numbers, or equal specs.

    Parameters
    ----------
    wanted, found : object
    recorded : dict of str to str
        The digests of each user's component and of its data files when the file was made.  Components are equal if their code
        and data are equal, in any folder.
    """
    try:
        if isinstance(found, (bool, int, float)):
            return float(wanted) == float(found)
        if any(recorded.get(name, digest) != digest for name, digest in data_files(str(wanted)).items()):
            return False
        wanted, found = _with_code(str(wanted), own.digest), _with_code(str(found), recorded.get)
        return wanted == found or parse(wanted) == parse(found)
    except (ValueError, TypeError):  # not a number, or not a spec
        return False


def _with_code(text, digest_of):
    """Return a spec in which the digest of the code replaces the path of a user's component."""
    return rename_components(text, lambda name: f"{digest_of(name) or name}:{name.rpartition(':')[2]}")
