"""Real sites as the nodes of an engine: each SuperNode holds the samples of one client and says which."""

import time

from fnlkit.client.failure import Failure
from fnlkit.engines.flower import wire
from fnlkit.engines.flower.engine import LATE, exchanged
from fnlkit.errors import WorkStopped

_HELLO_SECONDS = 60


class Sites:
    """What the engine `flower` reaches nodes by when they are real.

    Parameters
    ----------
    grid : flwr.serverapp.Grid
    count : int
        Clients, numbered from 0; each is one site.
    run : str
        Under which sites keep what clients remember, so that a later run does not meet it.
    wait : float
        Seconds that sites have to come, and a lost one to come back.

    Attributes
    ----------
    nodes, sizes : dict of int
        Each client's node, and its number of samples.
    """

    start_seconds, poll_seconds, alone = 60, 0.3, True  # the last: a node is one client, and another's than the server's

    def __init__(self, grid, count, *, run, wait=600.0):
        self.grid, self.count, self.run, self.wait = grid, count, run, wait
        self.nodes, self.sizes, self._heard = {}, {}, set()

    def gather(self):
        """Wait until every client has a node; return their numbers of samples, in order.

        Raises
        ------
        WorkStopped
            When some did not come in time, or two sites have one number.
        """
        deadline = time.monotonic() + self.wait
        while True:
            self.start()
            missing = [k for k in range(self.count) if k not in self.nodes]
            if not missing:
                return [self.sizes[k] for k in range(self.count)]
            if time.monotonic() > deadline:
                raise WorkStopped(
                    f"{len(missing)} of {self.count} sites did not come within {self.wait:g} s: clients {missing}; start their "
                    "SuperNodes with --node-config client=..., or raise `wait`"
                )
            time.sleep(2)

    def start(self):
        """Ask nodes that have come who they are, and forget those that are gone."""
        there = set(self.grid.get_node_ids())
        self.nodes = {client: node for client, node in self.nodes.items() if node in there}
        self._heard &= there
        new = sorted(there - self._heard)
        for node, said in exchanged(self, {node: wire.write({"hello": 1}) for node in new}, _HELLO_SECONDS, kind="query"):
            client, size = self._who(said)
            if client is None:
                continue
            self._heard.add(node)
            if self.sizes.setdefault(client, size) != size:
                raise WorkStopped(
                    f"client {client} came back with {size} samples, not {self.sizes[client]}; is it another site?"
                )
            self.nodes[client] = node  # the newer one: a node that was restarted has another number

    def _who(self, said):
        if said is LATE or not isinstance(said, dict):
            return None, None
        client, size = said.get("client"), said.get("samples")
        right = type(client) is int and 0 <= client < self.count and type(size) is int and size > 0
        return (client, size) if right else (None, None)

    def alive(self):
        return True

    def groups(self, ids, members):
        return {self.nodes[i]: [j] for j, i in enumerate(ids) if i in self.nodes}

    def renew(self, late):
        self.start()

    def failure(self, seconds):
        return Failure("silent", "") if seconds is None else Failure("late", f"{seconds:g}")

    def hand_over(self, clients, ids, base):
        """Nothing: what clients remember stays where it is."""

    def take_back(self, clients, ids, round):
        """Nothing: what clients remember stays where it is."""

    def close(self):
        """Nothing: sites go on without us."""
