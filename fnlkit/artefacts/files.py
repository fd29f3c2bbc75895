"""Artefacts on disk and in pipes: one reader that trusts nothing, one writer that leaves nothing half done.

An artefact is a kind with a version, named arrays, and plain JSON values.  It is stored as an npz or as a .pt; both are
zips of uncompressed members in one fixed layout, so that equal content gives equal bytes and every changed bit is
found.
docs/files.md describes the layout.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fnlkit.artefacts import npz as files_npz
from fnlkit.artefacts import zip as files_zip
from fnlkit.artefacts.stored import Rows, Stored
from fnlkit.errors import InputError, nearest

MAX_BYTES = 4 * 2**30 - 1
MAX_META = 16 * 2**20
MAX_TEXT = 2**25  # of a csv, and of anything else that has no form of its own
_HEAD = 8
SMALL = 64 * 2**20  # bytes of an array of the user's that may as well be in memory
MAX_DECODED = 64 * 2**30
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
_NAME = re.compile(r"[A-Za-z0-9_./-]{0,199}[A-Za-z0-9_-]")
_RESERVED = ("kind", "meta", "sha256")
_PLAIN = "a plain npz without {!r}, not a file of fnlkit; data of your own is read by --dataset PATH.npz"
_TEMPORARY = re.compile(r"\.fnlkit-[0-9a-f]{16}\.tmp")
_STALE_SECONDS = 60


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

    Npz and .pt are told apart by content.  Nothing is allocated before its size is checked, nothing is unpickled, and
    the
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
    name, raw = _slurp(source, max_bytes)
    with _one_line(name):
        if files_zip.looks_like(raw) and files_zip.is_torch(raw):
            from fnlkit.artefacts import pt as files_pt

            members = files_zip.members(raw, max_members=files_pt.MAX_MEMBERS, max_bytes=max_bytes)
            tree, tensors = files_pt.symbols(members)
            kind, text, digest = files_pt.header(tree)
            _check_kind(kind, kinds)
            files_zip.check_layout(raw, members)
            arrays = files_pt.load(raw, tree, tensors)
        elif files_zip.looks_like(raw):
            members = files_zip.members(raw, max_members=64, max_bytes=max_bytes)
            arrays = files_npz.arrays(members)
            missing = [key for key in _RESERVED if key not in arrays]
            if missing:
                raise InputError(_PLAIN.format(missing[0]))
            kind, text, digest = (files_npz.text(arrays.pop(key), key) for key in _RESERVED)
            _check_kind(kind, kinds)
            files_zip.check_layout(raw, members)
        else:
            raise InputError(f"not a file of fnlkit (an npz or .pt starts with PK, this with {bytes(raw[:4])!r})")
        if _digest(kind, text, arrays) != digest:
            raise InputError("damaged: the SHA-256 over its content does not match; make the file again")
        return Artefact(kind, arrays, _parse_meta(text))


class Head(NamedTuple):
    """What is known of an array whose values were not read.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    """

    dtype: np.dtype
    shape: tuple


def heads(path, *, small=SMALL):
    """Return (Artefact, SHA-256) of an npz of any size: of arrays above `small` bytes no value is read, only a Head.

    The SHA-256 is what the file says; nothing was compared with it.  Whatever is not a file of more than `small` bytes, or
    no npz, is read and checked as `read` does.

    Parameters
    ----------
    path : str or os.PathLike
    small : int

    Raises
    ------
    InputError
        One line that names the file.
    """
    import mmap

    if path != "-" and os.path.isfile(path) and os.stat(path).st_size > small:
        with _one_line(shown(path)), open(path, "rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            with memoryview(mapped) as raw:
                if files_zip.looks_like(raw) and not files_zip.is_torch(raw):
                    places = files_zip.places(raw, max_members=64, max_bytes=2**50)
                    return _of_heads({p.name.removesuffix(".npy"): _head(raw, p, small) for p in places})
    artefact = read(path)
    return artefact, digest(artefact)


def _of_heads(arrays):
    missing = [key for key in _RESERVED if not isinstance(arrays.get(key), np.ndarray)]
    if missing:
        raise InputError(_PLAIN.format(missing[0]))
    kind, text, said = (files_npz.text(arrays.pop(key), key) for key in _RESERVED)
    _check_kind(kind, None)
    return Artefact(kind, arrays, _parse_meta(text)), said


def _head(raw, place, small):
    name = place.name.removesuffix(".npy")
    if place.unpacked <= (SMALL if name in _RESERVED else small):
        return files_npz.array(memoryview(np.frombuffer(files_zip.content(raw, place).data, np.uint8).copy()), name)
    dtype, shape, _, start = files_npz.header(raw[place.begin : place.begin + files_npz.MAX_HEADER + 12], name)
    if math.prod(shape) * dtype.itemsize != place.unpacked - start:
        raise InputError(f"array {name!r} announces {shape} of {dtype.name} and has {place.unpacked - start:,} bytes")
    return Head(dtype, shape)


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
    name, raw = _slurp(source, max_bytes)
    with _one_line(name):
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


def open_arrays(path, *, decoded, small=SMALL):
    """Return the arrays of an npz or npy of the user's; those above `small` bytes stay in the file and are read by rows.

    A compressed array above `small` is unpacked into a file once, at most 64 GiB of it and what the disk has; that file
    is used as long as the npz has the same size and time.

    Parameters
    ----------
    path : str or os.PathLike
    decoded : pathlib.Path
        The folder for unpacked arrays; made when it is needed.
    small : int

    Returns
    -------
    dict of str to numpy.ndarray or fnlkit.artefacts.stored.Stored

    Raises
    ------
    InputError
        One line that names the file.
    """
    import mmap

    try:
        size = os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        size = 0
    if size <= small and not _grows(path, small):
        return read_arrays(path)
    with _one_line(shown(path)), open(path, "rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        with memoryview(mapped) as raw:
            if bytes(raw[:6]) == b"\x93NUMPY":
                return {"array": _in_place(path, raw, "array", 0, size)}
            if files_zip.looks_like(raw) and not files_zip.is_torch(raw):
                # 200 times: what does not fit into memory is unpacked piece by piece, onto the disk.
                places = files_zip.places(raw, max_members=64, max_bytes=2**50, deflate=True, ratio=200)
                return {p.name.removesuffix(".npy"): _placed(path, raw, p, decoded, small) for p in places}
    return read_arrays(path)


def _grows(path, small):
    """Whether a small file is an npz whose arrays would take more than memory should."""
    if not os.path.isfile(path) or os.stat(path).st_size < 64:
        return False
    with open(path, "rb") as handle:
        raw = memoryview(handle.read(small))
    with contextlib.suppress(Exception):  # what is wrong with it is said by whoever reads it
        if files_zip.looks_like(raw) and not files_zip.is_torch(raw):
            places = files_zip.places(raw, max_members=64, max_bytes=2**50, deflate=True, ratio=200)
            return sum(place.unpacked for place in places) > small
    return False


def open_artefact(path, *, kinds, decoded, remember):
    """Return the artefact in an npz as `read` does, arrays above 64 MiB left in the file as `open_arrays` leaves them.

    Parameters
    ----------
    path : str or os.PathLike
    kinds : list of str
    decoded : pathlib.Path
    remember : callable
        ``remember(name, compute)`` returns ``compute()``, perhaps from an earlier time on this file: the check of its
        SHA-256 reads all of it.
    """
    if not os.path.isfile(path) or os.stat(path).st_size <= SMALL:
        return read(path, kinds=kinds)
    arrays = open_arrays(path, decoded=decoded)
    with _one_line(shown(path)):
        missing = [key for key in _RESERVED if key not in arrays]
        if missing:
            raise InputError(f"a file without {missing[0]!r}, no npz of fnlkit")
        kind, text, digest = (files_npz.text(arrays.pop(key), key) for key in _RESERVED)
        _check_kind(kind, kinds)
        if remember("sha256", lambda: _digest(kind, text, arrays)) != digest:
            raise InputError("damaged: the SHA-256 over its content does not match; make the file again")
        return Artefact(kind, arrays, _parse_meta(text))


def _placed(path, raw, place, decoded, small):
    """Return one array of an npz: read, left where it is, or unpacked into a file."""
    name = place.name.removesuffix(".npy")
    if not place.name.endswith(".npy"):
        raise InputError(f"member {place.name!r} is no array; an npz holds NAME.npy only")
    if place.unpacked <= small:
        data = np.frombuffer(files_zip.content(raw, place).data, np.uint8).copy()
        return files_npz.array(memoryview(data), name)
    if place.stored:
        return _in_place(path, raw, name, place.begin, place.unpacked)
    if place.unpacked > MAX_DECODED:
        raise InputError(f"array {name!r} unpacks to {place.unpacked:,} bytes; above {MAX_DECODED:,} store it uncompressed")
    found = os.stat(path)
    key = f"{os.path.realpath(path)}\0{found.st_size}\0{found.st_mtime_ns}\0{name}"
    target = decoded / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.npy"
    if not target.is_file():
        decoded.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(decoded).free
        if free < place.unpacked:
            raise InputError(
                f"array {name!r} unpacks to {place.unpacked:,} bytes, {decoded} has room for {free:,}; store it "
                "uncompressed (numpy.savez) or set FNLKIT_CACHE to a larger disk"
            )
        write_bytes(files_zip.unpacked(raw, place), target)
    with open(target, "rb") as handle:
        head = memoryview(handle.read(files_npz.MAX_HEADER + 12))
    return _in_place(target, head, name, 0, place.unpacked)


def _in_place(path, raw, name, begin, size):
    """Return an array of npy bytes in a file as Stored; `raw` holds at least its head."""
    dtype, shape, fortran, start = files_npz.header(raw[begin : begin + files_npz.MAX_HEADER + 12], name)
    if fortran or dtype.kind not in "iuf" or not shape:
        raise InputError(f"array {name!r} is {dtype.name} {shape}; large arrays must hold numbers in C order")
    if math.prod(shape) * dtype.itemsize != size - start:
        raise InputError(f"array {name!r} announces {shape} of {dtype.name} and has {size - start:,} bytes")
    return Stored(os.fspath(path), begin + start, dtype, shape)


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
    name, raw = _slurp(os.fspath(source), max_bytes)
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
    _check_kind(artefact.kind, None)
    text = json.dumps(artefact.meta, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_META:
        raise ValueError(f"`meta` has {len(text):,} characters as JSON, more than {MAX_META:,}; put large values into arrays")
    for name in artefact.arrays:
        if not (isinstance(name, str) and _NAME.fullmatch(name)) or ".." in name or name.startswith("/"):
            raise ValueError(f"array name {name!r}: use letters, digits and _ . / - only")
        if name in _RESERVED:
            raise ValueError(f"array name {name!r} is taken by the file format")
    if format == "pt":
        from fnlkit.artefacts import pt as files_pt

        tensors = files_pt.tensors(artefact.arrays)
        digest = _digest(artefact.kind, text, tensors)
        return files_zip.chunks(files_pt.encode(artefact.kind, text, digest, tensors))
    if format != "npz":
        raise ValueError(f"format {format!r}: write npz or pt")
    if len(artefact.arrays) > 61:
        raise ValueError(f"{len(artefact.arrays)} arrays: an npz of fnlkit holds at most 61; write a .pt")
    arrays = {name: files_npz.plain(value, name) for name, value in artefact.arrays.items()}
    head = {
        "kind": np.array(artefact.kind),
        "meta": np.array(text),
        "sha256": np.array(_digest(artefact.kind, text, arrays)),
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
    return _digest(artefact.kind, text, artefact.arrays)


def write_bytes(chunks, target):
    """Write buffers to a path so that a reader finds the old file or the whole new one; ``-`` is stdout.

    Parameters
    ----------
    chunks : iterable of bytes-like
    target : str or os.PathLike
    """
    if isinstance(target, str) and target == "-":
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    # Through a symbolic link to the file it names, as every other tool writes.
    path = os.path.realpath(target)
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise InputError(f"{shown(target)}: is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise InputError(f"{shown(target)}: the folder {shown(folder)} does not exist; make it first")
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    try:
        if old is not None and not stat.S_ISREG(old.st_mode):
            with open(path, "wb") as handle:
                for chunk in chunks:
                    handle.write(chunk)
            return
        _sweep(folder)
        _replace(chunks, path, folder, old)
    except OSError as error:
        # The user knows the target, not our temporary name.
        raise OSError(error.errno, error.strerror or str(error), os.fspath(target)) from error


def _replace(chunks, path, folder, old):
    temporary = os.path.join(folder, f".fnlkit-{secrets.token_hex(8)}.tmp")
    try:
        # Within the try: Ctrl-C can come while the file is being made, before we have its descriptor.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
        with open(descriptor, "wb", buffering=0) as handle:
            _lock(handle)
            if old is not None:
                with contextlib.suppress(OSError):
                    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            for chunk in chunks:
                rest = memoryview(chunk).cast("B")
                while len(rest):
                    rest = rest[handle.write(rest) :]
            os.fsync(descriptor)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    with contextlib.suppress(OSError):  # some file systems refuse to sync a folder; the file itself is synced
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _lock(handle):
    """Hold the temporary for as long as this process lives; return False when another one holds it."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:
        pass
    except OSError:
        return False
    return True


