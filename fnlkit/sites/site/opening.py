"""A site's process opens the site for a task: data, labels, network, and the replies that can leave."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.key import read_or_draw
from fnlkit.core.declarations import declaration, resolve
from fnlkit.core.errors import InputError
from fnlkit.core.parameters import arguments_of
from fnlkit.federated.client.client import Client, Part
from fnlkit.federated.client.inputs import Inputs, intake, weight_type
from fnlkit.federated.client.network import Network, nothing
from fnlkit.federated.server.protection import Secret
from fnlkit.sites import project, scale
from fnlkit.sites.network import network_of
from fnlkit.sites.samples import load_for_task
from fnlkit.sites.secret import LARGEST, unit_of
from fnlkit.sites.site import replies, steps
from fnlkit.sites.site.budgets import Budgets, LabelReleases, digest
from fnlkit.sites.site.labels import keep_judgment, labels_of
from fnlkit.sites.site.limits import Row
from fnlkit.sites.site.secret import Terms


@dataclass(frozen=True)
class Place:
    """Where a site keeps its files, as its start command states it.

    Attributes
    ----------
    client : int
        Client number.
    data : str
        A table, a folder of images or an npz.
    memory : str
        Folder of the ledger, of the budgets and of what clients remember.
    agreed : str
        The site's copy of the project.
    leave_out : str
        Names of classes of this site whose samples are not used, separated by commas.
    """

    client: int
    data: str
    memory: str
    agreed: str
    leave_out: str = ""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Place":
        """Read the Place in the configuration of a Flower node.

        Raises
        ------
        InputError
            If an entry is missing or has another type.
        """
        for name, kind in (("client", int), ("data", str), ("memory", str), ("agreed", str)):
            if type(values.get(name)) is not kind or values[name] == "":
                raise InputError(f"the node config lacks {name}; give client=NUMBER, data=PATH, memory=FOLDER and agreed=PATH")
        return cls(values["client"], values["data"], values["memory"], values["agreed"], str(values.get("leave_out", "")))


@dataclass(frozen=True)
class Site:
    """A site with the samples of a task.

    Attributes
    ----------
    place : Place
    task : fnlkit.sites.project.Task
    client : fnlkit.federated.client.client.Client
    network : fnlkit.federated.client.network.Network
    arrays : dict of str to (dtype, shape)
        NumPy's name of the type and the shape, by the name of each declared reply; see `replies.declared_arrays`.
    open_sides : dict of str to int
        As returned by `replies.open_sides`.
    rows : dict of str to fnlkit.sites.site.limits.Row
        The table of the task, by step.
    budgets : fnlkit.sites.site.budgets.Budgets
    labels : fnlkit.sites.site.budgets.LabelReleases
    secret : fnlkit.sites.site.secret.Terms or None
        Terms of masked replies. None if replies are not masked.
    keep : callable (client)
        Called after each visit.
    """

    place: Place
    task: project.Task
    client: Client
    network: Network
    arrays: dict[str, tuple[str, tuple[int | str, ...]]]
    open_sides: dict[str, int]
    rows: dict[str, Row]
    budgets: Budgets
    labels: LabelReleases
    secret: Terms | None
    keep: Callable[[Client], object]

    @cached_property
    def numbers(self) -> range:
        """Numbers under which the site can be visited: other tasks than training count the sites that take part from 0."""
        return range(self.place.client, self.place.client + 1) if self.task.name == "train" else range(self.task.project.sites)


def open_site(place: Place, agreed: project.Project, name: str, scale_text: str = "") -> Site:
    """Open the Site of a task.

    Parameters
    ----------
    place : Place
    agreed : fnlkit.sites.project.Project
        The site's copy of the project.
    name, scale_text : str
        As for `fnlkit.sites.project.task_of`.

    Raises
    ------
    InputError
    """
    task = project.task_of(agreed, name, scale_text)
    plan, about = task.plan, task.project
    options = {"leave_out": place.leave_out, "memory": place.memory}
    if not 0 <= place.client < about.sites:
        raise InputError(f"client={place.client}: the project has the clients 0 to {about.sites - 1}; correct the node config")
    data, number = load_for_task(place.data, about, **options), place.client
    if agreed.scaling == "sites":  # the data stay the same for a review, whatever replaces missing cells
        checksum = load_for_task(place.data, agreed, **options).checksum
        data = replace(data, remember=lambda name, compute: checksum if name == "checksum" else compute())
    federation = labels_of(place.memory, data, about.names[number])
    train, test, shape, image = intake(data)
    held, labels, reviewed = federation.client_indices, federation.given, federation.extra.get("reviewed")
    tested = np.arange(len(test))
    groups = data.groups
    if name == "evaluate" and len(tested):  # held-out samples, which no model was trained on
        train, held, labels, reviewed, groups = test, tested, data.y_test, None, data.groups_test
    given = torch.from_numpy(np.asarray(labels, np.int64)[held])
    scaled = () if name == "audit" else (tuple(about.mean), tuple(about.std), weight_type(task.settings.precision), "cpu")
    client = Client(number, Part(train, held), given.clone(), given, len(about.classes), Inputs(image, *scaled))
    client.reviewed = None if reviewed is None else torch.from_numpy(np.asarray(reviewed, bool)[held])
    if groups is not None:
        client.parts["input/group"] = Part(groups, held)
    if name == "train" and len(tested):
        # No more than training samples, whose number the server knows and limits.
        places = tested[: len(given)]
        client.held_out = Part(test, places), torch.from_numpy(np.asarray(data.y_test, np.int64)[places])
    elif name == "train" and plan.reads_held_out:
        raise InputError(
            f"{task.settings.select} requires held-out samples, and {place.data} has none; give it test samples, or "
            "agree on `select='label-wave'`",
            parameter="select",
        )
    if name == "train" and plan.sends_sums:
        client.largest = LARGEST
    if name == "train" and "secret" in plan.needs:  # drawn at the site: the server has the seed
        client.secret = read_or_draw(os.path.join(place.memory, "privacy.key"))
    network = nothing().network if name in ("audit", scale.TASK) else network_of(task, shape)
    arrays = replies.declared_arrays(task, network, len(given))
    rows = {row.step: row for row in steps.table(task)}
    keep: Any = partial(keep_judgment, place.memory, federation) if name == "audit" else lambda client: None
    budgets = Budgets(os.path.join(place.memory, "requests.json"), agreed.digest)
    secret = _terms(task, len(given)) if name == "train" else None
    sides, released = replies.open_sides(task), _label_releases(task, given, place)
    return Site(place, task, client, network, arrays, sides, rows, budgets, released, secret, keep)


def _terms(task, samples):
    """Terms of a site's masked updates or sums; None if they are not masked."""
    protection = task.plan.protection
    if not isinstance(protection, Secret):
        return None
    if task.plan.sends_sums:
        return Terms(protection.clip, 1, 1.0, unit_of(task.project.max_samples), task.project.sites)
    uniform = task.plan.make_optimizer().uniform_weights
    return Terms(protection.clip, 1 if uniform else samples, 1.0 if uniform else float(task.project.max_samples))


def _label_releases(task, given, place):
    """Collect the replies of a site that reveal labels, and the largest epsilon."""
    names, limit = {}, None
    for stage in task.plan.method.stages if task.name == "train" else ():
        names |= declaration(stage).releases
        if epsilon := declaration(stage).label_epsilon:
            limit = resolve(epsilon, {**arguments_of(stage), "classes": len(task.project.classes)})
    return LabelReleases(os.path.join(place.memory, "released.json"), digest(given), names, limit)
