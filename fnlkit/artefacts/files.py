"""Artefacts on disk and in pipes: one reader that trusts nothing, one writer that leaves nothing half done.

An artefact is a kind with a version, named arrays, and plain JSON values.  It is stored as an npz or as a .pt; both are
zips of uncompressed members in one fixed layout, so that equal content gives equal bytes and every changed bit is
found.
docs/files.md describes the layout.
"""

import hashlib
import json
import os
import re
from dataclasses import dataclass, field

import numpy as np

from fnlkit.artefacts import npz as files_npz
from fnlkit.artefacts import zip as files_zip
from fnlkit.artefacts.intake import slurp
from fnlkit.artefacts.paths import one_line, shown
from fnlkit.artefacts.saving import write_bytes
from fnlkit.artefacts.stored import Rows
from fnlkit.errors import InputError, nearest

MAX_BYTES = 4 * 2**30 - 1
MAX_META = 16 * 2**20
# The newest version of every kind that this fnlkit reads and writes.
KINDS = {
    "fnlkit.federation": 1,
    "fnlkit.run": 1,
    "fnlkit.embeddings": 1,
    "fnlkit.probabilities": 1,
    "fnlkit.evaluation": 1,
    "fnlkit.model": 1,
    "fnlkit.state": 1,
}
RESERVED = ("kind", "meta", "sha256")
PLAIN = "a plain npz without {!r}, not a file of fnlkit; data of your own is read by --dataset PATH.npz"
_NAME = re.compile(r"[A-Za-z0-9_./-]{0,199}[A-Za-z0-9_-]")


@dataclass
class Artefact:
    """What every file of fnlkit holds.

    Attributes
    ----------
    kind : str
        Name and version, for example ``fnlkit.federation/1``.
    arrays : dict of str to numpy.ndarray or torch.Tensor
        Numbers, booleans or (npz only) texts.
    meta : dict
        Plain JSON values; ``meta["provenance"]`` lists the commands that made the file.
    """

    kind: str
    arrays: dict = field(default_factory=dict)
    meta: dict = field(default_factory=dict)


def read(source, *, kinds=None, max_bytes=MAX_BYTES):
    """Return the artefact stored in a file, a pipe or bytes.

    Npz and .pt are told apart by content.  Nothing is allocated before its size is checked, nothing is unpickled, and the
    bytes must be exactly those that `write` makes: a flipped bit anywhere is refused.

    Parameters
    ----------
    source : str, os.PathLike or bytes
        A path, ``-`` for stdin (read to its end first), or the bytes themselves.
    kinds : str or iterable of str, optional
        Names that are acceptable, for example ``fnlkit.federation``; None accepts every known kind.
    max_bytes : int
        Larger files are refused, in bytes.

    Returns
    -------
    Artefact
        With numpy arrays from an npz, torch tensors on the CPU from a .pt.

    Raises
    ------
    InputError
        One line that names the file, whatever is wrong with it.
    """
    name, raw = slurp(source, max_bytes)
    with one_line(name):
        if files_zip.looks_like(raw) and files_zip.is_torch(raw):
            from fnlkit.artefacts import pt as files_pt

            members = files_zip.members(raw, max_members=files_pt.MAX_MEMBERS, max_bytes=max_bytes)
            tree, tensors = files_pt.symbols(members)
            kind, text, digest = files_pt.header(tree)
            check_kind(kind, kinds)
            files_zip.check_layout(raw, members)
            arrays = files_pt.load(raw, tree, tensors)
        elif files_zip.looks_like(raw):
            members = files_zip.members(raw, max_members=64, max_bytes=max_bytes)
            arrays = files_npz.arrays(members)
            missing = [key for key in RESERVED if key not in arrays]
            if missing:
                raise InputError(PLAIN.format(missing[0]))
            kind, text, digest = (files_npz.text(arrays.pop(key), key) for key in RESERVED)
            check_kind(kind, kinds)
            files_zip.check_layout(raw, members)
        else:
            raise InputError(f"not a file of fnlkit (an npz or .pt starts with PK, this with {bytes(raw[:4])!r})")
        if content_digest(kind, text, arrays) != digest:
            raise InputError("damaged: the SHA-256 over its content does not match; make the file again")
        return Artefact(kind, arrays, parsed_meta(text))


