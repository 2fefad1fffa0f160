"""Where each member of a tar archive is, from the headers alone, and which sequence it belongs to, by its name.

`tarfile` makes an object for each member, which takes some 30 microseconds; here a header costs about four. Read are
the POSIX formats (ustar, pax), GNU's, and the old one before both. What is not a plain file with a name inside the
archive is refused. Nothing is ever written under these names, but an archive with a link or a path with `..` was made
by mistake, or to deceive. Every header is compared with its sum, and an archive must have its end mark: without one it
is truncated, and sequences would be missing silently.

A member is called `<key>.<extension>`: the key ends at the first dot of the last part of the path. That is the rule of
the WebDataset format. Members of one sequence have one key and follow one another. What has no dot there, or nothing
before it, belongs to no sequence, and neither does what lies in a folder called `__..__`, where tools describe a
shard.

Tags may have any characters; `TarWriter` writes what would be read otherwise as `%` and two hexadecimal digits: `%`,
dots, control characters, slashes that are no inner ones. The metadata in the shard (`METADATA_NAME`) says so. Without
it a key is a tag as it is.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

from headrace.errors import SourceError

BLOCK = 512  # an archive is made of such blocks: a header, then the data, filled up with zeros
_BUFFER_BYTES = 4096  # read at once: a page costs no more than a header, and a short member needs no other read
_MAX_TEXT_BYTES = 1 << 20  # of a long name, or of a pax header; more is damage
_MAX_LENGTH_DIGITS = 7  # of a record of the pax format
_LINE_FEED = 10
_ZEROS = bytes(BLOCK)

_PLAIN = frozenset(b"0\x007")  # kinds of members; 7 was to be stored in one run, which says nothing today
_FOLDER = ord("5")
_SAYS_MORE = frozenset(b"xgLK")  # of the member that follows (g: of all)
_REFUSED = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a device",
    "4": "a device",
    "6": "a pipe",
    "S": "a sparse file",
    "V": "the name of a volume",
}
_COMPRESSED = {
    b"\x1f\x8b": "gunzip",
    b"\x28\xb5\x2f\xfd": "unzstd",
    b"\xfd7zXZ\x00": "unxz",
    b"BZh": "bunzip2",
    b"\x04\x22\x4d\x18": "unlz4",
}
_REPACK = "make the archive again of plain files: tar --dereference --hard-dereference --sort=name -cf"


class Member(NamedTuple):
    """One plain file in an archive.

    Attributes:
        name: Its path there, without a leading `./`.
        start: Position of its header.
        position: Position of its first byte.
        num_bytes: Its size.
    """

    name: str
    start: int
    position: int
    num_bytes: int


class TarBytes:
    """Bytes of an archive while it is scanned. Short reads that follow one another cost one read of the file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._buffer, self._start = b"", 0
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SourceError(f"the archive cannot be opened: {error.strerror}", where=path) from error
        self.size = os.fstat(self._descriptor).st_size

    def read(self, position: int, num_bytes: int) -> bytes:
        """Return the bytes position..position + num_bytes; fewer at the end of the file."""
        offset = position - self._start
        if offset < 0 or offset + num_bytes > len(self._buffer):
            self._buffer, self._start, offset = self._pread(position, max(num_bytes, _BUFFER_BYTES)), position, 0
        return self._buffer[offset : offset + num_bytes]

    def _pread(self, position: int, num_bytes: int) -> bytes:
        data = b""
        try:
            while len(data) < num_bytes:  # Linux gives at most 2 GiB at a time
                part = os.pread(self._descriptor, num_bytes - len(data), position + len(data))
                if not part:
                    break
                data = data + part if data else part
        except OSError as error:
            raise SourceError(f"the archive cannot be read: {error.strerror}", where=self.path) from error
        return data

    def close(self) -> None:
        """Release the file."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


class MemberFile(io.RawIOBase):
    """A member as a file of its own, for a library that seeks in it."""

    def __init__(self, archive: TarBytes, member: Member) -> None:
        super().__init__()
        self._archive, self._start, self._size = archive, member.position, member.num_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position in the member, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def tell(self) -> int:
        """Return the position in the member."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer from the position on; return how many bytes there were."""
        num_bytes = max(min(len(buffer), self._size - self._position), 0)
        data = self._archive.read(self._start + self._position, num_bytes)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def scan_members(archive: TarBytes) -> Iterator[Member]:
    """Walk through the plain files of an archive, O(1) in their sizes: no member's data is read.

    Raises:
        SourceError: It is no plain tar archive, it is truncated or damaged, or a member is no plain file inside of it.
    """
    _refuse_other_formats(archive)
    path, size, end = archive.path, archive.size, 0
    said: dict[str, bytes] = {}
    while True:
        start, header = end, archive.read(end, BLOCK)
        if header == _ZEROS:
            break
        if len(header) < BLOCK:
            raise _truncated(path, size, "it has no end mark, which is blocks of zeros")
        num_bytes, kind, position = _size_in(header, path, start), header[156], start + BLOCK
        if kind in _SAYS_MORE:
            said |= _read_said(archive, kind, start, num_bytes)
            end = _round_up(position + num_bytes)
            continue
        name = _name_in(header)
        if said:
            name, num_bytes = said.get("path", name), _size_said(said, num_bytes, path, start)
            if any(attribute.startswith("GNU.sparse") for attribute in said):
                kind = ord("S")
            said = {}
        if kind == _FOLDER or (kind in _PLAIN and name.endswith(b"/")):
            end = position
            continue
        if kind not in _PLAIN:
            what = _REFUSED.get(chr(kind), f"of the unknown kind {chr(kind)!r}")
            raise SourceError(f"the member {_text(name)!r} is {what}", where=f"{path}, byte {start}", fix=_REPACK)
        end = _round_up(position + num_bytes)
        if position + num_bytes > size:
            raise _truncated(path, size, f"the member {_text(name)!r} is said to end at byte {position + num_bytes}")
        yield Member(_checked_name(name, path, start), start, position, num_bytes)
    _check_tail(archive, end)


