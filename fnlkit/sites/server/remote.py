"""Real sites as the clients of an audit or an evaluation.

A task that was stopped and starts again sends the same requests.  A journal of messages
(`fnlkit.sites.server.folder.Journal`) answers those that it had finished.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fnlkit.core.errors import WorkStopped
from fnlkit.federated import engines
from fnlkit.federated.client.client import ClientList
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.client.inputs import Inputs
from fnlkit.federated.client.network import Model, nothing
from fnlkit.federated.server.admission import Malformed, convert
from fnlkit.federated.server.clients import Ask
from fnlkit.federated.server.records import nbytes
from fnlkit.sites.server.roster import MOST_TRIES, SILENT, Roster


class View:
    """Some sites of a deployment under the numbers of a session, as the runtime of the engine `flower`.

    Parameters
    ----------
    sites : fnlkit.sites.server.roster.Roster
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
        return {j: self.sites.sizes.get(k, 1) for j, k in enumerate(self.ids)}

    def report_failure(self, client: int, failure: Any) -> None:
        self.sites.report_failure(self.ids[client], failure)

    def disk_freed(self, client: int, since: float) -> bool:
        return self.sites.disk_freed(self.ids[client], since)

    def groups(self, ids: Sequence[int], members: Any) -> dict[int, list[int]]:
        return {self.nodes[self.ids[i]]: [j] for j, i in enumerate(ids) if self.ids[i] in self.nodes}


class Remote:
    """Sites that take part in a task.

    Parameters
    ----------
    sites : fnlkit.sites.server.roster.Roster
    present : list of int
        Numbers of the sites that take part.
    timeout : float
        Seconds for a visit.
    on_step : callable (str)
        Called with a line for each finished step.

    Attributes
    ----------
    steps : list of dict
        step, seconds, bytes_up and bytes_down of each training and step.
    lost : dict of int to str
        Reason by site.
    """

    def __init__(self, sites: Roster, present, *, timeout, on_step=lambda text: None):
        self.sites, self.present, self.timeout, self.on_step = sites, list(present), timeout, on_step
        self.steps: list[dict[str, Any]] = []
        self.lost: dict[int, str] = {}

    def must_remain(self, remaining: int, least: int) -> None:
        """Raise WorkStopped if too few sites of a task remain; the error names the lost sites with the reasons."""
        if remaining >= least:
            return
        lost = "; ".join(f"{self.sites.names[k]}: {reason}" for k, reason in sorted(self.lost.items()))
        remedy = self.sites.remedy(self.lost)
        raise WorkStopped(
            f"{remaining} of {self.sites.count} sites remain, and this task requires {least} (min_replies); lost: {lost}; "
            f"{remedy}{', or leave them out (`without`)' * self.sites.transport.named}, then run the same command"
        )

    def lose(self, site: int, reason: str) -> None:
        """Record why a site is lost, and write it to the log unless the log has a refusal of the site."""
        self.lost[site] = self.sites.refused.get(site, reason)
        if site not in self.sites.refused:
            self.on_step(f"{self.sites.names[site]}: {reason}")

    def _step(self, title, seconds, up, down):
        self.steps.append({"step": title, "seconds": round(seconds, 1), "bytes_up": int(up), "bytes_down": int(down)})
        self.on_step(f"{title}: {seconds:.1f} s")

    def ask_all(
        self,
        round: int,
        step: Callable[..., Any],
        ids: list[int],
        declared: Any,
        check: Callable[[int, dict[str, np.ndarray]], str] = lambda site, arrays: "",
        broadcast: dict[str, torch.Tensor] | None = None,
        scatter: dict[str, torch.Tensor] | None = None,
        sides: Mapping[str, int] | None = None,
        model: Model | None = None,
    ) -> dict[int, dict[str, np.ndarray]]:
        """Run a step: {site: arrays} of the sites that reply; the others are in `lost`.

        A site that stops replying is awaited, and asked again.

        Parameters
        ----------
        round : int
            Number of the step in the task.
        step : callable
        ids : list of int
            Sites to ask.
        declared : dict of str to Sent
            The replies that each site must send.
        check : callable (site, arrays) -> str
            Why no data can have these arrays; "" if some can.
        broadcast, scatter : dict of Tensor
            As for fnlkit.federated.server.clients.Clients.round, with an entry of `scatter` for each of `ids`.
        sides : dict of str to int, optional
            Numbers of all sides of the declared replies. Default: neither sides nor limits are compared.
        model : Model, optional
            Sent to each site. Default: none.
        """
        model = model or nothing()
        began = time.monotonic()
        run = hashlib.sha256(f"{self.sites.run} steps".encode()).hexdigest()[:16]
        view = View(self.sites, ids, run)
        places, zeros = np.arange(len(ids)), np.zeros(len(ids), np.int64)
        members = ClientList(np.zeros((len(ids), 1), np.float32), np.arange(len(ids) + 1), places, zeros, 1, Inputs(False))
        clients = engines.make("flower", members, model.network, members.inputs, runtime=view,
                               client_timeout=self.timeout)  # fmt: skip
        request = Ask(places, model, [step], broadcast=broadcast or {}, scatter=scatter or {}, round=round, session=clients)
        received: dict[int, dict[str, np.ndarray]] = {}
        tries: Counter[int] = Counter()
        missing = places.tolist()
        while missing:
            replies, again = clients.engine.run(request.part(missing)), []
            for j, reply in zip(missing, replies, strict=True):
                arrays, reason = _arrays_of(reply, declared, sides, view.sizes[j])
                reason = reason or check(ids[j], arrays)
                if not reason:
                    received[ids[j]] = arrays
                    self.lost.pop(ids[j], None)
                    continue
                self.lose(ids[j], reason)
                tries[j] += 1
                if isinstance(reply, Failure) and any(words in reason for words in SILENT) and tries[j] < MOST_TRIES:
                    again.append(j)
            back = self.sites.wait_for_return({ids[j] for j in again}) if again else set()
            missing = [j for j in again if ids[j] in back]
        up = sum(values.nbytes for arrays in received.values() for values in arrays.values())
        down = (sum(nbytes(value) for value in (broadcast or {}).values()) + nbytes(model.weights)) * len(ids)
        down += sum(nbytes(value) for value in (scatter or {}).values())
        self._step(step.__name__.replace("_", " "), time.monotonic() - began, up, down)
        return {k: received[k] for k in ids if k in received}


def _arrays_of(reply, declared, sides, samples):
    """Read ({name: array}, reason why a reply is not as declared, or "")."""
    if isinstance(reply, Failure):
        return {}, str(reply)
    if sides:
        try:
            known = convert(reply, frozenset(declared), declared, None, samples=samples, **sides)
        except Malformed as error:
            return {}, str(error)
        return {name: values.numpy() for name, values in known.items()}, ""
    if set(reply) != set(declared):
        return {}, "its reply has names or values that the step does not declare"
    arrays = {name: np.asarray(values) for name, values in reply.items()}
    for name, values in arrays.items():
        sent = declared[name]
        if values.dtype != sent.dtype or not np.isfinite(values).all():
            return {}, f"{name!r} has entries that are not finite {sent.dtype}"
        if values.ndim != len(sent.shape or ()):
            return {}, f"{name!r} has {values.ndim} sides"
    return arrays, ""
