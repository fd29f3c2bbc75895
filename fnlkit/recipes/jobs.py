"""Expand a recipe into jobs: shell lines that each write one run or one estimate."""

import contextlib
import hashlib
import json
import os
import re
import shlex
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from fnlkit import datasets
from fnlkit.artifacts.federation import Federation
from fnlkit.artifacts.run import Run
from fnlkit.core import own, registry
from fnlkit.core.errors import InputError, list_names
from fnlkit.core.spec import data_files, own_names, parse, rename_components
from fnlkit.recipes.recipe import entries, step

# A recipe trains on the samples themselves unless it names a backbone.
SAMPLES = {"backbone": "none"}


@dataclass(frozen=True)
class Job:
    """One run of a recipe, or one estimate of a published table.

    Attributes
    ----------
    regime, label, method : str
        `label` names the method with the options in tables; `method` is "" for an estimate.
    seed : int
    stages : tuple of tuple of str
        Commands of the pipe, each with options; the last one writes the file.
    file : str
        Name of the file with the run, or with the federation and the estimates.
    folder : str
        Folder of the runs, to which paths in the options are relative.
    published : (mean, standard deviation) or None
        In percent.
    before : Job or None
        A job whose file the last command reads.
    """

    regime: str
    label: str
    method: str
    seed: int
    stages: tuple[tuple[str, ...], ...]
    file: str
    folder: str
    published: tuple[Any, ...] | None = None
    before: "Job | None" = None

    @property
    def name(self) -> str:
        """Name of the file without the suffix."""
        return self.file.rpartition(".")[0]

    def in_folder(self) -> "Job":
        """The job as seen from the folder of the runs."""
        return replace(self, folder=os.curdir, before=self.before and self.before.in_folder())

    @property
    def output(self) -> tuple[str, ...]:
        """Options of the last command that name the file; an interrupted run is resumed."""
        resume = ("--resume", self.file) if self.stages[-1][0] == "train" else ()
        return (f"--fingerprint={self.fingerprint}", *resume, "-o", self.file)

    @property
    def line(self) -> str:
        """The shell line that writes the file, independent of other lines."""
        stages = [("fnlkit", verb, *(["-"] if i else []), *words) for i, (verb, *words) in enumerate(self.stages)]
        stages[-1] += self.output
        return (f"{self.before.line} && " if self.before else "") + " | ".join(map(shlex.join, stages))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the commands with the contents of the files that they name, in 16 hexadecimal digits."""
        with contextlib.chdir(self.folder) if os.path.isdir(self.folder) else contextlib.nullcontext():
            facts = [[identify_option(word) for word in words] for words in self.stages]
        before = self.before and self.before.fingerprint
        return hashlib.sha256(json.dumps([before, *map(sorted, facts)]).encode()).hexdigest()[:16]

    def state(self) -> str:
        """State of a job: "missing", "other" (a file of other commands), "unfinished" or "finished"."""
        path = Path(self.folder) / self.file
        if not path.exists():
            return "missing"
        run = Run.read(str(path)) if path.suffix == ".pt" else None
        meta = Federation.read(str(path)).meta if run is None else run.meta
        if (meta.get("provenance") or [{}])[-1].get("fingerprint") != self.fingerprint:
            return "other"
        return "finished" if run is None or run.finished else "unfinished"


@lru_cache(10_000)
def identify_option(word: str) -> list[str]:
    """Read the name, the value and the digests of the files of an option ``--name=value``, without paths of these files."""
    name, _, value = word.partition("=")
    if name == "--dataset" and os.path.exists(value):
        return [name, datasets.load(value).checksum]
    if name == "--run":  # its job has a fingerprint
        return [name]
    named = [value, *re.split(r"[\s=(),\[\]'\"]+", value)]
    contents = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in dict.fromkeys(named) if os.path.isfile(path)]
    if os.path.isfile(value):
        return [name, *contents]
    if own_names(value):
        contents += [*data_files(value).values()]
        value = rename_components(value, lambda part: f"{own.digest(part)}:{part.rpartition(':')[2]}")
    return [name, value, *contents]


def expand(
    recipe: dict[str, Any],
    folder: str | os.PathLike[str],
    *,
    seeds: int | None = None,
    only: str | None = None,
    embeddings: str | None = None,
    **train: Any,
) -> list[Job]:
    """Expand a recipe to Jobs.

    Parameters
    ----------
    recipe : dict
    folder : str or Path
        Folder of the runs.
    seeds : int or None
        Use this number of seeds: the first ones of the recipe, or 0..seeds-1 if the recipe lists fewer.
    only : str or None
        Select the regime of this name, or all regimes with these words in the name, or a pattern with ``*`` and ``?``.
    embeddings : str or None
        A file of vectors, which replaces the embeddings that a regime computes with a backbone.
    **train
        Options of `train` that replace the recipe's, if not None.
    """
    identify_option.cache_clear()  # files can change between calls
    listed, folder = recipe["seeds"], os.fspath(folder)
    used = listed if seeds is None else (listed[:seeds] if seeds <= len(listed) else list(range(seeds)))
    replacing = {key: value for key, value in train.items() if value is not None}
    jobs = []
    for number, regime in select_regimes(recipe, only):
        number, source = regime.get("key", number), regime.get("dataset") or recipe["dataset"]
        vectors = embeddings or regime.get("backbone")
        for seed in used:
            steps = tuple((*step(text), f"--seed={seed}") for text in regime["steps"])
            steps = ((*steps[0], f"--dataset={source}"), *steps[1:])
            if "estimate" in regime:
                jobs.append(_estimate(regime, f"{number}-{{}}-{seed}", seed, steps, vectors, replacing, folder))
                continue
            for place, (label, method, more) in enumerate(entries(regime)):
                options = SAMPLES | recipe["train"] | regime.get("train", {}) | more | replacing
                words = ("train", f"--method={method}", f"--seed={seed}", *_options(options))
                if vectors and "embedding" in registry.needs(method):
                    words += (f"--embeddings={vectors}",)
                published = regime.get("published", {})  # by a label, a method's name, or its whole spec
                score = next((published[key] for key in (label, method, parse(method).name) if key in published), None)
                short = re.sub("[^A-Za-z0-9.+_-]+", "-", os.path.basename(parse(method).name))  # of FILE.py:NAME
                file = f"{number}-{place}-{short}-{seed}.pt"
                jobs.append(Job(regime["name"], label, method, seed, (*steps, words), file, folder, score))
    return jobs


def _estimate(regime, file, seed, steps, vectors, replacing, folder):
    """Make the Job of an estimate: `estimate-noise`, with the model of a run if ``estimate`` has settings of a run."""
    how, before = regime["estimate"], None
    if vectors:
        more: tuple[str, ...] = (f"--embeddings={vectors}",)
    elif how["train"]:
        words = ("train", "--method=fedavg", f"--seed={seed}", *_options(SAMPLES | how["train"] | replacing))
        before = Job(regime["name"], "fedavg", "fedavg", seed, (*steps, words), f"{file.format('model')}.pt", folder)
        more = (f"--run={before.file}",)
    else:
        more = _options(SAMPLES | how["options"] | replacing)
    last = ("estimate-noise", f"--estimator={how['estimator']}", *more, f"--seed={seed}")
    target = f"{file.format('estimate')}.npz"
    return Job(regime["name"], how["estimator"], "", seed, (*steps, last), target, folder, before=before)


def _options(values):
    """Write options as command line words; a boolean is a switch."""
    options = {key.replace("_", "-"): value for key, value in values.items() if value is not False}
    return tuple(f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items())


def select_regimes(recipe: dict[str, Any], only: str | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Select [(number, regime)] of the regimes that a text names; parameters as for `expand`.

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
        raise InputError(
            f"no regime has {only!r} in the name; write one of {list_names(names)}, or '*WORD*' for parts of words"
        )
    return selected


def mentions(name: str, text: str) -> bool:
    """Whether a name contains a text as whole words, or matches a pattern with ``*`` and ``?``.

    Case is ignored.  A pattern describes the whole name.

    Examples
    --------
    >>> mentions("FedAvg, CIFAR-100 ResNet-34", "cifar-10"), mentions("FedAvg, CIFAR-100 ResNet-34", "*cifar-10*")
    (False, True)
    >>> mentions("asymmetric 0.45", "symmetric"), mentions("asymmetric 0.45", "0.4"), mentions("symmetric 0.4", "0.4")
    (False, False, True)
    """
    name, text = name.lower(), text.strip().lower()
    if "*" in text or "?" in text:
        pattern = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in text)
        return re.fullmatch(pattern, name) is not None
    before = r"(?<!\w)(?<!\d\.)" if re.match(r"\w", text) else ""
    after = r"(?!\w)(?!\.\d)" if re.search(r"\w$", text) else ""
    return re.search(before + re.escape(text) + after, name) is not None
