"""A file is there whole, or as it was before."""

import contextlib
import os
import re
import secrets
import stat
import sys

from fnlkit.artefacts.paths import shown
from fnlkit.errors import InputError

_TEMPORARY = re.compile(r"\.fnlkit-[0-9a-f]{16}\.tmp")
_STALE_SECONDS = 60


def write_bytes(chunks, target):
    """Write buffers to a path so that a reader finds the old file or the whole new one; ``-`` is stdout.

    Parameters
    ----------
    chunks : iterable of bytes-like
    target : str or os.PathLike
    """
    if isinstance(target, str) and target == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    # Through a symbolic link to the file it names, as every other tool writes.
    path = os.path.realpath(target)
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise InputError(f"{shown(target)}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise InputError(f"{shown(target)}: the folder {shown(folder)} does not exist; make it first")
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    try:
        if old is not None and not stat.S_ISREG(old.st_mode):
            with open(path, "wb") as handle:
                for chunk in chunks:
                    handle.write(chunk)
            return
        _sweep(folder)
        _replace(chunks, path, folder, old)
    except OSError as error:
        # The user knows the target, not our temporary name.
        raise OSError(error.errno, error.strerror or str(error), os.fspath(target)) from error


def _replace(chunks, path, folder, old):
    temporary = os.path.join(folder, f".fnlkit-{secrets.token_hex(8)}.tmp")
    try:
        # Within the try: Ctrl-C can come while the file is being made, before we have its descriptor.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        with open(descriptor, "wb", buffering=0) as handle:
            _lock(handle)
            if old is not None:
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            for chunk in chunks:
                rest = memoryview(chunk).cast("B")
                while len(rest):
                    rest = rest[handle.write(rest) :]
            os.fsync(descriptor)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # some file systems refuse to sync a folder; the file itself is synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(handle):
    """Hold the temporary for as long as this process lives; return False when another one holds it."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError:
        return False
    return True


def _sweep(folder):
    """Remove temporaries whose writer is dead: nobody holds their lock and they are not brand new."""
    import time

    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _STALE_SECONDS:
                    continue
                with open(entry.path, "rb") as handle:
                    if _lock(handle):
                        os.unlink(entry.path)
