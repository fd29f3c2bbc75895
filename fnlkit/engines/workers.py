"""The sequential engine spread over processes, with a single-threaded worker per core.

Threads therefore do not compete for cores. A worker has no persistent state. The samples are in shared memory. A task contains
the client's labels, rows and state, and so does the answer. If a worker dies, only the time of its last task is lost.
Another worker repeats the task with the same random numbers and returns the same answer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Changed, Stored
from fnlkit.client.client_list import ClientList
from fnlkit.client.failure import Failure, failure, log, show_log
from fnlkit.client.network import Network
from fnlkit.components import own
from fnlkit.engines.fork_server import ForkServer, forks
from fnlkit.engines.sequential import Sequential
from fnlkit.engines.travel import pack, unpack
from fnlkit.errors import InputError
from fnlkit.kernels.threads import core_count, set_threads
from fnlkit.server.clients import CohortRequest

TRIES = 3  # a task is lost after this number of dead or stopped workers; the round continues without its client
TIMEOUT = 3600  # seconds per visit
_START_SECONDS = 300  # a worker that needs longer to start will never start
_DRAIN_SECONDS = 60  # a running worker can receive and send bytes at any time


class Workers(Sequential):
    """Clients run in worker processes, one after another in each process.

    The results are bit for bit equal to the results of Sequential.

    Parameters
    ----------
    workers : int
        Number of processes. 0 means a process for each core that this process can use.
    client_timeout : float or None
        Seconds that a visit can take before the worker is replaced and the visit is repeated. 0 sets no limit. None means
        one hour.
    """

    def __init__(self, *args, workers=0, client_timeout=None, **settings):
        super().__init__(*args, **settings)
        if self.network.device.type != "cpu":
            raise InputError(f"`engine='workers'` runs on the CPU, not on {self.network.device}; write `engine='stacked'`")
        if not hasattr(os, "fork"):
            raise InputError("`engine='workers'` must fork processes, which this system cannot; write `engine='sequential'`")
        self.count = workers or core_count()
        self.timeout = TIMEOUT if client_timeout is None else client_timeout
        self.workers, self.shared, self.server, self.calls = [], None, None, 0

    def run(self, request: CohortRequest) -> list[dict[str, torch.Tensor] | Failure]:
        """Return the replies of a request; see `Engine.run`."""
        ids = request.ids
        steps = [pack(step) for step in request.steps]
        message = pickle.dumps((request.weights.cpu().numpy(), steps, request.broadcast), protocol=5)
        shared = self.calls, message
        self.calls += 1
        # Longest task first, so that all workers end at about the same time.
        todo = deque(sorted(range(len(ids)), key=lambda j: (-len(self.members[ids[j]]), j)))
        tries, replies = [0] * len(ids), list[Any]([None] * len(ids))
        self._start_workers(min(self.count, len(ids)))
        idle = list(self.workers)
        try:
            while todo or len(idle) < len(self.workers):
                while todo and idle:
                    j, worker = todo.popleft(), idle.pop(0)
                    tries[j] += 1
                    client, part = self.members[ids[j]], request.part([j])
                    # Copy, because the labels of all clients share a tensor, which would be sent as a whole.
                    memory = (client.y.clone(), client.rows, client.state, client.dropped)
                    worker.take(j, shared, (part.ids, request.round, part.scatter, memory))
                for worker, late in self._wait_for_answers():
                    j, answer = worker.answer() if not late else (worker.task, None)
                    if answer is _READY:
                        continue
                    if answer is not None:
                        idle.append(worker)
                        replies[j] = self._restore_answer(self.members[ids[j]], answer)
                        continue
                    self._replace(worker, idle, int(ids[j]) if late else None)
                    if tries[j] < TRIES:
                        todo.appendleft(j)
                    else:
                        replies[j] = Failure("late", f"{self.timeout:g}") if late else Failure("died", str(TRIES))
        except BaseException:
            self.close()  # the round is incomplete; the next round starts new workers
            raise
        return replies

    def _restore_answer(self, client, answer):
        """Restore a client's memory and return the reply or the error."""
        reply, (y, rows, state, dropped) = answer
        if isinstance(reply, InputError):
            raise reply
        client.y.copy_(y)
        client.rows, client.state, client.dropped = rows, state, dropped
        return reply

    def _wait_for_answers(self):
        """Wait and return (worker, is late) of busy workers that answered, died or are late."""
        busy = {w.connection: w for w in self.workers if w.task is not None}
        wait_seconds = None
        if self.timeout:
            wait_seconds = max(0.0, min(w.deadline(self.timeout) for w in busy.values()) - time.monotonic())
        answered = [(busy[c], False) for c in wait(list(busy), wait_seconds)]
        now = time.monotonic()
        return answered or [(w, True) for w in busy.values() if self.timeout and w.deadline(self.timeout) <= now]

    def _start_workers(self, count):
        if self.shared is None:
            self.shared = _Shared(self)
        for k, worker in enumerate(self.workers):
            if not worker.runs():
                worker.stop()
                self.workers[k] = self._start_process()
        while len(self.workers) < count:
            self.workers.append(self._start_process())

    def _start_process(self):
        if self.server is not None and not self.server.runs():
            self.server.close()
            self.server = None
        if self.server is None:
            self.server = ForkServer(self.shared.descriptors)
        return _Worker(self.shared, self.server)

    def _replace(self, worker, idle, late=None):
        worker.stop()
        k = self.workers.index(worker)
        self.workers[k] = self._start_process()
        idle.append(self.workers[k])
        if late is None:
            self.note("workers: a worker process died and was replaced; its visit is repeated")
        else:
            self.note(
                f"workers: client {late} did not answer within {self.timeout:g} s; its worker was replaced and the visit is "
                "repeated; `client_timeout` sets the limit"
            )

    def close(self) -> None:
        """Stop the workers and release the shared memory."""
        for worker in self.workers:
            worker.stop()
        self.workers.clear()
        if self.server is not None:
            self.server.close()
            self.server = None
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()


