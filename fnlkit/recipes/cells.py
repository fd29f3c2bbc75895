"""Stored cells: scores of a finished recipe in a small file, to compare a new method without running the recipe again.

A cell is a method in a regime.  The first line of the file contains the kind, a fingerprint and the checksum of the data set
for each regime, and the versions.  Every other line is a cell with the scores of each seed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.run import Run
from fnlkit.components import own
from fnlkit.components.spec import data_files, own_names, rename_components
from fnlkit.errors import InputError
from fnlkit.recipes.recipe import entries, step
from fnlkit.recipes.reproduce import DIGITS, Job, cells, select_regimes

KIND = "fnlkit.cells/2"
_SCORES = ("best", "last", "late", "kept")
_MAX_BYTES = 2**25


def fingerprints(recipe: dict[str, Any], **train: Any) -> dict[str, str]:
    """Return {regime: SHA-256 of the steps and common options}; cells with equal fingerprints can be compared.

    Users' components are identified by their code and data files.

    Parameters
    ----------
    recipe : dict
    **train
        Options of `train` that replace the recipe's, if not None.
    """
    out, replacing = {}, {name: value for name, value in train.items() if value is not None}
    for regime in recipe["regime"]:
        options = recipe["train"] | regime.get("train", {}) | replacing
        facts = [
            [_identify_step(text) for text in regime["steps"]],
            {name: _identify(value) for name, value in options.items()},
            _identify(regime.get("backbone")),
        ]
        out[regime["name"]] = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return out


def _identify_step(text):
    """Return a step, or the list of its words if it names a user's component."""
    words = []
    for word in step(text):
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        found = _identify(value)
        words.append(word if found == value else [option + equals, found])
    return text if words == step(text) else words


def _identify(value):
    """Return a value of an option; a spec with users' components has digests of their files instead of paths."""
    if not isinstance(value, str) or not own_names(value):
        return value
    return [rename_components(value, lambda part: f"{own.digest(part)}:{part.rpartition(':')[2]}"), data_files(value)]


def write_cells(
    recipe: dict[str, Any], all_jobs: list[Job], folder: str | os.PathLike[str], target: str | os.PathLike[str], **train: Any
) -> int:
    """Write the cells of finished runs.

    Parameters
    ----------
    recipe : dict
    all_jobs : list of fnlkit.recipes.reproduce.Job
    folder : str or Path
        Contains the runs.
    target : str
    **train
        As for `fingerprints`.

    Returns
    -------
    int
        Number of cells.

    Raises
    ------
    InputError
        If no run is finished.
    """
    results = cells(all_jobs, folder, DIGITS)
    if not results:
        raise InputError(f"`export` {target}: no run in {folder} is finished")
    machine = {"engine", "cpu_capability", "torch"}
    about = metas(all_jobs, folder)
    header = {
        "kind": KIND,
        "title": recipe.get("title", ""),
        "fnlkit": metadata.version("fnlkit"),
        "machine": {name: value for name, value in next(iter(about.values()))["machine"].items() if name in machine},
        "datasets": {regime: meta["dataset_checksum"] for regime, meta in about.items()},
        "regimes": fingerprints(recipe, **train),
    }
    lines = [header, *({**cell, "seconds": round(cell["seconds"], 1)} for cell in results)]
    saving.write_bytes(["".join(json.dumps(line) + "\n" for line in lines).encode()], target)
    return len(results)


def metas(all_jobs: Sequence[Job], folder: str | os.PathLike[str]) -> dict[str, dict[str, Any]]:
    """Return {regime: metadata of a finished run} of the regimes with runs in a folder."""
    first = {job.regime: path for job in all_jobs if (path := Path(folder) / f"{job.name}.pt").exists()}
    return {regime: Run.read(str(path)).meta for regime, path in first.items()}


def list_included() -> list[str]:
    """Return the names of the recipes whose stored cells are included in fnlkit."""
    folder = resources.files("fnlkit.data") / "cells"
    return sorted(place.name.removesuffix(".jsonl") for place in folder.iterdir() if place.name.endswith(".jsonl"))


def path_of(name: str) -> str | None:
    """Return the path of the stored cells of an included recipe, or None."""
    place = resources.files("fnlkit.data") / "cells" / f"{name}.jsonl"
    return str(place) if place.is_file() else None


