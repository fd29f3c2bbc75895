"""Ledger: a text file that records permanently which labels were released.

A release discloses labels, or models that were trained with protected updates (`updates`), and costs a certain epsilon.

Each line is one JSON object and one release.  A release is identified by all facts that determine its draws: a
resumed or repeated run is the same release, and a run with another seed is another release, even if both released the same
values.  The ledger contains positions of samples, but no labels.  Every line contains a SHA-256 of itself and the previous
line.
"""

import base64
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from filelock import FileLock

from fnlkit.artifacts import saving
from fnlkit.artifacts.paths import display_path
from fnlkit.core.errors import InputError

Line = TypeVar("Line")

KIND = "fnlkit.ledger/1"
MAX_BYTES, MAX_SAMPLES = 2**28, 2**30
PATIENCE = 60  # seconds to wait for another process that has locked the ledger


class Release(NamedTuple):
    """One release of labels of some samples of a data set.

    Attributes
    ----------
    id : str
        Hash of all facts that determine the draws and counts.
    epsilon : float or None
        Of randomized response; None if exact counts were sent without any bound.
    classes : int
    data : str
        Checksum of the data set.
    held : bool (n,)
        Samples with released labels, by position in the training set.
    seed, round : int
        Seed and round of the run, for information.
    updates : dict or None
        Protected updates of a run of version 0.3; None for labels.
    key : str
        Fingerprint of the privacy key for the draws; "" if the draws depend on the seed, as in old runs.
    clients : str
        Hash of the partition into clients; "" in old ledgers.
    """

    id: str
    epsilon: float | None
    classes: int
    data: str
    held: np.ndarray
    seed: int = 0
    round: int = 0
    updates: dict[str, Any] | None = None
    key: str = ""
    clients: str = ""


def _hash_facts(facts, *arrays):
    total = hashlib.sha256(json.dumps([KIND, *facts]).encode())
    for array in arrays:
        array = np.ascontiguousarray(array, np.int64)
        total.update(f"{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()[:32]


def release(
    *,
    seed: int,
    round: int,
    epsilon: float | None,
    classes: int,
    data: str,
    given: np.ndarray,
    offsets: np.ndarray,
    indices: np.ndarray,
    key: str = "",
) -> Release:
    """Make the Release of a run's labels.

    Its `id` is a hash of all facts that determine the draws and counts, and `clients` a hash of the partition into clients.

    Parameters
    ----------
    seed, round : int
        Seed of the run, and the communication round in which labels were released.
    epsilon, classes, data
        As in `Release`.
    given : int64 (n,)
    offsets, indices : int64
        The clients, as in a federation.
    key : str
        Fingerprint of the privacy key; "" if draws depend on the seed.
    """
    held = np.zeros(len(given), bool)
    held[np.asarray(indices)] = True
    name = _hash_facts([int(seed), int(round), epsilon, *([key] if key else [])], given, offsets, indices)
    clients = _hash_facts(["clients"], offsets, indices)
    return Release(name, epsilon, int(classes), data, held, int(seed), int(round), None, key, clients)


def read_ledger(path: str | os.PathLike[str]) -> list[Release]:
    """Read the Releases in a ledger in chronological order; [] if there is no file.

    Raises
    ------
    InputError
        If the file is not a ledger or was edited.
    """
    _must_be_a_file(path)
    try:
        with open(path, "rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InputError(f"ledger {display_path(path)}: {error.strerror}; name another with `ledger`") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"ledger {display_path(path)}: larger than {MAX_BYTES:,} bytes; name a ledger with `ledger`")
    try:
        return read_lines(data, "a release", _unpack)
    except InputError as error:
        raise InputError(
            f"ledger {display_path(path)}: {error}, so that the total cannot be computed: restore the file, or name "
            "another with `ledger`"
        ) from error


def read_lines(data: bytes, what: str, unpack: Callable[[dict[str, Any]], Line]) -> list[Line]:
    """Read each line of a ledger by `unpack`.

    Raises
    ------
    InputError
        Names the first line that was changed, or that is missing before another line, as no `what`.
    """
    entries, before = [], ""
    for number, line in enumerate(data.splitlines(), 1):
        try:
            entry = json.loads(line)
            if entry["sha256"] != hash_line(before, {name: value for name, value in entry.items() if name != "sha256"}):
                raise ValueError("the checksum does not match")
            entries.append(unpack(entry))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, MemoryError, zlib.error) as error:
            raise InputError(f"line {number} is not {what} that fnlkit wrote ({error})") from error
        before = entry["sha256"]
    return entries


def _must_be_a_file(path):
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"ledger {display_path(path)}: is not a regular file; name another with `ledger`")


