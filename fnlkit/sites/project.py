"""The project of a deployment: settings of all tasks and a description of the samples, agreed between the sites.

A project is one JSON file.  The server has this file, the number of samples of each site and, optionally, a separate test set.
It never has a training sample or a training label.  Each site keeps a copy, the agreement: limits of requests and replies come
from this copy, and a request made under other settings is refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from fnlkit.artifacts import files, run_schema
from fnlkit.artifacts.paths import display_path, from_home
from fnlkit.artifacts.records import from_json, to_json
from fnlkit.audits.private import sigma_of
from fnlkit.core.declarations import declaration, resolve
from fnlkit.core.errors import InputError, nearest
from fnlkit.core.parameters import arguments_of
from fnlkit.core.spec import MessageText, find, from_file, own_names, parse
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.federated.client.losses.correction import names_a_file
from fnlkit.federated.server.protection import Secret
from fnlkit.models import NETWORKS
from fnlkit.sites import scale
from fnlkit.sites.backbone import common
from fnlkit.sites.identity import check_names

FILE = "project.json"
MOST_SAMPLES = 10_000  # largest number of samples of a site, unless the partners agree on a different number
TASKS = ("train", "audit", "evaluate")
_HIDING = ("train", scale.TASK)  # tasks of a project that hides updates or label counts
_MAX_BYTES = 2**24
FEWEST = 3  # sites of an audit
# Entries in files of version 0.3 for a task that was removed.
_OF_ESTIMATES = ("estimator", "warm_up_rounds", "per_sample")
# Settings that only the server uses: a site does not compare them.
_OF_SERVER = ("rounds", "seed", "min_replies", "max_update_ratio", "eval_every")


@dataclass(frozen=True, kw_only=True)
class Project:
    """Settings of all tasks, and the description of the samples that all sites share.

    Attributes
    ----------
    names : list of str
        Name of each site, in the order of the clients.
    kind : {"image", "vector"}
    shape : list of int
        Shape of a stored sample.
    classes : list of str
        Class names, in the order of the labels.
    columns : list of dict or None
        Conversion of the columns of a table to features (fnlkit.datasets.columns.learn). None if the samples are not a table.
    mean, std : list of float
        Scale of the samples: a number per channel of images or per feature of vectors; empty for no scaling.
    scaling : {"project", "sites"}
        Source of `mean`, `std` and the values of missing cells: the project, or sums of the sites.
    settings : dict
        Fields of fnlkit.experiment.settings.Settings that differ from the defaults.
    max_samples : int
        Largest number of samples that a site can count for.
    backbone, backbone_checksum, backbone_version : str
        Backbone whose features the sites hold; SHA-256 of the weights, and package with version, if sites compute the features
        from their images.
    tasks : list of str
        Tasks that the sites agree to.
    open_tasks : bool
        Whether sites agree to audit and evaluate although the training hides updates or label counts: the replies of
        these tasks are neither masked nor randomized.
    audits : int >= 1
        Number of audits, the next one included. Under an agreement, a site answers one audit; a larger number is another
        agreement, with which it answers one more.
    sums_epsilon, sums_delta : float or None
        Epsilon and delta of both replies of a site in an audit. None: sums without noise.
    sums_budget : float or None
        Largest epsilon of all audits of a site together. None: that of a single audit.
    timeout : float
        Seconds to wait for a reply.
    wait : float
        Seconds to wait until all sites are connected.
    keys : list of str
        Fingerprint of each site's public key as `ssh-keygen -l` prints it, "" for a site that is not admitted; or [].
    """

    names: list[str]
    kind: Literal["image", "vector"]
    shape: list[int]
    classes: list[str]
    columns: list[dict[str, Any]] | None = None
    mean: list[float]
    std: list[float]
    scaling: Literal["project", "sites"] = "project"
    settings: dict[str, Any]
    max_samples: int = MOST_SAMPLES
    backbone: str = ""
    backbone_checksum: str = ""
    backbone_version: str = ""
    tasks: list[str]
    open_tasks: bool = False
    audits: int = 1
    sums_epsilon: float | None = None
    sums_delta: float | None = None
    sums_budget: float | None = None
    timeout: float = 600.0
    wait: float = 600.0
    keys: list[str]
    format: Literal["fnlkit.project/1"] = "fnlkit.project/1"

    def check(self) -> None:
        """Raise InputError for values that no project has."""
        check_names(self.names, len(self.names))
        limits = {
            "names": self.names,
            "shape": 0 < len(self.shape) <= 4 and all(0 < side < 2**31 for side in self.shape),
            "classes": len(set(self.classes)) == len(self.classes) > 0,
            "std": len(self.std) == len(self.mean) and min(self.std, default=1) > 0,
            "max_samples": self.max_samples > 0,
            "tasks": self.tasks and set(self.tasks) <= {*TASKS, scale.TASK},
            "audits": self.audits > 0,
            "keys": all(re.fullmatch("SHA256:[A-Za-z0-9+/]{43}|", key) for key in self.keys),
            "columns": self.columns is None
            or 0 < len({str(one.get("name")) for one in self.columns}) == len(self.columns) <= 10_000,
        }
        if wrong := [name for name, fine in limits.items() if not fine]:
            raise InputError(f"the project has no usable {wrong[0]}; write it again with `fnlkit flower-app`")
        for number, column in enumerate(self.columns or ()):
            run_schema.check_column(column, f"column {number} of the project")
        must_be_of_sites(self.keys, len(self.names))
        if self.sums_epsilon is not None or self.sums_delta is not None:
            sigma_of(self.sums_epsilon or 0.0, self.sums_delta or 0.0)
            if self.scaling == "sites":
                raise InputError(": a scale from the sites has no noise; leave out `scale='sites'`", parameter="sums_epsilon")
        if self.backbone_checksum:
            common(from_file(self.backbone, MessageText))

    @property
    def sites(self) -> int:
        """Number of sites."""
        return len(self.names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of a network's input."""
        return (self.shape[2], *self.shape[:2]) if self.kind == "image" else tuple(self.shape)

    def agreement(self) -> dict[str, Any]:
        """Collect the entries that bind the sites, as JSON values; those that only the server uses are missing."""
        entries = to_json(self)
        for name in ("keys", "wait", "timeout"):
            del entries[name]
        entries["settings"] = {name: value for name, value in self.settings.items() if name not in _OF_SERVER}
        return entries

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the agreement."""
        return hashlib.sha256(json.dumps(self.agreement(), sort_keys=True).encode()).hexdigest()

    def difference(self, other: object) -> str:
        """Name the first setting in which another agreement (JSON values) differs; "" if there is none.

        A name that only this agreement contains is ``UnknownEntry``: it stays at the site.
        """
        flat = [_flatten(self.agreement()), _flatten(other if isinstance(other, dict) else {})]
        known = {*flat[1], *(field.name for field in (*fields(Settings), *fields(Project)))}
        for name in sorted({*flat[0], *flat[1]}):
            values = [project.get(name) for project in flat]
            if json.dumps(values[0]) != json.dumps(values[1]):
                return name if name in known else "UnknownEntry"
        return ""


def _flatten(agreement):
    settings = agreement.get("settings")
    return {name: value for name, value in agreement.items() if name != "settings"} | (
        settings if isinstance(settings, dict) else {}
    )


@dataclass(frozen=True)
class Task:
    """A task of a project.

    Attributes
    ----------
    name : {"train", "audit", "evaluate", "scale"}
    project : Project
        With the scale of the sites, if the task has one.
    settings : Settings
    plan : fnlkit.experiment.plan.Plan
    """

    name: str
    project: Project
    settings: Settings
    plan: Plan


def read(path: str | os.PathLike[str]) -> Project:
    """Read the Project in a file, or in the folder of a project.

    Raises
    ------
    InputError
    """
    path = os.path.join(path, FILE) if os.path.isdir(path) else path
    shown, text = display_path(path), files.read_text(from_home(path), max_bytes=_MAX_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        old = "[tool.flwr.app.config]" in text
        raise InputError(
            f"{shown}: is {'a project of fnlkit 0.2' if old else 'no project of fnlkit'}; write it again with "
            f"`fnlkit flower-app`, and name its {FILE}"
        ) from None
    known = [field.name for field in fields(Project)]
    if isinstance(value, dict):
        value = {name: entry for name, entry in value.items() if name not in _OF_ESTIMATES}
        if isinstance(value.get("tasks"), list):
            value["tasks"] = [task for task in value["tasks"] if task != "estimate"]
    if unknown := sorted(set(value) - set(known)) if isinstance(value, dict) else []:
        raise InputError(f"{shown}: {unknown[0]} is no entry{nearest(unknown[0], known)}; correct the name")
    project = from_json(Project, value, shown)
    project.check()
    return project


def text_of(project: Project) -> bytes:
    """Write the content of a project's file."""
    return (json.dumps(to_json(project), indent=1) + "\n").encode()


