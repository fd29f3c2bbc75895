"""Standard input of a command: filters read it, the first command of a pipeline does not.

A filter (inject-noise, estimate-noise, train, ...) without FILE reads standard input.  A command that starts from a data set
(partition, and any command with --dataset instead of FILE) reads it only if FILE is ``-``.  Loops of a shell, make, cron, ssh
and CI systems give their standard input to every command, so a pipe alone shows nothing.  Before such a command writes, it
inspects the pipe without consuming bytes and without waiting, which is possible with tee(2) only.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import sys

from fnlkit.errors import InputError

# First bytes of every file of fnlkit (a zip archive).
_MAGIC = b"PK\x03\x04"
# Seconds until a wait is reported.
_REPORTED = 3.0


def need_input(file: str) -> None:
    """Raise if input would come from a keyboard; print a note while a pipe that must be read is silent."""
    if file != "-":
        return
    if _kind() in ("closed", "device"):
        raise InputError("no FILE and nothing in the pipe; name a file or pipe another fnlkit command into this one")
    if _peek(_REPORTED) == "silent":
        _note("waiting for the previous command in the pipe; without one, end with Ctrl-C and name a FILE")


def refuse_unread(file: str | None) -> None:
    """Raise if a command that starts from a data set leaves a federation in the pipe.  Call it before writing.

    A pipe that is still silent is reported by a note.

    Parameters
    ----------
    file : str or None
        FILE of the command; None if standard input is not read.

    Raises
    ------
    InputError
    """
    if file is not None:
        return
    state = _peek(0)
    if state == "ours":
        raise InputError(
            "the pipe contains a file of fnlkit, which this command does not read; write - to read it (--dataset is then the "
            "location of its samples), or remove the pipe"
        )
    if state in ("silent", "hidden"):
        _note("standard input is not read; write - to read a federation from it")


def _kind():
    """Return the kind of standard input: closed, device (terminal, /dev/null), file, pipe, socket, or bytes of a program."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return "bytes" if sys.stdin is not None and sys.stdin.seekable() else "closed"
    kinds = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def _peek(seconds):
    """Return the state of standard input without reading it.

    ours (a file of fnlkit), foreign, hidden (data that this system cannot inspect), ended, silent (so far), nothing (no pipe).
    """
    kind = _kind()
    if kind in ("closed", "device"):
        return "nothing"
    if kind in ("pipe", "socket"):
        if not hasattr(select, "poll"):  # Windows
            return "hidden"
        poll = select.poll()
        poll.register(sys.stdin.fileno(), select.POLLIN)
        events = poll.poll(1000 * max(0, seconds))
        if not events:
            return "silent"
        if not events[0][1] & select.POLLIN:
            return "ended"
    try:
        head = _head(kind)
    except OSError:
        return "nothing"
    if head is None:
        return "hidden"
    if not head:
        return "nothing" if kind == "bytes" else "ended"
    return "ours" if _MAGIC.startswith(head) else "foreign"


def _head(kind):
    """Return the first bytes of standard input without consuming them; None if the system cannot."""
    count = len(_MAGIC)
    if kind == "bytes":
        head = sys.stdin.buffer.read(count)
        sys.stdin.buffer.seek(-len(head), os.SEEK_CUR)
        return head
    descriptor = sys.stdin.fileno()
    if kind == "file":
        start = os.lseek(descriptor, 0, os.SEEK_CUR)
        head = os.read(descriptor, count)
        os.lseek(descriptor, start, os.SEEK_SET)
        return head
    if kind == "socket":
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return copy.recv(count, socket.MSG_PEEK)
    try:
        import ctypes
    except ImportError:  # Python can be built without it
        return None

    tee = getattr(ctypes.CDLL(None), "tee", None)
    if tee is None:
        return None
    out, into = os.pipe()
    try:
        copied = tee(descriptor, into, ctypes.c_size_t(count), 2)  # 2: SPLICE_F_NONBLOCK
        return os.read(out, copied) if copied > 0 else b"" if copied == 0 else None
    finally:
        os.close(out)
        os.close(into)


def _note(text):
    from fnlkit.cli.terminal import console

    console().print(text, style="dim", soft_wrap=True)
