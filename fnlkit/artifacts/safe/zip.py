"""Read untrusted zips, and write zips in one fixed layout.

The layout has stored members, no dates and aligned data.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from fnlkit.errors import InputError

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")
_NAME = re.compile(rb"[A-Za-z0-9_./-]{1,255}")
_NEW_YEAR_1980, _NARROW = 0x21, 0xFFFFFFFF
LIMIT = 2**32 - 2**24  # bytes: the limit of 32-bit sizes minus space for the directory
# Real data compresses far less. Two kilobytes that unpack to two megabytes are harmless, but two kilobytes that unpack to two
# gigabytes are not.
_HARMLESS, MAX_RATIO = 64 * 2**20, 20


@dataclass(frozen=True)
class Member:
    """A member with name, CRC-32, bytes, and whether it was stored uncompressed."""

    name: str
    crc: int
    data: memoryview
    stored: bool


@dataclass(frozen=True)
class Place:
    """Position of a member.

    Name, CRC-32, first byte, sizes in the file and unpacked, and whether it is uncompressed.
    """

    name: str
    crc: int
    begin: int
    packed: int
    unpacked: int
    stored: bool


def looks_like(raw: bytes | memoryview) -> bool:
    """Return whether the bytes start like a zip."""
    return bytes(raw[:4]) == b"PK\x03\x04"


def is_torch(raw: bytes | memoryview) -> bool:
    """Return whether the first member is the first member of a torch.save file."""
    name_length = int.from_bytes(raw[26:28], "little")
    name = bytes(raw[30 : 30 + min(name_length, 255)])
    return name.endswith((b"/data.pkl", b"/version", b"/byteorder", b"/.format_version", b"/.storage_alignment"))


def members(raw: memoryview, *, max_members: int, max_bytes: int, deflate: bool = False) -> list[Member]:
    """Return the members of a zip after checking every structure and every CRC.

    Parameters
    ----------
    raw : memoryview
    max_members : int
    max_bytes : int
        Limit on the sum of the uncompressed sizes.  A second limit is 20 times the file's size (above 64 MiB).
    deflate : bool
        Accept compressed members.  A member never unpacks to more bytes than it declares.

    Returns
    -------
    list of Member
        In the order of the directory.

    Raises
    ------
    InputError
    """
    return [content(raw, place) for place in places(raw, max_members=max_members, max_bytes=max_bytes, deflate=deflate)]


def places(
    raw: bytes | memoryview, *, max_members: int, max_bytes: int, deflate: bool = False, ratio: int = MAX_RATIO
) -> list[Place]:
    """Return the positions of a zip's members without reading them.

    The result is a list of Place in directory order.  Other parameters as in `members`.  Above 64 MiB, the unpacked size is
    limited to `ratio` times the size of the file.
    """
    count, size, start = _directory(raw)
    if not 0 < count <= max_members:
        raise InputError(f"a zip of {count:,} members; expected 1 to {max_members}")
    entries, at, names, total = [], start, set(), 0
    for _ in range(count):
        if at + _CENTRAL.size > start + size:
            raise InputError("damaged: the zip's directory ends early")
        fields = _CENTRAL.unpack_from(raw, at)
        signature, _, _, flags, method, _, _, crc, packed, unpacked, n_name, n_extra, n_note, disk, _, _, offset = fields
        name = bytes(raw[at + 46 : at + 46 + n_name])
        extra = bytes(raw[at + 46 + n_name : at + 46 + n_name + n_extra])
        at += 46 + n_name + n_extra + n_note
        if signature != b"PK\x01\x02" or at > start + size:
            raise InputError("damaged: the zip's directory has an invalid entry")
        if not _NAME.fullmatch(name) or b".." in name or name.startswith(b"/") or name.endswith(b"/"):
            raise InputError(
                f"a member has the name {ascii(name.decode('latin-1')[:60])}; expected letters, digits and _ . / - only"
            )
        if name in names:
            raise InputError(f"two members have the name {name.decode()!r}")
        names.add(name)
        if flags & ~0x080E or disk:  # allowed: data descriptor, compression level, UTF-8 name
            raise InputError(f"member {name.decode()!r} is encrypted or split")
        packed, unpacked, offset = _wide(extra, unpacked, packed, offset)
        if method not in ((0, 8) if deflate else (0,)):
            raise InputError(f"member {name.decode()!r} is compressed (method {method}); expected stored bytes")
        if method == 0 and packed != unpacked:
            raise InputError(f"member {name.decode()!r} declares {unpacked:,} bytes and stores {packed:,}")
        total += unpacked
        entries.append((offset, name, method, crc, packed, unpacked))
    if at != start + size:
        raise InputError("damaged: the zip's directory does not have its declared length")
    if total > max_bytes or total > max(_HARMLESS, ratio * len(raw)):
        raise InputError(f"{len(raw):,} bytes that would unpack to {total:,}: refused")
    return _places(raw, entries, start)


def _directory(raw):
    """Return the number of members, the size and the position of the directory."""
    at = bytes(raw[-65557:]).rfind(b"PK\x05\x06")
    if at < 0:
        raise InputError("damaged or cut off: no end of a zip")
    at += max(len(raw) - 65557, 0)
    if at + _END.size > len(raw):
        raise InputError("damaged or cut off: no end of a zip")
    _, disk, first, here, count, size, start, note = _END.unpack_from(raw, at)
    if at + _END.size + note != len(raw):
        raise InputError("damaged: bytes after the end of the zip")
    end = at
    # torch writes the 64-bit end record even if the 32-bit record suffices.
    if at >= _LOCATOR64.size + _END64.size and bytes(raw[at - _LOCATOR64.size : at - _LOCATOR64.size + 4]) == b"PK\x06\x07":
        _, _, end, _ = _LOCATOR64.unpack_from(raw, at - _LOCATOR64.size)
        if end + _END64.size + _LOCATOR64.size != at or bytes(raw[end : end + 4]) != b"PK\x06\x06":
            raise InputError("damaged: no end of a zip")
        _, _, _, _, disk, first, here, count, size, start = _END64.unpack_from(raw, end)
    elif count == 0xFFFF or 0xFFFFFFFF in (size, start):
        raise InputError("damaged: no end of a zip")
    if disk or first or here != count or start + size != end:
        raise InputError("damaged: the zip's directory is not at its declared position")
    return count, size, start


def _wide(extra, unpacked, packed, offset):
    """Return sizes and offset, from the zip64 field if 32 bits are too few."""
    values, at = [unpacked, packed, offset], 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        if tag == 1:
            wide = extra[at + 4 : at + 4 + length]
            for i in range(3):
                if values[i] == 0xFFFFFFFF and len(wide) >= 8:
                    values[i], wide = int.from_bytes(wide[:8], "little"), wide[8:]
        at += 4 + length
    return values[1], values[0], values[2]


def _places(raw, entries, end):
    places, border = {}, 0
    for offset, name, method, crc, packed, unpacked in sorted(entries):
        label = name.decode()
        if offset < border or offset + _LOCAL.size > end:
            raise InputError(f"damaged: member {label!r} overlaps another one")
        signature, _, _, local_method, _, _, _, _, _, n_name, n_extra = _LOCAL.unpack_from(raw, offset)
        begin = offset + _LOCAL.size + n_name + n_extra
        if signature != b"PK\x03\x04" or local_method != method or begin + packed > end:
            raise InputError(f"damaged: member {label!r} is not at the position in the directory")
        if bytes(raw[offset + _LOCAL.size : offset + _LOCAL.size + n_name]) != name:
            raise InputError(f"damaged: member {label!r} has two names")
        border = begin + packed
        places[name] = Place(label, crc, begin, packed, unpacked, method == 0)
    return [places[name] for _, name, *_ in entries]


def content(raw: memoryview, place: Place) -> Member:
    """Read the Member at a place and verify the CRC."""
    data = raw[place.begin : place.begin + place.packed]
    if not place.stored:
        unpack = zlib.decompressobj(-15)
        data = unpack.decompress(data, place.unpacked + 1)
        if len(data) != place.unpacked or not unpack.eof:
            raise InputError(f"damaged: member {place.name!r} does not unpack to the {place.unpacked:,} bytes it declares")
        data = memoryview(data)
    if zlib.crc32(data) != place.crc:
        raise InputError(f"damaged: member {place.name!r} fails its checksum (CRC-32); create the file again")
    return Member(place.name, place.crc, data, place.stored)


def inflate(raw: bytes | memoryview, place: Place, step: int = 2**20) -> Iterator[bytes]:
    """Yield the bytes of a compressed member in pieces of about `step`; check the CRC."""
    unpack, crc, size = zlib.decompressobj(-15), 0, 0
    for start in range(place.begin, place.begin + place.packed, step):
        data = bytes(raw[start : min(start + step, place.begin + place.packed)])
        while not unpack.eof:
            piece = unpack.decompress(data, 8 * step)
            data, crc, size = unpack.unconsumed_tail, zlib.crc32(piece, crc), size + len(piece)
            # After all input is consumed, output can still be buffered.
            if size > place.unpacked or not (piece or data):
                break
            yield piece
    if not unpack.eof or size != place.unpacked or crc != place.crc:
        raise InputError(
            f"damaged: member {place.name!r} does not unpack to its declared size and checksum; create the file again"
        )


def chunks(contents: Iterable[tuple[str, Iterable[bytes | memoryview]]], *, wide: bool = False) -> Iterable[bytes | memoryview]:
    """Return the buffers of a zip in order.

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


def check_layout(raw: bytes | memoryview, found: Iterable[Member]) -> None:
    """Raise InputError unless the bytes around the members are those of `chunks`.

    A CRC covers only the bytes of a member.  This check covers all other bytes, so that every changed bit is detected.
    """
    at, entries = 0, []
    for member in found:
        size = len(member.data)
        header = _local(member.name, member.crc, size, at)
        if not member.stored or raw[at : at + len(header)] != header:
            raise InputError(
                f"damaged, or packed again by another tool: the bytes before member {member.name!r} are not as "
                "fnlkit writes them"
            )
        entries.append((member.name, member.crc, size, at))
        at += len(header) + size
    if raw[at:] != _tail(entries, at):
        raise InputError("damaged, or packed again by another tool: the zip's directory is not as fnlkit writes it")


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
    """Return the zip64 field of the values that do not fit into 32 bits.

    Such a value is replaced by `_NARROW` at its usual place.
    """
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
