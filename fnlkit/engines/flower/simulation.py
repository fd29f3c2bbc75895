"""Flower's simulation: Ray actors run the visits of clients.

Ray is either started for the run or is an existing cluster.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import queue
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.message import decode, encode
from fnlkit.artifacts.stored import Changed, Stored, blocks
from fnlkit.client.client_list import ClientList
from fnlkit.client.failure import Failure, log, show_log
from fnlkit.client.network import Network
from fnlkit.components import own
from fnlkit.engines.flower import messages
from fnlkit.engines.flower.notebook import NEVER, Memory, Notebook
from fnlkit.engines.flower.visits import NodeObjects, answer
from fnlkit.errors import InputError, WorkStopped

if TYPE_CHECKING:
    from fnlkit.client.client import Client
    from fnlkit.engines.engine import Engine


_START_SECONDS = 120
_GRACE_SECONDS = 3
_LONGEST = 40  # maximal length of a folder's path, because Ray's socket paths are limited
# An actor that dies is restarted and receives its message again. With Flower's defaults the dead actor would be polled forever.
ACTOR = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": 3}


class Simulation:
    """Ray actors, and the grid that connects to the actors.

    Parameters
    ----------
    clients : fnlkit.server.clients.Clients
    count : int
        Number of actors with a core each.

    Attributes
    ----------
    home : str
        Folder of this run only: the samples, the memory of clients, and the files of a Ray that was started for the run.
        `close` removes it.
    """

    run, start_seconds, poll_seconds = "", 300, 0.02  # the first entry is for a restarted actor

    def __init__(self, clients, count):
        place = tempfile.gettempdir()
        self.home = tempfile.mkdtemp(prefix="fnlkit-", dir=place if len(place) < _LONGEST else "/tmp")
        self.count, self.grid, self.nodes, self._thread = count, None, [], None
        _describe(clients, self.home)

    def notebook(self, i: int) -> Notebook:
        return _notebook(self.home, i)

    def start(self) -> None:
        """Start Ray and the actors, unless they are running.

        Raises
        ------
        WorkStopped
        """
        if self.alive():
            return
        self._end()
        for name in os.listdir(os.path.join(self.home, "actors")):  # files of an earlier Ray
            os.unlink(os.path.join(self.home, "actors", name))
        _home_for_flower()
        from fnlkit.engines.flower import api

        api.simulator()  # because the import sets the level of logging
        logging.getLogger("flwr").setLevel(logging.DEBUG if log.isEnabledFor(logging.DEBUG) else logging.CRITICAL)
        given: queue.Queue[Any] = queue.Queue()
        self._stop, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._runs, args=(given,), name="fnlkit-flower", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        while self.grid is None and self.alive() and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                self.grid = given.get(timeout=0.1)
        while self.alive() and time.monotonic() < deadline:
            self.nodes = sorted(self.grid.get_node_ids()) if self.grid else []
            if len(self.nodes) == self.count:
                return
            time.sleep(0.05)
        reason = f": {type(self._error).__name__}" if self._error else ""
        self._end()
        raise WorkStopped(f"Flower's simulation did not start{reason}; write `engine='workers'`, or -vv for details")

    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def exchange(self, contents: Mapping[int, bytes], limit: float | None) -> Iterator[tuple[int, Any]]:
        """Yield the replies of a round; see `fnlkit.engines.flower.messages.exchange`."""
        yield from messages.exchange(self.grid, contents, limit, poll=self.poll_seconds, alive=self.alive)

    def _runs(self, given):
        from fnlkit.engines.flower import api

        server = api.ServerApp()

        @server.main()
        def main(grid: Any, context: Any) -> None:
            given.put(grid)
            self._stop.wait()

        ray = {"address": "local", "num_cpus": self.count, "_temp_dir": os.path.join(self.home, "ray")} | _quiet()
        settings = {"init_args": ray, "client_resources": ACTOR}
        path = os.environ.get("PYTHONPATH")
        try:
            api.simulator()(server, _app(self.home), self.count, backend_config=settings)
        except BaseException as error:  # noqa: BLE001 - reported by the thread that waits for the replies
            self._error = error
        finally:  # because Flower changes it for its actors
            os.environ.pop("PYTHONPATH", None)
            if path is not None:
                os.environ["PYTHONPATH"] = path

    def _end(self):
        if self.alive():
            self._stop.set()
            self._thread.join(_GRACE_SECONDS)
            if self.alive():  # an actor is at work, and Flower waits for its reply
                _kill_actors(self.home)
                self._thread.join(_START_SECONDS)
            if self.alive():
                raise WorkStopped("Flower's simulation does not end; end this process, and resume the run")
        self._thread, self.grid, self.nodes = None, None, []

    def report_failure(self, client: int, failure: Failure) -> None:
        """Do nothing, because the server records failures of a round."""

    def disk_freed(self, client: int, since: float) -> bool:
        """Return False: a run does not wait for the disk of this machine, which all clients share."""
        return False

    def renew(self, late: bool) -> None:
        """Restart the parts that ended. If a reply is late, kill all actors first."""
        if late:
            self._end()
        self.start()

    def groups(self, ids: Sequence[int], members: Sequence[Client]) -> dict[int, list[int]]:
        return distribute_clients(ids, members, self.nodes)

    def failure(self, seconds: float | None) -> Failure:
        """Return the Failure for a reply that did not arrive."""
        return Failure("died", str(1 + ACTOR["max_task_retries"])) if seconds is None else Failure("late", f"{seconds:g}")

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
        """Copy the memory of clients from their notebooks to the server's members.

        The server evaluates and saves these members.
        """
        for i in ids:
            memory = self.notebook(i).read(round)
            assert memory is not None  # the client replied in this round
            memory.put(clients.members[i])

    def close(self) -> None:
        self._end()
        shutil.rmtree(self.home, ignore_errors=True)


def _home_for_flower():
    """Choose a folder for Flower's files if the user has no home folder, because Flower could not be imported."""
    if "FLWR_HOME" in os.environ:
        return
    try:
        Path.home()
    except RuntimeError:
        folder = os.environ["FLWR_HOME"] = tempfile.mkdtemp(prefix="fnlkit-flower-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def distribute_clients(ids: Sequence[int], members: Sequence[Client], nodes: Sequence[int]) -> dict[int, list[int]]:
    """Return {node: positions in `ids`} with about equal work per node, in client order.

    Clients are assigned to nodes in order of decreasing work.

    Parameters
    ----------
    ids : sequence of int
    members : sequence of fnlkit.client.client.Client
    nodes : sequence
    """
    groups: dict[int, list[int]] = {node: [] for node in nodes}
    loads = dict.fromkeys(nodes, 0)
    for j in sorted(range(len(ids)), key=lambda j: (-len(members[ids[j]]), j)):
        node = min(nodes, key=loads.__getitem__)
        groups[node].append(j)
        loads[node] += len(members[ids[j]]) + 1
    return {node: sorted(places) for node, places in groups.items() if places}


def _quiet():
    """Return Ray's logging options."""
    verbose = log.isEnabledFor(logging.DEBUG)
    with contextlib.suppress(ImportError, AttributeError):  # Ray prints its errors to stdout, which is reserved for data
        from ray._private import worker

        worker._worker_logs_enabled = verbose
    return {"log_to_driver": verbose, "logging_level": 10 if verbose else 50}


def _kill_actors(home):
    """Kill every actor without a restart.

    If an actor only died, Ray would restart it with the same message.
    """
    import ray

    for name in os.listdir(os.path.join(home, "actors")):
        with contextlib.suppress(ray.exceptions.RayError, ValueError, EOFError):  # Ray can be shutting down at the same time
            with open(os.path.join(home, "actors", name), "rb") as file:
                actor = ray.cloudpickle.loads(file.read())
            ray.kill(actor, no_restart=True)


def _notebook(home, i):
    return Notebook(os.path.join(home, "clients", str(i)))


def _describe(clients, home):
    """Write the read-only data of all actors to files. Samples in a file are not copied.

    Raises
    ------
    InputError
        If the network or the samples cannot be sent to another process.
    """
    os.makedirs(os.path.join(home, "actors"))
    network, members = clients.network.packed(), ClientList.of(clients.members)
    with open(os.path.join(home, "samples"), "wb") as file:
        source = _on_disk(members.source, file)
        rows = {name: _on_disk(values, file) for name, values in members.sources.items()}
    by_sample = np.zeros(len(source), np.int64)
    by_sample[members.indices] = members.given.numpy()
    reviewed = None
    if members.reviewed is not None:
        reviewed = np.zeros(len(source), bool)
        reviewed[members.indices] = members.reviewed.numpy()
    arrays = source, members.offsets, members.indices, by_sample
    client_list = *arrays, members.classes, members.inputs, rows, reviewed, members.secret
    with open(os.path.join(home, "node"), "wb") as file:
        verbose = log.isEnabledFor(logging.DEBUG)
        try:
            pickle.dump((own.files(), network, client_list, verbose), file, protocol=5)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InputError(f"the samples cannot be sent to another process: {error}; write `engine='sequential'`") from error


def _on_disk(source, file):
    """Return an array of rows in a form that every process of this machine can read."""
    inner = source
    while isinstance(inner, Changed):
        inner = inner.source
    if not isinstance(source, np.ndarray) and not (isinstance(inner, Stored) and isinstance(inner.file, int)):
        return source
    file.write(bytes(-file.tell() % 64))
    start = file.tell()
    for a, b in blocks(source):
        file.write(np.ascontiguousarray(source[a:b]).data)
    file.flush()
    return Stored(file.name, start, source.dtype, source.shape)


# ---- in an actor
@lru_cache(maxsize=1)
def _store_actor(home):
    """Store a handle of this actor, with which the server can kill it."""
    import ray

    about = ray.get_runtime_context()
    with open(os.path.join(home, "actors", about.get_actor_id()), "wb") as file:
        file.write(ray.cloudpickle.dumps(about.current_actor))


@lru_cache(maxsize=1)
def _node(home):
    with open(os.path.join(home, "node"), "rb") as file:
        files, network, client_list, verbose = pickle.load(file)
    if verbose:
        show_log()
    for path in files:  # so that the file of a user's network can be imported
        own.file_module(path)
    return NodeObjects(Network.unpacked(network), ClientList(*client_list), partial(_notebook, home))


def _visit(message, context, *, home):
    node = _node(home)
    reply = messages.reply_to(message, encode(answer(node, decode(messages.bytes_of(message)))))
    for client in node.clients.made():
        client.rows, client.state, client.dropped = {}, {}, set()
    node.clients.forget()
    return reply


def _app(home):
    from fnlkit.engines.flower.api import ClientApp

    app = ClientApp()

    @app.train()
    def visit(message: Any, context: Any) -> Any:
        _store_actor(home)
        return _visit(message, context, home=home)

    return app