def settings_of(project: Project) -> Settings:
    """Read the Settings of a project, which can only name components of fnlkit."""
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(set(project.settings) - known):
        raise InputError(f"the project: {unknown[0]} is no setting of fnlkit{nearest(unknown[0], known)}; correct the name")
    return Settings(**from_file(project.settings, MessageText))


def task_of(project: Project, name: str, scale_text: str = "") -> Task:
    """Make a Task of a project.

    Parameters
    ----------
    project : Project
    name : str
    scale_text : str
        Result of the task scale, see `fnlkit.sites.scale`.

    Raises
    ------
    InputError
        If the sites did not agree to the task, or if the scale is missing or not one of these samples.
    """
    settings = deployable(settings_of(project), project)
    agreed = agreed_tasks(project, settings, name)
    if name not in agreed:
        raise InputError(f"task {name}: the sites agreed to {', '.join(agreed)} only")
    if scale_text and (project.scaling != "sites" or name == scale.TASK):
        raise InputError("scale: the scale of this project is not that of the sites; leave out `scale`")
    if project.scaling == "sites" and name == scale.TASK:
        project = scale.remove_fills(project)
    elif project.scaling == "sites":
        project = scale.add_scale(project, scale_text)
    return Task(name, project, settings, Plan.of(settings))


