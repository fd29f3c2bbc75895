"""A process that has imported the engines and forks the worker processes.

Importing PyTorch takes about two seconds of computing time. Forked processes share one import and its memory.
`multiprocessing` has a fork server as well, but each process imports the script of the caller again, which fails if the script
has no guard `if __name__ == "__main__"`. Each process of loky imports PyTorch, and a dead process ends the whole pool of loky.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

_SECONDS = 5  # to end by itself
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux
_START = """import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
sys.path[:] = json.loads(sys.argv[2])
from fnlkit.engines.workers import start_worker
start_worker(int(sys.argv[1]))"""


class ForkServer:
    """The process, as seen by the process that needs workers.

    Workers get the environment, the working directory and the import path that this process has at its start.

    Parameters
    ----------
    descriptors : sequence of int
        Open files that the workers inherit under the same numbers.
    """

    def __init__(self, descriptors):
        ours, theirs = socket.socketpair()
        single = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "MKL", "OPENBLAS", "NUMBA")}
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), json.dumps(sys.path)],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, **single},
            )
        # A forked copy of the owner must not end the owner's workers.
        self.requests, self.count, self.owner = Connection(ours.detach()), 0, os.getpid()

    def runs(self) -> bool:
        """Return whether the process can fork workers."""
        return self.process.poll() is None and not self.requests.poll(0)  # it sends nothing, so this is the end of its socket

    def fork(self, connection: int, settings: object) -> int:
        """Fork a worker and return its number.

        Parameters
        ----------
        connection : int
            File descriptor of a socket, which the worker receives.
        settings : object
            Value for the worker that JSON can represent.
        """
        self.count += 1
        with contextlib.suppress(OSError):  # without a process, nobody reads from the socket, as after the end of a worker
            self.requests.send_bytes(json.dumps([self.count, settings]).encode())
            reduction.send_handle(self.requests, connection, None)
        return self.count

    def kill(self, number: int) -> None:
        """End a worker that may have ended already."""
        if os.getpid() != self.owner:
            return
        with contextlib.suppress(OSError):
            self.requests.send_bytes(json.dumps([number, None]).encode())

    def close(self) -> None:
        """End this process and all workers."""
        self.requests.close()
        if os.getpid() != self.owner:
            return
        try:
            self.process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def forks(descriptor: int) -> tuple[int, Any]:
    """Fork processes until the parent ends; return (socket, settings) in each new process and end in the fork server.

    Parameters
    ----------
    descriptor : int
        Socket to the parent.
    """
    requests, server = Connection(descriptor), os.getpid()
    children: dict[int, int] = {}
    try:
        while True:
            number, settings = json.loads(requests.recv_bytes())
            if settings is None:
                _end(children.pop(number, None))
                continue
            connection = reduction.recv_handle(requests)
            child = os.fork()
            if not child:
                requests.close()
                _end_with_server()
                if os.getppid() != server:
                    os._exit(1)
                return connection, settings
            os.close(connection)
            children[number] = child
    except (EOFError, ConnectionError):  # the parent has ended or closed the connection
        pass
    except Exception:  # noqa: BLE001 - for example, no further process is allowed
        traceback.print_exc()
    finally:
        if os.getpid() == server:
            for child in children.values():
                _end(child)
            os._exit(0)  # at once: the end of an interpreter that has imported PyTorch takes a while
    raise RuntimeError("the fork server has ended")  # only for type checkers: the process ends above


def _end_with_server():
    """Let the kernel end this process with the fork server: without the server, no process could end a stopped worker.

    Only Linux can. Elsewhere, a worker ends when its connection to the parent closes, which a stopped worker does not notice.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def _end(child):
    # A child is waited for only here, so that its number cannot be that of another process.
    if child is not None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
