"""Rounds as messages between the server and nodes: in this process, or real sites over any transport.

The engine sends a request to the nodes and returns the replies in client order.
"""

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts import message
from fnlkit.core.errors import InputError
from fnlkit.federated.client.failure import Failure
from fnlkit.federated.engines.engine import Engine
from fnlkit.federated.engines.flower import disable_telemetry, visits
from fnlkit.federated.engines.flower.local import LocalNodes
from fnlkit.federated.engines.flower.messages import LATE
from fnlkit.federated.engines.flower.notebook import last_counted_rounds
from fnlkit.federated.engines.travel import pack
from fnlkit.federated.server.clients import Ask
from fnlkit.federated.server.protection import MaskedSums
from fnlkit.federated.server.records import nbytes

TIMEOUT = 3600  # seconds per visit


class Flower(Engine):
    """Clients run on nodes that exchange messages with the server.

    The results are bit for bit equal to the results of Sequential.

    Parameters
    ----------
    client_timeout : float or None
        Seconds that a visit of a real site can take. 0 sets no limit. None means one hour.
    runtime : object or None
        Connection to the nodes: real sites (fnlkit.sites.server.roster.Roster), or None for nodes in this process.
    """

    def __init__(self, *args, client_timeout=None, runtime=None, **settings):
        super().__init__(*args, **settings)
        if runtime is None:  # another runtime carries requests, such as files, and imports Flower itself if it needs it
            disable_telemetry()
        if self.network.device.type != "cpu":
            raise InputError(
                f"flower runs on the CPU, not on {self.network.device}; write `engine='stacked'`", parameter="engine"
            )
        if runtime is None and client_timeout:
            raise InputError(
                "is for real sites or `engine='workers'`: this process cannot end a visit", parameter="client_timeout"
            )
        self.timeout = TIMEOUT if client_timeout is None else client_timeout
        self.runtime = runtime
        self.foreign = getattr(runtime, "alone", False)
        if runtime is not None:  # the members of real sites are placeholders, because this machine has no samples
            self.sizes = np.array([runtime.sizes[k] for k in range(len(self.members))])

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Run a request; see `Engine.run`."""
        ids, message_of = self._prepare(request)
        replies, late = self._ask(self.runtime.groups(ids, self.members), ids, message_of)
        for j in [j for j in range(len(ids)) if j not in replies]:
            self.note(f"flower: the reply of client {ids[j]} is missing; the visit is repeated")
            self.runtime.renew(late)
            again, late = self._ask_again(ids[j], j, message_of)
            replies[j] = again or self.runtime.failure(self.timeout if late else None)
        late = self._wait_for_disks(ids, replies, message_of) or late
        if late:
            self.runtime.renew(late)
        self.runtime.take_back(self, [i for j, i in enumerate(ids) if isinstance(replies[j], dict)], request.round)
        return [replies[j] for j in range(len(ids))]

    def _ask_again(self, client, place, message_of):
        """Repeat the visit of a client; return its reply or None, and whether it was late."""
        again, late = self._ask(self.runtime.groups([client], self.members), [client], lambda _: message_of([place]))
        return again.get(0), late

    def _wait_for_disks(self, ids, replies, message_of):
        """Repeat the visits of sites with a full disk while the runtime waits for them; return whether a reply was late."""
        since, late = time.monotonic(), False
        for j, client in enumerate(ids):
            while getattr(replies[j], "code", "") == "disk" and self.runtime.disk_freed(client, since):
                again, late_again = self._ask_again(client, j, message_of)
                replies[j] = again or self.runtime.failure(self.timeout if late_again else None)
                late = late or late_again
        return late

    def _prepare(self, request):
        """List the client numbers, and make a function (positions in the list) -> request."""
        if self.runtime is None:
            self.runtime = LocalNodes(self)
        self.runtime.start()
        ids = request.ids.tolist()
        session = request.session
        base = last_counted_rounds(session.log, session.rejected, ids, request.round)
        settled = last_counted_rounds(session.log, session.rejected, ids, session.committed.rounds)
        self.runtime.hand_over(self, ids, base)
        packed = [pack(step) for step in request.steps]

        def message_of(places: Iterable[int]) -> dict[str, Any]:
            requested = [(ids[j], base[ids[j]], settled[ids[j]], {k: v[j] for k, v in request.scatter.items()}) for j in places]
            return visits.request(
                run=self.runtime.run,
                round=request.round,
                seed=self.seed,
                weights=request.weights,
                steps=packed,
                broadcast=request.broadcast,
                visits=requested,
            )

        return ids, message_of

    def run_secretly(
        self, request: Ask, hidden: tuple[float, np.ndarray | None] | MaskedSums
    ) -> tuple[list[dict[str, torch.Tensor] | Failure], int]:
        """Visit all clients at once, without retries.

        If an update is missing after its mask was shared, the protocol removes the mask from the sum.
        """
        if not self.foreign:
            return super().run_secretly(request, hidden)
        shapes, clip, counts = (hidden.shapes, 1.0, None) if isinstance(hidden, MaskedSums) else (None, *hidden)
        ids, message_of = self._prepare(request)
        groups = self.runtime.groups(ids, self.members)
        silent = self.runtime.failure(None)
        requests = {node: message_of(places) for node, places in groups.items()}
        limit = self.timeout + self.runtime.start_seconds if self.timeout else None
        options = {"clip": clip, "weighted": counts is not None, "limit": limit, "round": request.round}
        outcome = self.runtime.sum_secretly(requests, shapes, **options)
        if isinstance(outcome, str):
            self.note(outcome)
            return [silent] * len(ids), 0
        mean, inside, failed, sent = outcome
        self.runtime.renew(late=False)
        replies = {place: failed.get(node, silent) for node, places in groups.items() for place in places}
        if mean is not None:
            if shapes is None:
                mean = {"weights": (request.weights.double() + mean).to(request.weights.dtype)}
            replies |= {groups[node][0]: mean for node in inside}
            sent -= len(inside) * sum(map(nbytes, mean.values()))  # because the meter counts these bytes separately
        return [replies.get(place, silent) for place in range(len(ids))], sent

    def _ask(self, groups, ids, message_of):
        """Send requests and collect {position: reply}, and whether a reply was late."""
        limit = None
        if self.timeout:
            limit = self.timeout * max(map(len, groups.values()), default=0) + self.runtime.start_seconds
        about = getattr(self.runtime, "about", {})
        contents = {node: message.encode(message_of(places), about) for node, places in groups.items()}
        answers, late = {}, False
        for node, reply in self.runtime.exchange(contents, limit):
            if reply is LATE:
                late = True
                continue
            try:
                received = visits.replies_to(message.decode(reply), {place: ids[place] for place in groups[node]})
            except message.Unreadable:
                continue
            for place, value in received.items():
                if isinstance(value, Failure):
                    self.runtime.report_failure(ids[place], value)
            answers |= received
        return answers, late

    def close(self) -> None:
        """Remove the files of nodes in this process. `members` also contains the memory of the clients."""
        if self.runtime is not None:
            self.runtime.close()
            self.runtime = None

    def __del__(self):
        if getattr(self, "runtime", None) is not None:
            self.close()
