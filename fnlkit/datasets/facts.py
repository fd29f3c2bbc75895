"""What was computed once of a data set's files: kept in the cache folder until one of the files changes."""

import hashlib
import json
import os
import time

from fnlkit.artefacts import saving

_SETTLED = 2.0  # seconds: a file that changed later than so long ago may change again without a new time


def remembered(name, compute, *, files, where, reading=""):
    """Return ``compute()``, a plain JSON value, or what it returned before on these very files.

    Parameters
    ----------
    name : str
        What is computed.
    compute : callable
    files : list of str or os.PathLike
        A file counts as the same while its path, size and time of change are.
    reading : str
        How the files are read, where that makes a difference.
    where : pathlib.Path
        The cache folder; where it cannot be written to, nothing is kept.
    """
    total, newest = hashlib.sha256(f"{name}\0{reading}".encode()), 0.0
    try:
        for file in files:
            found = os.stat(file)
            total.update(f"\0{os.path.abspath(file)}\0{found.st_size}\0{found.st_mtime_ns}".encode("utf-8", "surrogateescape"))
            newest = max(newest, found.st_mtime)
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