def deployable(settings: Settings, project: Project) -> Settings:
    """Check that a deployment supports the settings, and change the parts that it sets itself.

    Raises
    ------
    InputError
    """
    plan = Plan.of(settings)  # imports components of installed packages, which `own_names` then finds
    if settings.model != "auto" and not own_names(settings.model):
        find(parse(settings.model, "`model`"), NETWORKS, "model")
    for name, value in asdict(settings).items():
        if user_files := own_names(value):
            raise InputError(f"`{name}`: {user_files[0]} is a component of your own, which no site has; name one of fnlkit")
    wanted = plan.needs - {"pair", "secret", "probe", "linear", "fourier"}
    if wanted:
        raise InputError(
            f"{settings.method} needs {', '.join(sorted(wanted))}, which sites of their own have no way to share; "
            "it runs in simulation only",
            parameter="method",
        )
    masks_sums = plan.sends_sums and plan.protection is not None
    if not masks_sums and (revealed := plan.method.revealing_reply):
        remedy = "no protection masks them; choose another method, for example flr-plus, or train in simulation (fnlkit train)"
        if plan.sends_sums:
            remedy = "add `protect='secagg'`, which masks them"
        raise InputError(f"{settings.method}: the sums of a site reveal its samples ({revealed}); {remedy}", parameter="method")
    if masks_sums and plan.protection != Secret():
        raise InputError(
            f"{settings.protect}: `clip` limits updates, and {settings.method} sends none; write `protect='secagg'`",
            parameter="protect",
        )
    if settings.memorization:
        raise InputError("needs the true labels, which are unknown at real sites; leave it out", parameter="memorization")
    transition = getattr(plan.loss, "keywords", {}).get("transition")
    if transition is not None and names_a_file(transition):
        raise InputError(
            f"{settings.loss}: a site reads no file that the server names; write the transition as a noise model, for "
            "example symmetric(eta=0.4)",
            parameter="loss",
        )
    if plan.reads_held_out and "secret" in plan.needs:
        raise InputError(
            f"{settings.select} would release counts of labels beyond the epsilon of {settings.method}; write "
            "`select='label-wave'`, which counts predictions only",
            parameter="select",
        )
    plan.check_protection(plan.cohort_of(project.sites))
    # The scale is that of the project; images have it as the statistics of their data set.
    return replace(settings, standardize="auto" if project.kind == "image" else "none")


def agreed_tasks(project: Project, settings: Settings, name: str = "") -> list[str]:
    """List the tasks that sites agree to.

    If the training hides updates (secure aggregation) or label counts (randomized labels), replies of the other tasks would
    reveal both, and sites agree to these tasks only with `open_tasks`.

    Parameters
    ----------
    project : Project
    settings : Settings
    name : str
        Task of a run.

    Raises
    ------
    InputError
        If this is the reason why the sites do not agree to the task of a run.
    """
    plan = Plan.of(settings)
    about = [(declaration(stage).label_epsilon, arguments_of(stage)) for stage in plan.method.stages]
    randomized = any(resolve(value, {**known, "classes": len(project.classes)}) is not None for value, known in about if value)
    if project.open_tasks or not (randomized or isinstance(plan.protection, Secret)):
        return project.tasks
    if name and name not in _HIDING:
        effect = "randomizes label counts" if randomized else "masks updates"
        raise InputError(
            f"task {name}: the training of this project {effect}, and replies of this task would not be protected; write the "
            "project with `open_tasks` if all sites agree"
        )
    return [task for task in project.tasks if task in _HIDING]


def must_be_of_sites(keys: Sequence[str], sites: int) -> None:
    """Raise InputError unless the number of keys is zero or the number of sites; a later key can be empty for now."""
    known = [key for key in keys if key]
    if keys and (len(keys) != sites or len(set(known)) < len(known)):
        raise InputError(f"`key`: {len(set(keys))} different keys for {sites} sites; give the public key of each in order")