def versions() -> dict[str, dict[str, str]]:
    """Return {league: {version: SHA-256 of its cells}}; the last version of a league is the included one."""
    place = resources.files("fnlkit.data") / "cells" / "versions.toml"
    return tomllib.loads(place.read_text(encoding="utf-8"))


def version_of(name: str) -> str:
    """Return the version of the included cells of a league."""
    return list(versions()[name])[-1]


def checksum_of(name: str) -> str:
    """Return the SHA-256 of the included cells of a league."""
    place = resources.files("fnlkit.data") / "cells" / f"{name}.jsonl"
    return hashlib.sha256(place.read_bytes()).hexdigest()


def read_cells(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (header, cells) of a file of stored cells.

    Raises
    ------
    InputError
        If the file has another form.
    """
    try:
        header, *lines = [json.loads(line) for line in files.read_text(path, max_bytes=_MAX_BYTES).splitlines()]
        if header["kind"] != KIND or not all(isinstance(header[name], kind) for name, kind in
                                             (("datasets", dict), ("regimes", dict))):  # fmt: skip
            raise ValueError(header.get("kind"))
        results = [_cell(line) for line in lines]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not a file of stored cells; `fnlkit reproduce RECIPE` with `export` writes one") from error
    return header, results


def _cell(line):
    out = {name: str(line[name]) for name in ("regime", "method", "measures")}
    for name in _SCORES:
        out[name] = {int(seed): float(value) for seed, value in line[name].items()}
        if not out[name] or not all(0 <= value <= 100 for value in out[name].values()):
            raise ValueError(name)
    numbers = {name: line.get(name) for name in ("published", "global_memorized", "local_memorized")}
    return out | numbers | {"client_rounds": int(line["client_rounds"]), "seconds": float(line["seconds"])}


def adding(recipe: dict[str, Any], methods: Sequence[str], only: str | None = None) -> dict[str, Any]:
    """Return the recipe with these methods instead of the recipe's, in the selected regimes.

    Parameters
    ----------
    recipe : dict
    methods : sequence of str
    only : str or None
        As for `fnlkit.recipes.reproduce.jobs`.

    Raises
    ------
    InputError
        If the recipe already has one of the methods.
    """
    places, absolute = (
        {method: f"add{i}" for i, method in enumerate(methods)},
        [rename_components(text, _absolute) for text in methods],
    )
    added = [{"method": method, "name": text} for method, text in zip(absolute, methods, strict=True)]
    regimes = []
    for number, regime in select_regimes(recipe, only):
        known = {entry.label for entry in entries(regime)}
        if double := known & set(methods):
            raise InputError(f"`add` {min(double)}: the recipe has this method; run the recipe without `add`")
        regimes.append(regime | {"methods": added, "places": places, "key": regime.get("key", number)})
    return recipe | {"regime": regimes}


def _absolute(name):
    place, _, function = name.rpartition(":")
    return f"{os.path.abspath(os.path.expanduser(place))}:{function}" if place.endswith(".py") else name


def must_fit(
    header: dict[str, Any],
    path: str,
    recipe: dict[str, Any],
    all_jobs: Sequence[Job],
    folder: str | os.PathLike[str],
    **train: Any,
) -> None:
    """Raise InputError unless stored cells belong to the regimes and the data of finished jobs.

    Parameters
    ----------
    header : dict
    path : str
        Path of the stored cells, for the message.
    recipe : dict
    all_jobs : list of fnlkit.recipes.reproduce.Job
    folder : str or Path
    **train
        As for `fingerprints`.
    """
    for regime, digest in fingerprints(recipe, **train).items():
        if header["regimes"].get(regime, digest) != digest:
            raise InputError(f"{path}: measured with other steps or options of regime {regime!r}; run the recipe without `add`")
    for job in all_jobs:
        run = Path(folder) / f"{job.name}.pt"
        wanted = header["datasets"].get(job.regime)
        if run.exists() and wanted and Run.read(str(run)).meta["dataset_checksum"] != wanted:
            raise InputError(f"{path}: measured with other samples than {run}; use the data set of the stored cells")
