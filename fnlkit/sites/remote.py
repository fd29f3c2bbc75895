"""Real sites as the clients of an audit or an estimate, with a journal of finished steps.

An audit consists of trainings and of steps whose replies are combined. Each training is a run that is saved after every round,
and the replies of each step are written to a file. A stopped audit therefore repeats no finished step. Every session has a
unique name at the sites, so that each model has a separate memory.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit import engines
from fnlkit.artifacts import files
from fnlkit.artifacts.exchange import Exchange, Traffic, pack_log, unpack_log
from fnlkit.artifacts.run import Run
from fnlkit.errors import InputError
from fnlkit.server.admission import TooManyLost
from fnlkit.server.clients import Clients, Replies, gather

if TYPE_CHECKING:
    from fnlkit.artifacts.federation import Federation
    from fnlkit.client.client_list import ClientList


KIND = "fnlkit.steps/1"


class View:
    """Some sites of a deployment under the numbers of a session, as the runtime of the engine `flower`.

    Parameters
    ----------
    sites : fnlkit.sites.sites.Sites
    ids : list of int
        The site of each client of the session.
    run : str
        Name of the session at the sites.
    """

    def __init__(self, sites, ids, run):
        self.sites, self.ids, self.run = sites, ids, run

    def __getattr__(self, name):
        return getattr(self.sites, name)

    @property
    def sizes(self) -> dict[int, int]:
        return {j: self.sites.sizes[k] for j, k in enumerate(self.ids)}

    def report_failure(self, client: int, failure: Any) -> None:
        self.sites.report_failure(self.ids[client], failure)

    def disk_freed(self, client: int, since: float) -> bool:
        return self.sites.disk_freed(self.ids[client], since)

    def groups(self, ids: Sequence[int], members: Any) -> dict[int, list[int]]:
        return {self.nodes[self.ids[i]]: [j] for j, i in enumerate(ids) if self.ids[i] in self.nodes}


class Remote:
    """Sites that take part in an audit or an estimate; `fnlkit.estimators` runs trainings and steps with it.

    Parameters
    ----------
    sites : fnlkit.sites.sites.Sites
    present : list of int
        Numbers of the sites that take part.
    folder : path
        Folder of the journal.
    timeout : float
        Seconds for a visit.
    on_step : callable (str)
        Called with a line for each finished step.

    Attributes
    ----------
    steps : list of dict
        step, seconds, bytes_up and bytes_down of each training and step; the seconds are None if the journal had it.
    """

    def __init__(self, sites, present, *, folder, timeout, on_step=lambda text: None):
        self.sites, self.present, self.timeout, self.on_step = sites, list(present), timeout, on_step
        # A journal belongs to the sites that took part: without a site, models are trained anew.
        named = json.dumps([sites.run, self.present, [sites.sizes[k] for k in self.present]])
        self.token = hashlib.sha256(named.encode()).hexdigest()[:16]
        self.folder = Path(folder) / self.token
        self.folder.mkdir(parents=True, exist_ok=True)
        self.offsets = np.concatenate([[0], np.cumsum([sites.sizes[k] for k in self.present])])
        self.steps, self._count, self._journals, self.view = [], 0, {}, None

    def list_lost_sites(self, error: TooManyLost) -> dict[int, str]:
        """Return {site: reason} of a `TooManyLost` of the last session."""
        return {self.view.ids[client]: reason for client, reason in error.reasons.items()}

    def _begin(self, ids):
        """Return the path of the journal of the next session, which takes place with these sites."""
        self._count += 1
        run = hashlib.sha256(f"{self.token} {self._count}".encode()).hexdigest()[:16]
        self.view = View(self.sites, list(ids), run)
        return self.folder / f"session-{self._count}"

    # ---- called by fnlkit.estimators
    def training(self, federation: "Federation", title: str) -> tuple[dict[str, Any], Any]:
        """Return the keywords of an Experiment over a part of the sites, and the function that saves the run.

        Parameters
        ----------
        federation : fnlkit.artifacts.federation.Federation
            Whole sites only.
        title : str
        """
        places = np.searchsorted(self.offsets, [part[0] for part in federation.clients], "right") - 1
        path = f"{self._begin([self.present[j] for j in places])}.pt"
        run, began = Run.read(path) if os.path.exists(path) else None, time.monotonic()
        fresh = not (run and run.finished)

        def save(run: Run) -> None:
            run.write(path)
            if run.finished:
                self._step(title, time.monotonic() - began if fresh else None, run.traffic)

        flower = {"engine": "flower", "runtime": self.view, "client_timeout": self.timeout, "device": "cpu"}
        return flower | {"resume": run}, save

    def session(self, members: "ClientList", network: Any, trained: Any, *, seed: int, min_replies: float) -> Clients:
        """Return a session with all sites, or with the sites that keep the state of a training.

        Parameters
        ----------
        members : fnlkit.client.client_list.ClientList
        network : fnlkit.client.network.Network
        trained : fnlkit.experiment.Experiment or None
            The last training.
        seed : int
        min_replies : float
        """
        if trained is not None:
            clients, view = trained.clients, self.view
            path = self._begin(view.ids)
            self.view = clients.engine.runtime = view
            clients.min_replies = min_replies
        else:
            path = self._begin(self.present)
            options = {"runtime": self.view, "client_timeout": self.timeout, "seed": seed, "min_replies": min_replies}
            clients = engines.make("flower", members, network, members.inputs, **options)
        self._journals[id(clients)] = _Journal(f"{path}.npz", self.view)
        return clients

    def asked(self, clients: Clients, ask: Any) -> Replies:
        """Return the Replies of a step: from the journal if the step is finished, otherwise from the sites.

        Parameters
        ----------
        clients : fnlkit.server.clients.Clients
            As returned by `session`.
        ask : functools.partial of Clients.round
        """
        journal = self._journals[id(clients)]
        self.view = journal.view
        title = ", ".join(getattr(step, "func", step).__name__.replace("_", " ") for step in ask.args[2:])
        if (entry := journal.next()) is not None:
            exchange, traffic = entry
            clients.log.append(exchange)
            clients.rounds += 1
            clients.traffic.add(traffic)
            self._step(title, None, traffic)
            return Replies({name: gather(values) for name, values in exchange.values.items()}, exchange.kept)
        before, began = clients.traffic.copy(), time.monotonic()
        replies = ask()
        traffic = clients.traffic.since(before)
        journal.add(clients.log[-1], traffic)
        self._step(title, time.monotonic() - began, traffic)
        return replies

    def _step(self, title, seconds, traffic):
        row = {"step": title, "seconds": None if seconds is None else round(seconds, 1)}
        self.steps.append(row | {"bytes_up": int(traffic.bytes_up), "bytes_down": int(traffic.bytes_down)})
        self.on_step(f"{title}: done before" if seconds is None else f"{title}: {seconds:.1f} s")


class _Journal:
    """Finished steps of a session in a file."""

    def __init__(self, path, view):
        self.path, self.view, self.log, self.traffic, self._at = path, view, [], [], 0
        if os.path.exists(path):
            found = files.read(path, kinds="fnlkit.steps")
            try:
                self.log, _ = unpack_log(found.meta["log"], [], found.arrays["data"])
                self.traffic = [Traffic(**each) for each in found.meta["traffic"]]
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{path}: is no journal of steps ({type(error).__name__}); delete it and run again") from None

    def next(self) -> tuple[Any, Any] | None:
        """Return the next (Exchange, Traffic) of the file, or None after the last one."""
        if self._at >= len(self.log):
            return None
        self._at += 1
        return self.log[self._at - 1], self.traffic[self._at - 1]

    def add(self, exchange: Exchange, traffic: Traffic) -> None:
        self.log.append(exchange)
        self.traffic.append(traffic)
        self._at = len(self.log)
        index, _, data = pack_log(self.log)
        meta = {"log": index, "traffic": [vars(each) for each in self.traffic]}
        files.write(files.Artifact(KIND, {"data": data.numpy()}, meta), self.path)