def read_arrays(source, *, max_bytes=MAX_BYTES):
    """Return the arrays of a file of the user's: npz, npy, .pt (a dict of tensors or arrays, not executed) or csv.

    Parameters
    ----------
    source : str, os.PathLike or bytes
    max_bytes : int

    Returns
    -------
    dict of str to numpy.ndarray
        An npy, and a csv without a header line, give one entry called ``array``; a csv with one gives an entry a
        column.

    Raises
    ------
    InputError
        One line that names the file.
    """
    name, raw = slurp(source, max_bytes)
    with one_line(name):
        if files_zip.looks_like(raw) and files_zip.is_torch(raw):
            from fnlkit.artefacts import pt as files_pt

            members = files_zip.members(raw, max_members=files_pt.MAX_MEMBERS, max_bytes=max_bytes)
            return files_pt.foreign(*files_pt.symbols(members))
        if files_zip.looks_like(raw):
            return files_npz.arrays(files_zip.members(raw, max_members=64, max_bytes=max_bytes, deflate=True))
        if bytes(raw[:6]) == b"\x93NUMPY":
            return {"array": files_npz.array(raw, "array")}
        if bytes(raw[:2]) in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
            raise InputError("a bare pickle (or a .pt of the time before torch 1.6); save it again with a current torch.save")
        return files_npz.csv(bytes(raw))


