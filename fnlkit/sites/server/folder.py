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
from fnlkit.sites.message_files import read_file


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
        """Path of the request or the reply of a site."""
        return self.folder / f"{name}-{hashlib.sha256(request).hexdigest()[:12]}.{ending}"

    def read(self, name: str, request: bytes) -> bytes | None:
        """Read the reply of a site to a request; None if there is none."""
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
    """

    named = True
    repair = "replace their .reply files, after they have answered again"

    def __init__(self, folder: str | os.PathLike[str], names: Sequence[str]):
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise InputError(f"{display_path(folder)} is a file; name a folder for requests and replies", parameter="folder")
        self.journal, self.names = Journal(folder), list(names)

    def peers(self) -> dict[str, str]:
        """Identity of each peer: its name."""
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
        if missing:
            raise Waiting(
                f"waiting for the replies of {list_names(missing)}: send each site its .request files in "
                f"{display_path(self.journal.folder)}, put the .reply files there, and run the same command"
            )
