"""Run fnlkit commands in separate processes, forked from a parent that has already imported the libraries.

A new process needs two seconds to import torch; a forked process has torch in memory.  The parent has a single thread,
because forking a program that computes in several threads can leave locks held forever.
"""

import contextlib
import importlib
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, wait

from fnlkit.errors import WorkStopped

# Imported before the first fork; a command imports further modules when needed.
_COMMON = ("fnlkit.cli", "fnlkit.cli.train", "fnlkit.experiment", "fnlkit.engines.fused", "torch._functorch.vmap")
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
        self.mother, self.waiting, self.numbers, self.lock = None, {}, itertools.count(), threading.Lock()

    def run(self, arguments):
        """Return (exit code, negative for a signal; the end of the command's stderr)."""
        with self.lock:
            if self.ending:
                raise WorkStopped("it was told to end")
            if self.mother is None:
                self._start()
            number, future = next(self.numbers), Future()
            self.waiting[number] = future
            self._tell({"run": number, "arguments": list(arguments)})
        return future.result()

    def end(self, patience=_PATIENCE):
        """Ask all commands to save and end; kill the commands that do not."""
        with self.lock:
            self.ending, left = True, list(self.waiting.values())
            if left:
                self._tell({"signal": int(signal.SIGTERM)})
        if wait(left, patience).not_done:
            self._tell({"signal": int(signal.SIGKILL)})

    def close(self):
        """End the parent when no command is running."""
        if self.mother is not None:
            with contextlib.suppress(OSError):
                self.mother.stdin.close()
            self.mother.wait()
            self.listener.join()
            self.mother.stdout.close()

    def _start(self):
        code = "from fnlkit.reproduce.children import mother; mother()"
        self.mother = subprocess.Popen(
            [sys.executable, "-c", code], cwd=self.folder, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _tell(self, message):
        with contextlib.suppress(OSError):  # the listener reports the parent's end
            self.mother.stdin.write(json.dumps(message).encode() + b"\n")
            self.mother.stdin.flush()

    def _listen(self):
        for line in self.mother.stdout:
            message = json.loads(line)
            self.waiting.pop(message["run"]).set_result((message["code"], message["said"].encode()))
        with self.lock:
            self.ending = True
            for future in self.waiting.values():
                future.set_exception(WorkStopped("the process that runs are forked from ended; start again to continue"))


# ---- in the mother
def mother():
    """Fork a command for each line on stdin and write a line about each finished command, until stdin ends."""
    for name in _COMMON:
        importlib.import_module(name)
    arguments = _serve()
    if arguments is not None:  # this is a child
        sys.argv = ["fnlkit", *arguments]
        importlib.import_module("fnlkit.cli").main()


def _serve():
    """Return None when stdin ends, and in every forked child its arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the children too, and they save
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    running, buffer, until = {}, b"", None
    while running or until is None:
        timeout = None if until is None else max(0.0, until - time.monotonic())
        ready = select.select([woken] if until else [woken, 0], [], [], timeout)[0]
        if until is not None and time.monotonic() >= until:
            _signal(running, signal.SIGKILL)
        if 0 in ready:
            read = os.read(0, 2**16)
            if not read:
                until = time.monotonic() + _PATIENCE
                _signal(running, signal.SIGTERM)
            *lines, buffer = (buffer + read).split(b"\n")
            for message in map(json.loads, lines):
                if "signal" in message:
                    _signal(running, message["signal"])
                    continue
                said = tempfile.TemporaryFile()
                process = os.fork()
                if process == 0:
                    _become_child(said, (woken, wake))
                    return message["arguments"]
                running[process] = message["run"], said
        if woken in ready:
            os.read(woken, 2**16)
            _reap(running)
    return None


def _become_child(said, pipes):
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for descriptor in pipes:
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, place in ((nothing, 0), (nothing, 1), (said.fileno(), 2)):
        os.dup2(descriptor, place)


def _signal(running, number):
    for process in running:
        os.kill(process, number)  # not yet reaped, so the process number is still valid


def _reap(running):
    """Report the children that ended."""
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            return
        run, said = running.pop(process)
        with said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _KEPT))
            text = said.read().decode(errors="replace")
        line = json.dumps({"run": run, "code": os.waitstatus_to_exitcode(status), "said": text}) + "\n"
        with contextlib.suppress(OSError):  # the caller can be gone
            os.write(1, line.encode())
