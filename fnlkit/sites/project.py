"""Write the Flower project of a deployment: configuration, server, client."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.audits.private import sigma_of
from fnlkit.client.scaling import moments, pool_moments
from fnlkit.errors import InputError
from fnlkit.experiment.settings import Settings
from fnlkit.sites import scale
from fnlkit.sites.agreement import FREE
from fnlkit.sites.backbone import definition
from fnlkit.sites.handover import mode_of
from fnlkit.sites.identity import check_names
from fnlkit.sites.sites import digest_of
from fnlkit.sites.terms import (
    MOST_SAMPLES,
    STANDARD,
    Judging,
    Task,
    deployable,
    must_be_judging,
    must_be_of_sites,
    with_agreed_tasks,
)

if TYPE_CHECKING:
    from fnlkit.datasets.dataset import Dataset


PACKAGE = "fnlkit_sites"
FLOWER = {"oldest": "1.41", "newer": "1.43", "target": "1.41.0"}  # as in the extra `flower` of pyproject.toml
PUBLISHER = "fnlkit"
PRIVATE = ("server_data", "output", "run")  # used by the server only: passed to `flwr run`, never written to a file


def write_project(
    folder: str | os.PathLike[str],
    dataset: "Dataset",
    settings: Settings,
    *,
    sites: int,
    wait: float = 600,
    timeout: float = 600,
    max_samples: int = MOST_SAMPLES,
    keys: Sequence[Path] = (),
    names: Sequence[str] = (),
    name: str = "train",
    judging: Judging = STANDARD,
    backbone: str = "",
    scaling: str = "project",
    sums: tuple[float, float] | None = None,
    publisher: str = PUBLISHER,
    more: Callable[..., Any] | None = None,
) -> list[Path]:
    """Write a Flower project to a new or empty folder and return the paths of its files.

    Parameters
    ----------
    folder : path
    dataset : fnlkit.datasets.Dataset
        Samples in the format of the sites. The project describes these samples but does not contain them.
    settings : Settings
    sites : int
    wait, timeout : float
        Seconds to wait until all sites are connected, and seconds to wait for a single visit.
    max_samples : int
        Largest number of samples that a site can count for.
    keys : sequence of path
        Public key of each site in OpenSSH format, in the order of the clients. Can be empty.
    names : sequence of str
        Name of each site. Default: ``site-0``, ``site-1``, ...
    name : str
        Task of a run unless `flwr run` selects another one.
    judging : Judging
    backbone : str
        Spec of a backbone with which each site computes features from images.
    scaling : {"project", "sites"}
        Take the scale of vectors from `dataset`, or from sums of the sites (task `scale`).
    sums : (float, float), optional
        Epsilon and delta of the sums of a site in audits by mail. Default: sums without noise.
    publisher : str
        Account at Flower's hub that publishes the project.
    more : callable (text of pyproject.toml) -> dict of str to bytes, optional
        Further files of the folder, by their paths in the folder.

    Raises
    ------
    InputError
        If the folder is not empty, or if a run with these settings cannot be deployed.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", publisher):
        raise InputError(f"`publisher` {publisher!r}: must be an account of Flower's hub, of letters, digits, - and _")
    about = _features_of(dataset, settings, backbone, scaling)
    if scaling == "sites":
        judging = replace(judging, tasks=(*judging.tasks, scale.TASK))
    if sums:
        sigma_of(*sums)
        if scaling == "sites":
            raise InputError("`sums_epsilon`: a scale from the sites has no noise; leave out `scale='sites'`")
    fingerprints = tuple(map(fingerprint_of, keys))
    names = tuple(names) or tuple(f"site-{k}" for k in range(sites))
    check_names(names, sites)
    about |= {"most": max_samples, "columns": dataset.table, "keys": fingerprints, "names": names, "name": name}
    task = Task(sites, classes=tuple(dataset.class_names), judging=judging, **about)
    must_be_of_sites(fingerprints, sites)
    must_be_judging(judging, task)
    settings = deployable(settings, task)
    with_agreed_tasks(judging, settings, task)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: there is something already; name a new folder")
    defaults = asdict(Settings())
    # Flower lets a run set only entries that the project has.
    always = {"method", "fraction", *FREE}
    chosen = {k: v for k, v in asdict(settings).items() if v != defaults[k] or k in always}
    chosen.pop("standardize", None)  # mean and std below are the scale
    about = {
        "sites": task.sites,
        "kind": task.kind,
        "shape": json.dumps(list(map(int, task.shape))),
        "classes": json.dumps(list(task.classes)),
        "mean": json.dumps([float(v) for v in task.mean]),
        "std": json.dumps([float(v) for v in task.std]),
        "max_samples": int(max_samples),
        "keys": json.dumps(fingerprints),
        "columns": json.dumps(task.columns),
        "names": json.dumps(names),
        "backbone": task.backbone,
        "backbone_checksum": task.backbone_checksum,
        "backbone_version": task.backbone_version,
        "scaling": scaling,
        "scale": "",
        "task": name,
        **asdict(judging),
        "tasks": json.dumps(judging.tasks),
        "wait": float(wait),
        "timeout": float(timeout),
        **(dict(zip(("sums_epsilon", "sums_delta"), map(float, sums), strict=True)) if sums else {}),
        **dict.fromkeys(PRIVATE, ""),
    }
    config = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (chosen | about).items())
    parts = {
        "pyproject.toml": _PROJECT.format(package=PACKAGE, config=config, publisher=publisher, **FLOWER),
        "LICENSE": _LICENSE,
    }
    parts |= {f"{PACKAGE}/__init__.py": "", f"{PACKAGE}/server.py": _SERVER, f"{PACKAGE}/client.py": _CLIENT}
    parts = {name: text.encode() for name, text in parts.items()}
    _write_whole(folder, parts | (more(parts["pyproject.toml"]) if more else {}))
    return [folder / name for name in parts]


