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
from fnlkit.datasets.embed import embed
from fnlkit.deploy.agreement import agreed_config, columns_of, conformed, samples_like
from fnlkit.errors import InputError
from fnlkit.estimators.inputs import MOST_PIXELS
from fnlkit.experiment import cards, combination
from fnlkit.experiment.settings import Settings, option
from fnlkit.server.protection import Secret

PACKAGE = "fnlkit_sites"
MOST_SAMPLES = 10_000  # largest number of samples of a site, unless the partners agree on a different number
PRIVATE = ("server_data", "output", "run")  # used by the server only: passed to `flwr run`, never written to a file
TASKS = ("train", "audit", "estimate", "evaluate")


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
    """

    tasks: tuple = TASKS
    estimator: str = "em"
    folds: int = 5
    audit_rounds: int = 25
    per_sample: bool = False


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
        Backbone whose features the sites hold, with the version and the checksum of its weights as far as known.  Empty if the
        samples are no features.
    name : {"train", "audit", "estimate", "evaluate"}
        The task of a run.
    judging : Judging
        Settings of audits and estimates.
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
    names: tuple = ()
    backbone: str = ""
    name: str = "train"
    judging: Judging = Judging()


def write_project(folder, dataset, settings, *, sites, wait=600, timeout=600, max_samples=MOST_SAMPLES, keys=(), names=(),
                  name="train", judging=Judging(), more=None):  # fmt: skip
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
    more : callable (text of pyproject.toml) -> dict of str to bytes, optional
        Further files of the folder, by their paths in the folder.

    Raises
    ------
    InputError
        If the folder is not empty, or if a run with these settings cannot be deployed.
    """
    mean, std = _scale(dataset, settings)
    fingerprints = tuple(map(fingerprint_of, keys))
    names = tuple(names) or tuple(f"site-{k}" for k in range(sites))
    if len(set(names)) != sites or not all(re.fullmatch(r"[\w.-]{1,40}", each) for each in names):
        raise InputError(f"--name: expected {sites} different names of letters, digits, points and dashes")
    task = Task(sites, dataset.kind, dataset.x_train.shape[1:], tuple(dataset.class_names), mean, std, max_samples,
                dataset.table, fingerprints, names, backbone_of(dataset), name, judging)  # fmt: skip
    _must_be_of_sites(fingerprints, sites)
    _must_be_judging(judging, task)
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
        "names": json.dumps(names),
        "backbone": task.backbone,
        "task": name,
        **asdict(judging),
        "tasks": json.dumps(judging.tasks),
        "wait": float(wait),
        "timeout": float(timeout),
        **dict.fromkeys(PRIVATE, ""),
    }
    config = "".join(f"{name} = {json.dumps(value)}\n" for name, value in (chosen | about).items())
    parts = {"pyproject.toml": _PROJECT.format(package=PACKAGE, config=config)}
    parts |= {f"{PACKAGE}/__init__.py": "", f"{PACKAGE}/server.py": _SERVER, f"{PACKAGE}/client.py": _CLIENT}
    parts = {name: text.encode() for name, text in parts.items()}
    _write_whole(folder, parts | (more(parts["pyproject.toml"]) if more else {}))
    return [folder / name for name in parts]


def _scale(dataset, settings):
    """Return the published (mean, std), or (mean, std) per image channel or vector feature."""
    if dataset.kind != "vector" or settings.standardize == "none":
        return dataset.mean, dataset.std
    if settings.standardize == "auto" and dataset.features is not None:
        return (), ()
    return tuple(tuple(values.tolist()) for values in pooled([moments(dataset.x_train)]))


def fingerprint_of(path):
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
    """Raise InputError unless the number of keys is zero or the number of sites; an empty key stands for a later one."""
    known = [key for key in keys if key]
    if keys and (len(keys) != sites or len(set(known)) < len(known)):
        raise InputError(
            f"--key: {len(set(keys))} different keys for {sites} sites; give the public key of each, in their order"
        )


def _write_whole(folder, parts):
    """Write files {name: bytes} of a folder that is new or empty under temporary names, then rename them."""
    there = folder.exists()
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".fnlkit-", dir=folder if there else folder.parent))
    project = temporary / "project"
    try:
        for name, content in parts.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_bytes(content)
            if name.endswith((".key", ".sh")):
                (project / name).chmod(0o600 if name.endswith(".key") else 0o755)
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
        lists = {"shape": int, "classes": str, "mean": float, "std": float, "keys": str, "names": str, "tasks": str}
        for name, kind in lists.items():
            found[name] = _listed(config[name], kind)
        for name in ("sites", "max_samples", "folds", "audit_rounds"):
            if type(config[name]) is not int or config[name] < 1:
                raise ValueError
        for name, kind in (("per_sample", bool), ("estimator", str), ("backbone", str)):
            if type(config[name]) is not kind:
                raise ValueError
        name = "names"
        if len(found["names"]) != config["sites"]:
            raise ValueError
        name = "task"
        if config[name] not in found["tasks"] or not set(found["tasks"]) <= set(TASKS):
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
        if not all(re.fullmatch("SHA256:[A-Za-z0-9+/]{43}|", key) for key in found["keys"]):
            raise ValueError
    except (KeyError, ValueError, TypeError, RecursionError):
        what = "lacks" if name not in config else "has no usable"
        raise InputError(
            f"the project's configuration {what} {name}; write the project again with `fnlkit flower-app`"
        ) from None
    _must_be_of_sites(found["keys"], config["sites"])
    settings = Settings(**{f.name: from_file(config[f.name]) for f in fields(Settings) if f.name in config})
    about = {name: config[name] for name in ("estimator", "folds", "audit_rounds", "per_sample")}
    judging = Judging(found.pop("tasks"), **from_file(about))
    about = {"backbone": config["backbone"], "name": config["task"], "judging": judging}
    task = Task(config["sites"], config["kind"], most=config["max_samples"], columns=columns, **found, **about)
    if task.name != "train":
        _must_be_judging(judging, task)
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


