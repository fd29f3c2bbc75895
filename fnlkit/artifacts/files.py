"""Read and write artifacts on disk and in pipes.

The reader validates all input, and the writer never leaves an incomplete file.

An artifact is a kind with a version, named arrays, and plain JSON values.  It is stored as an npz or as a .pt.  Both are zips
of uncompressed members in one fixed layout, so that equal content gives equal bytes and every changed bit is detected.
docs/files.md describes the layout.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from fnlkit.artifacts import packing
from fnlkit.artifacts.paths import display_path, one_line
from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import pt as files_pt
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.artifacts.safe.intake import form, slurp
from fnlkit.artifacts.saving import write_bytes
from fnlkit.artifacts.sheets import parse_csv
from fnlkit.artifacts.stored import Rows
from fnlkit.core.errors import InputError, list_names, nearest
from fnlkit.core.spec import Spec, parse

Value = TypeVar("Value")


MAX_BYTES = 4 * 2**30 - 1
MAX_META = 16 * 2**20
# The newest version of every kind that this fnlkit reads.
KINDS = {
    "fnlkit.federation": 1,
    "fnlkit.run": 1,
    "fnlkit.evaluation": 1,
    "fnlkit.state": 1,
    "fnlkit.embeddings": 1,  # written by versions 0.2 and 0.3
}
RETIRED = ("fnlkit.heads", "fnlkit.judged", "fnlkit.steps", "fnlkit.sums")  # of real sites, in versions 0.2 and 0.3
_WRITERS = {"fnlkit.federation": ", which `fnlkit partition` writes", "fnlkit.run": ", which `fnlkit train` writes"}
RESERVED = ("kind", "meta", "sha256")
PLAIN = "a plain npz without {!r}, not a file that fnlkit wrote; name it where the command reads a data set"
_NAME = re.compile(r"[A-Za-z0-9_./-]{0,199}[A-Za-z0-9_-]")


@dataclass
class Artifact:
    """Content of a file of fnlkit.

    Attributes
    ----------
    kind : str
        Name and version, for example ``fnlkit.federation/1``.
    arrays : dict of str to numpy.ndarray or torch.Tensor
        Numbers, booleans or (npz only) texts.
    meta : dict
        Plain JSON values; ``meta["provenance"]`` lists the commands that created the file.
    """

    kind: str
    arrays: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)


def read(
    source: str | os.PathLike[str] | bytes,
    *,
    kinds: str | Iterable[str] | None = None,
    max_bytes: int = MAX_BYTES,
    values: bool = True,
) -> Artifact:
    """Read the artifact stored in a file, a pipe or bytes.

    The content decides between npz and .pt.  Sizes are checked before memory is allocated, pickles are never executed, and the
    bytes must be exactly those that `write` creates: any flipped bit raises an error.

    Parameters
    ----------
    source : str, os.PathLike or bytes
        A path, ``-`` for stdin (which is read completely first), or the bytes.
    kinds : str or iterable of str, optional
        Accepted kinds, for example ``fnlkit.federation``.  Default: all known kinds.
    max_bytes : int
        Maximum file size in bytes.
    values : bool
        If False, the arrays of a .pt are not converted to torch tensors: torch is not imported, and each is a
        `fnlkit.artifacts.safe.pt.Tensor`.

    Returns
    -------
    Artifact
        With NumPy arrays from an npz, or torch tensors on the CPU from a .pt.

    Raises
    ------
    InputError
        One line that names the file, for any defect.
    """
    name, raw = slurp(source, max_bytes)
    with one_line(name):
        if form(raw) not in ("npz", "pt") or any(raw[8:10]):  # members of a file of fnlkit are not compressed
            raise InputError("not a file of fnlkit; `fnlkit.partition(FILE)` makes one of a table, a folder or an npz")
        torch_file = form(raw) == "pt"
        members = files_zip.members(raw, max_members=files_pt.MAX_MEMBERS if torch_file else 64, max_bytes=max_bytes)
        kind, text, digest, arrays = (_from_pt if torch_file else _from_npz)(raw, members)
        check_kind(kind, kinds)
        packing.check_layout(raw, members)
        if content_digest(kind, text, arrays) != digest:
            raise InputError("damaged: the SHA-256 of the content does not match; create the file again")
        if values and torch_file:
            arrays = {name: value.to_torch() for name, value in arrays.items()}
        return Artifact(kind, arrays, parse_meta(text))


def _from_npz(raw, members):
    """Read kind, meta as text, SHA-256 and arrays of an npz."""
    arrays = files_npz.arrays(raw, members)
    return *take_reserved(arrays), arrays


def take_reserved(arrays: dict[str, Any]) -> list[str]:
    """Remove kind, meta and SHA-256 from the arrays of an npz, and return these texts."""
    missing = [key for key in RESERVED if not isinstance(arrays.get(key), np.ndarray)]
    if missing:
        raise InputError(PLAIN.format(missing[0]))
    return [files_npz.text(arrays.pop(key), key) for key in RESERVED]


def _from_pt(raw, members):
    tree = files_pt.load(raw, members)
    tensors = tree.get("tensors") if isinstance(tree, dict) and set(tree) == {*RESERVED, "tensors"} else None
    if not isinstance(tensors, dict) or not all(isinstance(value, files_pt.Tensor) for value in tensors.values()):
        raise InputError("a .pt that fnlkit did not write (expected kind, meta, sha256 and a dict of tensors)")
    texts = [tree[key] for key in RESERVED]
    if not all(type(text) is str for text in (*texts, *tensors)):
        raise InputError("a .pt that fnlkit did not write (kind, meta and sha256 must be texts)")
    return *texts, tensors


def read_arrays(source: str | os.PathLike[str] | bytes, *, max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """Read the arrays of a user's file: npz, npy, .pt or csv.

    A .pt must be a dict of tensors or arrays, and is not executed.

    Parameters
    ----------
    source : str, os.PathLike or bytes
    max_bytes : int

    Returns
    -------
    dict of str to numpy.ndarray
        A csv with a header line gives one entry per column.  An npy, and a csv without a header line, give one entry ``array``.

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    name, raw = slurp(source, max_bytes)
    with one_line(name):
        if form(raw) == "pt":
            members = files_zip.members(raw, max_members=files_pt.MAX_MEMBERS, max_bytes=max_bytes)
            return files_pt.leaves(files_pt.load(raw, members), limit=8 * len(raw))
        if form(raw) == "npz":
            return files_npz.arrays(raw, files_zip.members(raw, max_members=64, max_bytes=max_bytes, deflate=True))
        if form(raw) == "npy":
            return {"array": files_npz.array(raw, "array")}
        if form(raw) == "pickle":
            raise InputError("a bare pickle (or a .pt from before torch 1.6); save it again with a current torch.save")
        return parse_csv(bytes(raw))


