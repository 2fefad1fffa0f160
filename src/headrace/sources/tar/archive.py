"""Where each member of a tar archive is, from the headers alone, and which sequence it belongs to, by its name.

`tarfile` makes an object for each member, which takes some 30 microseconds; here a usual header of a plain file costs
about four, and `tarfile` reads the others. What is not a plain file with a name inside the archive is refused. Nothing
is ever written under these names, but an archive with a link or a path with `..` was made by mistake, or to deceive.
Every header is compared with its sum, and an archive must have its end mark: without one it is truncated, and sequences
would be missing silently.

A member is called `<key>.<extension>`: the key ends at the first dot of the last part of the path. That is the rule of
the WebDataset format. Members of one sequence have one key and follow one another. What has no dot there, or nothing
before it, belongs to no sequence, and neither does what lies in a folder called `__..__`, where tools describe a
shard.

Tags may have any characters; `TarWriter` writes what would be read otherwise as `%` and two hexadecimal digits: `%`,
dots, control characters, slashes that are no inner ones. The metadata in the shard (`METADATA_NAME`) says so. Without
it a key is a tag as it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

from headrace.errors import SourceError
from headrace.files import open_regular

BLOCK = 512  # an archive is made of such blocks: a header, then the data, filled up with zeros
_ZEROS = bytes(BLOCK)
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh", b"\x04\x22\x4d\x18")  # gzip, zstd, xz, ...
_REPACK = "make the archive again of plain files: tar -C FOLDER --dereference --hard-dereference --sort=name -cf"
_GET_AGAIN = "get or make it again"


class TarMember(NamedTuple):
    """One plain file in an archive.

    Attributes:
        name: Its path there, without a leading `./`.
        position: Position of its first byte.
        num_bytes: Its size.
    """

    name: str
    position: int
    num_bytes: int


@contextlib.contextmanager
def open_archive(path: str) -> Iterator[IO[bytes]]:
    """Open an archive; what the system refuses in the block is a `SourceError`."""
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise SourceError(f"the archive cannot be read: {error.strerror}", where=path) from error


class MemberFile(io.RawIOBase):
    """A member of an open archive as a file of its own, for a library that seeks in it.

    Attributes:
        size: Its bytes.
    """

    def __init__(self, archive: IO[bytes], member: TarMember) -> None:
        super().__init__()
        self._archive, self._start, self.size, self._position = archive, member.position, member.num_bytes, 0

    def head(self, num_bytes: int) -> bytes:
        """Return the first bytes, or all there are."""
        self._archive.seek(self._start)
        return self._archive.read(min(num_bytes, self.size))

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on; return how many bytes there were."""
        self._archive.seek(self._start + self._position)
        data = self._archive.read(max(min(len(buffer), self.size - self._position), 0))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def scan_members(file: IO[bytes], path: str) -> Iterator[TarMember]:
    """Walk through the plain files of an archive, O(1) in their sizes: no member's data is read.

    Raises:
        SourceError: It is no plain tar archive, it is truncated or damaged, or a member is no plain file inside of it.
    """
    size, end = os.fstat(file.fileno()).st_size, 0
    if file.read(8).startswith(_COMPRESSED):
        what = "the archive is compressed: no member can be found in it without reading all before"
        fix = "decompress it (not the members), or read it as a stream: headrace.pipes, load_from_tar, webdataset"
        raise SourceError(what, where=path, fix=fix)
    opened: tarfile.TarFile | None = None
    while file.seek(end) == end and (header := file.read(BLOCK)) != _ZEROS:
        if len(header) < BLOCK:
            raise SourceError(
                f"the archive is truncated: it has no end mark in {size} bytes", where=path, fix=_GET_AGAIN
            )
        where, is_file = f"{path}, byte {end}", True
        usual = _usual(header)
        if usual is not None:
            name, num_bytes, position = *usual, end + BLOCK
        else:
            try:
                file.seek(0)
                opened = opened or tarfile.TarFile(fileobj=file, errors="strict")
                file.seek(end)
                info = tarfile.TarInfo.fromtarfile(opened)
            except (tarfile.TarError, UnicodeDecodeError, ValueError, OverflowError) as error:
                what = f"the archive is truncated or damaged, or the checksum of a header is wrong: {error}"
                raise SourceError(what, where=where, fix=_GET_AGAIN) from error
            if opened.pax_headers.keys() & {"path", "size"}:
                raise SourceError("attributes of all members have a path or a size", where=where, fix=_REPACK)
            is_sparse = info.issparse() or any(name.startswith("GNU.sparse") for name in info.pax_headers)
            if is_sparse or not (info.isreg() or info.isdir()):
                what = f"the member {info.name!r} is a link, a device, sparse, or of an unknown kind"
                raise SourceError(what, where=where, fix=_REPACK)
            name, position, is_file = info.name, info.offset_data, info.isreg()
            num_bytes = info.size if is_file else 0
        if position + num_bytes > size:
            what = f"the archive is truncated after {size} bytes: {name!r} is said to end at {position + num_bytes}"
            raise SourceError(what, where=path, fix=_GET_AGAIN)
        end = -(-(position + num_bytes) // BLOCK) * BLOCK
        if is_file:
            yield TarMember(_checked_name(name, where), position, num_bytes)
    file.seek(end)
    while data := file.read(1 << 20):
        if data.count(0) != len(data):  # as where archives were joined: readers see only the first
            fix = "archives cannot be joined with `cat`: give them as several files, or use `tar --concatenate`"
            raise SourceError(
                "there are data behind the end mark, which readers of tar archives do not see", where=path, fix=fix
            )


def _usual(header: bytes) -> tuple[str, int] | None:
    """Return name and size of a plain file, if its header has the usual form and the right sum."""
    digits, own = header[124:136], header[148:156]
    if header[156] not in b"0\0" or not (own[:6].isdigit() and own[6:].strip(b"\0 ") == b""):
        return None
    if not (digits[:11].isdigit() and digits[11] in b"\0 "):
        return None
    # The lower half of Adler-32 is 1 + the sum of the bytes, modulo 65521, at a tenth of the price of `sum`. In the sum
    # of a header, its own field counts as eight spaces.
    try:
        if zlib.adler32(header) & 0xFFFF != (1 + int(own[:6], 8) + sum(own) - 8 * 32) % 65521:
            return None
        name = header[:100].partition(b"\0")[0].decode()
        if header[345] and header[257:263] == b"ustar\0":  # GNU has other things there
            name = header[345:500].partition(b"\0")[0].decode() + "/" + name
        return None if name.endswith("/") else (name, int(digits[:11], 8))
    except ValueError:
        return None


def _checked_name(name: str, where: str) -> str:
    """Return a name that stays inside the archive, without a leading `./`."""
    text = name
    while text.startswith("./"):
        text = text[2:].lstrip("/")
    if not text or text[0] == "/" or (".." in text and ".." in text.split("/")):
        raise SourceError(f"the member {name!r} leads out of the archive", where=where, fix=_REPACK)
    return text


METADATA_NAME = "__headrace__/corpus.json"  # written by `TarWriter`: specs, labels, which member is which data key
_NOTES = re.compile(r"__[^/]*__(/|$)")  # as WebDataset and Energon have it
_ESCAPED = re.compile("[\\x00-\\x1f\\x7f%.]")
_OUTER_SLASH = re.compile("^/|/(?=/)|/$")
_ESCAPE = re.compile("%([0-9A-F]{2})")
_EMPTY = "%"  # for no characters at all: no other name has it, as % is always written as %25


def split_name(name: str) -> tuple[str, str] | None:
    """Return key and extension of a member; `None` if it belongs to no sequence."""
    folder = name.rfind("/") + 1
    dot = name.find(".", folder)
    if dot <= folder or dot == len(name) - 1 or (name.startswith("__") and _NOTES.match(name)):
        return None
    return name[:dot], name[dot + 1 :]


def escape(tag: str) -> str:
    """Return a tag as a key, from which `unescape` makes the tag again; different tags have different keys."""
    key = _OUTER_SLASH.sub("%2F", _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", tag)) or _EMPTY
    return "%5F" + key[1:] if key.startswith("__") else key


def unescape(key: str) -> str:
    """Return the tag of a key that `escape` made."""
    return "" if key == _EMPTY else _ESCAPE.sub(lambda match: chr(int(match[1], 16)), key) if "%" in key else key
