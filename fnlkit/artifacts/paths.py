"""Format paths for messages, and resolve paths that users enter."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from fnlkit.core.errors import InputError


def must_be_regular(path: str | os.PathLike[str]) -> None:
    """Raise InputError if a path exists and is not a regular file.

    Reading a named pipe or a device might never end.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{display_path(path)}: is not a regular file; name a file")


def must_take_a_file(target: str | os.PathLike[str] | None, option: str = "`output`") -> None:
    """Raise InputError early if a file cannot be written to a path."""
    if target in (None, "-") or (os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target)):
        return  # a device is written directly
    folder = os.path.dirname(os.path.realpath(target))  # follow symbolic links
    if os.path.isdir(target):
        raise InputError(f"{option} {display_path(target)}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise InputError(f"{option} {display_path(target)}: the folder {display_path(folder)} does not exist; create it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"{option} {display_path(target)}: {display_path(folder)} is not writable; choose another folder")


def from_home(path: str | os.PathLike[str]) -> Path:
    """Expand a leading ``~`` to a home folder, unless the user is unknown."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def resolve(path: str | os.PathLike[str]) -> Path:
    """Resolve ``~`` and symbolic links in the path of a file or folder: an absolute path.

    Raises
    ------
    InputError
        If symbolic links form a loop, or if the text cannot be a path.
    """
    try:
        return from_home(path).resolve()
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a loop of links, before Python 3.13
        raise InputError(f"{display_path(path)}: cannot be resolved; symbolic links can form a loop") from None


def display_path(path: str | os.PathLike[str] | bytes | bytearray | memoryview) -> str:
    """Name a source or target in messages: its path on one line."""
    if isinstance(path, (bytes, bytearray, memoryview)):
        return "these bytes"
    if path == "-":
        return "stdin"
    text = os.fsdecode(path)
    return text if text.isprintable() else ascii(text)


@contextlib.contextmanager
def one_line(name: str) -> Iterator[None]:
    """Convert any exception of a parser to one line that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name}: damaged: nested too deeply") from error
    except MemoryError as error:
        raise InputError(f"{name}: too large for this machine's memory") from error
    except Exception as error:
        detail = " ".join(str(error).split())[:120]
        raise InputError(
            f"{name}: damaged, or another format ({type(error).__name__}: {detail}); create the file again"
        ) from error
