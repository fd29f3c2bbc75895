"""Write files atomically: after a failure, the previous file is unchanged."""

import contextlib
import os
import re
import secrets
import stat
import sys

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from collections.abc import Iterable
from typing import TypeVar

from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError

Place = TypeVar("Place", bound="str | os.PathLike[str]")


_TEMPORARY = re.compile(r"\.fnlkit-[0-9a-f]{16}\.tmp")
_STALE_SECONDS = 60


def write_bytes(chunks: Iterable[bytes | memoryview], target: str | os.PathLike[str], *, mode: int | None = None) -> None:
    """Write buffers to a path atomically; ``-`` is stdout.

    A reader finds either the old file or the complete new file.

    Parameters
    ----------
    chunks : iterable of bytes-like
    target : str or os.PathLike
    mode : int, optional
        Permissions of the file from its creation on, for example 0o600. A symbolic link at `target` is then replaced and not
        followed. Default: the permissions of the old file. A new file gets 0o600 in a folder that only the owner can read
        (0o700), otherwise the permissions by the user's umask.
    """
    if isinstance(target, str) and target == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    # Follow a symbolic link, as other tools do.
    path = os.path.realpath(target) if mode is None else os.path.abspath(target)
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise InputError(f"{display_path(target)}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise InputError(f"{display_path(target)}: the folder {display_path(folder)} does not exist; create it first")
    try:
        old = os.stat(path, follow_symlinks=mode is None)
    except FileNotFoundError:
        old = None
    try:
        if old is not None and mode is None and not stat.S_ISREG(old.st_mode):
            with open(path, "wb") as handle:
                for chunk in chunks:
                    handle.write(chunk)
            return
        _sweep(folder)
        _replace(chunks, path, folder, old, mode)
    except OSError as error:
        # Report the target, because the temporary name is unknown to the user.
        raise OSError(error.errno, error.strerror or str(error), os.fspath(target)) from error


def _replace(chunks, path, folder, old, mode):
    temporary = os.path.join(folder, f".fnlkit-{secrets.token_hex(8)}.tmp")
    if old is not None and mode is None:
        mode = stat.S_IMODE(old.st_mode)
    created = mode if mode is not None else 0o600 if _is_private(folder) else 0o666
    try:
        # Ctrl-C can arrive after the file was created and before its descriptor is assigned, hence inside try.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(temporary, flags, created)
        with open(descriptor, "wb", buffering=0) as handle:
            _lock(handle)
            if mode is not None and hasattr(os, "fchmod"):
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, mode)
            for chunk in chunks:
                rest = memoryview(chunk).cast("B")
                while len(rest):
                    rest = rest[handle.write(rest) :]
            os.fsync(descriptor)
            if fcntl is None:
                handle.close()  # Windows renames no open file
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot sync a folder; the file is synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(handle):
    """Lock the temporary file while this process lives; return False if it is locked."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sweep(folder):
    """Remove temporary files of dead writers: unlocked files that are not brand new."""
    import time

    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _STALE_SECONDS:
                    continue
                with open(entry.path, "rb") as handle:
                    if not _lock(handle):
                        continue
                    if fcntl is None:
                        handle.close()
                    os.unlink(entry.path)


def private_folder(path: Place) -> Place:
    """Create a folder that only its owner can read, with its parents, and return `path`; an existing folder is made private.

    Files that `write_bytes` creates there are private too.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    with contextlib.suppress(OSError):  # a folder of another user, or a file system without permissions
        if not _is_private(path):
            os.chmod(path, 0o700)
    return path


def _is_private(folder):
    return stat.S_IMODE(os.stat(folder).st_mode) & 0o077 == 0
