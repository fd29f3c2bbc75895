"""Ledger of a site: everything that has left, a line per message, chained by checksums."""

import errno
import hashlib
import json
import os
from typing import Any

import numpy as np
from filelock import FileLock

from fnlkit.artifacts import saving
from fnlkit.artifacts.ledger import hash_line, read_lines
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError

KIND = "fnlkit.left/1"


def enter(path: str, *, run: str, round: int | None, said: dict[str, Any]) -> None:
    """Write a reply to the ledger of a site before it is sent, and flush it to the disk.

    Each line is a JSON object that describes a message: names with types, shapes, bytes and a SHA-256 of the content, or the
    reported failure. Each line contains a SHA-256 over this line and the previous line.

    Parameters
    ----------
    path : str
    run : str
    round : int or None
    said : dict
        {"replies": [[client, {name: Tensor}]]}, another reply in plain values, or {"failure": [code, name]}. If the reply was
        refused at this site, "refused" contains the reason, which is not sent.
    """
    body = {"kind": KIND, "run": run, "round": round, **_summary(said)}
    saving.private_folder(os.path.dirname(os.path.abspath(path)))
    with FileLock(f"{path}.lock"):
        lines = read_ledger(path)
        before = lines[-1]["sha256"] if lines else ""
        line = json.dumps({**body, "sha256": hash_line(before, body)}) + "\n"
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _end_at_a_line(descriptor)
            if os.write(descriptor, line.encode()) < len(line):  # ASCII; on a full disk, a part can be written without an error
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _end_at_a_line(descriptor):
    """Remove an incomplete last line.

    The process ended while writing this line, so that the message was never sent.
    """
    size = os.fstat(descriptor).st_size
    torn = os.pread(descriptor, size, 0).rpartition(b"\n")[2] if size and os.pread(descriptor, 1, size - 1) != b"\n" else b""
    if torn:
        os.ftruncate(descriptor, size - len(torn))


def read_ledger(path: str) -> list[dict[str, Any]]:
    """Read the lines of a site's ledger as dicts, [] if there is no ledger.

    An incomplete last line is ignored, because its message was never sent.

    Raises
    ------
    InputError
        If a line was changed, or if a line before another line is missing.
    """
    if not os.path.exists(path):
        return []
    with open(path, "rb") as file:
        data = file.read()
    try:
        return read_lines(data[: data.rfind(b"\n") + 1], "a message", dict)
    except InputError as error:
        raise InputError(f"{display_path(path)}: {error}; put the file back, or name another") from error


def _summary(said):
    if "failure" in said:
        return {"failure": said["failure"]} | ({"told": {"refused": said["refused"]}} if "refused" in said else {})
    if "replies" not in said:
        return {"told": said}
    ((_, reply),) = said["replies"]
    received = {name: value for name, value in said.items() if name != "replies"}
    arrays = {name: np.ascontiguousarray(value.numpy()) for name, value in reply.items()}
    return ({"told": received} if received else {}) | {
        "arrays": {
            name: {
                "dtype": values.dtype.name,
                "shape": list(reply[name].shape),
                "bytes": values.nbytes,
                "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
            }
            for name, values in arrays.items()
        }
    }
