"""Cache values computed from a data set's files until one of the files changes."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fnlkit.artifacts import saving

_SETTLED = 2.0  # seconds: a more recently changed file can change again without a new time stamp


def cache_json(
    name: str, compute: Callable[[], Any], *, files: Iterable[str | os.PathLike[str]], where: Path, reading: str = ""
) -> Any:
    """Compute ``compute()``, a plain JSON value, or read the cached result for the files.

    Parameters
    ----------
    name : str
        Name of the computed value.
    compute : callable
    files : list of str or os.PathLike
        A file is unchanged if its path, size and modification time are unchanged.
    reading : str
        Options for reading the files that change the result.
    where : pathlib.Path
        The cache folder.  If it is not writable, the value is not cached.
    """
    total, newest = hashlib.sha256(f"{name}\0{reading}".encode()), 0.0
    try:
        for file in files:
            status = os.stat(file)
            total.update(
                f"\0{os.path.abspath(file)}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape")
            )
            newest = max(newest, status.st_mtime)
    except OSError:
        return compute()
    place = where / "facts" / f"{total.hexdigest()[:32]}.json"
    try:
        return json.loads(place.read_text(encoding="ascii"))[name]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    value = compute()
    if time.time() - newest > _SETTLED:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            saving.write_bytes([json.dumps({name: value}).encode()], place)
        except OSError:
            pass
    return value
