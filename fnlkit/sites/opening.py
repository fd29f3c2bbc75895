"""A site's process opens the site: data, labels, network, and the replies that can leave."""

import math
import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fnlkit.artifacts.key import read_or_draw
from fnlkit.client.client import Client, Part
from fnlkit.client.inputs import Inputs, intake, weight_type
from fnlkit.components.declarations import declaration, resolve
from fnlkit.components.parameters import arguments_of
from fnlkit.datasets.embed import embed
from fnlkit.errors import InputError
from fnlkit.estimators.inputs import MOST_PIXELS
from fnlkit.experiment.network import build_network
from fnlkit.experiment.plan import Plan
from fnlkit.server.protection import Secret
from fnlkit.sites import scale
from fnlkit.sites.agreement import load_for_task, read_agreed_config
from fnlkit.sites.flower.secret import Terms
from fnlkit.sites.flower.visits import NodeObjects
from fnlkit.sites.gate import gate_of
from fnlkit.sites.held_out_labels import held_out_labels
from fnlkit.sites.labels import keep_judgment, labels_of
from fnlkit.sites.leaving import Declared
from fnlkit.sites.releases import Releases, digest
from fnlkit.sites.replies import declared_arrays, replies_of
from fnlkit.sites.terms import Task, read_config

if TYPE_CHECKING:
    from fnlkit.client.network import Network


def open_site(config: dict[str, Any], node: dict[str, Any]) -> tuple[NodeObjects, Declared, Any]:
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
    for name, kind in (("client", int), ("data", str), ("memory", str), ("agreed", str)):
        if type(node.get(name)) is not kind:
            raise InputError(f"the node config lacks {name}; give client=NUMBER, data=PATH, memory=FOLDER and agreed=PATH")
    config = read_agreed_config(node["agreed"], config)
    settings, task = read_config(config)
    plan = Plan.of(settings)
    scale.must_have_scale(task)
    task = scale.remove_fills(task) if task.name == scale.TASK else task
    about = {"leave_out": str(node.get("leave_out", "")), "memory": node["memory"]}
    number, data = node["client"], load_for_task(node["data"], task, **about)
    if task.scaling == "sites":  # the data stay the same for a review, whatever replaces missing cells
        checksum = load_for_task(node["data"], read_config(config | {"scale": ""})[1], **about).checksum
        data = replace(data, remember=lambda name, compute: checksum if name == "checksum" else compute())
    if not 0 <= number < task.sites:
        raise InputError(f"client={number}: the project has the clients 0 to {task.sites - 1}; correct the node config")
    federation = labels_of(node["memory"], data, task.names[number])
    train, test, shape, image = intake(data)
    held, labels, reviewed = federation.client_indices, federation.given, federation.extra.get("reviewed")
    tested, test_labels = held_out_labels(node["memory"], data, task.names[number])
    groups = data.groups
    if task.name == "evaluate" and len(tested):  # held-out samples, which no model was trained on
        train, held, labels, reviewed, groups = test, tested, test_labels, None, data.groups_test
    given = torch.from_numpy(np.asarray(labels, np.int64)[held])
    inputs = Inputs(image, task.mean, task.std, weight_type(settings.precision), "cpu")
    network = network_of(plan, task, shape)
    client = Client(number, Part(train, held), given.clone(), given, len(task.classes), inputs)
    if groups is not None:
        client.parts["input/group"] = Part(groups, held)
    if task.name == "train" and len(tested):
        # No more than training samples, whose number the server knows and limits.
        places = tested[: len(given)]
        client.held_out = Part(test, places), torch.from_numpy(test_labels[places])
    elif task.name == "train" and plan.reads_held_out:
        raise InputError(
            f"`select` {settings.select} requires held-out samples, and {node['data']} has none; give it test samples, or "
            "agree on `select='label-wave'`"
        )
    client.reviewed = None if reviewed is None else torch.from_numpy(np.asarray(reviewed, bool)[held])
    if task.name == "estimate" and math.prod(task.shape) <= MOST_PIXELS:
        client.parts["input/embedding"] = Part(embed(data, "pixels"), held)
    if task.name == "train" and "secret" in plan.needs:  # drawn at the site: the server has the seed
        client.secret = read_or_draw(os.path.join(str(node["memory"]), "privacy.key"))
    sizes = {"classes": len(task.classes), "samples": len(given), "width": getattr(network.module, "width", 0)}
    dtype = str(network.dtype).removeprefix("torch.")
    arrays = declared_arrays(replies_of(task, plan), **sizes, size=network.size, dtype=dtype)
    gate = gate_of(plan, task, agreed=node["agreed"], memory=node["memory"], timeout=config["timeout"])
    if task.name == "train":
        rules = _terms(plan, task, len(given)), _releases(plan, task, given, node), gate
        return NodeObjects(network, {number: client}, None), Declared(number, len(given), arrays, *rules), node["memory"]
    # A model of an audit is trained on some sites, which are then counted from 0.
    declared = Declared(number, len(given), arrays, gate=gate, numbers=range(task.sites))
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


def _terms(plan, task, samples):
    """Return the Terms of a site's masked updates, or None if updates are not masked."""
    if not isinstance(plan.protection, Secret):
        return None
    clip = plan.protection.clip
    return Terms(clip, 1, 1.0) if plan.make_optimizer().uniform_weights else Terms(clip, samples, float(task.most))


def _releases(plan, task, given, node):
    """Return the Releases of a site: the replies that reveal labels, and the largest epsilon."""
    names, limit = {}, None
    for each in plan.method.stages:
        names |= declaration(each).releases
        if epsilon := declaration(each).label_epsilon:
            limit = resolve(epsilon, {**arguments_of(each), "classes": len(task.classes)})
    return Releases(os.path.join(node["memory"], "released.json"), digest(given), names, limit)


def network_of(plan: Plan, task: Task, shape: tuple[int, ...]) -> "Network":
    """Return the Network of a task with initial weights.

    Parameters
    ----------
    plan : fnlkit.experiment.plan.Plan
    task : fnlkit.sites.terms.Task
    shape : tuple of int
        Shape of a network's input.
    """
    settings = plan.settings
    about: dict[str, Any] = {
        "input_shape": shape,
        "classes": len(task.classes),
        "kind": task.kind,
        "pair": "pair" in plan.needs,
    }
    return build_network(settings.model, **about, seed=settings.seed, precision=settings.precision)