def _round_up(position: int) -> int:
    return -(-position // BLOCK) * BLOCK


def _refuse_other_formats(archive: TarBytes) -> None:
    start = archive.read(0, 8)
    if not start:
        raise _truncated(archive.path, 0, "it is empty; an archive of no files has an end mark")
    for magic, tool in _COMPRESSED.items():
        if start.startswith(magic):
            raise SourceError(
                "the archive is compressed: no member can be found in it without reading all before",
                where=archive.path,
                fix=f"unpack it once ({tool}; not the members), or read it as a stream with headrace.pipes "
                "(load_from_tar, webdataset)",
            )


def _size_in(header: bytes, path: str, start: int) -> int:
    """Return the size that a header says, after a look at its sum."""
    own_field = header[148:156]
    try:
        is_usual = own_field[:6].isdigit() and own_field[6] in b"\0 " and own_field[7] in b"\0 "
        said = int(own_field[:6], 8) if is_usual else _number(own_field)
        num_bytes = int(header[124:135], 8) if header[135] in b"\0 " else _number(header[124:136])
    except ValueError:
        said, num_bytes = _number(own_field), _number(header[124:136])
    # The lower half of Adler-32 is 1 + the sum of the bytes, modulo 65521, at a tenth of the price of `sum`. In the sum
    # of a header, its own field counts as eight spaces.
    if zlib.adler32(header) & 0xFFFF != (1 + said + sum(own_field) - 8 * 32) % 65521 and said != _signed_sum(header):
        fix = "this is no tar archive, or it is damaged: get it again"
        raise SourceError("the checksum of a header is wrong", where=f"{path}, byte {start}", fix=fix)
    if num_bytes < 0:
        raise _damaged("a header has no size", path, start)
    return num_bytes


def _number(digits: bytes) -> int:
    """Read a number in octal digits, or in binary after a byte 128; -1 if it is neither."""
    if digits[:1] == b"\x80":
        return int.from_bytes(digits[1:], "big")
    text = digits.lstrip(b" ").rstrip(b" \0")
    return int(text, 8) if text.isdigit() and not set(text) & set(b"89") else 0 if not text else -1


def _signed_sum(header: bytes) -> int:
    """Return the sum as old programs made it, which took bytes for numbers with a sign."""
    signed = [byte - 256 if byte > 127 else byte for byte in header[:148] + header[156:]]
    return sum(signed) + 8 * 32


def _name_in(header: bytes) -> bytes:
    name = header[:100].partition(b"\0")[0]
    if header[345] and header[257:263] == b"ustar\0":  # GNU has other things there
        return header[345:500].partition(b"\0")[0] + b"/" + name
    return name


def _read_said(archive: TarBytes, kind: int, start: int, num_bytes: int) -> dict[str, bytes]:
    """Read a header that says more of the member that follows: a long name, or attributes of the pax format."""
    if num_bytes > _MAX_TEXT_BYTES:
        raise _damaged(f"a name or its attributes have {num_bytes} bytes", archive.path, start)
    text = archive.read(start + BLOCK, num_bytes)
    if len(text) < num_bytes:
        raise _truncated(archive.path, archive.size, f"a header is said to end at byte {start + BLOCK + num_bytes}")
    if kind == ord("L"):
        return {"path": text.partition(b"\0")[0]}
    if kind == ord("K"):  # where a link leads; the link is refused
        return {}
    attributes = _pax_attributes(text, archive.path, start)
    if kind == ord("g"):
        if attributes.keys() & {"path", "size"}:
            raise _damaged("attributes of all members have a path or a size", archive.path, start)
        return {}
    return attributes


def _pax_attributes(text: bytes, path: str, start: int) -> dict[str, bytes]:
    """Take apart records of the form `<bytes of the record> <name>=<value>` and a line feed."""
    attributes: dict[str, bytes] = {}
    position = 0
    end = len(text.rstrip(b"\0"))
    while position < end:
        space = text.find(b" ", position, position + _MAX_LENGTH_DIGITS + 1)
        digits = text[position:space] if space >= 0 else b""
        stop = position + int(digits) if digits.isdigit() else 0
        equals = text.find(b"=", space, stop)
        if not space < equals < stop <= len(text) or text[stop - 1] != _LINE_FEED:
            raise _damaged("attributes of a member are not of the pax format", path, start)
        attributes[text[space + 1 : equals].decode("utf-8", "replace")] = text[equals + 1 : stop - 1]
        position = stop
    return attributes


def _size_said(said: dict[str, bytes], num_bytes: int, path: str, start: int) -> int:
    size = said.get("size")
    if size is None:
        return num_bytes
    if not size.isdigit() or len(size) > 18:
        raise _damaged(f"a member is said to have {size!r} bytes", path, start)
    return int(size)


def _checked_name(name: bytes, path: str, start: int) -> str:
    """Return a name that is text and stays inside the archive, without a leading `./`."""
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise SourceError(
            f"the name of the member {name!r} is not UTF-8 text", where=f"{path}, byte {start}", fix="rename the file"
        ) from error
    if text[:1] == "." and text[:2] == "./":
        while text.startswith("./"):
            text = text[2:].lstrip("/")
    if not text or text[0] == "/" or (".." in text and ".." in text.split("/")):
        raise SourceError(
            f"the member {_text(name)!r} leads out of the archive",
            where=f"{path}, byte {start}",
            fix="make the archive again with paths below one folder: tar -C FOLDER --sort=name -cf",
        )
    return text


def _check_tail(archive: TarBytes, end: int) -> None:
    """Refuse anything but zeros after the end mark: joined archives, of which readers see only the first."""
    position, step = end, 1 << 20
    while position < archive.size:
        data = archive.read(position, min(step, archive.size - position))
        if data.count(0) != len(data):
            raise SourceError(
                "there are data behind the end mark, which readers of tar archives do not see",
                where=f"{archive.path}, byte {position}",
                fix="archives cannot be joined with `cat`: give them as several files, or use `tar --concatenate`",
            )
        position += step
        if not data:
            break


def _truncated(path: str, size: int, what: str) -> SourceError:
    return SourceError(f"the archive is truncated after {size} bytes: {what}", where=path, fix="get or make it again")


def _damaged(what: str, path: str, start: int) -> SourceError:
    return SourceError(f"the archive is damaged: {what}", where=f"{path}, byte {start}", fix="get or make it again")


def _text(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


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
    if not tag:
        return _EMPTY
    key = _ESCAPED.sub(_escaped, tag)
    if "/" in key:
        key = _OUTER_SLASH.sub("%2F", key)
    return "%5F" + key[1:] if key.startswith("__") else key


def escape_data_key(data_key: str) -> str:
    """Return a data key as a part of an extension; different ones have different parts."""
    return escape(data_key).replace("/", "%2F").replace(":", "%3A")


def unescape(key: str) -> str:
    """Return the tag of a key that `escape` made."""
    if "%" not in key:
        return key
    return "" if key == _EMPTY else _ESCAPE.sub(lambda match: chr(int(match[1], 16)), key)


def _escaped(match: re.Match[str]) -> str:
    return f"%{ord(match[0]):02X}"
