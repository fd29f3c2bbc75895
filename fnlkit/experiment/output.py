"""The files that a run writes while it trains: the lock on its output and one row of numbers a round."""

import json
import os
from contextlib import contextmanager
from pathlib import Path

from fnlkit.errors import InputError


@contextmanager
def locked(output):
    """Hold the lock of an output file, which dies with its holder.

    Parameters
    ----------
    output : str
        A path; ``-``, for stdout, needs no lock.

    Raises
    ------
    InputError
        When another process trains into the file (says which), or when it cannot be written.
    """
    if output == "-":
        yield
        return
    from filelock import FileLock, Timeout

    folder = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(folder):
        raise InputError(f"-o {output}: there is no folder {os.path.dirname(output)}; make it first")
    path = f"{output}.lock"
    try:
        holder = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        holder = ""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        who = f"process {holder}" if holder else "another process"
        raise InputError(f"-o {output}: {who} is training into this file; wait for it or choose another name") from None
    except OSError as error:
        raise InputError(f"-o {output}: {error.strerror}; choose a folder that exists and can be written") from error
    try:
        Path(path).write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        Path(path).unlink(missing_ok=True)
        lock.release()


@contextmanager
def metrics_file(path, history):
    """Yield a function that appends one row as a line of JSON.

    Parameters
    ----------
    path : str or None
        None writes nothing.
    history : list of dict
        Rows of the run that is continued; the file starts with them.
    """
    if path is None:
        yield lambda row: None
        return
    with open(path, "w", encoding="utf-8") as handle:

        def write(row):
            handle.write(json.dumps(row) + "\n")
            handle.flush()

        for row in history:
            write(row)
        yield write
