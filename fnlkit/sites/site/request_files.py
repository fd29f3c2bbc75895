"""Requests as files at a site: they are found and answered."""

import re
from collections.abc import Sequence
from pathlib import Path

from fnlkit.artifacts import message, saving
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError, list_names
from fnlkit.sites.message_files import failure_in, read_file
from fnlkit.sites.site.door import Door


def list_requests(paths: Sequence[str], name: str) -> list[Path]:
    """List the request files of a site in the order in which they were written.

    Parameters
    ----------
    paths : sequence of str
        Files that end with ``.request``, or folders, of which all requests of the site count that have no reply, or a reply
        that contains only a failure.
    name : str
        Name of the site.
    """
    requests: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            mine = re.compile(rf"{re.escape(name)}-[0-9a-f]+\.request")  # those of `bonn-2` are not of `bonn`
            files = [file for file in path.iterdir() if mine.fullmatch(file.name) and _is_open(file)]
            requests += sorted(files, key=lambda file: file.stat().st_mtime_ns)
        elif path.suffix == ".request":
            requests.append(path)
        else:
            raise InputError(f"{display_path(path)}: is no request; name files that end with .request, or their folder")
    if not requests:
        raise InputError(f"{list_names(map(str, paths))}: no request of {name} is open; ask the coordinator for the next one")
    return requests


def _is_open(request):
    reply = request.with_suffix(".reply")
    try:
        return not reply.exists() or failure_in(read_file(reply)) is not None
    except message.Unreadable:
        return True


def answer_file(door: Door, path: Path) -> Path:
    """Answer the request in a file, and return the path of the reply next to it."""
    reply = path.with_suffix(".reply")
    saving.write_bytes([door.answer(read_file(path))], str(reply))
    return reply
