"""Read the bytes of a file, a pipe or a value without trusting declared sizes."""

from __future__ import annotations

import math
import mmap
import os
import stat
import sys

import numpy as np

from fnlkit.artifacts.paths import display_path, one_line
from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.errors import InputError

MAX_TEXT = 2**25  # of a csv, and of any other format without a signature
_HEAD = 8


def slurp(source: str | os.PathLike[str] | bytes | bytearray | memoryview, max_bytes: int) -> tuple[str, memoryview]:
    """Return the name of a source for messages, and all bytes."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        name, raw = display_path(source), memoryview(source).cast("B")
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
                raise InputError(f"stdin: not npz, npy or .pt; other formats are limited to {MAX_TEXT:,} bytes")
        if not raw:
            raise InputError("stdin: the pipe is empty; check whether the previous command failed")
        if len(raw) > max_bytes:
            raise InputError(f"stdin: more than the limit of {max_bytes:,} bytes")
        return "stdin", memoryview(raw)
    name = display_path(source)
    try:
        # Without O_NONBLOCK, opening a named pipe could block forever.
        descriptor = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
                raise InputError(f"{name}: is {what}; name a file, or pipe into '-'")
            if status.st_size > max_bytes:
                raise InputError(f"{name}: {status.st_size:,} bytes, more than the limit of {max_bytes:,}")
            if not status.st_size:
                raise InputError(f"{name}: is empty; create the file again")
            _foresee(name, descriptor, status.st_size)
            raw = np.empty(status.st_size, np.uint8)  # aligned, and writable through views
            view, at = raw.data, 0
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
    """Return the format of a file from the first bytes: zip, npy, pickle, or ""."""
    if head[:4] == b"PK\x03\x04":
        return "zip"
    if head[:6] == b"\x93NUMPY":
        return "npy"
    return "pickle" if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") else ""


def _foresee(name, descriptor, size):
    """Reject a large file with an invalid header before memory is allocated for it."""
    if size <= MAX_TEXT:
        return
    head = os.read(descriptor, files_npz.MAX_HEADER + 12)  # Windows has no pread
    os.lseek(descriptor, 0, os.SEEK_SET)
    form = _form(head)
    with one_line(name):
        if not form:
            raise InputError(f"{size:,} bytes, and not npz, npy or .pt; a csv can have at most {MAX_TEXT:,}: save it as npy")
        if form == "npy":
            dtype, shape, _, start = files_npz.header(memoryview(head), "array")
            if math.prod(shape) * dtype.itemsize != size - start:
                raise InputError(f"an array that declares {shape} of {dtype.name} but has {size - start:,} bytes")
        elif form == "zip":
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as raw:
                files_zip.places(raw, max_members=8192, max_bytes=2**50, deflate=True, ratio=200)
