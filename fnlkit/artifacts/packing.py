"""Write npz and .pt files in one fixed layout: stored members, no dates, and data aligned to 64 bytes.

Equal content gives equal bytes, so that every changed bit of a file is detected.
"""

import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from fnlkit.artifacts.safe import npz as files_npz
from fnlkit.artifacts.safe import pt as files_pt
from fnlkit.artifacts.safe import zip as files_zip
from fnlkit.artifacts.stored import Rows, blocks
from fnlkit.core.errors import InputError

Piece = bytes | memoryview

LIMIT = 2**32 - 2**24  # bytes: the limit of 32-bit sizes minus space for the directory
BLOCK = 2**24  # bytes of rows that are written at once
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_NEW_YEAR_1980, _NARROW = 0x21, 0xFFFFFFFF


def chunks(contents: Iterable[tuple[str, Iterable[Piece]]], *, wide: bool = False) -> Iterable[Piece]:
    """List the buffers of a zip in order.

    Parameters
    ----------
    contents : list of (name, iterable of buffers)
        Iterated twice: for the checksums, which precede the bytes, and for the bytes.
    wide : bool
        Allow zips above 4 GiB, with the 64-bit fields that they need.

    Raises
    ------
    InputError
        If the zip would exceed 4 GiB and `wide` is false; raised before the first buffer.
    """
    plan, entries, at = [], [], 0
    for name, buffers in contents:
        crc = size = 0
        for buffer in buffers:
            crc, size = zlib.crc32(buffer, crc), size + memoryview(buffer).nbytes
        if at + size > LIMIT and not wide:
            raise InputError(f"{name!r} would make the file larger than 4 GiB; use a smaller number type or fewer samples")
        header = _local(name, crc, size, at)
        entries.append((name, crc, size, at))
        plan += [[header], buffers]
        at += len(header) + size
    return chain.from_iterable([*plan, [_tail(entries, at)]])


def check_layout(raw: memoryview, members: Iterable[files_zip.Member]) -> None:
    """Raise InputError unless the bytes around the members are those of `chunks`.

    The CRC of a member covers only its own bytes.
    """
    at, entries = 0, []
    for member in members:
        header = _local(member.name, member.crc, member.unpacked, at)
        entries.append((member.name, member.crc, member.unpacked, at))
        if raw[at : at + len(header)] != header:
            break
        at += len(header) + member.unpacked
    if raw[at:] != _tail(entries, at):
        raise InputError("damaged, or packed again by another tool: the zip is not as fnlkit writes it")


def _local(name, crc, size, at):
    # An extra field (4 bytes of header, then zeros) aligns the data to 64 bytes, so that arrays can be used without a copy.
    encoded, extra = name.encode(), _wide_field(size, size)
    pad = -(at + _LOCAL.size + len(encoded) + len(extra) + 4) % 64
    extra += struct.pack("<2H", 0x4C46, pad) + bytes(pad)
    narrow = min(size, _NARROW)
    needs = 45 if narrow == _NARROW else 20
    head = _LOCAL.pack(b"PK\x03\x04", needs, 0, 0, 0, _NEW_YEAR_1980, crc, narrow, narrow, len(encoded), len(extra))
    return head + encoded + extra


def _wide_field(*values):
    """Encode the zip64 field of the values that do not fit into 32 bits, which `_NARROW` replaces."""
    values = [value for value in values if value >= _NARROW]
    return struct.pack(f"<2H{len(values)}Q", 1, 8 * len(values), *values) if values else b""


def _tail(entries, at):
    directory = b""
    for name, crc, size, where in entries:
        extra, narrow = _wide_field(size, size, where), min(size, _NARROW)
        needs = 45 if extra else 20
        made, sizes = (0x0300 + needs, needs, 0, 0, 0, _NEW_YEAR_1980), (crc, narrow, narrow, len(name), len(extra))
        directory += _CENTRAL.pack(b"PK\x01\x02", *made, *sizes, 0, 0, 0, 0o100644 << 16, min(where, _NARROW))
        directory += name.encode() + extra
    if at < _NARROW:
        return directory + _END.pack(b"PK\x05\x06", 0, 0, len(entries), len(entries), len(directory), at, 0)
    count, size, end = len(entries), len(directory), at + len(directory)
    long = _END64.pack(b"PK\x06\x06", _END64.size - 12, 0x032D, 45, 0, 0, count, count, size, at)
    locator = _LOCATOR64.pack(b"PK\x06\x07", 0, end, 1)
    return directory + long + locator + _END.pack(b"PK\x05\x06", 0, 0, count, count, size, _NARROW, 0)


