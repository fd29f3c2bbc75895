"""Transport by files: a request and a reply per message, in a folder that people send by mail or share.

The files ``NAME-DIGEST.request`` and ``NAME-DIGEST.reply`` contain the bytes that any other transport carries.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fnlkit.artifacts import saving
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError, WorkStopped, list_names
from fnlkit.sites.door import Door

_MAX_BYTES = 2**30


class Waiting(WorkStopped):
    """Error: replies of sites are missing."""


class Journal:
    """Replies by request, as files.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)

    def path(self, name: str, request: bytes, ending: str) -> Path:
        """Return the path of the request or the reply of a site."""
        return self.folder / f"{name}-{hashlib.sha256(request).hexdigest()[:12]}.{ending}"

    def read(self, name: str, request: bytes) -> bytes | None:
        """Return the reply of a site to a request, or None."""
        path = self.path(name, request, "reply")
        return read_file(path) if path.exists() else None

    def store(self, name: str, request: bytes, reply: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        saving.write_bytes([reply], str(self.path(name, request, "reply")))


class Folder:
    """Transport over files in a folder.

    Parameters
    ----------
    folder : path
    names : sequence of str
        Names of the sites that take part.
    awaits_hello : bool
        Whether the numbers of samples are needed before the first step.
    """

    named = True

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str], *, awaits_hello: bool = True):
        self.journal, self.names, self.awaits_hello = Journal(folder), list(names), awaits_hello

    def peers(self) -> dict[str, str]:
        """Return the identity of each peer: its name."""
        return {name: name for name in self.names}

    def exchange(
        self, contents: Mapping[str, bytes], limit: float | None, kind: str, **reports: Any
    ) -> Iterator[tuple[str, bytes]]:
        """Yield (name, reply) of the replies that are there; write the other requests.

        Raises
        ------
        Waiting
            If a reply is missing.
        """
        missing = []
        for name, data in contents.items():
            reply = self.journal.read(name, data)
            if reply is not None:
                yield name, reply
                continue
            path = self.journal.path(name, data, "request")
            if not path.exists():
                self.journal.folder.mkdir(parents=True, exist_ok=True)
                saving.write_bytes([data], str(path))
            missing.append(name)
        if missing and (kind != "query" or self.awaits_hello):
            raise Waiting(
                f"waiting for the replies of {list_names(missing)}: send each site its .request files in "
                f"{display_path(self.journal.folder)}, put the .reply files there, and run the same command"
            )


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Return the content of a file.

    Raises
    ------
    InputError
        If there is no such regular file, or if it is too large.
    """
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _MAX_BYTES:
            raise InputError(f"{display_path(path)}: is no file of at most {_MAX_BYTES:,} bytes")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InputError(f"{display_path(path)}: {error.strerror}") from None


def list_requests(paths: Sequence[str], name: str) -> list[Path]:
    """Return the request files of a site in the order in which they were written.

    Parameters
    ----------
    paths : sequence of str
        Files that end with ``.request``, or folders, of which all requests of the site without a reply count.
    name : str
        Name of the site.
    """
    out: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = [one for one in path.glob(f"{name}-*.request") if not one.with_suffix(".reply").exists()]
            out += sorted(found, key=lambda one: one.stat().st_mtime_ns)
        elif path.suffix == ".request":
            out.append(path)
        else:
            raise InputError(f"{display_path(path)}: is no request; name files that end with .request, or their folder")
    if not out:
        raise InputError(f"{list_names(map(str, paths))}: no request of {name} is open; ask the coordinator for the next one")
    return out


def answer_file(door: Door, path: Path) -> Path:
    """Answer the request in a file, and return the path of the reply next to it."""
    reply = path.with_suffix(".reply")
    saving.write_bytes([door.answer(read_file(path))], str(reply))
    return reply