def read_text(source: str | os.PathLike[str], *, max_bytes: int = 2**24) -> str:
    """Read the text of a regular file (UTF-8, with or without byte order mark).

    Parameters
    ----------
    source : str or os.PathLike
    max_bytes : int

    Raises
    ------
    InputError
        One line that names the file, if it is a pipe, a device, a folder, too large, or not text.
    """
    name, raw = slurp(os.fspath(source), max_bytes)
    try:
        return bytes(raw).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not UTF-8 text: {error.reason} at byte {error.start:,}") from error


def pick(arrays: Mapping[str, Value], key: str, source: str | os.PathLike[str]) -> Value:
    """Select the array `key` of a user's file; without a key, the only array.

    Raises
    ------
    InputError
        If the key is missing or ambiguous.  The message lists the arrays.
    """
    names = list_names(ascii(name)[1:-1] for name in sorted(arrays))
    if key and key not in arrays:
        raise InputError(f"{display_path(source)}: has no array {key!r}{nearest(key, arrays)}; the arrays are {names}")
    if not key and len(arrays) != 1:
        raise InputError(f"{display_path(source)}: contains several arrays; add key=NAME with one of {names}")
    return arrays[key] if key else next(iter(arrays.values()))


def write(artifact: Artifact, target: str | os.PathLike[str], *, format: str = "npz") -> None:
    """Write an artifact completely or not at all.

    The bytes are written to a temporary file in the same folder and synced, and the file is renamed.  Temporary files that
    killed writers left in this folder are removed.  A device (/dev/null) is written directly.

    Parameters
    ----------
    artifact : Artifact
    target : str or os.PathLike
        A path, or ``-`` for stdout.
    format : {"npz", "pt"}

    Raises
    ------
    InputError
        If the folder does not exist, the target is a folder, or the target is the file of the artifact's data set.
    OSError
        If the machine cannot store the file (disk full, read-only).
    """
    must_spare_data(target, artifact.meta.get("dataset"))
    write_bytes(encode(artifact, format=format), target)


def must_spare_data(target: str | os.PathLike[str] | None, dataset: str | None) -> None:
    """Raise InputError if a file that is to be written is the file of a data set, given by its name or spec."""
    if target is not None and os.path.isfile(target):
        for path in _words_of(dataset):
            if os.path.isfile(path) and os.path.samefile(path, target):
                raise InputError(f"{display_path(target)}: contains the data set and would be overwritten; choose another name")


def _words_of(dataset):
    """List the name of a data set and the texts in its spec, which can be paths of its files."""
    try:
        values = parse(dataset, "`dataset`").parameters.values() if isinstance(dataset, str) else ()
    except InputError:  # a path with characters of a spec
        values = ()
    words = [word for value in values if isinstance(value, (str, Spec)) for word in _words_of(str(value))]
    return [dataset, *words] if isinstance(dataset, str) else []