def _features_of(dataset, settings, backbone, scaling):
    """Return kind, shape, scale and backbone of the samples that the sites' models receive, as fields of a Task."""
    about = {"kind": dataset.kind, "shape": tuple(dataset.x_train.shape[1:]), "backbone": backbone_of(dataset)}
    if scaling == "sites" and (dataset.kind != "vector" or settings.standardize == "none"):
        raise InputError("`scale='sites'`: only vectors and tables are scaled by sums of the sites; leave out the option")
    if backbone:
        spec, width, checksum, version = definition(dataset, backbone)
        found = {"backbone": spec, "backbone_checksum": checksum, "backbone_version": version}
        return {"kind": "vector", "shape": (width,)} | found
    mean, std = _scale(dataset, settings) if scaling == "project" else ((), ())
    return about | {"mean": mean, "std": std, "scaling": scaling}


def _scale(dataset, settings):
    """Return the published (mean, std), or (mean, std) per image channel or vector feature."""
    if dataset.kind != "vector" or settings.standardize == "none":
        return dataset.mean, dataset.std
    if settings.standardize == "auto" and dataset.features is not None:
        return (), ()
    return tuple(tuple(values.tolist()) for values in pool_moments([moments(dataset.x_train)]))


def backbone_of(dataset: "Dataset") -> str:
    """Return the spec of the backbone of a data set of features; empty if the samples are no features."""
    return "" if dataset.features is None else str(dataset.features["backbone"])


def fingerprint_of(path: str | os.PathLike[str]) -> str:
    """Return the fingerprint of a public key in a file written by `ssh-keygen`."""
    words = files.read_text(path).split()
    try:
        if not words[0].startswith("ecdsa-sha2-nistp"):
            raise ValueError
        return digest_of(words[1])
    except (IndexError, ValueError):
        made = 'ssh-keygen -t ecdsa -b 384 -N "" -f site.key'
        raise InputError(
            f"`key` {display_path(path)}: is no public key that Flower takes; give the .pub file of `{made}`"
        ) from None


def _write_whole(folder, parts):
    """Write files {name: bytes} of a folder that is new or empty under temporary names, then rename them."""
    there = folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".fnlkit-", dir=folder if there else folder.parent))
    project = temporary / "project"
    try:
        for name, content in parts.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            saving.write_bytes([content], project / name, mode=mode_of(name))
        for source in project.iterdir() if there else [project]:
            os.replace(source, folder / source.name if there else folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


_PROJECT = """\
# Written by `fnlkit flower-app`.  docs/deployment.md of fnlkit says how to run it.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fnlkit-sites"
version = "1.0.0"
description = "Federated learning with noisy labels, by fnlkit"
license = {{file = "LICENSE"}}
dependencies = ["fnlkit[flower]", "flwr>={oldest},<{newer}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "{publisher}"
fab-format-version = 1
flwr-version-target = "{target}"
fab-include = ["{package}/*.py", "LICENSE"]

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

# The options of `fnlkit train`, and what all sites' samples have in common.
[tool.flwr.app.config]
{config}"""
_LICENSE = """\
Copyright The fnlkit developers

Licensed under the Apache License, Version 2.0 (the "License");
you may not use these files except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
"""
_SERVER = '''"""The server: it runs the task that the run configuration selects, and writes the result."""

from fnlkit.sites.apps import server_app
from fnlkit.sites.tasks import conduct

app = server_app(conduct)
'''
_CLIENT = '''"""A site: it runs the steps of the task on the samples there, and sends only declared replies."""

from fnlkit.sites.apps import client_app
from fnlkit.sites.opening import open_site

app = client_app(open_site)
'''
