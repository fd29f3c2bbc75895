"""Rounds as Flower messages: what Clients.round asks goes to nodes over a grid, replies are put in client order."""

import os
import time

from fnlkit.client.failure import Failure
from fnlkit.engines.flower import required, visits, wire
from fnlkit.engines.flower.notebook import NEVER, Memory, counted
from fnlkit.engines.travel import pack
from fnlkit.errors import InputError
from fnlkit.server.clients import Clients

TIMEOUT = 3600  # seconds, of one visit
_START_SECONDS = 300  # of an actor that comes back
_POLL_SECONDS = 0.02


class Flower(Clients):
    """Clients are visited by Flower's simulation on this machine; results are those of Sequential, bit for bit.

    Parameters
    ----------
    workers : int
        Actors of Ray, each of one core; 0 takes one for each core this process may use.
    client_timeout : float or None
        Seconds that one visit may take; 0 sets no limit, None takes an hour.
    """

    def __init__(self, *args, workers=0, client_timeout=None, **settings):
        super().__init__(*args, **settings)
        required()
        if self.network.device.type != "cpu":
            raise InputError(f"--engine flower runs on the CPU, not on {self.network.device}; write --engine stacked")
        self.count = workers or len(os.sched_getaffinity(0))
        self.timeout = TIMEOUT if client_timeout is None else client_timeout
        self.runtime = None

    def _run(self, ids, weights, steps, broadcast, scatter):
        if self.runtime is None:
            self.runtime = self._runtime()
        self.runtime.start()
        ids = ids.tolist()
        base = counted(self.log, self.rejected, ids, self.rounds)
        settled = counted(self.log, self.rejected, ids, self._point[0])
        self._hand_over(ids, base)
        packed = [pack(step) for step in steps]

        def message_of(places):
            return visits.request(
                round=self.rounds,
                seed=self.seed,
                weights=weights,
                steps=packed,
                broadcast=broadcast,
                visits=[(ids[j], base[ids[j]], settled[ids[j]], {k: v[j] for k, v in scatter.items()}) for j in places],
            )

        replies, late = self._ask(shared(range(len(ids)), self.members, ids, len(self.runtime.nodes)), message_of), False
        # A visit that took its actor along took others' with it: who is missing is asked alone.
        for j in [j for j in range(len(ids)) if j not in replies]:
            self.note(f"flower: client {ids[j]} had no reply and was asked again, alone")
            if self._late:
                self.runtime.restart()
            replies |= self._ask([[j]], message_of)
            late = self._late
            if j not in replies:
                replies[j] = Failure("late", f"{self.timeout:g}") if late else Failure("died", "4")
        if late:
            self.runtime.restart()
        for j, i in enumerate(ids):
            if isinstance(replies[j], dict):
                self.runtime.notebook(i).read(self.rounds).put(self.members[i])
        return [replies[j] for j in range(len(ids))]

    def _runtime(self):
        from fnlkit.engines.flower.simulation import Simulation

        return Simulation(self, self.count)

    def _hand_over(self, ids, base):
        """Write down for clients what they remember from a run that is continued here, or were made with."""
        for i in ids:
            client, notes = self.members[i], self.runtime.notebook(i)
            fresh = not (client.rows or client.state or client.dropped) and client.y.equal(client.given)
            if not notes.has(base[i]) and (base[i] != NEVER or not fresh):
                notes.write(base[i], Memory.of(client))

    def _ask(self, groups, message_of):
        """Return {place: reply} of the places whose replies came."""
        groups = {node: places for node, places in zip(self.runtime.nodes, groups, strict=False) if places}
        limit = self.timeout * max(map(len, groups.values())) + _START_SECONDS if self.timeout else None
        contents = {node: wire.write(message_of(places)) for node, places in groups.items()}
        out, self._late = {}, False
        for node, reply in exchanged(self.runtime, contents, limit):
            if reply is LATE:
                self._late = True
                continue
            for place, (_, said) in zip(groups[node], reply["replies"], strict=True):
                out[place] = visits.said_by(said)
        return out

    def close(self):
        """End the simulation; what clients remember is in `members` too."""
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None

    def __del__(self):
        if getattr(self, "runtime", None) is not None:
            self.close()


LATE = object()


def exchanged(runtime, contents, limit):
    """Yield (node, value) of the replies to a round's messages as they come, (node, LATE) where none came in time.

    A node that failed, or whose reply cannot be read, is left out.

    Parameters
    ----------
    runtime : object with grid and alive()
    contents : dict of node to RecordDict
    limit : float or None
        Seconds.
    """
    from flwr.app import Message

    messages = [Message(content, node, "train") for node, content in contents.items()]
    numbers = list(runtime.grid.push_messages(messages))
    waiting = dict(zip(numbers, contents, strict=True))
    deadline = None if limit is None else time.monotonic() + limit
    while waiting and runtime.alive():
        for reply in runtime.grid.pull_messages(list(waiting)):
            node = waiting.pop(reply.metadata.reply_to_message_id, None)
            if node is None or reply.has_error():
                continue
            try:
                yield node, wire.read(reply.content)
            except wire.Unreadable:
                continue
        if deadline is not None and time.monotonic() > deadline:
            break
        if waiting:
            time.sleep(_POLL_SECONDS)
    if runtime.alive():
        yield from ((node, LATE) for node in waiting.values())


def shared(places, members, ids, count):
    """Return the places in at most `count` groups of equal work, the longest first, each in client order."""
    groups, loads = [[] for _ in range(count)], [0] * count
    for j in sorted(places, key=lambda j: (-len(members[ids[j]]), j)):
        k = loads.index(min(loads))
        groups[k].append(j)
        loads[k] += len(members[ids[j]]) + 1
    return [sorted(group) for group in groups if group]
