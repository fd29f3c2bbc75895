"""Real sites as the nodes of the engine `flower`, over any transport: which peers are connected, and which site each is."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import metadata
from typing import Any

from fnlkit.artifacts import message
from fnlkit.artifacts.display import plain
from fnlkit.core.errors import WorkStopped
from fnlkit.federated.client.failure import CODES, Failure
from fnlkit.federated.engines.flower.messages import LATE
from fnlkit.federated.engines.flower.notebook import NEVER
from fnlkit.sites.message_files import failure_in
from fnlkit.sites.project import Project, Task
from fnlkit.sites.secret import common, from_entries, unit_of
from fnlkit.sites.server.folder import Journal

# Seconds for the introduction of a site: during a run, and while the server waits for sites anyway.
_HELLO_SECONDS, _PATIENT_SECONDS = 60, 300
# Seconds between two questions to a site whose disk is full.
_DISK_SECONDS = 5
# A site whose reply is missing this many times is lost, although it connects again.
MOST_TRIES = 3
# Codes of failures after which a site can come back.
SILENT = ("did not reply", "did not answer")


class Roster:
    """Nodes of the engine `flower` that are real sites.

    Parameters
    ----------
    transport : object
        Carries messages: peers(), the connected peers with their identity, and exchange(contents, limit, ...), the replies.
        Its `repair` states what to do if sites are lost.
        See fnlkit.sites.server.flower.FlowerTransport.
    task : fnlkit.sites.project.Task
    run : str
        Name under which sites store the memory of this run's clients.
    agreed : fnlkit.sites.project.Project, optional
        The project to which the sites agreed, without the scale of the sites. Default: that of the task.
    scale : str
        Scale of the sites, which each request names.
    wait : float
        Seconds to wait for sites at the start, and for a lost site to come back.
    journal : fnlkit.sites.server.folder.Journal, optional
        Answers requests that were answered before.
    say : callable (str)
        Writes a line to the server's log for each site that is refused or fails.

    Attributes
    ----------
    admitted : list of int
        Clients that can connect: those with a key, or all if no client has one.
    nodes, sizes, versions : dict of int
        Peer, number of samples and version of fnlkit of each client.
    faults : dict of peer to str
        Reason against each peer that was refused or failed.
    refused : dict of int to str
        Cause for each client whose site refuses the run or is refused. An entry is removed when the site is admitted.
    silent : dict of int to str
        The same for each client whose site is connected and has not answered the server's question in time.
    about : dict
        Facts that every request states: the agreement, the task and the scale.
    """

    start_seconds, alone = 60, True  # each node has a single client and belongs to another owner
    # Seconds without a reply until a line names a site that is not connected, and one that is; between two looks.
    silent_seconds, computing_seconds, look_seconds = 40, 300, 10

    def __init__(
        self,
        transport: Any,
        task: Task,
        *,
        run: str,
        agreed: Project | None = None,
        scale: str = "",
        wait: float = 600.0,
        journal: Journal | None = None,
        say: Callable[[str], object] = lambda text: None,
    ):
        about = task.project
        self.names, self.count, self.most, keys = about.names, about.sites, about.max_samples, about.keys
        self.transport = transport
        self.run = run
        self.wait = wait
        self.journal = journal
        self.nodes: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.versions: dict[int, Any] = {}
        self._heard: set[Any] = set()
        self.admitted = [k for k in range(self.count) if transport.named or not any(keys) or keys[k]]
        self._owners = {key: k for k, key in enumerate(keys) if key}
        if transport.named:  # the transport identifies a peer as a site
            self._owners = {name: k for k, name in enumerate(self.names)}
        self._say = say
        self.faults: dict[Any, str] = {}
        self.refused: dict[int, str] = {}
        self.silent: dict[int, str] = {}
        self._said: set[Any] = set()
        self._awaited: set[Any] = set()
        self._look = 0.0
        self._last_masked = ""
        self._keys: dict[Any, str] = {}
        agreed = agreed or about
        self.about: dict[str, Any] = {"agreement": agreed.digest, "task": task.name, "scale": scale}
        facts = self.about | {"project": agreed.agreement()}
        self._hello = message.encode({"hello": 1}, facts)
        # A site that is known by its key or name introduces itself in each reply of an audit, which saves an exchange.
        self._introduced_by_replies = task.name == "audit" and bool(self._owners)
        if self._introduced_by_replies:
            self.about = facts | {"hello": metadata.version("fnlkit")}

    def gather(self, least: int | None = None) -> list[Any]:
        """Wait until every client has a node, and return the numbers of the clients.

        Parameters
        ----------
        least : int, optional
            Number of clients that suffices when the time is over. Default: all.

        Raises
        ------
        WorkStopped
            If too few sites connect in time. The message names the missing sites and the codes of their failures.
        """
        deadline, reported = time.monotonic() + self.wait, None
        while True:
            self.start(_PATIENT_SECONDS)
            missing = [k for k in range(self.count) if k not in self.nodes]
            over = time.monotonic() > deadline or not set(missing) & set(self.admitted)  # whoever has no key cannot come
            if not missing or over and self.count - len(missing) >= (least or self.count):
                return sorted(self.nodes)
            if missing != reported:
                self._say(
                    f"waiting up to {self.wait:g} s for {len(missing)} of {self.count} sites: {self._join_names(missing)}"
                )
                reported = missing
            if over:
                faults = "".join(f"; {text}" for text in list(self.faults.values())[:5])
                raise WorkStopped(
                    f"{len(missing)} of {self.count} sites did not come within {self.wait:g} s: "
                    f"{self._join_names(missing)}{faults}; {self._remedies(missing)}"
                )
            time.sleep(2)

    def cause(self, client: int) -> str:
        """State why a client has no node: a refusal, a missing answer, or no connection."""
        return self.refused.get(client) or self.silent.get(client) or "did not connect"

    def _remedies(self, missing):
        """Suggest the next step for the missing clients that are refused, that do not answer, and that are not connected."""
        refused, silent = ([k for k in missing if k in causes] for causes in (self.refused, self.silent))
        absent = [k for k in missing if k not in refused + silent]
        steps = (
            (refused, "refused", "remove the cause at each site"),
            (silent, "no answer in time", "look at the log of the start command, or raise `wait`"),
            (absent, "left out", "name fewer sites in `without`, or lower `min_replies`")
            if self.transport.named
            else (absent, "not connected", f"{self.transport.repair}, or raise `wait`"),
        )
        parts = [f"{state} ({self._join_names(some)}): {step}" for some, state, step in steps if some]
        return "; ".join([*parts, "then run the same command"])

    def _join_names(self, clients):
        return ", ".join(self.names[k] + ("" if k in self.admitted else " (not admitted)") for k in clients)

    def remedy(self, reasons: Mapping[int, str]) -> str:
        """Suggest the next step for sites that were lost for these reasons."""
        if self.transport.named or any(words in reason for reason in reasons.values() for words in SILENT):
            return self.transport.repair
        return "remove the cause at each site (its log has the reason)"

    def wait_for_return(self, clients: Any) -> set[int]:
        """Wait until these clients have nodes again, and return the clients that have."""
        deadline = time.monotonic() + self.wait
        while True:
            self.start(_PATIENT_SECONDS)
            if set(clients) <= set(self.nodes) or time.monotonic() > deadline:
                return set(clients) & set(self.nodes)
            time.sleep(2)

    def report_failure(self, client: int, failure: Any) -> None:
        """Write the failure of a visit to the log, as soon as the site reports it."""
        if client not in self.refused:  # a refusal is in the log
            self._say(f"{self.names[client]}: {plain(str(failure))}; the log at the site has the reason")

    def disk_freed(self, client: int, since: float) -> bool:
        """Wait until a site whose disk is full answers again; return whether it does before `wait` seconds are over.

        Parameters
        ----------
        client : int
        since : float
            Time of the first failure (time.monotonic).
        """
        who = self.names[client]
        if (client, since) not in self._said:
            self._said.add((client, since))
            self._say(f"{who}: the disk is full; waiting up to {self.wait:g} s for free space, then the task continues")
        while time.monotonic() < since + self.wait:
            time.sleep(_DISK_SECONDS)
            self._heard.discard(self.nodes.pop(client, None))  # a site with a full disk cannot answer this question either
            self.start(hello=True)
            if client in self.nodes:
                self._say(f"{who}: answers again")
                return True
        return False

    def start(self, seconds: float = _HELLO_SECONDS, *, hello: bool = False) -> None:
        """Request client number and size from new nodes, and remove nodes that disconnected.

        Nodes that introduce themselves in their replies are not asked, unless `hello` is True.
        """
        self._keys = there = self.transport.peers()
        self.nodes = {client: node for client, node in self.nodes.items() if node in there}
        self._heard &= set(there)
        self.faults = {node: text for node, text in self.faults.items() if node in there}
        new = sorted(set(there) - self._heard)
        if self._owners:
            new = [node for node in new if self._owner(node, there[node]) is not None]
        if self._introduced_by_replies and not hello:
            self.nodes = {self._owners[there[node]]: node for node in new} | self.nodes
            return
        for node, answer in self._send(dict.fromkeys(new, self._hello), seconds, "query"):
            self._admit(node, self._owner(node, there[node]) if self._owners else None, answer)

    def _owner(self, node, key):
        """Find the client that belongs to a node's key; None after a line in the log."""
        if key not in self._owners:
            reason = f"{key} is no site" if self.transport.named else f"its key {key} is not among the `keys`"
            self._refuse(node, None, f"{reason} of the project")
        return self._owners.get(key)

    def _admit(self, node, owner, answer):
        """Accept a node as the site of a client, or refuse it."""
        if answer is LATE:
            return self._refuse(node, owner, "no answer in time; it still computes, or it was stopped", silent=True)
        try:
            answer = message.decode(answer)
        except message.Unreadable:
            answer = None
        match answer:
            case {"client": int(client), "samples": int(size), "version": str(version)} if bool not in map(
                type, (client, size)
            ):
                pass
            case {"replies": [[_, ("failure", str(code), str(name), _)]]} if code in CODES:
                cause = f"{Failure(code, ascii(name[:60])[1:-1])}; the log at the site has the reason"
                return self._refuse(node, owner, cause)
            case _:
                return self._refuse(node, owner, "the answer is not a hello message")
        if version != (ours := metadata.version("fnlkit")):
            theirs = ascii(version[:20])[1:-1]
            return self._refuse(node, owner, f"runs fnlkit {theirs} and the server {ours}; install the same version")
        held = self.nodes.get(client)
        if not 0 <= client < self.count:
            return self._refuse(node, owner, f"claims a number that is none of the clients 0 to {self.count - 1}")
        if owner not in (None, client):
            cause = f"claims to be client {client}; `client` in its node config does not fit its key"
            return self._refuse(node, owner, cause)
        if held not in (None, node):
            return self._refuse(node, owner, f"claims to be client {client}, which node {held} is already")
        if not 0 < size <= self.most:
            return self._refuse(node, client, f"states a number of samples outside 1 to {self.most:,} (max_samples)")
        if self.sizes.setdefault(client, size) != size:
            return self._refuse(node, client, f"came back with {size:,} samples instead of {self.sizes[client]:,}")
        self._heard.add(node)
        self.faults.pop(node, None)
        self.nodes[client], self.versions[client] = node, version
        self._keep(client)

    def _keep(self, client, refused=None, silent=None):
        """Record that a client is refused, that it is silent, or neither."""
        for causes, cause in ((self.refused, refused), (self.silent, silent)):
            causes.pop(client, None)
            causes |= {client: cause} if cause else {}

    def _refuse(self, node, client, cause, *, silent=False):
        """Write a refusal, or a missing answer, to the log and for the client; `client` is None if it is unknown."""
        if client is not None:
            self._keep(client, **{"silent" if silent else "refused": cause})
        self._fault(node, f"{f'node {node}' if client is None else self.names[client]}: {cause}")

    def _fault(self, node, text):
        """Write a fault to the log, once for each node and text."""
        self.faults[node] = text
        if (node, text) not in self._said:
            self._said.add((node, text))
            self._say(text)

    def _failed(self, node, code, reason):
        """Write an error that the transport returned instead of a reply to the log."""
        self._fault(node, f"{self._name(node)}: error {int(code)} {ascii(str(reason)[:80])[1:-1]}")

    def exchange(self, contents: Mapping[Any, bytes], limit: float | None) -> Iterator[tuple[Any, Any]]:
        """Yield (node, bytes) of a round's replies as they arrive, (node, LATE) for a late reply.

        A request that the journal has answered is not sent again.
        """
        known: dict[Any, Any] = {}
        if self.journal is not None:
            known = {node: self.journal.read(self._name(node), data) for node, data in contents.items()}
        yield from ((node, self._checked(node, reply)) for node, reply in known.items() if reply is not None)
        for node, reply in self._send({node: contents[node] for node in contents if known.get(node) is None}, limit, "train"):
            reply = self._checked(node, reply)
            if self.journal is not None and _has_values(reply):
                self.journal.store(self._name(node), contents[node], reply)
            yield node, reply

    def _checked(self, node, reply):
        """Check the site that introduces itself in a reply: the reply, or a failure if the site is refused."""
        if not self._introduced_by_replies or not _has_values(reply):
            return reply
        owner = self._owners[self._keys[node]]
        self._admit(node, owner, reply)
        return message.encode({"replies": [[owner, ("failure", "failed", "Refused", "")]]}) if owner in self.refused else reply

    def _send(self, contents, limit, kind):
        yield from self.transport.exchange(contents, limit, kind, on_error=self._failed, on_silent=self.report_silent)

    def sum_secretly(self, requests: Mapping[Any, Any], shapes: Mapping[str, Any] | None, **how) -> Any:
        """Gather the masked mean (fnlkit.sites.server.secret.gather_sum), or the reason why there is none.

        Parameters
        ----------
        requests, **how
            As for `gather_sum`.
        shapes : dict of str to tuple, or None
            Of the sums, whose mean is then a dict of arrays. None for updates.
        """
        if shapes is None:
            return self.transport.sum_secretly(requests, about=self.about, most=self.most, history=None, **how)
        if lost := [client for client in range(self.count) if self.nodes.get(client) not in requests]:
            return f"masked sums need all sites, and client {lost[0]} is not connected"
        first = next(iter(requests.values()))
        history = "" if first["visits"][0][1] == NEVER else self._last_masked
        outcome = self.transport.sum_secretly(requests, about=self.about, most=self.most, history=history, **how)
        if isinstance(outcome, str):
            return outcome
        mean, inside, failed, sent = outcome
        if mean is None:
            return None, [], {node: Failure("others", "") for node in requests if failed} | failed, sent
        self._last_masked = common(first, self.about, history)
        try:
            return from_entries(mean.numpy(), shapes, unit_of(self.most)), inside, failed, sent
        except ValueError:  # the sites sent sums of other shapes
            return None, [], {node: Failure("reply", "ValueError") for node in requests}, sent

    def report_silent(self, nodes: Collection[int], seconds: float) -> None:
        """Write a line to the log, once for each node without a reply.

        A connected node is named after `computing_seconds`, because it probably still computes.
        """
        waiting = set(nodes) - self._awaited
        if seconds <= self.silent_seconds or not waiting or time.monotonic() < self._look:
            return
        self._look = time.monotonic() + self.look_seconds
        here = set() if seconds > self.computing_seconds else set(self.transport.peers())
        for node in waiting - here:
            self._awaited.add(node)
            self._say(f"{self._name(node)}: no reply for {seconds:.0f} s; it still computes, or it was stopped and is awaited")

    def _name(self, node):
        """Name of a node's site, or the number of the node if neither client nor key is known."""
        clients = {known: client for client, known in self.nodes.items()}
        client = clients.get(node, self._owners.get(self._keys.get(node)))
        return f"node {node}" if client is None else self.names[client]

    def groups(self, ids: Sequence[int], members: Any) -> dict[int, list[int]]:
        return {self.nodes[i]: [j] for j, i in enumerate(ids) if i in self.nodes}

    def renew(self, late: Any) -> None:
        self.start()

    def failure(self, seconds: float | None) -> Failure:
        return Failure("silent", "") if seconds is None else Failure("late", f"{seconds:g}")

    def hand_over(self, clients: Any, ids: Sequence[int], base: Mapping[int, int]) -> None:
        """Do nothing, because the memory of clients stays at the sites."""

    def take_back(self, clients: Any, ids: Sequence[int], round: int) -> None:
        """Do nothing, because the memory of clients stays at the sites."""

    def close(self) -> None:
        """Do nothing, because sites keep running without the server."""


def _has_values(reply):
    """Whether a reply has values: it is there, can be read and is no failure, so that its site is not asked again."""
    try:
        return reply is not LATE and failure_in(reply) is None
    except message.Unreadable:
        return False
