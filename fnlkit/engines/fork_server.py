"""A process that has imported the engines and forks the worker processes.

Importing PyTorch takes about two seconds of computing time. Forked processes share one import and its memory.
`multiprocessing` has a fork server as well, but its processes import the script of the caller again.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from multiprocessing import reduction
from multiprocessing.connection import Connection

_SECONDS = 5  # to end by itself
_START = """import json, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = json.loads(sys.argv[2])
from fnlkit.engines.workers import start_worker
start_worker(int(sys.argv[1]))"""


class ForkServer:
    """The process, as seen by the process that needs workers.

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
        self.requests, self.count = Connection(ours.detach()), 0

    def fork(self, connection, settings):
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

    def kill(self, number):
        """End a worker."""
        with contextlib.suppress(OSError):
            self.requests.send_bytes(json.dumps([number, None]).encode())

    def close(self):
        """End this process and all workers."""
        self.requests.close()
        try:
            self.process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def forks(descriptor):
    """Fork processes until the parent ends; return (socket, settings) in each of them and end in the fork server.

    Parameters
    ----------
    descriptor : int
        Socket to the parent.
    """
    requests, children = Connection(descriptor), {}
    while True:
        try:
            number, settings = json.loads(requests.recv_bytes())
            connection = None if settings is None else reduction.recv_handle(requests)
        except (EOFError, OSError):
            break
        if connection is None:
            _end(children.pop(number))
            continue
        child = os.fork()
        if not child:
            requests.close()
            return connection, settings
        os.close(connection)
        children[number] = child
    for child in children.values():
        _end(child)
    os._exit(0)  # at once: the end of an interpreter that has imported PyTorch takes a while


def _end(child):
    # A child is waited for only here, so that its number cannot be that of another process.
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
