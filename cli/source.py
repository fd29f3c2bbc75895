"""Standard input of a command: a federation in a pipe is read, and two sources at once are refused.

A command without FILE and --dataset reads a pipe that another command feeds.  These functions inspect standard input without
consuming bytes and without waiting forever, so that `while read` loops, cron, ssh and programs that keep a pipe open work.
The content of a pipe can be inspected only with tee(2).  Only /proc shows whether a silent pipe belongs to a pipeline, whose
first command can need a minute, or was left open by another process.
"""

import glob
import os
import select
import socket
import stat
import sys

from fnlkit.errors import InputError

# First bytes of every file of fnlkit (a zip archive).
_MAGIC = b"PK\x03\x04"
# Seconds until a wait is reported; longest wait for a silent pipeline with --dataset, and without it.
_REPORTED, _SHORT, _LONG = 3.0, 10.0, 60.0


def need_input(file):
    """Raise if input would come from a keyboard; print a note while a pipe that must be read is silent."""
    if file != "-":
        return
    if _kind() in ("closed", "device"):
        raise InputError("no FILE and nothing in the pipe; name a file or pipe another fnlkit command into this one")
    if _peek(_REPORTED) == "silent":
        other = "waiting for standard input; end with Ctrl-C, or name a FILE"
        _note("waiting for the previous command" if _fed_by_a_pipeline() else other)


def chosen(file, dataset):
    """Return the source of a command that can also start from a data set: a path, ``-``, or None.

    Without FILE and --dataset the pipe decides: a federation is read, other data are refused.

    Raises
    ------
    InputError
    """
    if file is not None or dataset is not None:
        return file
    state = _wait(_LONG)
    if state == "foreign":
        raise InputError("the pipe holds no file of fnlkit; name FILE, or --dataset to start from a data set")
    if state == "ended":
        raise InputError("the pipe is empty; did the previous command fail? --dataset NAME starts from a data set")
    if state == "silent":
        raise InputError(f"the pipe sent nothing for {_LONG:.0f} s; write - to wait for it, or name FILE or --dataset")
    return "-" if state in ("ours", "hidden") else None


def refuse_both(file, dataset):
    """Raise if --dataset was used while the pipe contained a federation.  Call it before writing.

    Raises
    ------
    InputError
    """
    if file is not None or dataset is None:
        return
    state = _wait(_SHORT)
    if state == "ours":
        raise InputError(
            f"both --dataset {dataset} and a federation in the pipe; write - to read the pipe (--dataset is then the location "
            "of its samples), or remove one of them"
        )
    if state in ("silent", "hidden"):
        _note("the pipe is not read, because --dataset is used; write - to read it")


def _wait(limit):
    """Return the result of `_peek`, waiting up to `limit` seconds if a shell pipeline feeds the pipe.

    A pipe that another process only keeps open, such as ssh or a parent process, does not count.
    """
    state = _peek(0)
    if state != "silent":
        return state
    if not _fed_by_a_pipeline():
        state = _peek(0)  # the writer can end between the two checks
        return "nothing" if state == "silent" else state
    state = _peek(min(limit, _REPORTED))
    if state == "silent":
        _note("waiting for the previous command")
        state = _peek(limit - _REPORTED)
    return state


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
        return os.pread(descriptor, count, os.lseek(descriptor, 0, os.SEEK_CUR))
    if kind == "socket":
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            return copy.recv(count, socket.MSG_PEEK)
    import ctypes

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


def _fed_by_a_pipeline():
    """Return whether the pipe is the standard output of a process, as in a pipeline; true if there is no /proc."""
    own = os.fstat(sys.stdin.fileno())
    if not os.path.isdir("/proc/self/fd"):
        return True
    for entry in glob.glob("/proc/[0-9]*/fd/1"):
        try:
            if os.path.samestat(os.stat(entry), own):
                return True
        except OSError:
            continue  # ended in the meantime, or owned by another user
    return False


def _note(text):
    from fnlkit.cli.terminal import console

    console().print(text, style="dim", soft_wrap=True)