def replies_of(task, settings):
    """Return {name: Sent} of all replies of the task of a run beyond ``weights``."""
    if task.name == "train":
        return cards.may_leave(settings.method, settings.optimizer, settings.selector)
    if task.name == "audit":
        from fnlkit.review.site import SENDS

        return {name: sent for name, sent in SENDS.items() if task.judging.per_sample or "n" not in sent.shape}
    if task.name == "evaluate":
        from fnlkit.estimators.federated import PREDICTED

        return PREDICTED
    return _estimator(task.judging.estimator)[1]


def _estimator(text):
    """Return (function, {name: Sent}) of an estimator's spec."""
    from fnlkit.components.spec import bind, find, parse
    from fnlkit.estimators import ESTIMATORS

    spec = parse(text, "--estimator")
    part = find(spec, ESTIMATORS, "estimator")
    bind(spec, part, "estimator")
    return part, dict(declaration(part).sends)


def _must_be_judging(judging, task):
    """Raise InputError if an audit or an estimate with these settings cannot be deployed."""
    if own := own_names(judging.estimator):
        raise InputError(f"--estimator: {own[0]} is a component of your own, which no site has; name one of fnlkit")
    arguments = arguments_of(_estimator(judging.estimator)[0]) | _given(judging.estimator)
    if "estimate" not in judging.tasks:
        return
    if str(arguments.get("by")) == "sample":
        raise InputError(f"--estimator {judging.estimator}: by=sample splits the samples of a site; write by=client")
    single = [sent.what for sent in _estimator(judging.estimator)[1].values() if sent.shape and {"n", "top"} & set(sent.shape)]
    if str(arguments.get("scope")) == "client":  # of the estimator loss, which then sends no losses
        single = []
    if single and not judging.per_sample:
        raise InputError(f"--estimator {judging.estimator}: sites would reply with {single[0]}; agree to it with --per-sample")


def _given(text):
    from fnlkit.components.spec import parse

    return dict(parse(text).parameters)


def backbone_of(dataset):
    """Return the spec of the backbone of a data set of features; empty if the samples are no features."""
    return "" if dataset.features is None else str(dataset.features["backbone"])


def open_sides(task):
    """Return the largest number of each side of a reply that no declaration fixes, for the audit of this task."""
    from fnlkit.review import shifts

    image = task.kind == "image"
    columns = 1 if image else min(math.prod(task.shape), shifts.MOST_COLUMNS)
    means = shifts.GRID**2 + 1 if image else min(math.prod(task.shape), shifts.MOST_FEATURES)
    changes = len(shifts.possible(task.kind, task.shape))
    return {"columns": columns, "features": 2 * means, "changes": changes, "tried": shifts.TRIED}


