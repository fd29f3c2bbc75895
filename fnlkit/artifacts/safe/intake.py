"""Read the bytes of a regular file, a pipe or a value within a limit."""

from __future__ import annotations

import mmap
import os
import stat
import sys

import numpy as np

from fnlkit.artifacts.paths import display_path, one_line
from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.core.errors import InputError

MAX_TEXT = 2**25  # of a csv, and of any other format without a signature
_OF_TORCH = (b"/data.pkl", b"/version", b"/byteorder", b"/.format_version", b"/.storage_alignment")


def form(raw: bytes | memoryview) -> str:
    """Recognize the format of a file by its first bytes: npz, pt, npy, pickle, or ""."""
    if raw[:4] == b"PK\x03\x04":  # torch.save writes one of these members first
        name = bytes(raw[30 : 30 + min(int.from_bytes(raw[26:28], "little"), 255)])
        return "pt" if name.endswith(_OF_TORCH) else "npz"
    if raw[:6] == b"\x93NUMPY":
        return "npy"
    return "pickle" if raw[:1] == b"\x80" and raw[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") else ""


def slurp(source: str | os.PathLike[str] | bytes | bytearray | memoryview, max_bytes: int) -> tuple[str, memoryview]:
    """Read the name of a source for messages, and all bytes."""
    name = display_path(source)
    if isinstance(source, (bytes, bytearray, memoryview)):
        raw = memoryview(source).cast("B")
    elif isinstance(source, str) and source == "-":
        raw = memoryview(_read_pipe(max_bytes))
    else:
        raw = _read_file(source, name, max_bytes)
    if len(raw) > max_bytes:
        raise InputError(f"{name}: more than the limit of {max_bytes:,} bytes")
    return name, raw


def _read_pipe(max_bytes):
    raw = sys.stdin.buffer.read(8)
    limit = max_bytes if form(raw) else min(max_bytes, MAX_TEXT)  # text, or an endless device
    raw += sys.stdin.buffer.read(limit + 1 - len(raw))
    if not raw:
        raise InputError("stdin: the pipe is empty; check whether the previous command failed")
    if len(raw) > limit == MAX_TEXT:
        raise InputError(f"stdin: not npz, npy or .pt; other formats are limited to {MAX_TEXT:,} bytes")
    return raw


def _open(path, flags):  # without O_NONBLOCK, opening a named pipe could block forever
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _read_file(source, name, max_bytes):
    try:
        with open(source, "rb", buffering=0, opener=_open) as handle:
            status = os.fstat(handle.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InputError(f"{name}: is not a regular file; name a file, or pipe into '-'")
            if not 0 < status.st_size <= max_bytes:
                size = f"{status.st_size:,} bytes, more than the limit of {max_bytes:,}" if status.st_size else "is empty"
                raise InputError(f"{name}: {size}; create the file again")
            if status.st_size > MAX_TEXT:
                _check_head(name, handle)
            raw = np.fromfile(handle, np.uint8, status.st_size)  # aligned, and writable through views
            if len(raw) < status.st_size:
                raise InputError(f"{name}: became shorter while it was read; try again")
            return raw.data
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{name}: is a folder, not a file; `fnlkit.partition(FOLDER)` reads a folder of samples") from None
    except (OSError, ValueError, MemoryError) as error:
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _check_head(name, handle):
    """Refuse a large file with an invalid header or directory before memory is allocated for it."""
    with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as raw, one_line(name):
        match form(raw):
            case "npz" | "pt":
                files_zip.members(raw, max_members=8192, max_bytes=2**50, deflate=True, ratio=200)
            case "npy":
                files_npz.header(raw, "array", len(raw))
            case "":
                raise InputError(f"{len(raw):,} bytes, and not npz, npy or .pt; a csv can have at most {MAX_TEXT:,}")