def read_text(source, *, max_bytes=2**24):
    """Return the text of a regular file (UTF-8, with or without its mark).

    Parameters
    ----------
    source : str or os.PathLike
    max_bytes : int

    Raises
    ------
    InputError
        One line that names the file, for a pipe, a device, a folder, a file that is too large, or bytes that are no text.
    """
    name, raw = slurp(os.fspath(source), max_bytes)
    try:
        return bytes(raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: no text in UTF-8: {error.reason} at byte {error.start:,}") from error


def pick(arrays, key, source):
    """Return the array of a user's file that `key` names; without a key, its only one.

    Raises
    ------
    InputError
        Naming the arrays that there are.
    """
    names = ", ".join(ascii(name)[1:-1] for name in sorted(arrays)[:20])
    if key and key not in arrays:
        raise InputError(f"{shown(source)}: has no array {key!r}{nearest(key, arrays)}; it has: {names}")
    if not key and len(arrays) != 1:
        raise InputError(f"{shown(source)}: holds several arrays; add key=NAME, one of: {names}")
    return arrays[key] if key else next(iter(arrays.values()))


def write(artefact, target, *, format="npz"):
    """Write an artefact: complete under its name, or not at all.

    The bytes go to a temporary name in the same folder, are synced, and take the final name in one step; temporaries
    that
    a killed writer left there are removed.  A device (/dev/null) is written in place.

    Parameters
    ----------
    artefact : Artefact
    target : str or os.PathLike
        A path, or ``-`` for stdout.
    format : {"npz", "pt"}

    Raises
    ------
    InputError
        When the folder does not exist or the target is a folder.
    OSError
        When the machine cannot store it (disk full, read-only).
    """
    write_bytes(encode(artefact, format=format), target)


def encode(artefact, *, format="npz"):
    """Return the file of an artefact as buffers, one after the other; equal content gives equal bytes.

    Arrays that are read by rows (fnlkit.artefacts.stored) are never in memory whole; only an npz takes them.

    Parameters
    ----------
    artefact : Artefact
    format : {"npz", "pt"}

    Returns
    -------
    iterable of bytes or memoryview

    Raises
    ------
    ValueError
        When an array has a kind of number, or a name, that no reader would accept.
    """
    check_kind(artefact.kind, None)
    text = json.dumps(artefact.meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_META:
        raise ValueError(f"`meta` has {len(text):,} characters as JSON, more than {MAX_META:,}; put large values into arrays")
    for name in artefact.arrays:
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or ".." in name or name.startswith("/"):
            raise ValueError(f"array name {name!r}: use letters, digits and _ . / - only")
        if name in RESERVED:
            raise ValueError(f"array name {name!r} is taken by the file format")
    if format == "pt":
        from fnlkit.artefacts import pt as files_pt

        tensors = files_pt.tensors(artefact.arrays)
        digest = content_digest(artefact.kind, text, tensors)
        return files_zip.chunks(files_pt.encode(artefact.kind, text, digest, tensors))
    if format != "npz":
        raise ValueError(f"format {format!r}: write npz or pt")
    if len(artefact.arrays) > 61:
        raise ValueError(f"{len(artefact.arrays)} arrays: an npz of fnlkit holds at most 61; write a .pt")
    arrays = {name: files_npz.plain(value, name) for name, value in artefact.arrays.items()}
    head = {
        "kind": np.array(artefact.kind),
        "meta": np.array(text),
        "sha256": np.array(content_digest(artefact.kind, text, arrays)),
    }
    members = [(f"{name}.npy", files_npz.encode(value)) for name, value in {**head, **arrays}.items()]
    # What is read by rows is read so again (`open_artefact`), at any length; everything else is read whole.
    return files_zip.chunks(members, wide=any(isinstance(value, Rows) for value in arrays.values()))


def digest(artefact):
    """Return the SHA-256 over an artefact's content as 64 hexadecimal digits; the same for npz and .pt.

    Parameters
    ----------
    artefact : Artefact
    """
    text = json.dumps(artefact.meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return content_digest(artefact.kind, text, artefact.arrays)


def check_kind(kind, kinds):
    base, slash, version = kind.partition("/")
    if not slash or not version.isdecimal() or len(version) > 6 or not version.isascii():
        raise InputError(f"its kind is {ascii(kind[:60])}; expected for example fnlkit.federation/1")
    if base not in KINDS:
        raise InputError(f"its kind {ascii(base[:60])} is unknown{nearest(base, KINDS)}; known: {', '.join(KINDS)}")
    if int(version) > KINDS[base]:
        raise InputError(
            f"made by a newer fnlkit: it is {kind}, this fnlkit reads up to {base}/{KINDS[base]}; install a newer fnlkit"
        )
    if int(version) < 1:
        raise InputError(f"its kind is {kind}; versions start at 1")
    if kinds is not None:
        wanted = [text.partition("/")[0] for text in ([kinds] if isinstance(kinds, str) else kinds)]
        if base not in wanted:
            raise InputError(f"holds {kind}; this command needs {' or '.join(wanted)}")


def parsed_meta(text):
    if len(text) > MAX_META:
        raise InputError(f"`meta` has {len(text):,} characters, more than {MAX_META:,}")
    meta = json.loads(text, parse_constant=_no_constant)
    if not isinstance(meta, dict):
        raise InputError(f"`meta` is a {type(meta).__name__}; expected a JSON object")
    return meta


def _no_constant(word):
    raise InputError(f"`meta` holds {word}, which is no JSON")


def content_digest(kind, text, arrays):
    """SHA-256 over kind, meta, then name, type, shape and little-endian C-order bytes of every array by name."""
    total = hashlib.sha256(f"{kind}\0{text}\0".encode())
    for name in sorted(arrays):
        value = arrays[name]
        if not hasattr(value, "detach"):
            value = files_npz.plain(value, name)
            what, data = value.dtype.name if value.dtype.kind != "U" else value.dtype.str, files_npz.raw_blocks(value)
        else:
            from fnlkit.artefacts import pt as files_pt

            what, whole = files_pt.raw_bytes(value)
            data = [whole]
        total.update(f"{name}\0{what}\0{tuple(value.shape)}\0".encode())
        for part in data:
            total.update(part)
    return total.hexdigest()