def encode(artifact: Artifact, *, format: str = "npz") -> Iterable[bytes | memoryview]:
    """Encode an artifact as buffers of a file; equal content gives equal bytes.

    Arrays that are read by rows (fnlkit.artifacts.stored) are never completely in memory; only an npz supports them.

    Parameters
    ----------
    artifact : Artifact
    format : {"npz", "pt"}

    Returns
    -------
    iterable of bytes or memoryview

    Raises
    ------
    ValueError
        If an array has a dtype or a name that no reader accepts.
    """
    check_kind(artifact.kind, None)
    text = json.dumps(artifact.meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_META:
        raise ValueError(f"`meta` has {len(text):,} characters as JSON, more than {MAX_META:,}; put large values into arrays")
    for name in artifact.arrays:
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or ".." in name or name.startswith("/"):
            raise ValueError(f"array name {name!r}: use letters, digits and _ . / - only")
        if name in RESERVED:
            raise ValueError(f"array name {name!r} is reserved by the file format")
    if format == "pt":
        tensors = packing.tensors(artifact.arrays)
        digest = content_digest(artifact.kind, text, tensors)
        return packing.chunks(packing.pt(artifact.kind, text, digest, tensors))
    if format != "npz":
        raise ValueError(f"format {format!r}: write npz or pt")
    if len(artifact.arrays) > 61:
        raise ValueError(f"{len(artifact.arrays)} arrays: an npz of fnlkit contains at most 61; write a .pt")
    arrays = {name: packing.plain(value, name) for name, value in artifact.arrays.items()}
    head = {
        "kind": np.array(artifact.kind),
        "meta": np.array(text),
        "sha256": np.array(content_digest(artifact.kind, text, arrays)),
    }
    members = [(f"{name}.npy", packing.npy(value)) for name, value in {**head, **arrays}.items()]
    # Arrays that are read by rows can have any length, because `open_artifact` reads them by rows again. All others are read
    # completely.
    return packing.chunks(members, wide=any(isinstance(value, Rows) for value in arrays.values()))


def digest(artifact: Artifact) -> str:
    """Identify an artifact by the SHA-256 of its content, in 64 hexadecimal digits.

    The npz and the .pt of an artifact have the same SHA-256.

    Parameters
    ----------
    artifact : Artifact
    """
    text = json.dumps(artifact.meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return content_digest(artifact.kind, text, artifact.arrays)


def check_kind(kind: str, kinds: str | Iterable[str] | None) -> None:
    base, slash, version = kind.partition("/")
    if not slash or not version.isdecimal() or len(version) > 6 or not version.isascii():
        raise InputError(f"the kind is {ascii(kind[:60])}; expected for example fnlkit.federation/1")
    if base in RETIRED:
        raise InputError(f"{kind} is of fnlkit 0.2 or 0.3, and no command reads it; repeat the work of the sites")
    if base not in KINDS:
        raise InputError(f"the kind {ascii(base[:60])} is unknown{nearest(base, KINDS)}; known: {list_names(KINDS)}")
    if int(version) > KINDS[base]:
        raise InputError(
            f"written by a newer fnlkit: {kind}, and this one reads up to {base}/{KINDS[base]}; install a newer fnlkit"
        )
    if int(version) < 1:
        raise InputError(f"the kind is {kind}; versions start at 1")
    if kinds is not None:
        wanted = [text.partition("/")[0] for text in ([kinds] if isinstance(kinds, str) else kinds)]
        if base not in wanted:
            raise InputError(f"contains {kind}; this command needs {' or '.join(b + _WRITERS.get(b, '') for b in wanted)}")


def parse_meta(text: str) -> dict[str, Any]:
    if len(text) > MAX_META:
        raise InputError(f"`meta` has {len(text):,} characters, more than {MAX_META:,}")
    meta = json.loads(text, parse_constant=_no_constant)
    if not isinstance(meta, dict):
        raise InputError(f"`meta` is a {type(meta).__name__}; expected a JSON object")
    return meta


def _no_constant(word):
    raise InputError(f"`meta` contains {word}, which is not JSON")


def content_digest(kind: str, text: str, arrays: Mapping[str, Any]) -> str:
    """Identify an artifact by the SHA-256 of its kind, meta and arrays.

    For every array in order of the names, it covers name, type, shape and little-endian C-order bytes.
    """
    total = hashlib.sha256(f"{kind}\0{text}\0".encode())
    for name in sorted(arrays):
        value = arrays[name]
        if isinstance(value, files_pt.Tensor) or hasattr(value, "untyped_storage"):
            tensor = files_pt.Tensor.of(value)
            what, data = tensor.dtype, [tensor.data]
        else:
            value = packing.plain(value, name)
            what, data = value.dtype.name if value.dtype.kind != "U" else value.dtype.str, packing.raw_blocks(value)
        total.update(f"{name}\0{what}\0{tuple(value.shape)}\0".encode())
        for part in data:
            total.update(part)
    return total.hexdigest()
