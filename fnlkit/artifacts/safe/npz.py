"""Read arrays from npy bytes; the bytes must be exactly those that the header declares."""

from __future__ import annotations

import io
import math
import warnings

import numpy as np

from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.core.errors import InputError

MAX_HEADER = 10_000
MAX_TEXT = 16 * 2**20  # characters of one text
SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8)}


def arrays(raw: memoryview, members: list[files_zip.Member]) -> dict[str, np.ndarray]:
    """Read the arrays of an npz, as views of the file's bytes if they are aligned."""
    names = [array_name(member) for member in members]
    return {name: array(files_zip.content(raw, member), name) for name, member in zip(names, members, strict=True)}


def array_name(member: files_zip.Member) -> str:
    """Name of a member's array."""
    if not member.name.endswith(".npy"):
        raise InputError(f"member {member.name!r} is not an array; an npz contains only NAME.npy")
    return member.name[:-4]


def header(data: memoryview, name: str, size: int) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """Read (dtype, shape, whether in Fortran order, start of the values) of `size` npy bytes; `data` can be their start."""
    head = io.BytesIO(data[: MAX_HEADER + 12])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(head, max_header_size=MAX_HEADER)
    if dtype.kind == "O":
        raise InputError(f"array {name!r} contains Python objects (a pickle); store plain numbers")
    if not is_plain(dtype) or not isinstance(shape, tuple) or len(shape) > 16 or any(side < 0 for side in shape):
        raise InputError(f"array {name!r} is {dtype} {shape}; expected booleans, integers, floats or texts")
    if math.prod(shape) * dtype.itemsize != size - head.tell():
        raise InputError(f"array {name!r} declares {shape} of {dtype.name} but has {size - head.tell():,} bytes")
    return dtype, shape, fortran, head.tell()


def is_plain(dtype: np.dtype) -> bool:
    """Whether a file can contain arrays of this type."""
    return 0 < dtype.itemsize <= 4 * MAX_TEXT if dtype.kind == "U" else dtype.itemsize in SIZES.get(dtype.kind, ())


def array(data: memoryview, name: str) -> np.ndarray:
    """Read the array in npy bytes; InputError for inconsistent sizes, other types, and invalid booleans or text."""
    dtype, shape, fortran, start = header(data, name, len(data))
    values = np.frombuffer(data, dtype, offset=start).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "U" and values.size:
        flat = np.frombuffer(values.tobytes(), f"{dtype.str[0]}u4")
        if flat.max() > 0x10FFFF or ((flat >= 0xD800) & (flat <= 0xDFFF)).any():
            raise InputError(f"array {name!r}: invalid text")
    check_booleans(values, f"array {name!r}: ")
    values = values.astype(dtype.newbyteorder("="), copy=False)
    return values if values.flags.aligned and values.flags.writeable else values.copy()


def check_booleans(values: np.ndarray, where: str = "") -> None:
    """Raise InputError if a boolean is neither 0 nor 1."""
    if values.dtype.kind == "b" and values.size and values.view(np.uint8).max() > 1:
        raise InputError(f"{where}a boolean is neither 0 nor 1")


def text(value: np.ndarray, name: str) -> str:
    """Read the text in a scalar array."""
    if value.dtype.kind != "U" or value.shape != ():
        raise InputError(f"{name!r} is {value.dtype.name} {value.shape}; expected one text")
    return str(value)