def plain(value: Any, name: str) -> np.ndarray | Rows:
    """Convert an array or tensor to a little-endian, C-ordered NumPy array; arrays that are read by rows stay unchanged.

    ValueError is raised for objects, records and other kinds.
    """
    if isinstance(value, Rows):
        return value
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    if not files_npz.is_plain(value.dtype):
        raise ValueError(f"array {name!r} is {value.dtype}; store booleans, integers, floats or texts")
    return np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")


def raw_blocks(value: np.ndarray | Rows) -> Iterator[Piece]:
    """Yield the bytes of a plain array without a copy: at once, or in blocks if it is read by rows."""
    parts = (plain(value[a:b], "") for a, b in blocks(value, BLOCK)) if isinstance(value, Rows) else [value]
    for part in parts:
        yield np.asarray(part).reshape(-1).view(np.uint8).data if part.nbytes else b""


@dataclass(frozen=True)
class Npy:
    """Buffers of an npy file, whose data begins at a multiple of 64 bytes.  Rows are read again in each iteration."""

    head: bytes
    value: np.ndarray | Rows

    def __iter__(self) -> Iterator[Piece]:
        yield self.head
        yield from raw_blocks(self.value)


def npy(value: np.ndarray | Rows) -> Npy:
    """Encode a plain array as npy."""
    shape = f"({', '.join(map(str, value.shape))}{',' if value.ndim == 1 else ''})"
    header = f"{{'descr': '{value.dtype.newbyteorder('<').str}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return Npy(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header, value)


def tensors(arrays: Mapping[str, Any]) -> dict[str, files_pt.Tensor]:
    """Convert arrays or torch tensors to the tensors of a .pt; ValueError for other types."""
    packed = {}
    for name, value in arrays.items():
        try:
            packed[name] = files_pt.Tensor.of(value)
        except ValueError as error:
            raise ValueError(f"{'tensor' if hasattr(value, 'layout') else 'array'} {name!r} is {error}") from None
    return packed


def pt(kind: str, text: str, digest: str, tensors: dict[str, files_pt.Tensor]) -> list[tuple[str, list[Piece]]]:
    """Make the members of a .pt that `torch.load` reads, as `torch.save` writes them."""
    parts = [b"\x80\x02}("]
    for name, value in (("kind", kind), ("meta", text), ("sha256", digest)):
        parts += [_text(name), _text(value)]
    parts += [_text("tensors"), b"}("]
    for place, (name, tensor) in enumerate(tensors.items()):
        parts += [_text(name), _pickled(tensor, str(place))]
    members: list[tuple[str, list[Piece]]] = [
        ("archive/data.pkl", [b"".join([*parts, b"uu."])]),
        ("archive/byteorder", [b"little"]),
    ]
    members += [(f"archive/data/{place}", [tensor.data]) for place, tensor in enumerate(tensors.values())]
    return [*members, ("archive/version", [b"3\n"])]


def _text(value):
    """Instruction of a pickle that loads a text."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _numbers(values):
    """Instructions that load a tuple of integers."""
    return b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", value) for value in values) + b"t"


def _pickled(tensor, key):
    """Instructions that load a tensor with its own storage; see `torch._utils._rebuild_tensor_v2`."""
    kind = next(name for name, (dtype, _) in files_pt.STORAGES.items() if dtype == tensor.dtype)
    strides = [math.prod(tensor.shape[i + 1 :]) for i in range(len(tensor.shape))]
    storage = b"(" + _text("storage") + f"ctorch\n{kind}Storage\n".encode() + _text(key) + _text("cpu")
    storage += b"\x8a\x08" + struct.pack("<q", math.prod(tensor.shape)) + b"tQ"
    sizes = b"K\x00" + _numbers(tensor.shape) + _numbers(strides)
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + sizes + b"\x89ccollections\nOrderedDict\n)RtR"
