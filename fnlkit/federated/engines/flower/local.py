"""Nodes of the engine `flower` in this process: each client is a node that receives the messages of a real site."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fnlkit.artifacts.message import decode, encode
from fnlkit.federated.client.client import Client, ClientList
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.engines.engine import Engine
from fnlkit.federated.engines.flower import messages
from fnlkit.federated.engines.flower.notebook import NEVER, Memory, Notebook
from fnlkit.federated.engines.flower.visits import NodeObjects, answer


class LocalNodes:
    """Nodes that answer in this process, with one client each; their interface is that of `fnlkit.sites.server.roster.Roster`.

    Parameters
    ----------
    engine : fnlkit.federated.engines.engine.Engine

    Attributes
    ----------
    home : str
        Temporary folder with the memory of the clients; `close` removes it.
    """

    run, start_seconds = "", 0

    def __init__(self, engine):
        self.engine, self.home = engine, tempfile.mkdtemp(prefix="fnlkit-")
        self.objects = NodeObjects(engine.network, ClientList.of(engine.members).copy(), self.notebook)

    def notebook(self, client: int) -> Notebook:
        return Notebook(os.path.join(self.home, str(client)))

    def start(self) -> None:
        """Use the network of the engine; networks of later rounds have the same layers or no weights."""
        if self.engine.network.size:
            self.objects.network = self.engine.network

    def groups(self, ids: Sequence[int], members: Sequence[Client]) -> dict[int, list[int]]:
        return {i: [j] for j, i in enumerate(ids)}

    def exchange(self, contents: Mapping[int, bytes], limit: float | None) -> Iterator[tuple[int, Any]]:
        """Yield (node, bytes) of the replies; requests and replies pass through Flower's records."""
        for node, data in contents.items():
            request = messages.bytes_in(messages.record(data))
            reply = messages.record(encode(answer(self.objects, decode(request))))
            client = self.objects.clients[node]
            client.rows, client.state, client.dropped = {}, {}, set()
            yield node, messages.bytes_in(reply)
        self.objects.clients.forget()

    def report_failure(self, client: int, failure: Failure) -> None:
        """Do nothing, because the server records failures of a round."""

    def disk_freed(self, client: int, since: float) -> bool:
        """Always False: a run does not wait for the disk of this machine, which all clients share."""
        return False

    def renew(self, late: bool) -> None:
        """Do nothing, because nodes in this process cannot end."""

    def failure(self, seconds: float | None) -> Failure:
        """Make the Failure for a reply that did not arrive."""
        return Failure("silent", "") if seconds is None else Failure("late", f"{seconds:g}")

    def hand_over(self, clients: Engine, ids: Sequence[int], base: Mapping[int, int]) -> None:
        """Write the memory of clients to their notebooks if it is not there yet.

        The memory comes from a resumed run or from the creation of the clients.
        """
        for i in ids:
            client, notes = clients.members[i], self.notebook(i)
            fresh = not (client.rows or client.state or client.dropped) and client.y.equal(client.given)
            if not notes.has(base[i]) and (base[i] != NEVER or not fresh):
                notes.write(base[i], Memory.of(client))

    def take_back(self, clients: Engine, ids: Sequence[int], round: int) -> None:
        """Copy the memory of clients from their notebooks to the server's members, which the server evaluates and saves."""
        for i in ids:
            memory = self.notebook(i).read(round)
            assert memory is not None  # the client replied in this round
            memory.put(clients.members[i])

    def close(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
