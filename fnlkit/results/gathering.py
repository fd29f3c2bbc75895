"""Runs of one recipe that were made in many places: which part a machine takes, and whether they belong together."""

import os
from dataclasses import fields
from pathlib import Path

import numpy as np

from fnlkit import catalogue
from fnlkit.artefacts import saving
from fnlkit.artefacts.run import Run
from fnlkit.errors import InputError
from fnlkit.experiment.settings import Settings, option
from fnlkit.spec import parse

# Of a run's file and what lies beside it; federations are made again where they are missed, with the same bytes.
_BESIDE = (".metrics.jsonl", ".pt")


def shard(all_jobs, text):
    """Return part I of N of the jobs, for `I/N` from 1/N to N/N: every job is in one part, and sizes differ by one at most.

    A part is a piece of the list, so that a machine makes few federations and embeddings more than once.

    Parameters
    ----------
    all_jobs : list of Job
    text : str
        For example ``3/8``.

    Raises
    ------
    InputError
        For anything else.
    """
    part, slash, of = text.partition("/")
    if not (slash and part.isdecimal() and of.isdecimal() and 1 <= int(part) <= int(of)):
        raise InputError(f"--shard {text}: write which part of how many, from 1/8 to 8/8")
    part, of = int(part), int(of)
    return all_jobs[len(all_jobs) * (part - 1) // of : len(all_jobs) * part // of]


def merge(all_jobs, folder, others):
    """Copy the runs of a recipe from other folders into one; return how many were copied.

    A run that is in two places is taken once where both are equal, and the finished or longer one where the other broke off.

    Parameters
    ----------
    all_jobs : list of Job
    folder : str or Path
        Made where it is missing.
    others : sequence of str or Path

    Raises
    ------
    InputError
        When two places hold different results of one run, a run is of other settings or labels than the recipe's, or
        data sets differ; nothing is copied then.
    """
    for other in others:
        if not os.path.isdir(other):
            raise InputError(f"--merge {other}: no such folder")
    must_belong_together(all_jobs, [folder, *others])
    chosen = {}
    for job in all_jobs:
        found = _paths(job, [folder, *others])
        if found and (best := _best(found)).parent != Path(folder):
            chosen[job.name] = best.with_suffix("")
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, source in chosen.items():
        for suffix in _BESIDE:
            if os.path.exists(f"{source}{suffix}"):
                _copy(f"{source}{suffix}", Path(folder) / f"{name}{suffix}")
    return len(chosen)


def missing(all_jobs, folder):
    """Return the names of the jobs of which a folder has no finished run."""
    found = {job.name: _paths(job, [folder]) for job in all_jobs}
    return [name for name, paths in found.items() if not (paths and Run.read(str(paths[0])).finished)]


def must_belong_together(all_jobs, folders):
    """Raise InputError unless the runs in folders are those of a recipe, made from the same data and labels.

    Parameters
    ----------
    all_jobs : list of Job
    folders : sequence of str or Path
        Of which some may not exist.
    """
    same = {}
    for job in all_jobs:
        for path in _paths(job, folders):
            run = Run.read(str(path))
            _must_fit(job, run, path)
            source = next(word for word in job.prepare[0][0] if word.startswith("--dataset="))
            _must_agree(same, ("data set", source), run.meta["dataset_checksum"], path)
            pooled = "pooled" in catalogue.needs(job.method)  # another federation, made of the same one
            _must_agree(same, ("federation", job.prepare[-1], pooled), run.meta.get("federation"), path)


def _must_agree(same, what, value, path):
    first, seen = same.setdefault(what, (path, value))
    if seen != value:
        raise InputError(f"{path}: made from another {what[0]} than {first}; they do not belong into one table")


def _paths(job, folders):
    found = [Path(folder) / f"{job.name}.pt" for folder in folders]
    return [path for path in found if path.exists()]


def _must_fit(job, run, path):
    """Raise InputError where a run was made with other options or steps than a job's."""
    if parse(run.settings["method"], "method") != parse(job.method, "method"):
        raise InputError(f"{path}: a run of {run.settings['method']}, where the recipe has {job.method}")
    said = dict(_split(word) for word in job.train)
    for field in fields(Settings):
        if field.name == "method" or (option(field.name) not in said and "--preset" in said):
            continue
        wanted, found = said.get(option(field.name), field.default), run.settings.get(field.name, field.default)
        if not _equal(wanted, found):
            raise InputError(f"{path}: trained with {option(field.name)} {found}, where the recipe has {wanted}")
    made = {step.get("command"): step.get("parameters", {}) for step in run.meta.get("provenance", [])}
    for (verb, *words), _ in job.prepare:
        for name, wanted in _options_of(words):
            found = made.get(verb, {}).get(name.removeprefix("--").replace("-", "_"))
            if found is not None and name != "--dataset" and not _equal(wanted, found):
                raise InputError(f"{path}: made by {verb} {name} {found}, where the recipe has {wanted}")


def _split(word):
    name, equals, value = word.partition("=")
    return name, value if equals else True


def _options_of(words):
    """Yield (option, value) of a step, written `--option value` or `--option=value`; files that it reads are none."""
    words = iter(words)
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            yield name, value if equals else next(words, "")


def _equal(wanted, found):
    """Return whether an option as written means the value that a file has: equal numbers, or equal specs."""
    try:
        if isinstance(found, (bool, int, float)):
            return float(wanted) == float(found)
        return str(wanted) == str(found) or parse(str(wanted)) == parse(str(found))
    except ValueError:  # no number, or no spec
        return False


def _best(paths):
    """Return the path of the run that counts among equal ones: a finished one, or the longest."""
    runs = [Run.read(str(path)) for path in paths]
    done = [place for place, run in enumerate(runs) if run.finished]
    for place in done[1:]:
        if not _same_results(runs[done[0]], runs[place]):
            raise InputError(
                f"{paths[done[0]]} and {paths[place]}: one run with two results, of {_maker(runs[done[0]])} and "
                f"{_maker(runs[place])}; remove one of the files"
            )
    return paths[done[0]] if done else paths[max(range(len(runs)), key=lambda place: len(runs[place].history))]


def _same_results(one, other):
    weights = one.weights.shape == other.weights.shape and bool((one.weights == other.weights).all())
    return weights and one.history == other.history and np.array_equal(one.labels["corrected"], other.labels["corrected"])


def _maker(run):
    machine = run.meta["machine"]
    return f"{machine['engine']} on {machine.get('cpu_capability', '?')}, torch {machine.get('torch', '?')}"


def _copy(source, target):
    with open(source, "rb") as file:
        saving.write_bytes(iter(lambda: file.read(2**20), b""), target)
