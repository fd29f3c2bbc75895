"""Check of a site's replies against the method's declaration, and ledger of replies.

The check runs after the code that answers a message. It builds each accepted reply again from the values that it read. The
names, types, shapes and sizes are therefore as declared, and the bytes contain no other data.
"""

import errno
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from filelock import FileLock

from fnlkit.artifacts import saving
from fnlkit.artifacts.ledger import hash_line
from fnlkit.artifacts.paths import display_path
from fnlkit.errors import InputError
from fnlkit.sites.flower.secret import Terms
from fnlkit.sites.releases import Releases

KIND = "fnlkit.left/1"
CODES = (
    "failed", "input", "one-sample", "lost", "disk", "reply", "entry", "undeclared", "setup", "terms", "request", "release"
)  # fmt: skip
# Largest side of a reply whose declaration leaves the side open, such as the number of columns; or the number of samples.
MOST_SIDE = 4096
_CLASS = re.compile(r"[A-Za-z_]\w{0,60}")


class Undeclared(Exception):
    """Error: a reply contains undeclared data. The reason contains no values."""


@dataclass(frozen=True)
class Declared:
    """Declaration of the replies that a site can send.

    Attributes
    ----------
    client, samples : int
        Number of the client, and number of samples.
    arrays : dict of str to (dtype, shape)
        NumPy's name of the type and the shape, by the name of the reply.  A text among the sides allows 0 to `MOST_SIDE`
        entries, or as many as the site has samples.
    secret : fnlkit.sites.flower.secret.Terms or None
        Terms of masked updates. None if replies are not masked.
    releases : Releases
        Labels that can be released.
    gate : fnlkit.sites.gate.Gate or None
        Table of the requests that the site answers. None answers no request.
    numbers : sequence of int
        Numbers under which the site can be visited. Default: `client`. A model of an audit trains on some sites only, which are
        then counted from 0.
    """

    client: int
    samples: int
    arrays: dict[str, tuple[str, tuple[int | str, ...]]]
    secret: Terms | None = None
    releases: Releases = Releases()
    gate: object = None
    numbers: Sequence[int] = ()

    def __post_init__(self):
        if not self.numbers:
            object.__setattr__(self, "numbers", (self.client,))

    def reply(self, said: Any, run: str = "") -> dict[str, list[list[Any]]]:
        """Return the checked value of a reply to a visit.

        Raises
        ------
        Undeclared, LabelsWithheld
        """
        if not (isinstance(said, dict) and set(said) == {"replies"} and len(said["replies"]) == 1):
            raise Undeclared("it is no reply to one visit")
        (client, what) = said["replies"][0]
        if client not in self.numbers:
            raise Undeclared("it is about another client")
        if isinstance(what, tuple):
            return {"replies": [[client, failure(*what[1:3])]]}
        arrays = {name: self._array(name, value) for name, value in what.items()}
        return {"replies": [[client, self.releases.replace_released(arrays, run=run)]]}

    def _array(self, name, value):
        if name not in self.arrays:
            raise Undeclared(f"{str(name)[:40]!r} is not declared")
        dtype, shape = self.arrays[name]
        if not isinstance(value, torch.Tensor):
            raise Undeclared(f"{name!r} is no array")
        sides, most = tuple(value.shape), max(MOST_SIDE, self.samples)
        fits = len(sides) == len(shape) and all(
            side == wanted or (isinstance(wanted, str) and side <= most) for side, wanted in zip(sides, shape, strict=True)
        )
        # As at the server, a type is converted if no entry can change.
        if not fits or not torch.can_cast(value.dtype, getattr(torch, dtype)):
            found = str(value.dtype).removeprefix("torch.")
            raise Undeclared(f"{name!r} is {found} {sides}, declared {dtype} {tuple(shape)}")
        return value.to(getattr(torch, dtype))

    def hello(self) -> dict[str, Any]:
        """Return the introduction of a site: client number, number of samples and version of fnlkit."""
        return {"client": self.client, "samples": self.samples, "version": metadata.version("fnlkit")}


def failure(code: str, name: str) -> tuple[str, str, str, str]:
    """Return a failure in the form that can be sent: a code and a name of a class or a setting, no message."""
    code, name = str(code), str(name)
    return ("failure", code if code in CODES else "failed", name if _CLASS.fullmatch(name) else "Exception", "")


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
        Value of `Declared.reply` or `Declared.hello`, or {"failure": [code, name]}. If the reply was refused at this site,
        "refused" contains the reason, which is not sent.
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
    """Return the lines of a site's ledger as dicts, [] if there is no ledger.

    An incomplete last line is ignored, because its message was never sent.

    Raises
    ------
    InputError
        If a line was changed, or if a line before another line is missing.
    """
    if not os.path.exists(path):
        return []
    out, before = [], ""
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break
            try:
                entry = json.loads(line)
                body = {name: value for name, value in entry.items() if name != "sha256"}
                right = entry["sha256"] == hash_line(before, body)
            except (ValueError, KeyError, TypeError, AttributeError):
                right = False
            if not right:
                raise InputError(
                    f"{display_path(path)}: line {number} is not as fnlkit wrote it; put the file back, or name another"
                )
            out.append(entry)
            before = entry["sha256"]
    return out


def _summary(said):
    if "failure" in said:
        return {"failure": said["failure"]} | ({"told": {"refused": said["refused"]}} if "refused" in said else {})
    if "replies" not in said:
        return {"told": said}
    ((_, what),) = said["replies"]
    if isinstance(what, tuple):
        return {"failure": list(what[1:3])}
    arrays = {name: np.ascontiguousarray(value.numpy()) for name, value in what.items()}
    return {
        "arrays": {
            name: {
                "dtype": values.dtype.name,
                "shape": list(what[name].shape),
                "bytes": values.nbytes,
                "sha256": hashlib.sha256(values.tobytes()).hexdigest(),
            }
            for name, values in arrays.items()
        }
    }
