"""The sequential engine spread over processes, with a single-threaded worker per core.

Threads therefore do not compete for cores. A worker is the only process of its pool and has no persistent state. The samples
are in shared memory. A task contains the client's labels, rows and state, and so does the answer. If a worker dies or is late,
a new one repeats its task with the same random numbers and returns the same answer.
"""

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
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
_QUIET = signal.signal, (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends its workers
_START_SECONDS = 300  # workers that need longer to start will never start


class Workers(Sequential):
    """Clients run in worker processes, one after another in each process.

    The results are bit for bit equal to the results of Sequential.

    Parameters
    ----------
    workers : int
        Number of processes. 0 means a process for each core that this process can use.
    client_timeout : float or None
        Seconds that a visit can take before its worker is replaced and the visit is repeated. 0 sets no limit. None means
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
        self.pools, self.idle = dict[int, Any](), list(range(self.count))  # {worker: (pool, its process)}, workers without task
        self.lock, self.stopped, self.owner = threading.Lock(), False, os.getpid()
        self.file: Any = None

    def run(self, request: Ask) -> list[dict[str, torch.Tensor] | Failure]:
        """Run a request; see `Engine.run`."""
        sizes = [len(self.members[i]) for i in request.ids]
        steps = [pack(step) for step in request.steps]
        shared = pickle.dumps((request.weights.cpu().numpy(), steps, request.broadcast), protocol=5)
        self.stopped, threads = False, ThreadPoolExecutor(self.count)
        try:
            # Longest task first, so that all workers end at about the same time.
            order = sorted(range(len(sizes)), key=lambda j: (-sizes[j], j))
            visits = {j: threads.submit(self._try, request, j, shared) for j in order}
            ended = wait(visits.values(), return_when=FIRST_EXCEPTION).done  # an error is raised while others still run
            return [visits[j].result() for j in range(len(sizes)) if visits[j] in ended]
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            self.close()  # the round is incomplete; the next round starts new workers
            raise
        finally:
            threads.shutdown()

    def _try(self, request, j, shared):
        """Visit a client in an idle worker, which is replaced if it dies or is late, and return the reply or the error."""
        part = request.part([j])
        client = self.members[part.ids[0]]
        # Copy, because the labels of all clients share a tensor, which would be sent as a whole.
        memory = client.y.clone(), client.rows, client.state, client.dropped
        task = pickle.dumps((part.ids, part.round, part.scatter, memory), protocol=5)
        worker = self.idle.pop()  # there are as many workers as threads
        try:
            for _ in range(TRIES):
                visit = self._pool(worker).submit
                try:
                    reply, memory = pickle.loads(visit(_visit, shared, task).result(self.timeout or None))
                    if isinstance(reply, InputError):
                        raise reply
                    y, client.rows, client.state, client.dropped = memory
                    client.y.copy_(y)
                    return reply
                except TimeoutError:
                    failed = Failure("late", f"{self.timeout:g}")
                    self.note(
                        f"workers: client {client.id} did not answer within {self.timeout:g} s; its worker was replaced "
                        "and the visit is repeated; `client_timeout` sets the limit"
                    )
                except BrokenProcessPool:
                    failed = Failure("died", str(TRIES))
                    if self.stopped:  # the engine ended it
                        raise WorkStopped("the round was stopped") from None
                    self.note("workers: a worker process died and was replaced; its visit is repeated")
                self._end(worker)
            return failed
        finally:
            self.idle.append(worker)

    @cached_property
    def _setup(self):
        """Pickle what a worker needs, with the samples in a file, in memory where the system has such files."""
        network, in_memory = self.network.packed(), hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd")
        file = self.file = os.fdopen(os.memfd_create("fnlkit"), "w+b") if in_memory else tempfile.NamedTemporaryFile()
        members = ClientList.of(self.members).copy()
        members.sources = {name: _to_shared(source, file) for name, source in members.sources.items()}
        members.source = _to_shared(members.source, file)
        file.flush()
        try:
            return pickle.dumps((network, members, self.seed, log.isEnabledFor(logging.DEBUG)), protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(f"the samples cannot be sent to another process: {error}; write `engine='sequential'`") from error

    def _pool(self, worker):
        """Return the pool of a worker; a missing one is started as a copy of a process that has imported this module."""
        if worker in self.pools:
            return self.pools[worker][0]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        with self.lock, single_threads():
            if self.stopped:
                raise WorkStopped("the round was stopped")
            setup, before = self._setup, multiprocessing.active_children()
            pool = ProcessPoolExecutor(1, context, *_QUIET)
            ready = pool.submit(_prepare, own.files(), setup)
            self.pools[worker] = pool, [process for process in multiprocessing.active_children() if process not in before]
        try:
            ready.result(_START_SECONDS)
        except BaseException as error:
            self._end(worker)
            if isinstance(error, (TimeoutError, BrokenProcessPool)):
                raise WorkStopped("the worker processes could not start; write `engine='sequential'`") from error
            raise
        return pool

    def _end(self, worker):
        """End a worker, also a stopped one."""
        pool, processes = self.pools.pop(worker, (None, []))
        for process in processes:
            process.kill()
        if pool:
            pool.shutdown()

    def close(self) -> None:
        """End the workers and close the file of the samples."""
        if os.getpid() != self.owner:  # a forked copy of the owner must not end the owner's workers
            return
        with self.lock:
            self.stopped = True
        for worker in list(self.pools):
            self._end(worker)
        if self.file:
            self.file.close()
        self.__dict__.pop("_setup", None)

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()


def _to_shared(source, file):
    """Share an array of rows with other processes: an array in memory is written to a file."""
    if not isinstance(source, np.ndarray):
        return source
    file.write(bytes(-file.tell() % 64))  # arrays start at an alignment that suits any type
    at = file.tell()
    file.write(np.ascontiguousarray(source).data)
    path = file.name if isinstance(file.name, str) else f"/proc/{os.getpid()}/fd/{file.fileno()}"
    return Stored(path, at, source.dtype, source.shape)


# ---- in a worker
_worker: dict[str, Sequential] = {}


def _prepare(files, setup):
    """Prepare this process for visits."""
    end_with_parent()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout can be a pipe of the parent
    torch.set_num_threads(1)
    set_threads(1)
    np.random.seed()  # noqa: NPY002 - user components must not draw the same numbers in all workers
    try:
        for path in files:  # so that the file of a user's network can be imported
            own.file_module(path)
        network, members, seed, verbose = pickle.loads(setup)
        _worker["engine"] = Sequential(members, Network.unpacked(network), members.inputs, seed=seed)
    except Exception as error:  # noqa: BLE001 - reported to the parent
        raise InputError(f"a worker process cannot start: {error}; write `engine='sequential'`") from None
    if verbose:
        show_log()


def _visit(shared, task):
    """Visit a client with the engine: (reply, memory) as bytes."""
    ids, round, scatter, memory = pickle.loads(task)
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