class _Shared:
    """Read-only data of all workers: the location of the samples, and a message with the rest.

    Samples in a file are not copied, and each worker reads the samples that it needs. Samples in memory are copied once to
    anonymous shared memory.
    """

    def __init__(self, engine):
        network, clients = engine.network.packed(), ClientList.of(engine.members)
        if hasattr(os, "memfd_create"):
            self.file = os.fdopen(os.memfd_create("fnlkit"), "r+b")
        else:
            self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.descriptors = [self.file.fileno()]
        rows = {name: self._to_shared(source) for name, source in clients.sources.items()}
        arrays = clients.offsets, clients.indices, clients.given.numpy()
        members = self._to_shared(clients.source), *arrays, clients.classes, clients.inputs, rows, clients.secret
        self.file.flush()
        try:
            message = own.files(), network, members, engine.seed
            self.message = pickle.dumps(message, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(f"the samples cannot be sent to another process: {error}; write `engine='sequential'`") from error

    def _to_shared(self, source):
        """Return an array of rows in a form that another process can read."""
        if isinstance(source, np.ndarray):
            self.file.write(bytes(-self.file.tell() % 64))  # arrays start at an alignment that suits any type
            at = self.file.tell()
            self.file.write(np.ascontiguousarray(source).data)
            return Stored(self.file.fileno(), at, source.dtype, source.shape)
        inner = source
        while isinstance(inner, Changed):
            inner = inner.source
        if isinstance(inner, Stored) and isinstance(inner.file, int):
            self.descriptors.append(inner.descriptor)
        return source

    def close(self) -> None:
        self.file.close()


class _Worker:
    """Worker process, as seen by the parent process."""

    def __init__(self, shared, server):
        ours, theirs = socket.socketpair()
        # A stopped process does not read. Neither sending nor receiving must wait for it forever.
        for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _DRAIN_SECONDS, 0))
        self.server = server
        with theirs:
            self.number = server.fork(theirs.fileno(), log.isEnabledFor(logging.DEBUG))
        self.connection, self.task = Connection(ours.detach()), None
        self.ready, self.since, self.sent = False, time.monotonic(), None
        with contextlib.suppress(OSError):  # a dead worker is detected when its answer is read
            self.connection.send_bytes(shared.message)

    def take(self, j: int, shared: tuple[int, bytes], task: Sequence[Any]) -> None:
        """Send a task, and once per round the shared data: (number of the call, message)."""
        self.task, self.since = j, time.monotonic()
        number, message = shared
        with contextlib.suppress(OSError):
            self.connection.send_bytes(pickle.dumps((None if self.sent == number else message, task), protocol=5))
        self.sent = number

    def answer(self) -> tuple[int | None, Any]:
        """Return (task, answer), (task, _READY) after the start, (task, None) for a dead worker."""
        try:
            message = self.connection.recv_bytes()
        except (EOFError, OSError):
            message = None
        if message == _READY:
            self.ready, self.since = True, time.monotonic()
            return self.task, _READY
        j, self.task = self.task, None
        return j, None if message is None else pickle.loads(message)

    def deadline(self, timeout: float) -> float:
        """Return the time at which the current visit is late.

        A worker that is still starting gets at least the time limit of the start.
        """
        return self.since + (timeout if self.ready else max(timeout, _START_SECONDS))

    def runs(self) -> bool:
        """Return whether the process still has its end of the connection."""
        poll = select.poll()
        poll.register(self.connection.fileno(), 0)
        return not poll.poll(0)

    def stop(self) -> None:
        self.connection.close()
        self.server.kill(self.number)


