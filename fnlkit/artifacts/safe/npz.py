"""Read and write arrays as npy bytes.

Headers are parsed with a regular expression and never evaluated.  The number of bytes must match the header.
"""

from __future__ import annotations

import csv as _csv
import io
import math
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fnlkit.artifacts.encoding import decode
from fnlkit.artifacts.stored import Rows, blocks
from fnlkit.errors import InputError

if TYPE_CHECKING:
    from fnlkit.artifacts.safe.zip import Member


MAX_HEADER = 10_000
MAX_TEXT = 16 * 2**20  # characters of one text
BLOCK = 2**24  # bytes of rows that are written at once
MAX_ENTRIES = 2**22  # of a csv; each becomes a Python object
_HEADER = re.compile(
    rb"\{\s*'descr':\s*'([<>|=]?)([a-zA-Z])(\d{0,9})',\s*'fortran_order':\s*(True|False),\s*"
    rb"'shape':\s*\(\s*((?:\d{1,18}\s*,\s*)*(?:\d{1,18})?)\s*\),?\s*\}[ \n]*"
)
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}


def arrays(members: Iterable[Member]) -> dict[str, np.ndarray]:
    """Return the arrays of an npz, as views of the file's bytes if they are aligned.

    Parameters
    ----------
    members : list of fnlkit.artifacts.safe.zip.Member
    """
    out = {}
    for member in members:
        if not member.name.endswith(".npy"):
            raise InputError(f"member {member.name!r} is not an array; an npz contains only NAME.npy")
        out[member.name[:-4]] = array(member.data, member.name[:-4])
    return out


def array(data: memoryview, name: str) -> np.ndarray:
    """Return the array in npy bytes.

    Parameters
    ----------
    data : memoryview
    name : str
        Name of the array in messages.

    Raises
    ------
    InputError
        For objects (a pickle), a header above 10 kB, inconsistent sizes, booleans other than 0 and 1, or invalid text.
    """
    dtype, shape, fortran, start = header(data, name)
    there = len(data) - start
    if math.prod(shape) * dtype.itemsize != there:
        raise InputError(f"array {name!r} declares {shape} of {dtype.name} but has {there:,} bytes")
    if not dtype.itemsize:
        return np.zeros(shape, dtype)
    # A shape with a zero can contain huge sizes; NumPy rejects sizes that cannot be addressed.
    out = np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if fortran else "C")
    _check_values(out, name)
    if not dtype.isnative:
        return out.astype(dtype.newbyteorder("="))
    return out if out.flags.aligned and out.flags.writeable else out.copy()


def header(data: memoryview, name: str) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """Parse the header of npy bytes.

    Return (dtype, shape, whether in Fortran order, start of the values in bytes).  `data` needs to contain only the header.
    Parameters and errors as for `array`.
    """
    if bytes(data[:6]) != b"\x93NUMPY" or len(data) < 12:
        raise InputError(f"array {name!r} does not start like an npy file")
    version = data[6]
    if version not in (1, 2, 3):
        raise InputError(f"array {name!r} has npy version {version}; expected 1 to 3")
    length, start = (struct.unpack_from("<H", data, 8)[0], 10) if version == 1 else (struct.unpack_from("<I", data, 8)[0], 12)
    if length > MAX_HEADER or start + length > len(data):
        raise InputError(
            f"array {name!r} has a header of {length:,} bytes; expected at most {MAX_HEADER:,} and less than the file"
        )
    match = _HEADER.fullmatch(bytes(data[start : start + length]))
    if not match:
        raise InputError(f"array {name!r}: the header is not that of a plain array; store numbers, not records or objects")
    order, kind, size, fortran, shape = (part.decode() for part in match.groups())
    if kind == "O":
        raise InputError(f"array {name!r} contains Python objects (a pickle); store plain numbers")
    if kind == "U":
        if not size or not 0 <= int(size) <= MAX_TEXT:
            raise InputError(f"array {name!r}: texts of {size} characters; expected at most {MAX_TEXT:,}")
    elif kind not in _SIZES or not size or int(size) not in _SIZES[kind]:
        raise InputError(f"array {name!r} is of type {kind}{size}; expected booleans, integers, floats or texts")
    shape = tuple(int(part) for part in shape.split(",") if part.strip())
    if len(shape) > 16:
        raise InputError(f"array {name!r} has {len(shape)} dimensions; expected at most 16")
    dtype = np.dtype(f"{'<' if order == '=' else order}{kind}{int(size)}")
    return dtype, shape, fortran == "True", start + length