def _sweep(folder):
    """Remove temporaries whose writer is dead: nobody holds their lock and they are not brand new."""
    import time

    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not _TEMPORARY.fullmatch(entry.name):
                continue
            with contextlib.suppress(OSError):
                if time.time() - entry.stat(follow_symlinks=False).st_mtime < _STALE_SECONDS:
                    continue
                with open(entry.path, "rb") as handle:
                    if _lock(handle):
                        os.unlink(entry.path)


def _slurp(source, max_bytes):
    """Return what to call the source, and all its bytes."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        name, raw = shown(source), memoryview(source).cast("B")
        if len(raw) > max_bytes:
            raise InputError(f"{name}: {len(raw):,} bytes, more than the limit of {max_bytes:,}")
        return name, raw
    if isinstance(source, str) and source == "-":
        raw = sys.stdin.buffer.read(_HEAD)
        if _form(raw) or len(raw) < _HEAD:
            raw += sys.stdin.buffer.read(max_bytes + 1 - len(raw))
        else:  # text, or an endless device
            raw += sys.stdin.buffer.read(min(max_bytes, MAX_TEXT) + 1 - len(raw))
            if len(raw) > MAX_TEXT:
                raise InputError(f"stdin: neither npz, npy nor .pt, and more than {MAX_TEXT:,} bytes of anything else")
        if not raw:
            raise InputError("stdin: the pipe is empty; did the command before this one fail?")
        if len(raw) > max_bytes:
            raise InputError(f"stdin: more than the limit of {max_bytes:,} bytes")
        return "stdin", memoryview(raw)
    name = shown(source)
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for ever.
        descriptor = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                what = "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file"
                raise InputError(f"{name}: is {what}; name a file, or pipe into '-'")
            if found.st_size > max_bytes:
                raise InputError(f"{name}: {found.st_size:,} bytes, more than the limit of {max_bytes:,}")
            if not found.st_size:
                raise InputError(f"{name}: is empty; make the file again")
            _foresee(name, descriptor, found.st_size)
            raw = np.empty(found.st_size, np.uint8)  # aligned, and writable by those who get views of it
            view, at = memoryview(raw), 0
            with open(descriptor, "rb", buffering=0, closefd=False) as handle:
                while at < len(view):
                    got = handle.readinto(view[at:])
                    if not got:
                        raise InputError(f"{name}: became shorter while it was read; try again")
                    at += got
            return name, view
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except MemoryError:
        raise InputError(f"{name}: too large for this machine's memory") from None
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _form(head):
    """Return the form of a file that begins with these bytes: zip, npy, pickle, or an empty text."""
    if head[:4] == b"PK\x03\x04":
        return "zip"
    if head[:6] == b"\x93NUMPY":
        return "npy"
    return "pickle" if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") else ""


def _foresee(name, descriptor, size):
    """Refuse a large file that cannot be what it begins as, before there is memory for all of it."""
    if size <= MAX_TEXT:
        return
    head = os.pread(descriptor, files_npz.MAX_HEADER + 12, 0)
    form = _form(head)
    with _one_line(name):
        if not form:
            raise InputError(f"{size:,} bytes, and neither npz, npy nor .pt; a csv has at most {MAX_TEXT:,}: save it as npy")
        if form == "npy":
            dtype, shape, _, start = files_npz.header(memoryview(head), "array")
            if math.prod(shape) * dtype.itemsize != size - start:
                raise InputError(f"an array that announces {shape} of {dtype.name} and has {size - start:,} bytes")
        elif form == "zip":
            import mmap

            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as raw:
                files_zip.places(raw, max_members=8192, max_bytes=2**50, deflate=True, ratio=200)


@contextlib.contextmanager
def _one_line(name):
    """Turn whatever a parser raises into one line that names the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    except RecursionError as error:
        raise InputError(f"{name}: damaged: nested too deeply") from error
    except MemoryError as error:
        raise InputError(f"{name}: too large for this machine's memory") from error
    except Exception as error:
        detail = " ".join(str(error).split())[:120]
        raise InputError(
            f"{name}: damaged or of another format ({type(error).__name__}: {detail}); make the file again"
        ) from error


def must_be_regular(path):
    """Raise InputError for what is there and no regular file: reading a named pipe or a device may never end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{shown(path)}: is no regular file; name a file")


def from_home(path):
    """Return a path in which a leading ``~`` is somebody's home; one that is nobody's is a name like any other."""
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        return path


def shown(path):
    """Return what a message calls a source or target: its path as text that stays on one line."""
    if isinstance(path, (bytes, bytearray, memoryview)):
        return "these bytes"
    if path == "-":
        return "stdin"
    text = os.fsdecode(path)
    return text if text.isprintable() else ascii(text)


def _check_kind(kind, kinds):
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


def _parse_meta(text):
    if len(text) > MAX_META:
        raise InputError(f"`meta` has {len(text):,} characters, more than {MAX_META:,}")
    meta = json.loads(text, parse_constant=_no_constant)
    if not isinstance(meta, dict):
        raise InputError(f"`meta` is a {type(meta).__name__}; expected a JSON object")
    return meta


def _no_constant(word):
    raise InputError(f"`meta` holds {word}, which is no JSON")


def _digest(kind, text, arrays):
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
