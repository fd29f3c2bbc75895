"""Read arrays that are too large for memory row by row from their file."""

import contextlib
import contextvars
import errno
import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fnlkit.artifacts import files
from fnlkit.artifacts.files import Artifact
from fnlkit.artifacts.paths import display_path, one_line
from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import pt as files_pt
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.artifacts.safe.intake import form
from fnlkit.artifacts.saving import write_bytes
from fnlkit.artifacts.stored import SMALL, Stored
from fnlkit.core.errors import InputError

# Arrays that were decompressed into files since the start of `discard_on_error`.
_new: contextvars.ContextVar[list[Path] | None] = contextvars.ContextVar("new", default=None)
MAX_DECODED = 64 * 2**30
HEAD = files_npz.MAX_HEADER + 12  # bytes that contain the header of an npy


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
    """Read (Artifact, SHA-256) of an npz of any size, or of a .pt, without importing torch.

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
                if form(raw) == "npz":
                    members = files_zip.members(raw, max_members=64, max_bytes=2**50)
                    arrays = {member.name.removesuffix(".npy"): _head(raw, member, small) for member in members}
                    kind, text, digest = files.take_reserved(arrays)
                    files.check_kind(kind, None)
                    return files.Artifact(kind, arrays, files.parse_meta(text)), digest
    artifact = files.read(path, values=False)
    digest = files.digest(artifact)
    if artifact.kind.startswith("fnlkit.federation/"):
        arrays = {name: v.array() if isinstance(v, files_pt.Tensor) else v for name, v in artifact.arrays.items()}
        artifact = files.Artifact(artifact.kind, arrays, artifact.meta)
    return artifact, digest


def _in_memory(raw, member, name):
    return files_npz.array(memoryview(np.frombuffer(files_zip.content(raw, member), np.uint8).copy()), name)


def _head(raw, member, small):
    name = member.name.removesuffix(".npy")
    if member.unpacked <= (SMALL if name in files.RESERVED else small):
        return _in_memory(raw, member, name)
    dtype, shape, _, _ = files_npz.header(raw[member.begin : member.begin + HEAD], name, member.unpacked)
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
    """Open the arrays of a user's npz or npy; large arrays stay on disk.

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
    if not (os.path.isfile(path) and os.access(path, os.R_OK) and os.path.getsize(path)):
        return files.read_arrays(path)
    with discard_on_error(), one_line(display_path(path)), open(path, "rb") as handle:
        mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        with memoryview(mapped) as raw:
            size = len(raw)
            if form(raw) == "npy" and size > small:
                return {"array": _in_place(path, raw, "array", 0, size)}
            if form(raw) == "npz":
                # Large arrays are decompressed to disk in pieces. Therefore, a ratio of 200 is allowed.
                members = files_zip.members(raw, max_members=64, max_bytes=2**50, deflate=True, ratio=200)
                if max(size, sum(member.unpacked for member in members)) > small:
                    return {files_npz.array_name(one): _open_member(path, raw, one, decoded, small) for one in members}
    return files.read_arrays(path)


def open_artifact(
    path: str | os.PathLike[str], *, kinds: Sequence[str], decoded: Path, remember: Callable[[str, Callable[[], str]], str]
) -> Artifact:
    """Open the artifact in an npz as `read` does, with arrays above 64 MiB on disk.

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
        kind, text, digest = files.take_reserved(arrays)
        files.check_kind(kind, kinds)
        if remember("sha256", lambda: files.content_digest(kind, text, arrays)) != digest:
            raise InputError("damaged: the SHA-256 of the content does not match; create the file again")
        return files.Artifact(kind, arrays, files.parse_meta(text))


def _open_member(path, raw, member, decoded, small):
    """Open one array of an npz: in memory, or on disk (decompressed if needed)."""
    name = files_npz.array_name(member)
    if member.unpacked <= small:
        return _in_memory(raw, member, name)
    if member.stored:
        return _in_place(path, raw, name, member.begin, member.unpacked)
    if member.unpacked > MAX_DECODED:
        raise InputError(f"array {name!r} unpacks to {member.unpacked:,} bytes; above {MAX_DECODED:,}, store it uncompressed")
    status = os.stat(path)
    key = f"{os.path.realpath(path)}\0{status.st_size}\0{status.st_mtime_ns}\0{name}"
    target = decoded / f"{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}.npy"
    if not target.is_file():
        _in_place(
            path, memoryview(next(files_zip.inflate(path, member))), name, 0, member.unpacked
        )  # a wrong header is refused
        try:
            decoded.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(decoded).free
            if free < member.unpacked:
                raise OSError(errno.ENOSPC, f"only {free:,} bytes are free")
            write_bytes(files_zip.inflate(path, member), target)
        except OSError as error:
            raise InputError(
                f"array {name!r} unpacks to {member.unpacked:,} bytes, which cannot be written to {display_path(decoded)} "
                f"({error.strerror or error}); store it uncompressed (numpy.savez) or set FNLKIT_CACHE to a larger disk"
            ) from error
        if (new := _new.get()) is not None:
            new.append(target)
    with open(target, "rb") as handle:
        head = memoryview(handle.read(HEAD))
    return _in_place(target, head, name, 0, member.unpacked)


def _in_place(path, raw, name, begin, size):
    """Open the array in npy bytes of a file as Stored; `raw` contains the header."""
    dtype, shape, fortran, start = files_npz.header(raw[begin : begin + HEAD], name, size)
    if fortran or dtype.kind not in "iuf" or not shape:
        raise InputError(f"array {name!r} is {dtype.name} {shape}; large arrays must contain numbers in C order")
    return Stored(os.fspath(path), begin + start, dtype, shape)