def declared_arrays(replies, *, classes, samples, width, size, dtype):
    """Return {name: (type, shape)} of all arrays that a site can send.

    Parameters
    ----------
    replies : dict of str to Sent
        As returned by `replies_of`.
    classes, samples, width, size : int
        Number of classes, samples of the site, features of the network, and length of the weight vector.
    dtype : str
        Type of the weights.
    """
    out = {"weights": (dtype, (size,))}
    known = {"classes": classes, "samples": samples, "width": width, "size": size}
    for name, sent in replies.items():
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
        folder to write to; ``agreed``, the site's copy of the project's pyproject.toml, with which every run is compared;
        optionally ``leave_out``, names of classes of this site whose samples are not used, separated by commas.

    Raises
    ------
    InputError
    """
    import torch

    from fnlkit.client.client import Client, Part
    from fnlkit.client.inputs import Inputs, intake, weight_type
    from fnlkit.deploy.labels import keep_judgment, labels_of
    from fnlkit.deploy.leaving import Declared
    from fnlkit.engines.flower.visits import NodeObjects

    for name, kind in (("client", int), ("data", str), ("memory", str), ("agreed", str)):
        if type(node.get(name)) is not kind:
            raise InputError(f"--node-config lacks {name}; give client=NUMBER, data=PATH, memory=FOLDER and agreed=PATH")
    settings, task = read_config(agreed_config(node["agreed"], config))
    number, data = node["client"], conformed(node["data"], task, leave_out=str(node.get("leave_out", "")))
    if not 0 <= number < task.sites:
        raise InputError(f"client={number}: the project has the clients 0 to {task.sites - 1}; correct --node-config")
    federation = labels_of(node["memory"], data, task.names[number])
    train, test, shape, image = intake(data)
    held, labels, reviewed = federation.client_indices, federation.given, federation.extra.get("reviewed")
    if task.name == "evaluate" and len(test):  # held-out samples, which no model was trained on
        train, held, labels, reviewed = test, np.arange(len(test)), data.y_test, None
    given = torch.from_numpy(np.asarray(labels, np.int64)[held])
    inputs = Inputs(image, task.mean, task.std, weight_type(settings.precision), "cpu")
    network = _network(settings, task, shape)
    client = Client(number, Part(train, held), given.clone(), given, len(task.classes), inputs)
    client.reviewed = None if reviewed is None else torch.from_numpy(np.asarray(reviewed, bool)[held])
    if task.name == "estimate" and math.prod(task.shape) <= MOST_PIXELS:
        client.parts["input/embedding"] = Part(embed(data, "pixels"), held)
    if task.name == "train" and "secret" in registry.needs(settings.method):  # drawn at the site: the server has the seed
        client.secret = read_or_draw(os.path.join(str(node["memory"]), "privacy.key"))
    sizes = {"classes": len(task.classes), "samples": len(given), "width": getattr(network.module, "width", 0)}
    dtype = str(network.dtype).removeprefix("torch.")
    arrays = declared_arrays(replies_of(task, settings), **sizes, size=network.size, dtype=dtype)
    if task.name == "train":
        rules = _terms(settings, task, len(given)), _releases(settings, task, given, node)
        return NodeObjects(network, {number: client}, None), Declared(number, len(given), arrays, *rules), node["memory"]
    # A model of an audit is trained on some sites, which are then counted from 0.
    declared = Declared(number, len(given), arrays, numbers=range(task.sites))
    keep = partial(keep_judgment, node["memory"], federation)
    return NodeObjects(network, Renumbered(client), None, keep=keep), declared, node["memory"]


class Renumbered:
    """The client of a site under any number; the number selects the random streams.

    Parameters
    ----------
    client : fnlkit.client.client.Client
    """

    def __init__(self, client):
        self.client = client

    def __getitem__(self, number):
        self.client.id = int(number)
        return self.client


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


def conduct(grid, config, *, on_sites=lambda sites, present: None, on_round=lambda row: None):
    """Train over the sites of a grid and write the run.

    The run is written after every round. If the output file already exists, the run is resumed.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    config : dict
        Configuration of the project. ``output`` is the path of the run, and ``server_data`` is a data set with the test samples
        for the evaluation.
    on_sites : callable (Sites, numbers of the clients)
        Called when all sites are connected.
    on_round : callable (row of the metrics)
        Called after each round.

    Raises
    ------
    InputError, WorkStopped
    """
    from fnlkit.experiment.output import locked, metrics_file, metrics_path, torch_threads

    settings, task = read_config(config)
    output = os.path.abspath(config.get("output") or "run.pt")
    with locked(output), torch_threads():
        resume = Run.read(output) if os.path.exists(output) else None
        _tested(config.get("server_data"), task)  # so that an error is raised before waiting for the sites
        sites = sites_of(grid, task, config, run=_token(f"{output}.id", resume))
        experiment = _experiment(settings, task, sites, resume, config)
        on_sites(sites, list(range(task.sites)))
        for text in experiment.clients.notes:
            print(text, flush=True)
        with metrics_file(metrics_path(output), experiment.history) as write:

            def done(row):
                write(row)
                on_round(row)
                print(json.dumps({k: row[k] for k in ("round", "stage", "accuracy", "rejected") if k in row}), flush=True)

            experiment.run(on_round=done, checkpoint=lambda run: run.write(output), checkpoint_every=1)


def sites_of(grid, task, config, *, run):
    """Return the Sites of a run over the nodes of a grid."""
    from fnlkit.deploy.sites import Sites

    if not task.keys:
        _say("the project names no keys: any admitted SuperNode may claim a client's number (fnlkit flower-app --key)")
    about = {"wait": float(config["wait"]), "most": task.most, "keys": task.keys, "names": task.names, "say": _say}
    return Sites(grid, task.sites, run=run, **about)


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

    sizes = [sites.sizes[k] for k in sites.gather()]
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
fab-include = ["{package}/*.py"]

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

# The options of `fnlkit train`, and what all sites' samples have in common.
[tool.flwr.app.config]
{config}"""

_SERVER = '''"""The server: it runs the task that the run configuration selects, and writes the result."""

from fnlkit.deploy.apps import server_app
from fnlkit.deploy.tasks import conduct

app = server_app(conduct)
'''

_CLIENT = '''"""A site: it runs the steps of the task on the samples there, and sends only declared replies."""

from fnlkit.deploy.apps import client_app
from fnlkit.deploy.project import open_site

app = client_app(open_site)
'''
