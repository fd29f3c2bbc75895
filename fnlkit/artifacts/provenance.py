"""Provenance: one record for each command that has processed a file."""

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np

from fnlkit.artifacts.display import plain
from fnlkit.core.errors import InputError
from fnlkit.core.spec import digests
from fnlkit.core.version import __version__

OLDEST = (0, 3)  # version of fnlkit; earlier ones spelled names of settings and arrays differently


def provenance(command: str, seed: int | None = None, *, fingerprint: str | None = None, **parameters: Any) -> dict[str, Any]:
    """Make the provenance record of one command; `fingerprint` identifies the job of a recipe.

    The record contains the command, all parameters that are not None, the seed, versions, and as ``own`` the SHA-256 of each
    user-defined component among the parameters.
    """
    user_code = digests(parameters.values())
    return {
        "command": command,
        "parameters": {key: value for key, value in parameters.items() if value is not None},
        "seed": seed,
        "versions": {"fnlkit": __version__, "python": platform.python_version(), "numpy": np.__version__},
        **({"own": user_code} if user_code else {}),
        **({"fingerprint": fingerprint} if fingerprint else {}),
    }


def must_be_current(meta: Mapping[str, Any]) -> None:
    """Raise InputError if a version of fnlkit before `OLDEST` wrote a file, with the command that makes it again."""
    try:
        record = meta["provenance"][-1]
        wrote, command = record["versions"]["fnlkit"], record["command"]
        old = tuple(int(part) for part in wrote.split(".")[:2]) < OLDEST
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return  # another program wrote the file
    if old:
        raise InputError(f"written by fnlkit {plain(wrote)}; create it again with `fnlkit {plain(command)}`")


def with_record(meta: Mapping[str, Any], record: dict[str, Any] | None, name: str = "provenance") -> dict[str, Any]:
    """Add a record to the list `name` in a copy of a file's metadata; None adds nothing."""
    return dict(meta) if record is None else {**meta, name: [*meta.get(name, []), record]}
