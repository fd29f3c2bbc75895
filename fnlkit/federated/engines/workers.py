"""The sequential engine spread over processes, with a single-threaded worker per core.

Threads therefore do not compete for cores. A worker has no persistent state. The samples are in shared memory. A task contains
the client's labels, rows and state, and so does the answer. If a worker dies or is late, new workers repeat all unfinished
tasks with the same random numbers and return the same answers.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch

from fnlkit.artifacts.stored import Stored
from fnlkit.core import own
from fnlkit.core.errors import InputError, WorkStopped
from fnlkit.core.processes import end_with_parent, single_threads
from fnlkit.federated.client.client import ClientList
from fnlkit.federated.client.failure import Failure, failure, log, show_log
from fnlkit.federated.client.network import Model, Network
from fnlkit.federated.engines.sequential import Sequential
from fnlkit.federated.engines.travel import pack, unpack
from fnlkit.federated.server.clients import Ask
from fnlkit.kernels.threads import core_count, set_threads

TRIES = 3  # a task is lost after this number of dead or stopped workers; the round continues without its client
TIMEOUT = 3600  # seconds per visit
_START_SECONDS = 300  # workers that need longer to start will never start


class Workers(Sequential):
    """Clients run in worker processes, one after another in each process.

    The results are bit for bit equal to the results of Sequential.

    Parameters
    ----------
    workers : int
        Number of processes. 0 means a process for each core that this process can use.
    client_timeout : float or None
        Seconds that a visit can take before the workers are replaced and the visit is repeated. 0 sets no limit. None means
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
        self.executor: ProcessPoolExecutor | None = None
        self.processes, self.owner = [], os.getpid()

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Run a request; see `Engine.run`."""
        ids = request.ids
        steps = [pack(step) for step in request.steps]
        shared = pickle.dumps((request.weights.cpu().numpy(), steps, request.broadcast), protocol=5)
        # Longest task first, so that all workers end at about the same time.
        todo = deque(sorted(range(len(ids)), key=lambda j: (-len(self.members[ids[j]]), j)))
        tries, replies = [0] * len(ids), list[Any]([None] * len(ids))
        running: dict[Future[Any], tuple[int, float]] = {}
        try:
            while todo or running:
                # Tasks of workers that died run alone, so that a task that ends its worker is known.
                alone = any(tries[j] for j in (*todo, *(j for j, _ in running.values())))
                while todo and len(running) < (1 if alone else self.count):
                    future = self._submit(shared, request.part([todo[0]]))
                    running[future] = todo.popleft(), time.monotonic()
                done = wait(running, self._seconds_left(running), FIRST_COMPLETED).done
                answered = [future for future in done if future.exception() is None]
                for future in answered:
                    j, _ = running.pop(future)
                    replies[j] = self._restore_answer(self.members[ids[j]], pickle.loads(future.result()))
                if done and len(answered) == len(done):
                    continue
                self.close()  # a worker died or is late; all others end with it
                for j, since in running.values():
                    late = not done and time.monotonic() - since >= self.timeout
                    tries[j] += bool(done) or late
                    if tries[j] < TRIES:
                        todo.appendleft(j)
                    else:
                        replies[j] = Failure("late", f"{self.timeout:g}") if late else Failure("died", str(TRIES))
                    if late:
                        self.note(
                            f"workers: client {int(ids[j])} did not answer within {self.timeout:g} s; its worker was replaced "
                            "and the visit is repeated; `client_timeout` sets the limit"
                        )
                if done:
                    self.note("workers: a worker process died and was replaced; its visit is repeated")
                running.clear()
        except BaseException:
            self.close()  # the round is incomplete; the next round starts new workers
            raise
        return replies

    def _seconds_left(self, running):
        """Seconds until the first of the running tasks is late, or None without a limit."""
        return max(0.0, min(since for _, since in running.values()) + self.timeout - time.monotonic()) if self.timeout else None

    def _submit(self, shared, part):
        """Submit a visit and return its Future."""
        if self.executor is None:
            self._start()
        client = self.members[part.ids[0]]
        # Copy, because the labels of all clients share a tensor, which would be sent as a whole.
        memory = client.y.clone(), client.rows, client.state, client.dropped
        task = pickle.dumps((part.ids, part.round, part.scatter, memory), protocol=5)
        try:
            return self.executor.submit(_visit, shared, task)
        except BrokenProcessPool as error:  # a worker died while it had no task
            broken: Future = Future()
            broken.set_exception(error)
            return broken

    def _restore_answer(self, client, answer):
        """Restore a client's memory and return the reply or the error."""
        reply, (y, rows, state, dropped) = answer
        if isinstance(reply, InputError):
            raise reply
        client.y.copy_(y)
        client.rows, client.state, client.dropped = rows, state, dropped
        return reply

    def _start(self):
        """Start the workers, which are copies of a process that has imported this module."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        clients, before = ClientList.of(self.members), multiprocessing.active_children()
        with _memory_file() as file, single_threads():
            sources = {name: _to_shared(source, file) for name, source in clients.sources.items()}
            arrays = clients.offsets, clients.indices, clients.given.numpy()
            members = _to_shared(clients.source, file), *arrays, clients.classes, clients.inputs, sources, clients.secret
            file.flush()
            about = own.files(), self.network.packed(), members, self.seed, log.isEnabledFor(logging.DEBUG)
            self.executor = ProcessPoolExecutor(self.count, context, _prepare, (context.Barrier(self.count), *about))
            try:
                met = [self.executor.submit(_meet) for _ in range(self.count)]
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                text = f"the samples cannot be sent to another process: {error}; write `engine='sequential'`"
                raise InputError(text) from error
            self.processes = [process for process in multiprocessing.active_children() if process not in before]
            if wait(met, _START_SECONDS).not_done or any(future.exception() for future in met):
                raise WorkStopped("the worker processes could not start; write `engine='sequential'`")

    def close(self) -> None:
        """End the workers, also stopped ones."""
        executor, self.executor = self.executor, None
        if executor is None or os.getpid() != self.owner:  # a forked copy of the owner must not end the owner's workers
            return
        for process in self.processes:
            process.kill()
        executor.shutdown()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()


def _memory_file():
    """Open a file without a name, in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("fnlkit"), "r+b")
    return tempfile.TemporaryFile()


