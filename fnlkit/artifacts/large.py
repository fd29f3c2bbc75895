"""Read arrays that are too large for memory row by row from their file."""

from __future__ import annotations

import contextlib
import contextvars
import hashlib
import math
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.paths import display_path, one_line
from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.artifacts.saving import write_bytes
from fnlkit.artifacts.stored import Stored
from fnlkit.errors import InputError

if TYPE_CHECKING:
    from fnlkit.artifacts.files import Artifact


# Arrays that were decompressed into files since the start of `discard_on_error`.
_new: contextvars.ContextVar[list[Path] | None] = contextvars.ContextVar("new", default=None)
SMALL = 64 * 2**20  # maximum bytes of a user's array in memory
MAX_DECODED = 64 * 2**30


class Head(NamedTuple):
    """Metadata of an array that has not been read.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    """

    dtype: np.dtype
    shape: tuple[int, ...]


def heads(path: str | os.PathLike[str], *, small: int = SMALL) -> tuple[Artifact, str]:
    """Return (Artifact, SHA-256) of an npz of any size, or of a .pt, without importing torch.

    Arrays above `small` bytes of an npz are not read; they become a Head.  The SHA-256 is copied from the file without
    checking it.  Smaller files and other formats are read and checked as in `read`; the arrays of a .pt with a model have
    only ``dtype``, ``shape`` and ``array()``.

    Parameters
    ----------
    path : str or os.PathLike
    small : int

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    if path != "-" and os.path.isfile(path) and os.stat(path).st_size > small:
        with one_line(display_path(path)), open(path, "rb") as handle:
            mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            with memoryview(mapped) as raw:
                if files_zip.looks_like(raw) and not files_zip.is_torch(raw):
                    places = files_zip.places(raw, max_members=64, max_bytes=2**50)
                    return _of_heads({p.name.removesuffix(".npy"): _head(raw, p, small) for p in places})
    artifact = files.read(path, values=False)
    digest = files.digest(artifact)
    if artifact.kind.startswith("fnlkit.federation/"):
        arrays = {name: value.array() if hasattr(value, "storage") else value for name, value in artifact.arrays.items()}
        artifact = files.Artifact(artifact.kind, arrays, artifact.meta)
    return artifact, digest


def _of_heads(arrays):
    missing = [key for key in files.RESERVED if not isinstance(arrays.get(key), np.ndarray)]
    if missing:
        raise InputError(files.PLAIN.format(missing[0]))
    kind, text, digest = (files_npz.text(arrays.pop(key), key) for key in files.RESERVED)
    files.check_kind(kind, None)
    return files.Artifact(kind, arrays, files.parse_meta(text)), digest


def _head(raw, place, small):
    name = place.name.removesuffix(".npy")
    if place.unpacked <= (SMALL if name in files.RESERVED else small):
        return files_npz.array(memoryview(np.frombuffer(files_zip.content(raw, place).data, np.uint8).copy()), name)
    dtype, shape, _, start = files_npz.header(raw[place.begin : place.begin + files_npz.MAX_HEADER + 12], name)
    if math.prod(shape) * dtype.itemsize != place.unpacked - start:
        raise InputError(f"array {name!r} declares {shape} of {dtype.name} but has {place.unpacked - start:,} bytes")
    return Head(dtype, shape)


@contextlib.contextmanager
def discard_on_error() -> Iterator[None]:
    """Remove the files into which arrays were decompressed inside the context if it raises InputError."""
    new: list[Path] = []
    token = _new.set(new)
    try:
        yield
    except InputError:
        for path in new:
            path.unlink(missing_ok=True)
        raise
    finally:
        _new.reset(token)
    if (before := _new.get()) is not None:
        before += new


def open_arrays(path: str | os.PathLike[str], *, decoded: Path, small: int = SMALL) -> Mapping[str, np.ndarray | Stored]:
    """Return the arrays of a user's npz or npy; large arrays stay on disk.

    Arrays above `small` bytes are read by rows.  If such an array is compressed, it is decompressed into a file once, up to
    64 GiB and the free disk space.  That file is reused while size and time of the npz are unchanged.

    Parameters
    ----------
    path : str or os.PathLike
    decoded : pathlib.Path
        The folder for decompressed arrays, which is created when needed.
    small : int

    Returns
    -------
    dict of str to numpy.ndarray or fnlkit.artifacts.stored.Stored

    Raises
    ------
    InputError
        If the file is invalid; the one-line message names the file.
    """
    try:
        size = os.stat(path).st_size if os.path.isfile(path) else 0
    except OSError:
        size = 0
    if size <= small and not _grows(path, small):
        return files.read_arrays(path)
    with discard_on_error(), one_line(display_path(path)), open(path, "rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        with memoryview(mapped) as raw:
            if bytes(raw[:6]) == b"\x93NUMPY":
                return {"array": _in_place(path, raw, "array", 0, size)}
            if files_zip.looks_like(raw) and not files_zip.is_torch(raw):
                # Large arrays are decompressed to disk in pieces. Therefore, a ratio of 200 is allowed.
                places = files_zip.places(raw, max_members=64, max_bytes=2**50, deflate=True, ratio=200)
                return {p.name.removesuffix(".npy"): _place_array(path, raw, p, decoded, small) for p in places}
    return files.read_arrays(path)


def _grows(path, small):
    """Return whether a small file is an npz with arrays above the memory limit."""
    if not os.path.isfile(path) or os.stat(path).st_size < 64:
        return False
    with open(path, "rb") as handle:
        raw = memoryview(handle.read(small))
    with contextlib.suppress(Exception):  # the reader will report the defect
        if files_zip.looks_like(raw) and not files_zip.is_torch(raw):
            places = files_zip.places(raw, max_members=64, max_bytes=2**50, deflate=True, ratio=200)
            return sum(place.unpacked for place in places) > small
    return False


def open_artifact(
    path: str | os.PathLike[str], *, kinds: Sequence[str], decoded: Path, remember: Callable[[str, Callable[[], str]], str]
) -> Artifact:
    """Return the artifact in an npz as `read` does, with arrays above 64 MiB on disk.

    Parameters
    ----------
    path : str or os.PathLike
    kinds : list of str
    decoded : pathlib.Path
    remember : callable
        ``remember(name, compute)`` returns ``compute()`` or the cached result for this file.  It is used for the SHA-256, which
        requires reading the whole file.
    """
    if not os.path.isfile(path) or os.stat(path).st_size <= SMALL:
        return files.read(path, kinds=kinds)
    arrays = dict(open_arrays(path, decoded=decoded))
    with one_line(display_path(path)):
        missing = [key for key in files.RESERVED if key not in arrays]
        if missing:
            raise InputError(f"not an npz of fnlkit: {missing[0]!r} is missing")
        kind, text, digest = (files_npz.text(np.asarray(arrays.pop(key)), key) for key in files.RESERVED)
        files.check_kind(kind, kinds)
        if remember("sha256", lambda: files.content_digest(kind, text, arrays)) != digest:
            raise InputError("damaged: the SHA-256 of the content does not match; create the file again")
        return files.Artifact(kind, arrays, files.parse_meta(text))


def _place_array(path, raw, place, decoded, small):
    """Return one array of an npz: in memory, or on disk (decompressed if needed)."""
    name = place.name.removesuffix(".npy")
    if not place.name.endswith(".npy"):
        raise InputError(f"member {place.name!r} is not an array; an npz contains only NAME.npy")
    if place.unpacked <= small:
        data = np.frombuffer(files_zip.content(raw, place).data, np.uint8).copy()
        return files_npz.array(memoryview(data), name)
    if place.stored:
        return _in_place(path, raw, name, place.begin, place.unpacked)
    if place.unpacked > MAX_DECODED:
        raise InputError(
            f"array {name!r} unpacks to {place.unpacked:,} bytes; store arrays above {MAX_DECODED:,} bytes uncompressed"
        )
    status = os.stat(path)
    key = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0{name}"
    target = decoded / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.npy"
    if not target.is_file():
        _in_place(path, memoryview(next(files_zip.inflate(raw, place))), name, 0, place.unpacked)  # a wrong header is refused
        decoded.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(decoded).free
        if free < place.unpacked:
            raise InputError(
                f"array {name!r} unpacks to {place.unpacked:,} bytes, but {decoded} has only {free:,} free; store it "
                "uncompressed (numpy.savez) or set FNLKIT_CACHE to a larger disk"
            )
        write_bytes(files_zip.inflate(raw, place), target)
        if (new := _new.get()) is not None:
            new.append(target)
    with open(target, "rb") as handle:
        head = memoryview(handle.read(files_npz.MAX_HEADER + 12))
    return _in_place(target, head, name, 0, place.unpacked)


def _in_place(path, raw, name, begin, size):
    """Return the array in npy bytes of a file as Stored; `raw` contains the header."""
    dtype, shape, fortran, start = files_npz.header(raw[begin : begin + files_npz.MAX_HEADER + 12], name)
    if fortran or dtype.kind not in "iuf" or not shape:
        raise InputError(f"array {name!r} is {dtype.name} {shape}; large arrays must contain numbers in C order")
    if math.prod(shape) * dtype.itemsize != size - start:
        raise InputError(f"array {name!r} declares {shape} of {dtype.name} but has {size - start:,} bytes")
    return Stored(os.fspath(path), begin + start, dtype, shape)