def _check_values(out, name):
    if out.dtype.kind == "b" and out.size and out.view(np.uint8).max() > 1:
        raise InputError(f"array {name!r}: a boolean is neither 0 nor 1")
    if out.dtype.kind == "U" and out.size:
        flat = np.frombuffer(out.tobytes(), f"{out.dtype.str[0]}u4")
        if flat.max() > 0x10FFFF or ((flat >= 0xD800) & (flat <= 0xDFFF)).any():
            raise InputError(f"array {name!r}: invalid text")


def text(value: np.ndarray, name: str) -> str:
    """Return the text in a scalar array; raise InputError for any other array."""
    if value.dtype.kind != "U" or value.shape != ():
        raise InputError(f"{name!r} is {value.dtype.name} {value.shape}; expected one text")
    return str(value)


def plain(value: Any, name: str) -> np.ndarray | Rows:
    """Convert an array or tensor to a little-endian, C-ordered NumPy array.

    ValueError is raised for other kinds.  An array that is read by rows is returned unchanged; `raw_blocks` converts the rows.
    """
    if isinstance(value, Rows):
        return value
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    if value.dtype.kind == "U":
        fits = value.dtype.itemsize <= 4 * MAX_TEXT
    else:
        fits = value.dtype.kind in _SIZES and value.dtype.itemsize in _SIZES[value.dtype.kind]
    if not fits:
        raise ValueError(f"array {name!r} is {value.dtype}; store booleans, integers, floats or texts")
    return np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")


def raw_bytes(value: np.ndarray) -> bytes | memoryview:
    """Return a C-ordered array's bytes without a copy."""
    return value.reshape(-1).view(np.uint8).data if value.nbytes else b""


def raw_blocks(value: np.ndarray | Rows) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a plain array: at once, or in blocks if it is read by rows."""
    if isinstance(value, Rows):
        for a, b in blocks(value, BLOCK):
            yield raw_bytes(np.asarray(plain(value[a:b], "")))
    else:
        yield raw_bytes(value)


@dataclass(frozen=True)
class Npy:
    """Buffers of the npy file of a plain array.

    The data begins at a multiple of 64 bytes.  Rows are read again in each iteration.
    """

    head: bytes
    value: np.ndarray | Rows

    def __iter__(self) -> Iterator[bytes | memoryview]:
        yield self.head
        yield from raw_blocks(self.value)


def encode(value: np.ndarray | Rows) -> Npy:
    """Return the Npy of a plain array."""
    shape = f"({', '.join(map(str, value.shape))}{',' if value.ndim == 1 else ''})"
    header = f"{{'descr': '{value.dtype.newbyteorder('<').str}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return Npy(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header, value)


def csv(raw: bytes | memoryview) -> dict[str, np.ndarray]:
    """Return the columns of a csv with a header line by name, otherwise ``array``.

    A single column becomes a vector.  Whole numbers become int64, other numbers float64, and all other values text.
    """
    try:
        text, _ = decode(bytes(raw))
    except InputError as error:
        raise InputError(f"neither npz, npy, pt nor csv: {error}") from None
    count = text.count(",") + text.count("\n")
    if count > MAX_ENTRIES:
        raise InputError(f"a csv of {count:,} entries; expected at most {MAX_ENTRIES:,}: save it as npy or npz")
    rows = [row for row in _csv.reader(io.StringIO(text, newline="")) if row]
    if not rows:
        raise InputError("a csv without rows")
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise InputError(f"a csv with {min(widths)} to {max(widths)} entries per row; expected the same number in each row")
    if any(_number(entry) is None for entry in rows[0]):
        names = [entry.strip() for entry in rows[0]]
        if len(set(names)) < len(names):
            raise InputError("a csv with two columns of the same name")
        return {name: _column([row[i] for row in rows[1:]]) for i, name in enumerate(names)}
    columns = [_column([row[i] for row in rows]) for i in range(len(rows[0]))]
    return {"array": columns[0] if len(columns) == 1 else np.stack(columns, 1)}


def _number(entry):
    try:
        return float(entry)
    except ValueError:
        return None


def _column(entries):
    try:
        return np.array([int(entry) for entry in entries], np.int64)
    except (ValueError, OverflowError):
        pass
    numbers = [_number(entry) for entry in entries]
    if None in numbers:
        return np.array([entry.strip()[:1000] for entry in entries])
    return np.array(numbers, np.float64)
