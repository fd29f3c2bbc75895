"""Terms of a project: the settings of the tasks and the description of the samples, as its configuration contains them.

The configuration consists of the settings of `fnlkit train` and a description of the samples.  The server has this
configuration, the number of samples of each site and, optionally, a separate test set. It never has a training sample or a
training label.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from fnlkit.client.losses.correction import names_a_file
from fnlkit.components.declarations import declaration, resolve
from fnlkit.components.parameters import arguments_of
from fnlkit.components.spec import MessageText, bind, find, from_file, own_names, parse
from fnlkit.errors import InputError, nearest
from fnlkit.estimators import ESTIMATORS
from fnlkit.experiment.plan import Plan
from fnlkit.experiment.settings import Settings
from fnlkit.models import NETWORKS
from fnlkit.server.protection import Secret
from fnlkit.sites import scale
from fnlkit.sites.agreement import columns_of
from fnlkit.sites.backbone import common

MOST_SAMPLES = 10_000  # largest number of samples of a site, unless the partners agree on a different number
TASKS = ("train", "audit", "estimate", "evaluate")
_HIDING = ("train", scale.TASK)  # tasks of a project that hides updates or label counts


# Entries of a project's configuration beside the settings of training.
_LISTS = {"shape": int, "classes": str, "mean": float, "std": float, "keys": str, "names": str, "tasks": str}
_COUNTS = ("sites", "max_samples", "folds", "audit_rounds")
_TEXTS = ("estimator", "backbone", "backbone_checksum", "backbone_version", "scale")
_OTHERS = ("per_sample", "open_tasks", "task", "kind", "scaling", "columns", "wait", "timeout", "server_data", "output", "run")
_OTHERS += ("sums_epsilon", "sums_delta")  # of audits by mail


@dataclass(frozen=True)
class Judging:
    """Settings of the tasks audit and estimate.

    Attributes
    ----------
    tasks : tuple of str
        Tasks that the sites agree to, names in `TASKS`.
    estimator : str
        Estimator of the task estimate, a name in `fnlkit.estimators.ESTIMATORS` with parameters.
    folds : int >= 2
        Number of models of an audit.
    audit_rounds : int >= 1
        Training rounds of each model of an audit or estimate.
    per_sample : bool
        Whether sites reply with a number for each sample: hashes to find copies between sites, losses, energies.
    open_tasks : bool
        Whether sites agree to audit, estimate and evaluate although the training hides updates or label counts: the replies of
        these tasks are neither masked nor randomized.
    """

    tasks: tuple[str, ...] = TASKS
    estimator: str = "em"
    folds: int = 5
    audit_rounds: int = 25
    per_sample: bool = False
    open_tasks: bool = False


STANDARD = Judging()


@dataclass(frozen=True)
class Task:
    """Description of the samples that all sites share, and the number of sites.

    Attributes
    ----------
    sites : int
    kind : {"image", "vector"}
    shape : tuple of int
        Shape of a stored sample.
    classes : tuple of str
        Class names, in the order of the labels.
    mean, std : tuple of float
        Scale of the samples: a number per channel of images or per feature of vectors, or () for no scaling.
    most : int
        Largest number of samples that a site can count for.
    columns : list of dict or None
        Conversion of the columns of a table to features (fnlkit.datasets.columns.learn). None if the samples are not a table.
    keys : tuple of str
        Fingerprint of each site's public key as `ssh-keygen -l` prints it, in the order of the clients; or ().
    names : tuple of str
        Name of each site, in the order of the clients.
    backbone : str
        Backbone whose features the sites hold.  Empty if the samples are no features.
    backbone_checksum, backbone_version : str
        SHA-256 of the weights, and package with version, if sites compute the features from their images.
    scaling : {"project", "sites"}
        Source of `mean`, `std` and the values of missing cells: the project, or sums of the sites.
    has_scale : bool
        Whether they are known.
    name : {"train", "audit", "estimate", "evaluate"}
        The task of a run.
    judging : Judging
        Settings of audits and estimates.
    """

    sites: int
    kind: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    most: int = MOST_SAMPLES
    columns: list[dict[str, Any]] | None = None
    keys: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    backbone: str = ""
    backbone_checksum: str = ""
    backbone_version: str = ""
    scaling: str = "project"
    has_scale: bool = False
    name: str = "train"
    judging: Judging = STANDARD


def deployable(settings: Settings, task: Task) -> Settings:
    """Return the settings in a form that a deployment supports.

    Raises
    ------
    InputError
    """
    plan = Plan.of(settings)  # imports components of installed packages, which `own_names` then finds
    if settings.model != "auto" and not own_names(settings.model):
        find(parse(settings.model, "`model`"), NETWORKS, "model")
    for name, value in asdict(settings).items():
        if own := own_names(value):
            raise InputError(f"`{name}`: {own[0]} is a component of your own, which no site has; name one of fnlkit")
    wanted = plan.needs - {"pair", "secret"}
    if wanted:
        raise InputError(
            f"`method` {settings.method} needs {', '.join(sorted(wanted))}, which sites of their own have no way to share; "
            "it runs in simulation only"
        )
    if revealed := plan.method.revealing_reply:
        raise InputError(
            f"`method` {settings.method}: the sums of a site reveal its samples ({revealed}), and no protection masks them; "
            "choose another method, for example flr-plus, or train in simulation (fnlkit train)"
        )
    if settings.memorization:
        raise InputError("`memorization` needs the true labels, which are unknown at real sites; leave it out")
    transition = getattr(plan.loss, "keywords", {}).get("transition")
    if transition is not None and names_a_file(transition):
        raise InputError(
            f"`loss` {settings.loss}: a site reads no file that the server names; write the transition as a noise model, for "
            "example symmetric(eta=0.4)"
        )
    if task.kind not in ("image", "vector"):
        raise InputError(f"samples of the kind {task.kind} are not deployed yet; make vectors of them first")
    if plan.reads_held_out and "secret" in plan.needs:
        raise InputError(
            f"`select` {settings.select} would release counts of labels beyond the epsilon of {settings.method}; write "
            "`select='label-wave'`, which counts predictions only"
        )
    plan.check_protection(max(1, round(settings.fraction * task.sites)))
    return replace(settings, standardize="none")


def read_config(config: dict[str, Any]) -> tuple[Settings, Task]:
    """Return (Settings, Task) of a project's configuration.

    The configuration can only name components of fnlkit.

    Raises
    ------
    InputError
        If an entry is invalid. The message is a single line that names the entry.
    """
    settings = {f.name for f in fields(Settings)}
    known = {*settings, *_LISTS, *_COUNTS, *_TEXTS, *_OTHERS}
    if unknown := sorted(set(config) - known):
        raise InputError(
            f"the project's configuration: {unknown[0]} is no entry of this version of fnlkit{nearest(unknown[0], known)}; "
            "correct the name"
        )
    name = ""
    try:
        found = {}
        for name, kind in _LISTS.items():
            found[name] = _parse_list(config[name], kind)
        for name in _COUNTS:
            if type(config[name]) is not int or config[name] < 1:
                raise ValueError
        if type(config.get("open_tasks", False)) is not bool:
            raise InputError("open_tasks: expected true or false; write the project again with `fnlkit flower-app`")
        for name, kind in (("per_sample", bool), *((name, str) for name in _TEXTS)):
            if type(config[name]) is not kind:
                raise ValueError
        name = "names"
        if len(found["names"]) != config["sites"]:
            raise ValueError
        name = "task"
        if config[name] not in found["tasks"] or not set(found["tasks"]) <= {*TASKS, scale.TASK}:
            raise ValueError
        name = "kind"
        if config[name] not in ("image", "vector"):
            raise ValueError
        name = "scaling"
        if config[name] not in scale.SOURCES:
            raise ValueError
        name = "columns"
        columns = columns_of(json.loads(config[name]))
        name = "std"
        if len(found["std"]) != len(found["mean"]) or min(found["std"], default=1) <= 0:
            raise ValueError
        name = "keys"
        if not all(re.fullmatch("SHA256:[A-Za-z0-9+/]{43}|", key) for key in found["keys"]):
            raise ValueError
    except (KeyError, ValueError, TypeError, RecursionError):
        what = "lacks" if name not in config else "has no usable"
        raise InputError(
            f"the project's configuration {what} {name}; write the project again with `fnlkit flower-app`"
        ) from None
    must_be_of_sites(found["keys"], config["sites"])
    settings = Settings(**{name: from_file(config[name], MessageText) for name in settings if name in config})
    about = {name: config[name] for name in ("estimator", "folds", "audit_rounds", "per_sample")}
    judging = Judging(found.pop("tasks"), **from_file(about, MessageText), open_tasks=config.get("open_tasks", False))
    about = {name: config[name] for name in ("backbone", "backbone_checksum", "backbone_version", "scaling")}
    about |= {"name": config["task"], "judging": judging}
    if config["backbone_checksum"]:
        common(from_file(config["backbone"], MessageText))
    task = Task(config["sites"], config["kind"], most=config["max_samples"], columns=columns, **found, **about)
    if config["scale"]:
        task = _add_scale(task, config["scale"])
    if task.name not in ("train", scale.TASK):
        must_be_judging(judging, task)
    settings = deployable(settings, task)
    return settings, replace(task, judging=with_agreed_tasks(judging, settings, task))


def with_agreed_tasks(judging: Judging, settings: Settings, task: Task) -> Judging:
    """Return the Judging with only the tasks that sites agree to.

    If the training hides updates (secure aggregation) or label counts (randomized labels), replies of the other tasks would
    reveal both, and sites agree to these tasks only with `open_tasks`.

    Raises
    ------
    InputError
        If the task of the run is not one that the sites agree to.
    """
    plan = Plan.of(settings)
    about = [(declaration(stage).label_epsilon, arguments_of(stage)) for stage in plan.method.stages]
    randomized = any(resolve(value, {**known, "classes": len(task.classes)}) is not None for value, known in about if value)
    if judging.open_tasks or not (randomized or isinstance(plan.protection, Secret)):
        return judging
    if task.name not in _HIDING:
        what = "randomizes label counts" if randomized else "masks updates"
        raise InputError(
            f"task {task.name}: the training of this project {what}, and replies of this task would not be protected; write "
            "the project with `open_tasks` if all sites agree"
        )
    return replace(judging, tasks=tuple(name for name in judging.tasks if name in _HIDING))


def _add_scale(task, text):
    if task.scaling != "sites" or task.name == scale.TASK:
        raise InputError("scale: the scale of this project is not that of the sites; leave out `scale`")
    try:
        return scale.add_scale(task, text)
    except ValueError:
        raise InputError("scale: is no scale of these samples; give the file of `fnlkit sites run DIR --task scale`") from None


def _parse_list(text, kind):
    """Return the values of a JSON list as a tuple after checking their type.

    If the type is float, integers are also accepted.

    Raises
    ------
    ValueError, TypeError
    """
    values = json.loads(text)
    if not isinstance(values, list) or not all(type(v) in ((float, int) if kind is float else (kind,)) for v in values):
        raise ValueError
    if kind is not str and not all(math.isfinite(v) for v in values):
        raise ValueError
    if kind is int and (not 0 < len(values) <= 4 or not all(0 < v < 2**31 for v in values)):
        raise ValueError
    return tuple(values)


def must_be_of_sites(keys: Sequence[str], sites: int) -> None:
    """Raise InputError unless the number of keys is zero or the number of sites; a later key can be empty for now."""
    known = [key for key in keys if key]
    if keys and (len(keys) != sites or len(set(known)) < len(known)):
        raise InputError(
            f"`key`: {len(set(keys))} different keys for {sites} sites; give the public key of each, in their order"
        )


def estimator_of(text: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return (function, {name: Sent}) of an estimator's spec."""
    spec = parse(text, "`estimator`")
    part = find(spec, ESTIMATORS, "estimator")
    bind(spec, part, "estimator")
    return part, dict(declaration(part).sends or {})


def must_be_judging(judging: Judging, task: Task) -> None:
    """Raise InputError if an audit or an estimate with these settings cannot be deployed."""
    part, sends = estimator_of(judging.estimator)  # imports a component of an installed package, which `own_names` then finds
    if own := own_names(judging.estimator):
        raise InputError(f"`estimator`: {own[0]} is a component of your own, which no site has; name one of fnlkit")
    arguments = arguments_of(part) | _parse_parameters(judging.estimator)
    if "estimate" not in judging.tasks:
        return
    if str(arguments.get("by")) == "sample":
        raise InputError(f"`estimator` {judging.estimator}: by=sample splits the samples of a site; write by=client")
    single = [sent.what for sent in sends.values() if sent.shape and {"n", "top"} & set(sent.shape)]
    if str(arguments.get("scope")) == "client":  # of the estimator loss, which then sends no losses
        single = []
    if single and not judging.per_sample:
        raise InputError(f"`estimator` {judging.estimator}: sites would reply with {single[0]}; agree to it with `per_sample`")


def _parse_parameters(text):
    return dict(parse(text).parameters)
