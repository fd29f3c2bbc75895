"""Deployment on real sites: project of `fnlkit flower-app`, server and clients.

The project's configuration consists of the settings of `fnlkit train` and a description of the samples. The server has this
configuration, the number of samples of each site and, optionally, a separate test set. It never has a training sample or a
training label.
"""

import json
import math
import os
import re
import secrets
import shutil
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.key import read_or_draw
from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.paths import shown
from fnlkit.artifacts.provenance import provenance
from fnlkit.artifacts.run import Run
from fnlkit.artifacts.stored import Rows
from fnlkit.client.losses.correction import names_a_file
from fnlkit.client.scaling import moments, pooled
from fnlkit.client.training import Fit
from fnlkit.components import registry
from fnlkit.components.declarations import declaration, resolved
from fnlkit.components.parameters import arguments_of
from fnlkit.components.spec import from_file, own_names
from fnlkit.datasets import columns as features
from fnlkit.deploy.agreement import agreed_config, columns_of, samples_like
from fnlkit.errors import InputError
from fnlkit.experiment import cards, combination
from fnlkit.experiment.settings import Settings, option
from fnlkit.server.protection import Secret

PACKAGE = "fnlkit_sites"
MOST_SAMPLES = 10_000  # largest number of samples of a site, unless the partners agree on a different number
PRIVATE = ("server_data", "output")  # used by the server only: passed to `flwr run`, never written to a file


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
    """

    sites: int
    kind: str
    shape: tuple
    classes: tuple
    mean: tuple = ()
    std: tuple = ()
    most: int = MOST_SAMPLES
    columns: list | None = None
    keys: tuple = ()


def write_project(folder, dataset, settings, *, sites, wait=600, timeout=600, max_samples=MOST_SAMPLES, keys=()):
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

    Raises
    ------
    InputError
        If the folder is not empty, or if a run with these settings cannot be deployed.
    """
    mean, std = _scale(dataset, settings)
    fingerprints = tuple(map(_fingerprint, keys))
    task = Task(sites, dataset.kind, dataset.x_train.shape[1:], tuple(dataset.class_names), mean, std, max_samples,
                dataset.table, fingerprints)  # fmt: skip
    _must_be_of_sites(fingerprints, sites)
    settings = deployable(settings, task)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: there is something already; name a new folder")
    defaults = asdict(Settings())
    chosen = {k: v for k, v in asdict(settings).items() if v != defaults[k] or k in ("method", "rounds", "fraction", "seed")}
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
        "wait": float(wait),
        "timeout": float(timeout),
        **dict.fromkeys(PRIVATE, ""),
    }
    config = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (chosen | about).items())
    parts = {"pyproject.toml": _PROJECT.format(package=PACKAGE, config=config)}
    parts |= {f"{PACKAGE}/__init__.py": "", f"{PACKAGE}/server.py": _SERVER, f"{PACKAGE}/client.py": _CLIENT}
    _write_whole(folder, parts)
    return [folder / name for name in parts]


def _scale(dataset, settings):
    """Return the published (mean, std), or (mean, std) per image channel or vector feature."""
    if dataset.kind != "vector" or settings.standardize == "none":
        return dataset.mean, dataset.std
    if settings.standardize == "auto" and dataset.features is not None:
        return (), ()
    return tuple(tuple(values.tolist()) for values in pooled([moments(dataset.x_train)]))


def _fingerprint(path):
    """Return the fingerprint of a public key in a file written by `ssh-keygen`."""
    from fnlkit.deploy.sites import digest_of

    words = files.read_text(path).split()
    try:
        if not words[0].startswith("ecdsa-sha2-nistp"):
            raise ValueError
        return digest_of(words[1])
    except (IndexError, ValueError):
        made = 'ssh-keygen -t ecdsa -b 384 -N "" -f site.key'
        raise InputError(f"--key {shown(path)}: is no public key that Flower takes; give the .pub file of `{made}`") from None


def _must_be_of_sites(keys, sites):
    """Raise InputError unless the number of keys is zero or the number of sites."""
    if keys and (len(keys) != sites or len(set(keys)) < sites):
        raise InputError(
            f"--key: {len(set(keys))} different keys for {sites} sites; give the public key of each, in their order"
        )


