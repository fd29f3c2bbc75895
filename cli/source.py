"""Where a command reads from, one rule for all: a pipe that has data is read, and two sources at once are refused.

Nothing here takes a byte from standard input or waits for ever: `while read` loops, cron, ssh and programs that leave
their end of a pipe open must not be disturbed, nor disturb.
"""

import glob
import os
import select
import socket
import stat
import sys

from fnlkit.errors import InputError

# What every file of ours begins with (a zip archive).
_MAGIC = b"PK\x03\x04"
# Seconds: when a wait is said; how long a shell's pipe may be silent where the arguments suffice, and where they do not.
_SAID, _SHORT, _LONG = 3.0, 10.0, 60.0


def need_input(file):
    """Refuse to wait for a keyboard, and say so when a pipe that must be read stays silent."""
    if file != "-":
        return
    if _kind() in ("closed", "device"):
        raise InputError("no FILE and nothing in the pipe; name a file or pipe another fnlkit command into this one")
    if _peek(_SAID) == "silent":
        other = "waiting for standard input; Ctrl-C ends it, and a FILE on the command line is read instead"
        _say("waiting for the command before this one" if _fed_by_a_pipeline() else other)


def chosen(file, dataset):
    """Return the federation that a command reads where it may also start from a data set: a path, ``-``, or None.

    Without FILE and --dataset a pipe decides: a federation in it is read, anything else in it is refused.

    Raises
    ------
    InputError
    """
    if file is not None or dataset is not None:
        return file
    found = _wait(_LONG)
    if found == "foreign":
        raise InputError("the pipe holds no file of fnlkit; name FILE, or --dataset to start from a data set")
    if found == "ended":
        raise InputError("the pipe is empty; did the command before this one fail? --dataset NAME starts from a data set")
    if found == "silent":
        raise InputError(f"the pipe sent nothing for {_LONG:.0f} s; write - to wait for it, or name FILE or --dataset")
    return "-" if found in ("ours", "hidden") else None


def refuse_both(file, dataset):
    """Raise when --dataset was taken as the source while a federation stood in the pipe.  Call it before writing.

    Raises
    ------
    InputError
    """
    if file is not None or dataset is None:
        return
    found = _wait(_SHORT)
    if found == "ours":
        raise InputError(
            f"a federation comes through the pipe and --dataset {dataset} is given; write - to read the pipe "
            "(--dataset then says where its samples lie), or take one of them away"
        )
    if found in ("silent", "hidden"):
        _say("the pipe into this command is not read, as --dataset is given; write - to read it")


def _wait(limit):
    """Return what `_peek` does, waiting up to `limit` seconds, and only where a shell's pipeline feeds the pipe.

    A pipe that somebody else merely holds open, such as ssh or a parent process, counts as nothing.
    """
    found = _peek(0)
    if found != "silent":
        return found
    if not _fed_by_a_pipeline():
        found = _peek(0)  # the one that fed it may have ended between the two looks
        return "nothing" if found == "silent" else found
    found = _peek(min(limit, _SAID))
    if found == "silent":
        _say("waiting for the command before this one")
        found = _peek(limit - _SAID)
    return found


def _kind():
    """Return what standard input is: closed, device (a terminal, /dev/null), file, pipe, socket, or bytes of a program's."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return "bytes" if sys.stdin is not None and sys.stdin.seekable() else "closed"
    kinds = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(mode), "device")


def _peek(seconds):
    """Return what standard input holds, without taking it.

    ours, foreign, hidden (data that cannot be looked at on this system), ended, silent (yet), nothing (no pipe at all).
    """
    kind = _kind()
    if kind in ("closed", "device"):
        return "nothing"
    if kind == "bytes":
        head = _head_of_bytes(sys.stdin.buffer)
        return _found(head) if head else "nothing"
    descriptor = sys.stdin.fileno()
    if kind != "file":
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        events = poll.poll(1000 * max(0, seconds))
        if not events:
            return "silent"
        if not events[0][1] & select.POLLIN:
            return "ended"
    try:
        return _found({"file": _head_of_file, "pipe": _head_of_pipe, "socket": _head_of_socket}[kind](descriptor))
    except OSError:
        return "nothing"


def _found(head):
    if head is None:
        return "hidden"
    return "ended" if not head else "ours" if _MAGIC.startswith(head) else "foreign"


def _head_of_bytes(stream):
    at = stream.tell()
    try:
        return stream.read(len(_MAGIC))
    finally:
        stream.seek(at)


def _head_of_file(descriptor):
    return os.pread(descriptor, len(_MAGIC), os.lseek(descriptor, 0, os.SEEK_CUR))


def _head_of_socket(descriptor):
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.recv(len(_MAGIC), socket.MSG_PEEK)


def _head_of_pipe(descriptor):
    """Return the first bytes in a pipe by tee(2), which leaves them there; None where the system has no such call."""
    import ctypes

    tee = getattr(ctypes.CDLL(None, use_errno=True), "tee", None)
    if tee is None:
        return None
    out, into = os.pipe()
    try:
        nonblock = 2  # SPLICE_F_NONBLOCK
        count = tee(descriptor, into, ctypes.c_size_t(len(_MAGIC)), nonblock)
        return os.read(out, count) if count > 0 else b"" if count == 0 else None
    finally:
        os.close(out)
        os.close(into)


def _fed_by_a_pipeline():
    """Return whether the pipe is some process's standard output: a pipeline, where ssh or a parent holds it otherwise.

    Without /proc nobody can tell, and a short wait does no harm.
    """
    own = os.fstat(sys.stdin.fileno())
    if not os.path.isdir("/proc/self/fd"):
        return True
    for entry in glob.glob("/proc/[0-9]*/fd/1"):
        try:
            if os.path.samestat(os.stat(entry), own):
                return True
        except OSError:
            continue  # ended meanwhile, or another user's
    return False


def _say(text):
    from fnlkit.cli.terminal import console

    console().print(text, style="dim", soft_wrap=True)