def _to_shared(source, file):
    """Share an array of rows with other processes: an array in memory is written to a file."""
    if not isinstance(source, np.ndarray):
        return source
    file.write(bytes(-file.tell() % 64))  # arrays start at an alignment that suits any type
    at = file.tell()
    file.write(np.ascontiguousarray(source).data)
    return Stored(os.dup(file.fileno()), at, source.dtype, source.shape)


def _send_stored(array):
    """State how another process opens a Stored array: by its path, or by a copy of its descriptor."""
    if not isinstance(array.file, int):
        return array.__reduce__()
    return _receive_stored, (reduction.DupFd(array.descriptor), array.offset, array.stored, array.shape)


def _receive_stored(descriptor, *about):
    return Stored(descriptor.detach(), *about)


reduction.register(Stored, _send_stored)


# ---- in a worker
_worker: dict[str, Any] = {}


def _prepare(barrier, files, network, members, seed, verbose):
    """Prepare this process for visits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout can be a pipe of the parent
    if verbose:
        show_log()
    torch.set_num_threads(1)
    set_threads(1)
    np.random.seed()  # noqa: NPY002 - user components must not draw the same numbers in all workers
    _worker["barrier"] = barrier
    try:
        for path in files:  # so that the file of a user's network can be imported
            own.file_module(path)
        clients = _clients(*members)
        _worker["engine"] = Sequential(clients, Network.unpacked(network), clients.inputs, seed=seed)
    except Exception as error:  # noqa: BLE001 - reported to the parent with the first task
        _worker["broken"] = InputError(f"a worker process cannot start: {error}; write `engine='sequential'`")


def _meet():
    """Wait for all workers: each of them runs this function once."""
    _worker["barrier"].wait(_START_SECONDS)


def _visit(shared, task):
    """Visit a client with the engine: (reply, memory) as bytes."""
    ids, round, scatter, memory = pickle.loads(task)
    if "broken" in _worker:
        return pickle.dumps((_worker["broken"], memory))
    engine = _worker["engine"]
    client = engine.members[ids[0]]
    client.y, client.rows, client.state, client.dropped = memory
    try:
        weights, steps, broadcast = pickle.loads(shared)
        model, steps = Model(engine.network, torch.from_numpy(weights)), [unpack(step) for step in steps]
        (reply,) = engine.run(Ask(ids, model, steps, broadcast=broadcast, scatter=scatter, round=round))
        return pickle.dumps(_separate((reply, (client.y, client.rows, client.state, client.dropped))), protocol=5)
    except Exception as error:  # noqa: BLE001 - reported to the parent, also for a reply that is no plain value
        return pickle.dumps((failure(error, client.id, round), memory))
    finally:
        client.rows, client.state = {}, {}
        engine.members.forget()


def _separate(value):
    """Copy tensors that share memory with larger tensors, which would be sent as a whole."""
    if type(value) is torch.Tensor and value.layout is torch.strided:
        return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value
    if type(value) in (list, tuple):
        return type(value)(map(_separate, value))
    return {name: _separate(entry) for name, entry in value.items()} if type(value) is dict else value


def _clients(source, offsets, indices, given, classes, inputs, rows, secret):
    """Make the ClientList of a message, in which labels are stored by client, not by sample."""
    by_sample = np.zeros(len(source), np.int64)
    by_sample[indices] = given
    return ClientList(source, offsets, indices, by_sample, classes, inputs, rows, secret=secret)