def _write_whole(folder, parts):
    """Write files {name: text} of a folder that is new or empty under temporary names, then rename them."""
    there = folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".fnlkit-", dir=folder if there else folder.parent))
    project = temporary / "project"
    try:
        for name, text in parts.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text, encoding="utf-8")
        for source in project.iterdir() if there else [project]:
            os.replace(source, folder / source.name if there else folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def deployable(settings, task):
    """Return the settings in a form that a deployment supports.

    Raises
    ------
    InputError
    """
    for name, value in asdict(settings).items():
        if own := own_names(value):
            raise InputError(f"{option(name)}: {own[0]} is a component of your own, which no site has; name one of fnlkit")
    wanted = registry.needs(settings.method) - {"pair", "secret"}
    if wanted:
        raise InputError(
            f"--method {settings.method} needs {', '.join(sorted(wanted))}, which sites of their own have no way to share; "
            "it runs in simulation only"
        )
    if settings.memorization:
        raise InputError("--memorization needs the true labels, which are unknown at real sites; leave it out")
    loss = registry.loss(settings.loss, settings.method)
    transition = getattr(loss, "keywords", {}).get("transition")
    if transition is not None and names_a_file(transition):
        raise InputError(
            f"--loss {settings.loss}: a site reads no file that the server names; write the transition as a noise model, for "
            "example symmetric(eta=0.4)"
        )
    if task.kind not in ("image", "vector"):
        raise InputError(f"samples of the kind {task.kind} are not deployed yet; make vectors of them with `fnlkit embed`")
    combination.protectable(settings, max(1, round(settings.fraction * task.sites)))
    return replace(settings, standardize="none")


def read_config(config):
    """Return (Settings, Task) of a project's configuration.

    The configuration can only name components of fnlkit.

    Raises
    ------
    InputError
        If an entry is invalid. The message is a single line that names the entry.
    """
    name = ""
    try:
        found = {}
        for name, kind in (("shape", int), ("classes", str), ("mean", float), ("std", float), ("keys", str)):
            found[name] = _listed(config[name], kind)
        for name in ("sites", "max_samples"):
            if type(config[name]) is not int or config[name] < 1:
                raise ValueError
        name = "kind"
        if config[name] not in ("image", "vector"):
            raise ValueError
        name = "columns"
        columns = columns_of(json.loads(config[name]))
        name = "std"
        if len(found["std"]) != len(found["mean"]) or min(found["std"], default=1) <= 0:
            raise ValueError
        name = "keys"
        if not all(re.fullmatch("SHA256:[A-Za-z0-9+/]{43}", key) for key in found["keys"]):
            raise ValueError
    except (KeyError, ValueError, TypeError, RecursionError):
        what = "lacks" if name not in config else "has no usable"
        raise InputError(
            f"the project's configuration {what} {name}; write the project again with `fnlkit flower-app`"
        ) from None
    _must_be_of_sites(found["keys"], config["sites"])
    settings = Settings(**{f.name: from_file(config[f.name]) for f in fields(Settings) if f.name in config})
    task = Task(config["sites"], config["kind"], most=config["max_samples"], columns=columns, **found)
    return deployable(settings, task), task


def _listed(text, kind):
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


def declared_arrays(settings, *, classes, samples, width, size, dtype):
    """Return {name: (type, shape)} of all arrays that a site can send under these settings.

    Parameters
    ----------
    settings : Settings
    classes, samples, width, size : int
        Number of classes, samples of the site, features of the network, and length of the weight vector.
    dtype : str
        Type of the weights.
    """
    out = {"weights": (dtype, (size,))}
    known = {"classes": classes, "samples": samples, "width": width, "size": size}
    for name, sent in cards.may_leave(settings.method, settings.optimizer, settings.selector).items():
        out.setdefault(name, (sent.dtype, sent.sides(**known)))
    return out


# ---- at a site
def open_site(config, node):
    """Return (NodeObjects, Declared, folder) of the site on which this process runs.

    Parameters
    ----------
    config : dict
        Configuration of the run, as written by its submitter.
    node : dict
        Configuration of the site: ``client``, the client number; ``data``, a table, a folder of images or an npz; ``memory``, a
        folder to write to; ``agreed``, the site's copy of the project's pyproject.toml, with which every run is compared.

    Raises
    ------
    InputError
    """
    import torch

    from fnlkit.client.client import Client, Part
    from fnlkit.client.inputs import PRECISIONS, Inputs, intake
    from fnlkit.deploy.leaving import Declared
    from fnlkit.engines.flower.visits import NodeObjects

    for name, kind in (("client", int), ("data", str), ("memory", str), ("agreed", str)):
        if type(node.get(name)) is not kind:
            raise InputError(f"--node-config lacks {name}; give client=NUMBER, data=PATH, memory=FOLDER and agreed=PATH")
    settings, task = read_config(agreed_config(node["agreed"], config))
    number, data = node["client"], samples_like(node["data"], task)
    if data.kind != task.kind or tuple(data.x_train.shape[1:]) != task.shape:
        raise InputError(f"the samples here are {data.kind} {data.x_train.shape[1:]}, the task's {task.kind} {task.shape}")
    if unknown := set(data.class_names) - set(task.classes):
        raise InputError(f"the labels here name {sorted(unknown)[0]!r}, which is none of the task's classes")
    if len(data.y_train) > task.most:
        raise InputError(
            f"{len(data.y_train):,} samples here, more than the {task.most:,} that the partners agreed on; write the project "
            "with a larger --max-samples"
        )
    train, _, shape, image = intake(data)
    given = torch.from_numpy(np.array([task.classes.index(name) for name in data.class_names])[data.y_train])
    inputs = Inputs(image, task.mean, task.std, PRECISIONS[settings.precision], "cpu")
    network = _network(settings, task, shape)
    client = Client(number, Part(train, np.arange(len(train))), given.clone(), given, len(task.classes), inputs)
    if "secret" in registry.needs(settings.method):  # drawn at the site, because the server has the seed
        client.secret = read_or_draw(os.path.join(str(node["memory"]), "privacy.key"))
    sizes = {"classes": len(task.classes), "samples": len(given), "width": getattr(network.module, "width", 0)}
    arrays = declared_arrays(settings, **sizes, size=network.size, dtype=str(network.dtype).removeprefix("torch."))
    declared = Declared(number, len(given), arrays, _terms(settings, task, len(given)), _releases(settings, task, given, node))
    return NodeObjects(network, {number: client}, None), declared, node["memory"]


def _terms(settings, task, samples):
    """Return the Terms of a site's masked updates, or None if updates are not masked."""
    from fnlkit.engines.flower.secret import Terms

    hidden = registry.protection(settings.protect)
    if not isinstance(hidden, Secret):
        return None
    alike = registry.optimizer(settings.optimizer, Fit()).uniform_weights
    return Terms(hidden.clip, 1, 1.0) if alike else Terms(hidden.clip, samples, float(task.most))


def _releases(settings, task, given, node):
    """Return the Releases of a site: the replies that reveal labels, and the largest epsilon."""
    from fnlkit.deploy.releases import Releases, digest

    names, limit = {}, None
    for each in registry.nested(settings.method):
        names |= declaration(each).releases
        if epsilon := declaration(each).label_epsilon:
            limit = resolved(epsilon, {**arguments_of(each), "classes": len(task.classes)})
    return Releases(os.path.join(node["memory"], "released.json"), digest(given), names, limit)


def _network(settings, task, shape):
    from fnlkit.experiment.network import build_network

    pair = "pair" in registry.needs(settings.method)
    about = {"input_shape": shape, "classes": len(task.classes), "kind": task.kind}
    return build_network(settings.model, **about, seed=settings.seed, pair=pair, precision=settings.precision)


# ---- at the server
class Elsewhere(Rows):
    """Placeholder for samples that are at the sites: it has a shape but no values."""

    def __init__(self, count, shape):
        self.shape, self.dtype = (count, *shape), np.dtype(np.float32)

    def _read(self, positions):
        if len(positions):
            raise InputError("a sample of a site was asked for, which no server has")
        return np.zeros((0, *self.shape[1:]), self.dtype)


def conduct(grid, config):
    """Train over the sites of a grid and write the run; called by the ServerApp.

    The run is written after every round. If the output file already exists, the run is resumed.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    config : dict
        Configuration of the project. ``output`` is the path of the run, and ``server_data`` is a data set with the test samples
        for the evaluation.

    Raises
    ------
    InputError, WorkStopped
    """
    from fnlkit.deploy.sites import Sites
    from fnlkit.experiment.output import locked, metrics_file, metrics_path, torch_threads

    settings, task = read_config(config)
    output = os.path.abspath(config.get("output") or "run.pt")
    with locked(output), torch_threads():
        resume = Run.read(output) if os.path.exists(output) else None
        _tested(config.get("server_data"), task)  # so that an error is raised before waiting for the sites
        about = {"wait": float(config["wait"]), "most": task.most, "keys": task.keys, "say": _say}
        sites = Sites(grid, task.sites, run=_token(f"{output}.id", resume), **about)
        if not task.keys:
            _say("the project names no keys: any admitted SuperNode may claim a client's number (fnlkit flower-app --key)")
        experiment = _experiment(settings, task, sites, resume, config)
        for text in experiment.clients.notes:
            print(text, flush=True)
        with metrics_file(metrics_path(output), experiment.history) as write:

            def done(row):
                write(row)
                print(json.dumps({k: row[k] for k in ("round", "stage", "accuracy", "rejected") if k in row}), flush=True)

            experiment.run(on_round=done, checkpoint=lambda run: run.write(output), checkpoint_every=1)


def _say(text):
    """Print a line to the server's log."""
    print(text, flush=True)


def _token(path, resume):
    """Return the identifier of a run that the sites use, or a new identifier for a new run."""
    if resume is not None and os.path.exists(path):
        return Path(path).read_text(encoding="ascii").strip()
    token = secrets.token_hex(8)
    Path(path).write_text(token, encoding="ascii")
    return token


def _experiment(settings, task, sites, resume, config):
    from fnlkit.artifacts.federation import Federation
    from fnlkit.datasets.dataset import Dataset
    from fnlkit.experiment import Experiment

    sizes = sites.gather()
    count, test = task.sites, _tested(config.get("server_data"), task)
    x_test, y_test = test or (np.zeros((0, *task.shape), np.float32), np.zeros(0, np.int64))
    # A single entry represents all samples of a site, so that memory does not grow with the number that a site reports.
    nothing = np.zeros(count, np.int64)
    dataset = Dataset(
        name=REAL_SITES,
        kind=task.kind,
        y_train=nothing,
        y_test=y_test,
        class_names=list(task.classes),
        samples=partial(_samples, count, task.shape, x_test),
        statistics=(task.mean, task.std),
        observed=True,
        test_true=True,
        table=task.columns,
        columns=features.features(task.columns) if task.columns else None,
        content=lambda: [json.dumps([sizes, asdict(task)]).encode(), np.ascontiguousarray(x_test).tobytes(), y_test.tobytes()],
    )
    about = {"dataset_checksum": dataset.checksum}
    federation = Federation(REAL_SITES, len(task.classes), np.arange(count + 1), np.arange(count), nothing, meta=about)
    settings_of_engine = {"engine": "flower", "runtime": sites, "client_timeout": float(config["timeout"]), "device": "cpu"}
    output = os.path.abspath(config.get("output") or "run.pt")
    beside = {"release_ledger": f"{output}.ledger", "privacy_key": f"{output}.privacy-key"}
    experiment = Experiment(federation, dataset, settings, resume=resume, **beside, **settings_of_engine)
    experiment.provenance.append(provenance("flower-app", **asdict(settings), sites=task.sites, samples=sizes))
    return experiment


def _samples(count, shape, x_test):
    return Elsewhere(count, shape), x_test


def _tested(path, task):
    """Return (x_test, y_test) of the server's data set, or None if the server has no data set."""
    if not path:
        return None
    data = samples_like(str(path), task)
    if tuple(data.x_test.shape[1:]) != task.shape or list(data.class_names) != list(task.classes):
        raise InputError(f"server_data {path}: its test samples are not like those of the task")
    return np.asarray(data.x_test[:]), np.asarray(data.y_test, np.int64)


_PROJECT = """\
# Written by `fnlkit flower-app`.  docs/deployment.md of fnlkit says how to run it.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fnlkit-sites"
version = "1.0.0"
description = "Federated learning with noisy labels, by fnlkit"
license = "Apache-2.0"
dependencies = ["fnlkit[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fnlkit"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

# The options of `fnlkit train`, and what all sites' samples have in common.
[tool.flwr.app.config]
{config}"""

_SERVER = '''"""The server's end: it asks, combines and writes the run."""

from fnlkit.deploy.apps import server_app
from fnlkit.deploy.project import conduct

app = server_app(conduct)
'''

_CLIENT = '''"""A site's end: it trains on what lies there, and lets out what the method declares."""

from fnlkit.deploy.apps import client_app
from fnlkit.deploy.project import open_site

app = client_app(open_site)
'''