_READY = b"ready"


def start_worker(requests: int) -> None:
    """Run tasks in a forked process; the main function of the fork server."""
    torch.set_num_threads(1)
    connection, verbose = forks(requests)
    np.random.seed()  # noqa: NPY002 - user components must not draw the same numbers in all workers
    serve(connection, verbose)


def serve(connection: int, verbose: bool = False) -> None:
    """Run tasks until the parent ends; the main function of a worker process.

    Parameters
    ----------
    connection : int
        File descriptor of the socket to the parent.
    verbose : bool
        Print the clients' log on stderr.
    """
    if verbose:
        show_log()
    set_threads(1)
    channel, ready = Connection(connection), threading.Semaphore(0)
    tasks: deque[bytes] = deque()

    def listen() -> None:
        """End this process as soon as the parent ends, even during a task.

        The parent's side of the connection closes whenever the parent ends, for any reason.
        """
        while True:
            try:
                tasks.append(channel.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            ready.release()

    threading.Thread(target=listen, daemon=True).start()

    def next_message() -> Any:
        ready.acquire()
        return pickle.loads(tasks.popleft())

    broken, shared = None, None
    engine: Any = None
    try:
        files, network, members, seed = next_message()
        for path in files:  # so that the file of a user's network can be imported
            own.file_module(path)
        clients = _clients(*members)
        engine = Sequential(clients, Network.unpacked(network), clients.inputs, seed=seed)
    except Exception as error:  # noqa: BLE001 - reported to the parent with the first task
        broken = InputError(f"a worker process cannot start: {error}; write `engine='sequential'`")
    channel.send_bytes(_READY)
    while True:
        message, (ids, round, scatter, memory) = next_message()
        shared = message or shared
        answer = pickle.dumps((broken, memory)) if broken else _visit(engine, shared, ids, round, scatter, memory)
        channel.send_bytes(answer)


def _visit(engine, shared, ids, round, scatter, memory):
    """Return (reply, memory) of a client after a visit by the engine, as bytes."""
    client = engine.members[ids[0]]
    client.y, client.rows, client.state, client.dropped = memory
    try:
        weights, steps, broadcast = pickle.loads(shared)
        weights, steps = torch.from_numpy(weights), [unpack(step) for step in steps]
        (reply,) = engine.run(CohortRequest(ids, weights, steps, broadcast, scatter, round))
        return pickle.dumps(_separate((reply, (client.y, client.rows, client.state, client.dropped))), protocol=5)
    except Exception as error:  # noqa: BLE001 - reported to the parent, also for a reply that is no plain value
        return pickle.dumps((failure(error, client.id, round), memory))
    finally:
        client.rows, client.state = {}, {}
        engine.members.forget()


def _separate(value):
    """Return a value whose tensors do not share memory with larger tensors, which would be sent as a whole."""
    if type(value) is torch.Tensor and value.layout is torch.strided:
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if type(value) in (list, tuple):
        return type(value)(map(_separate, value))
    return {name: _separate(entry) for name, entry in value.items()} if type(value) is dict else value


def _clients(source, offsets, indices, given, classes, inputs, rows, secret):
    """Return the ClientList of a message, in which labels are stored by client, not by sample."""
    by_sample = np.zeros(len(source), np.int64)
    by_sample[indices] = given
    return ClientList(source, offsets, indices, by_sample, classes, inputs, rows, secret=secret)