def commit(path: str | os.PathLike[str], made: Release) -> list[Release]:
    """Add a Release of its data set to a ledger unless present, and return all releases in the file.

    When this function returns, the release is on the disk; call it before any data is sent.  Protected updates with more rounds
    replace their earlier entry.

    Parameters
    ----------
    path : str or os.PathLike
        Missing folders are created.
    made : Release

    Raises
    ------
    InputError
        If the file cannot be read or written.
    """
    _must_be_a_file(path)
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        lock = f"{os.path.realpath(path)}.lock"
        open(lock, "ab").close()  # raises if FileLock would retry forever
        with FileLock(lock, timeout=PATIENCE):
            known = read_ledger(path)
            if any((other.id, other.data) == (made.id, made.data) for other in known):
                return known
            known.append(made)
            saving.write_bytes([_text(known)], path)
            return known
    except OSError as error:
        reason = error.strerror or error
        raise InputError(
            f"ledger {display_path(path)}: {reason}; labels and updates are sent only if the ledger can be written: name "
            "another file with `ledger`"
        ) from error


def together(releases: Iterable[Release], data: str) -> list[Release]:
    """Select all releases of the sample with the highest total epsilon.

    Releases of a sample add up over all federations and labels.

    Parameters
    ----------
    releases : iterable of Release
        Duplicates count once.
    data : str
        Checksum of the data set; releases of other data are ignored.
    """
    ours = list({entry.id: entry for entry in releases if entry.data == data and entry.updates is None}.values())
    spent = np.zeros(max((len(entry.held) for entry in ours), default=0))
    for entry in ours:
        spent[: len(entry.held)][entry.held] += math.inf if entry.epsilon is None else entry.epsilon
    if not spent.any():
        return []
    sample = int(spent.argmax())
    return [entry for entry in ours if sample < len(entry.held) and entry.held[sample]]


def _text(releases):
    lines, before = [], ""
    for entry in releases:
        body = _pack(entry)
        before = hash_line(before, body)
        lines.append(json.dumps({**body, "sha256": before}))
    return "".join(f"{line}\n" for line in lines).encode()


def hash_line(before: str, body: dict[str, Any]) -> str:
    """Compute the SHA-256 of a line, which also depends on the hash of the previous line, "" for the first.

    Parameters
    ----------
    before : str
    body : dict
        The line without its hash.
    """
    return hashlib.sha256((before + json.dumps(body, sort_keys=True)).encode()).hexdigest()


def _pack(line):
    bits = zlib.compress(np.packbits(line.held).tobytes(), 9)
    return {
        "kind": KIND,
        "release": line.id,
        "epsilon": line.epsilon,
        "classes": line.classes,
        "data": line.data,
        "samples": len(line.held),
        "held": base64.b64encode(bits).decode(),
        "seed": line.seed,
        "round": line.round,
        **({} if line.updates is None else {"updates": line.updates}),
        **({"key": line.key} if line.key else {}),
        **({"clients": line.clients} if line.clients else {}),
    }


def _unpack(body):
    samples, epsilon = body["samples"], body["epsilon"]
    if body["kind"] != KIND:
        raise ValueError(f"the kind is {body['kind']!r}")
    if type(samples) is not int or not 0 <= samples <= MAX_SAMPLES:
        raise ValueError(f"`samples` is {samples!r}")
    if epsilon is not None and not (isinstance(epsilon, int | float) and 0 < epsilon < math.inf):
        raise ValueError(f"epsilon is {epsilon!r}")
    length = -(-samples // 8)
    bits = zlib.decompressobj().decompress(base64.b64decode(body["held"], validate=True), length + 1)
    if len(bits) != length:
        raise ValueError(f"`held` has {len(bits)} bytes for {samples} samples")
    held = np.unpackbits(np.frombuffer(bits, np.uint8), count=samples).astype(bool)
    numbers = [int(body[name]) for name in ("classes", "seed", "round")]
    updates = body.get("updates")
    if updates is not None and not (isinstance(updates, dict) and type(updates["rounds"]) is int):
        raise ValueError(f"`updates` is {str(updates)[:60]!r}")
    names = [str(body.get(name, "")) for name in ("key", "clients")]
    return Release(str(body["release"]), epsilon, numbers[0], str(body["data"]), held, *numbers[1:], updates, *names)
