"""Write the Flower project of a deployment: the agreement, the server, the client."""

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fnlkit.artifacts import files, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError, list_names
from fnlkit.datasets.dataset import Dataset
from fnlkit.experiment import solved
from fnlkit.experiment.bound_method import BoundMethod
from fnlkit.experiment.scale import unscaled
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.scaling import moments, pool_moments
from fnlkit.sites import scale
from fnlkit.sites.backbone import definition
from fnlkit.sites.folders import mode_of
from fnlkit.sites.identity import digest_of
from fnlkit.sites.project import (
    FILE,
    Project,
    agreed_tasks,
    deployable,
    must_be_of_sites,
    settings_of,
    text_of,
)
from fnlkit.sites.templates import render

PACKAGE = "fnlkit_sites"
FLOWER = {"oldest": "1.41", "newer": "1.43", "target": "1.41.0"}  # as in the extra `flower` of pyproject.toml
# Settings that a project states although they are the defaults.
_ALWAYS = ("method", "fraction", "rounds", "seed")


def describe(dataset: Dataset, settings: Settings, *, backbone: str = "", scaling: Any = "project", **about: Any) -> Project:
    """Describe a deployment as a Project.

    Parameters
    ----------
    dataset : fnlkit.datasets.Dataset
        Samples in the format of the sites. The project describes these samples but does not contain them.
    settings : Settings
    backbone : str
        Spec of a backbone with which each site computes features from images.
    scaling : {"project", "sites"}
        Take the scale of vectors from `dataset`, or from sums of the sites (task `scale`).
    **about
        Other fields of Project.

    Raises
    ------
    InputError
        If a run with these settings cannot be deployed.
    """
    defaults = asdict(Settings())
    chosen = {k: v for k, v in asdict(settings).items() if v != defaults[k] or k in _ALWAYS}
    chosen["standardize"] = "auto" if dataset.kind == "image" else "none"  # mean and std of the project are the scale
    about |= _features_of(dataset, settings, backbone, scaling)
    needs = BoundMethod.of(settings.method).needs
    if "linear" in needs:
        chosen["model"] = _head_of(settings, dataset, needs, encoded=bool(backbone))
    if scaling == "sites":
        about["tasks"] = [*about["tasks"], scale.TASK]
    project = Project(
        classes=list(map(str, dataset.class_names)),
        columns=None if dataset.table is None else list(dataset.table),
        settings=chosen,
        scaling=scaling,
        **about,
    )
    project.check()
    deployable(settings, project)
    settings = settings_of(project)
    for task in project.tasks[:1] if len(project.tasks) == 1 else ():
        agreed_tasks(project, settings, task)
    return project


def _head_of(settings, dataset, needs, encoded):
    """Choose the network of a method that computes a linear head, so that all sites have the same."""
    model = solved.linear_network(settings.model, settings.method, None)
    if model != settings.model:
        raise InputError(f"{settings.model}: {settings.method} computes a linear head; omit the network", parameter="model")
    if model != "auto":
        return model
    return "mlp(hidden=[])" if encoded else solved.choose_features(dataset, len(dataset.x_train), needs)


def write_project(folder: str | os.PathLike[str], project: Project, more: Callable[..., Any] | None = None) -> list[Path]:
    """Write a Flower project to a new or empty folder and return the paths of its files.

    Parameters
    ----------
    folder : path
    project : fnlkit.sites.project.Project
    more : callable (content of project.json) -> dict of str to bytes, optional
        Further files of the folder, by their paths in the folder.

    Raises
    ------
    InputError
        If the folder is not empty.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: there is something already; name a new folder")
    parts = {
        FILE: text_of(project),
        "pyproject.toml": render("pyproject", package=PACKAGE, **FLOWER),
        "LICENSE": render("license"),
        f"{PACKAGE}/__init__.py": b"",
        f"{PACKAGE}/server.py": render("server"),
        f"{PACKAGE}/client.py": render("client"),
    }
    _write_whole(folder, parts | (more(parts[FILE]) if more else {}))
    return [folder / name for name in parts]


def set_keys(folder: Path, project: Project, fingerprints: dict[str, str]) -> Project:
    """Write the fingerprints of sites' keys into a project's file; other sites keep theirs.

    Parameters
    ----------
    folder : pathlib.Path
        The project.
    project : Project
    fingerprints : dict of str to str
        Fingerprint by the name of the site.
    """
    if unknown := [name for name in fingerprints if name not in project.names]:
        raise InputError(f"{unknown[0]}: is no site of the project ({list_names(project.names)}); name the file SITE.key.pub")
    keys = project.keys or [""] * project.sites
    keys = [fingerprints.get(name, key) for name, key in zip(project.names, keys, strict=True)]
    must_be_of_sites(keys, project.sites)
    project = replace(project, keys=keys)
    saving.write_bytes([text_of(project)], str(folder / FILE))
    return project


def _features_of(dataset, settings, backbone, scaling):
    """Describe kind, shape, scale and backbone of the samples that the sites' models receive, as fields of a Project."""
    shape = list(map(int, dataset.x_train.shape[1:]))
    about = {"kind": dataset.kind, "shape": shape, "backbone": "", "mean": [], "std": []}
    if dataset.features is not None:
        about["backbone"] = str(dataset.features["backbone"])
    if dataset.kind not in ("image", "vector"):
        raise InputError(f"samples of the kind {dataset.kind} are not deployed yet; make vectors of them first")
    if scaling == "sites" and (dataset.kind != "vector" or settings.standardize == "none"):
        raise InputError("`scale='sites'`: only vectors and tables are scaled by sums of the sites; leave out the option")
    if backbone:
        spec, width, checksum, version = definition(dataset, backbone)
        encoding = {"backbone": spec, "backbone_checksum": checksum, "backbone_version": version}
        return about | {"kind": "vector", "shape": [int(width)]} | encoding
    mean, std = _scale(dataset, settings) if scaling == "project" else ((), ())
    return about | {"mean": [float(v) for v in mean], "std": [float(v) for v in std]}


def _scale(dataset, settings):
    """Read the published (mean, std), or (mean, std) per image channel or vector feature."""
    if dataset.kind == "image" and settings.standardize == "none":
        return unscaled(dataset.x_train.shape[-1])[:2]
    if dataset.kind != "vector" or settings.standardize == "none":
        return dataset.mean, dataset.std
    if settings.standardize == "auto" and dataset.features is not None:
        return (), ()
    return tuple(tuple(values.tolist()) for values in pool_moments([moments(dataset.x_train)]))


def fingerprint_of(path: str | os.PathLike[str]) -> str:
    """Compute the fingerprint of a public key in a file written by `ssh-keygen`."""
    words = files.read_text(path).split()
    try:
        if not words[0].startswith("ecdsa-sha2-nistp"):
            raise ValueError
        return digest_of(words[1])
    except (IndexError, ValueError):
        made = 'ssh-keygen -t ecdsa -b 384 -N "" -f site.key'
        raise InputError(f"`key` {display_path(path)}: is no public key for Flower; give the .pub file of `{made}`") from None


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
