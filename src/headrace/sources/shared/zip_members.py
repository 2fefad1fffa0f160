"""The members of a zip archive: where they are, to be read with one `pread`, and nothing that leads elsewhere.

The central directory is read once, by `zipfile`; it says where the header of each member is. A header and the bytes
after it are then read at once, and checked against the name, the sizes and the checksum of the directory. Names that
occur twice, or that would lead out of a folder they are unpacked to, are refused: which of them is meant cannot be
known.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from headrace.errors import SourceError

_HEADER = struct.Struct("<4s5H3L2H")  # of a member, before its name; see APPNOTE.TXT 4.3.7
_SIGNATURE = b"PK\x03\x04"
_SPARE_BYTES = 60  # read for extra fields, whose length only the header has; at least this many bytes follow any member
_ENCRYPTED = 1


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive.

    Attributes:
        name: Its path; empty if the caller does not know it.
        start: Where its header is.
        packed: Bytes as they are stored.
        size: Bytes.
        crc: CRC-32 of its bytes.
        deflated: Whether it is compressed.
        head: How many bytes to read from `start` on, so that its header is almost surely among them.
    """

    name: str
    start: int
    packed: int
    size: int
    crc: int
    deflated: bool
    head: int


def list_members(path: str) -> dict[str, Member]:
    """Return the files of an archive by name, in its order. About 10 us a member.

    Raises:
        SourceError: It is none, is truncated, or has a member that is there twice or leads outside.
    """
    try:
        num_bytes = os.path.getsize(path)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        what = getattr(error, "strerror", None) or error
        raise SourceError(
            f"the archive cannot be read: {what}", where=path, fix="is it truncated? restore it"
        ) from error
    members: dict[str, Member] = {}
    for info in infos:
        check_member_name(info.filename, path)
        if info.is_dir():
            continue
        if info.filename in members:
            raise SourceError(
                f"the archive has {info.filename!r} twice", where=path, fix="write it again with each name once"
            )
        members[info.filename] = Member(
            info.filename,
            info.header_offset,
            info.compress_size,
            info.file_size,
            info.CRC,
            info.compress_type == zipfile.ZIP_DEFLATED,
            _HEADER.size + len(info.filename.encode(errors="replace")) + _SPARE_BYTES,
        )
        if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            how = "encrypted" if info.flag_bits & _ENCRYPTED else f"compressed by method {info.compress_type}"
            raise SourceError(f"{info.filename!r} is {how}", where=path, fix="store or deflate it")
        if info.header_offset < 0 or info.header_offset + _HEADER.size + info.compress_size > num_bytes:
            what = f"{info.filename!r} would be at byte {info.header_offset}, with {info.compress_size} bytes"
            raise SourceError(f"{what}; the archive has {num_bytes}", where=path, fix="is it truncated? restore it")
    return members


def check_member_name(name: str, where: str) -> None:
    """Refuse the name of a member that would lead out of the folder it is unpacked to.

    Raises:
        SourceError: It is absolute, or has a part `..`, or is empty.
    """
    parts = name.replace("\\", "/").split("/")
    if not name or ".." in parts or name.startswith(("/", "\\")) or parts[0].endswith(":"):
        raise SourceError(
            f"the archive has a member {name!r}, whose path leads out of it",
            where=where,
            fix="do not use this archive: write it again with relative names",
        )


def content_start(head: bytes, member: Member, where: str) -> int:
    """Return where the bytes of a member begin, from the start of its header.

    Args:
        head: The first `member.head` bytes of it, or more.
        member: What the directory says.
        where: The archive and the member, for errors.

    Raises:
        SourceError: The header is not one of this member.
    """
    if len(head) < _HEADER.size or head[:4] != _SIGNATURE:
        raise _changed("there is no member where the index says", where)
    *_, name_bytes, extra_bytes = _HEADER.unpack_from(head)
    name_end: int = _HEADER.size + name_bytes
    if member.name and head[_HEADER.size : name_end] not in (
        member.name.encode(),
        member.name.encode("cp437", "replace"),
    ):
        raise _changed("another member is where the index says", where)
    return name_end + int(extra_bytes)


def read_member(read: Callable[[int, int, int], bytes], file_idx: int, member: Member, where: str) -> bytes:
    """Return the bytes of a member.

    Args:
        read: Returns bytes of a file, by its number, the position, and their number.
        file_idx: The archive.
        member: What the directory says.
        where: The archive and the member, for errors.

    Raises:
        SourceError: The archive is not what its directory says, or the member is damaged.
    """
    data = read(file_idx, member.start, member.head + member.packed)
    start = content_start(data, member, where)
    if start + member.packed > len(data):
        data += read(file_idx, member.start + len(data), start + member.packed - len(data))
    packed = data[start : start + member.packed]
    if not member.deflated:
        content = packed
    else:
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = unpack.decompress(packed, member.size + 1)  # not more, whatever a damaged one would swell to
        except zlib.error as error:
            raise _changed(f"the member is damaged: {error}", where) from error
    if len(content) != member.size or zlib.crc32(content) != member.crc:
        raise _changed("the member is damaged: its checksum differs", where)
    return content


def _changed(what: str, where: str) -> SourceError:
    return SourceError(what, where=where, fix="restore the archive; open the corpus again if it was changed")
