"""Records of a session: log, traffic and rejected replies; commit, undo and replay of rounds."""

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fnlkit.artifacts.exchange import Exchange, Result, Traffic
from fnlkit.core.errors import InputError
from fnlkit.federated.client.client import ClientList
from fnlkit.federated.client.network import Model


class Position(NamedTuple):
    """Lengths of a session's records and its traffic at a commit."""

    rounds: int
    log: int
    rejected: int
    results: int
    traffic: Traffic


class Records:
    """Records of a session with clients, which can be committed, rolled back and replayed.

    Parameters
    ----------
    members : ClientList or list of Client
        The clients, whose memory is restored when a visit is undone.
    network : fnlkit.federated.client.network.Network

    Attributes
    ----------
    rounds : int
        Number of rounds so far, part of the key of each client's random streams.
    traffic : Traffic
    log : list of Exchange
        Requests and replies without weights: sufficient to replay the server's program.
    results : list of Result
        Results of `once`, in order.
    rejected : list of dict
        client, round and reason of each rejected reply.
    memory : dict of str to Tensor
        State of the server's components between rounds, saved and restored with a run.  It is empty while a resumed run is
        replayed.  Replace an entry instead of changing a tensor in place.
    committed : Position
        The state to which `rollback` returns.
    """

    def __init__(self, members, network):
        self.members, self.network = members, network
        self.rounds = 0
        self.traffic = Traffic()
        self.log = []
        self.results = []
        self.rejected = []
        self.memory = {}
        self._committed_memory = {}
        self._before_commit = {}  # client: its memory at the last commit
        self._before_visit = {}
        self._replayed_log = []
        self._replayed_results = []
        self._replaying = self._in_once = False
        self.commit()

    # ---- log and traffic
    def _log_round(self, ask, kept, values, norms):
        """Append a round: the clients with accepted replies, their values {name: [Tensor]}, and the norms of updates."""
        values = {name: [value.numpy() for value in parts] for name, parts in values.items()}
        self.log.append(Exchange(ask.ids, kept, values, np.array(norms)))
        self.rounds += 1

    def _meter(self, ask, replies, names):
        """Count the traffic of a round. Bytes with an unexpected name count as ``refused``."""
        self.traffic.broadcast(nbytes(ask.weights) + sum(map(nbytes, ask.broadcast.values())), len(ask.ids))
        self.traffic.broadcast(sum(map(nbytes, ask.scatter.values())))
        replied = [reply for reply in replies if isinstance(reply, dict)]
        if "weights" in names and replied:
            self.traffic.trained(len(ask.ids))
        for reply in replied:
            for name, value in reply.items():
                self.traffic.received(name if name in names else "refused", nbytes(value))

    def count_traffic(self, name: str, *, up: int, down: int = 0) -> None:
        """Count data exchanged outside of a round, for example statistics of samples.

        Parameters
        ----------
        name : str
            Name of the data that clients sent.
        up, down : int
            Bytes sent by all clients, and bytes received by all clients.
        """
        self.traffic.received(name, up)
        self.traffic.broadcast(down)

    def _reject(self, round, client, reason):
        """Record a rejected reply and undo the visit."""
        self.rejected.append({"round": round, "client": client, "reason": reason})
        self._undo_visit(client)

    # ---- commit and roll back
    def commit(self) -> None:
        """Make all rounds so far final; `rollback` returns to this state.

        Raises
        ------
        InputError
            If a tensor in `memory` was changed in place.
        """
        self._assert_replaced()
        self._committed_memory = {name: (_own(value), _edits(value)) for name, value in self.memory.items()}
        self._before_commit.clear()
        self._before_visit = {}
        if isinstance(self.members, ClientList):
            self.members.forget()
        lengths = len(self.log), len(self.rejected), len(self.results)
        self.committed = Position(self.rounds, *lengths, self.traffic.copy())

    def rollback(self) -> None:
        """Undo all rounds since the last `commit`: client memories, log and traffic."""
        self._assert_replaced()
        self.memory.clear()
        self.memory.update((name, value) for name, (value, _) in self._committed_memory.items())
        for i, (y, rows, state, dropped) in self._before_commit.items():
            client = self.members[i]
            client.y.copy_(y)
            client.rows, client.state, client.dropped = rows, state, dropped
        to = self.committed
        self.rounds, self.traffic = to.rounds, to.traffic.copy()
        del self.log[to.log :], self.rejected[to.rejected :], self.results[to.results :]
        self._before_commit.clear()
        self._before_visit = {}

    def _begin_visits(self, ids):
        """Save the memory of clients before a visit, and as it was at the last commit."""
        self._before_visit = {i: _memory_of(self.members[i]) for i in ids.tolist()}
        for i, memory in self._before_visit.items():
            self._before_commit.setdefault(i, memory)

    def _undo_visit(self, i):
        """Restore a client's memory as it was before the visit, because the reply was rejected."""
        if i in self._before_visit:
            client, (y, rows, state, dropped) = self.members[i], self._before_visit[i]
            client.y.copy_(y)  # copies of the rest, because `_before_commit` can refer to the same memory
            client.rows, client.state, client.dropped = _copy(rows), _copy(state), set(dropped)

    def _assert_replaced(self):
        """Raise if a tensor that was saved by the last commit has changed since."""
        for name, (value, edits) in self._committed_memory.items():
            if _edits(value) != edits:
                raise InputError(
                    f"clients.memory[{name!r}] was changed in place, so an interrupted round cannot be undone; assign "
                    "a new tensor instead"
                )

    # ---- replay
    @property
    def replaying(self) -> bool:
        """True while a resumed run repeats rounds from the log, until `end_replay`."""
        return self._replaying

    @property
    def unread(self) -> bool:
        """True if entries of a replayed log are left."""
        return bool(self._replayed_log or self._replayed_results)

    def replay(self, log: list[Exchange], results: Sequence[Any] = ()) -> None:
        """Take replies of the next rounds from a log instead of clients, and results of `once` from logged results."""
        self._replayed_log, self._replayed_results = list(log)[::-1], list(results)[::-1]
        self._replaying = True

    def end_replay(self) -> None:
        """End the replay: the next rounds run on the clients again."""
        self._replaying = False

    def _next_logged(self, ids):
        """Take the next round from the replayed log, after checking the cohort (K,)."""
        if not self._replayed_log:
            raise InputError(": the run's log has fewer rounds than these settings need; train again", parameter="resume")
        entry = self._replayed_log.pop()
        self.rounds += 1
        if not np.array_equal(np.sort(ids), entry.asked):
            raise InputError(
                f": round {self.rounds - 1} of the run used clients {entry.asked.tolist()}, but these settings "
                f"select {np.sort(ids).tolist()}; resume with the settings of the run",
                parameter="resume",
            )
        return entry

    def once(self, work: Callable[..., Any], *arguments) -> Any:
        """Compute a result from weights on the server once, without repeating it in a resumed run.

        A resumed run repeats the server's program with the logged replies, which contain no weights.  The result of `work` is
        logged, so that decisions based on it can be repeated.  Changes that `work` makes to `memory` are restored.

        Parameters
        ----------
        work : callable
            Called with `arguments`; must not call `round`.
        *arguments
            For example a Model or replies.

        Returns
        -------
        number, array, Model or None
            The result of `work`, with tensors as arrays.  During a replay, a Model has no weights.

        Raises
        ------
        InputError
            If `work` returns another type, or if a replayed program calls `once` more often than the original run.
        """
        if self._replaying:
            return self._next_result()
        self._in_once = True
        try:
            result = work(*arguments)
        finally:
            self._in_once = False
        if result is None or isinstance(result, Model):
            self.results.append(Result("nothing" if result is None else "model"))
            return result
        value = np.array(result.detach().cpu() if isinstance(result, torch.Tensor) else result)
        if value.dtype.kind not in "biuf":
            raise InputError(f"clients.once: `work` must return a number, array, Model or None, found {type(result).__name__}")
        self.results.append(Result("value", value))
        return _plain(value)

    def _next_result(self):
        if not self._replayed_results:
            raise InputError(
                ": the log of the run has fewer results of `clients.once` than these settings need; train it again",
                parameter="resume",
            )
        kind, value = self._replayed_results.pop()
        return Model(self.network, None) if kind == "model" else _plain(value) if kind == "value" else None


def nbytes(value: "torch.Tensor") -> int:
    """Payload in bytes of a tensor or number; 0 for other types, which are rejected anyway."""
    try:
        value = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return 0
    return value.numel() * value.element_size()


def _edits(value):
    """Number of changes of a tensor in place."""
    return value._version if isinstance(value, torch.Tensor) else 0


def _own(value):
    """Copy a value that is no tensor; tensors in `memory` are never changed in place."""
    return value if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _plain(value):
    """Copy an array, or take the number out of a zero-dimensional array."""
    return value.copy() if value.ndim else value.item()


def _memory_of(client):
    return client.y.clone(), _copy(client.rows), _copy(client.state), set(client.dropped)


def _copy(memory):
    # Rows under input/ are part of the data and never written, so they are not copied.
    return {
        k: v if k.startswith("input/") else v.clone() if isinstance(v, torch.Tensor) else copy.deepcopy(v)
        for k, v in memory.items()
    }
