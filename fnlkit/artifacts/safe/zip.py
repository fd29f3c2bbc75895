"""Check the directory of an untrusted zip before any of its members is read."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from fnlkit.core.errors import InputError

_NAME = re.compile(r"(?!/|.*\.\.)[A-Za-z0-9_./-]{1,255}(?<!/)")
# Real data compresses far less. Two kilobytes that unpack to two megabytes are harmless, to two gigabytes they are not.
_HARMLESS, MAX_RATIO = 64 * 2**20, 20


class Member(NamedTuple):
    """A member: name, CRC-32, first byte, sizes in the file and unpacked, and whether it is uncompressed."""

    name: str
    crc: int
    begin: int
    packed: int
    unpacked: int
    stored: bool


class _Window:
    """Bytes as the file that zipfile needs. It reads the directory at once: larger ones than `limit` are refused."""

    def __init__(self, raw, limit):
        self.raw, self.limit, self.at = raw, limit, 0

    def seek(self, at, whence=0):
        self.at = at + (0, self.at, len(self.raw))[whence]
        return self.at

    def tell(self):
        return self.at

    def read(self, size=None):
        size = len(self.raw) - self.at if size is None else size
        if size > self.limit:
            raise InputError(f"the zip's directory has {size:,} bytes, which means too many members; expected {self.limit:,}")
        self.at += size
        return bytes(self.raw[self.at - size : self.at])


def members(
    raw: bytes | memoryview, *, max_members: int, max_bytes: int, deflate: bool = False, ratio: int = MAX_RATIO
) -> list[Member]:
    """List the members of a zip in the order of its directory; their bytes are not read.

    `max_bytes` limits the sum of the unpacked sizes.  Above 64 MiB, so does `ratio` times the size of the file.  Compressed
    members are refused unless `deflate` is true.
    """
    if raw[-22:-18] != b"PK\x05\x06" or raw[-2:] != bytes(2):
        raise InputError("damaged or cut off: no end of a zip, or bytes after it")
    archive = zipfile.ZipFile(_Window(raw, 512 * max_members))
    infos, declared = archive.infolist(), int.from_bytes(raw[-12:-10], "little")
    if not 0 < len(infos) <= max_members or declared not in (len(infos), 0xFFFF):
        raise InputError(f"a zip of {declared:,} members, and {len(infos):,} in its directory; expected 1 to {max_members}")
    total = sum(info.file_size for info in infos)
    if total > max_bytes or total > max(_HARMLESS, ratio * len(raw)):
        raise InputError(f"{len(raw):,} bytes that would unpack to {total:,}: refused")
    begins: dict[str, int] = {}
    border = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        name, start, method = info.filename, info.header_offset, info.compress_type
        signature, local_method, length, extra = struct.unpack_from("<4s4xH16x2H", raw, start)
        begin, local_name = start + 30 + length + extra, bytes(raw[start + 30 : start + 30 + length])
        at_place = signature == b"PK\x03\x04" and local_name == name.encode() and local_method == method
        apart = (start >= border if begins else start == 0) and begin + info.compress_size <= archive.start_dir
        refused = {
            "has a name with more than letters, digits and _ . / -, or with ..": not _NAME.fullmatch(name),
            "is there twice": name in begins,
            "is encrypted or split": info.flag_bits & ~0x080E or info.volume,  # not: data descriptor, level, UTF-8 name
            f"is compressed (method {method}); expected stored bytes": method not in ((0, 8) if deflate else (0,)),
            "declares another size than it stores": method == 0 and info.compress_size != info.file_size,
            "is damaged: it is not at its position in the directory, or overlaps another one": not (at_place and apart),
        }
        for reason in (reason for reason, applies in refused.items() if applies):
            raise InputError(f"member {ascii(name[:60])} {reason}")
        begins[name], border = begin, begin + info.compress_size
    return [Member(i.filename, i.CRC, begins[i.filename], i.compress_size, i.file_size, i.compress_type == 0) for i in infos]


def content(raw: memoryview, member: Member) -> memoryview:
    """Read the bytes of a member, never more than it declares, and check their CRC-32."""
    data = raw[member.begin : member.begin + member.packed]
    if not member.stored:
        data = memoryview(zlib.decompressobj(-15).decompress(data, member.unpacked + 1))
    if len(data) != member.unpacked or zlib.crc32(data) != member.crc:
        raise InputError(f"damaged: member {member.name!r} fails its checksum (CRC-32) or size; create the file again")
    return data


def inflate(path: str, member: Member) -> Iterator[bytes]:
    """Yield the bytes of a member of a file in pieces, never more than it declares; zipfile checks their CRC-32."""
    left = member.unpacked
    with zipfile.ZipFile(path) as archive, archive.open(member.name) as handle:
        while piece := handle.read(2**20):
            left -= len(piece)
            yield piece
    if left:
        raise InputError(f"damaged: member {member.name!r} does not unpack to its declared size; create the file again")
