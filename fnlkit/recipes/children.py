"""Run fnlkit commands in separate processes, forked from a server that has already imported the libraries.

Where processes cannot be forked (Windows), each command starts Python again (`spawn`).

A new process needs two seconds to import torch; a forked process has torch in memory.  The server has a single thread, because
forking a program that computes in several threads can leave locks held forever.
"""

from __future__ import annotations

import atexit
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing import connection

from fnlkit.errors import WorkStopped

# Imported by the server; a command imports further modules when needed.
_COMMON = ["fnlkit.cli", "fnlkit.cli.train", "fnlkit.experiment", "fnlkit.engines.fused", "torch._functorch.vmap"]
# Seconds that a terminated command gets to save its run; bytes of stderr that are kept.
_PATIENCE, _KEPT = 10, 4096


class Children:
    """Runs commands in a folder.

    The commands save and end when they are terminated, or when this process ends.

    Parameters
    ----------
    folder : path
    environment : dict of str to str
    """

    def __init__(self, folder, environment):
        self.folder, self.environment, self.ending = str(folder), environment, False
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self.context, self.running, self.lock = multiprocessing.get_context(method), set(), threading.Lock()

    def run(self, arguments: Sequence[str]) -> tuple[int | None, bytes]:
        """Run a command; return (exit code, last bytes of stderr).  After a signal, the exit code is negative."""
        # Windows opens no file of NamedTemporaryFile a second time.
        with tempfile.TemporaryDirectory() as folder, open(os.path.join(folder, "stderr"), "w+b") as errors:
            settings = (list(arguments), self.folder, self.environment, errors.name)
            process = self.context.Process(target=_command, args=settings)
            # Only one thread at a time starts or joins: `start` also collects the exit codes of other processes.
            with self.lock:
                if self.ending:
                    raise WorkStopped("the recipe was stopped; start it again to continue")
                self._start_server()
                process.start()
                self.running.add(process)
            connection.wait([process.sentinel])
            with self.lock:
                self.running.remove(process)
                process.join()
            errors.seek(max(0, errors.seek(0, os.SEEK_END) - _KEPT))
            return process.exitcode, errors.read()

    def end(self, patience: float = _PATIENCE) -> None:
        """Terminate all commands, which then save, and kill the commands that do not end."""
        with self.lock:
            self.ending, running = True, list(self.running)
            for process in running:
                process.terminate()
        until = time.monotonic() + patience
        for process in running:
            if not connection.wait([process.sentinel], max(0.0, until - time.monotonic())):
                process.kill()

    def _start_server(self):
        """Start the server, unless it is running, in this environment: libraries read the number of threads at import."""
        if self.context.get_start_method() != "forkserver":
            return
        from multiprocessing import forkserver

        environment = dict(os.environ)
        os.environ.update(self.environment)
        try:
            self.context.set_forkserver_preload(_COMMON)
            forkserver.ensure_running()
        finally:
            os.environ.clear()
            os.environ.update(environment)


def _command(arguments, folder, environment, errors):
    """Run a command in a forked process."""
    os.environ.update(environment)
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, place in ((nothing, 0), (nothing, 1), (os.open(errors, os.O_WRONLY), 2)):
        os.dup2(descriptor, place)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.argv = ["fnlkit", *arguments]
    try:
        importlib.import_module("fnlkit.cli").main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing leaves a process without them


def _end_with_parent():
    """Terminate this process when its parent has ended, and kill it if it does not end."""
    multiprocessing.parent_process().join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
