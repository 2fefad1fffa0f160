"""The file that holds an index: a short preamble, a JSON header, columns of numbers.

    bytes 0-7    magic "HRINDEX" and a newline
    bytes 8-31   format version, size of the header, size of the whole file (three little-endian uint64)
    bytes 32-47  XXH3-128 over bytes 0-31 and the header
    header       JSON, see `IndexHeader`
    columns      little-endian numbers, each starting at a multiple of 64 bytes, gaps filled with zeros

Opening reads the preamble and the header and maps the rest: O(1) in the number of sequences. A truncated file is
recognized by its size, a damaged header by its checksum. The file is never changed in place, since a reader may have
mapped it: a new one replaces it. So its modification time is set to one that the header names; as long as it is
unchanged, so are the columns. Otherwise, and where the file is small, they are compared with their checksums, which
takes 0.1 s a GB. Columns that change while the time does not (a faulty disk) are noticed by `verify` only.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import FileStamp, atomic_write, hold_in_use, open_regular

FORMAT_VERSION = 2
# An index is made by the command or by its source; this room does not know which.
BUILD = "build one for these files: `headrace index FILES`, or `source.index.save(path)` in Python"
REBUILD = "build it again: `headrace index --refresh FILES`; or remove it, and call `source.index.save(path)`"

LENGTH_DTYPES = ("<i4", "<i8")
COLUMN_DTYPES = ("|u1", "|i1", *(f"<{kind}{size}" for kind in "iuf" for size in (2, 4, 8)))
_MAGIC = b"HRINDEX\n"
_PREAMBLE = struct.Struct("<8s3Q")
_CHECKSUM_BYTES = 16
_HEADER_START = _PREAMBLE.size + _CHECKSUM_BYTES
_ALWAYS_CHECKED_BYTES = 8 << 20  # 1 ms
_ALIGNMENT = 64  # bytes: a cache line, so that any dtype is aligned


class ColumnEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column of the file.

    Attributes:
        name: For example `"tags/offsets"`, `"lengths/data"`, `"locators/file"`.
        dtype: NumPy's short form, for example `"<i4"`.
        size: Number of values.
        offset: Where it starts, in bytes from the start of the first column.
        checksum: XXH3-128 of its bytes, hexadecimal.
    """

    name: str
    dtype: str
    size: int
    offset: int
    checksum: str


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an index was built from.

    Attributes:
        kind: What built it, and with which options; empty if unknown.
        meta: JSON data of the source that built it.
        files: The files it was built from, as they were.
    """

    kind: str = ""
    meta: dict[str, Any] = {}
    files: tuple[FileStamp, ...] = ()


class IndexHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON header of an index file.

    Attributes:
        num_seqs: Number of sequences.
        num_duplicates: Number of sequences whose tag an earlier one has.
        tag_prefix: Prefix of generated tags; None if there are columns of tags.
        digest: Digest over tags and lengths.
        written_ns: Modification time that the file was given, whole seconds: every file system keeps these.
        about: What it was built from; paths relative to the folder of the index file where they lie below it.
        columns: The columns, in the order of the file.
    """

    num_seqs: int
    num_duplicates: int
    tag_prefix: str | None
    digest: str
    written_ns: int
    about: About
    columns: tuple[ColumnEntry, ...]


class Stored(msgspec.Struct, frozen=True):
    """An open index file.

    Attributes:
        path: Absolute path.
        header: Its header.
        checksum: Checksum of the header, which names the checksums of all columns.
        about: The header's, with absolute paths.
        columns: Its columns, read-only views of the mapping.
    """

    path: str
    header: IndexHeader
    checksum: bytes
    about: About
    columns: dict[str, NDArray[Any]]


def describe_columns(columns: Mapping[str, NDArray[Any]]) -> tuple[ColumnEntry, ...]:
    """Lay columns out one after the other; reads all of them for their checksums."""
    entries = []
    offset = 0
    for name, column in columns.items():
        checksum = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(column).data)
        entries.append(ColumnEntry(name, column.dtype.str, column.size, offset, checksum))
        offset = _aligned(offset + column.nbytes)
    return tuple(entries)


def write_index(
    path: str | os.PathLike[str], header: IndexHeader, columns: Mapping[str, NDArray[Any]], *, follow_links: bool = True
) -> None:
    """Write an index file, atomically.

    Args:
        path: The target; its folder must exist.
        follow_links: Whether the file that a symbolic link points to is replaced, or the link.
        header: Its `columns` come from `describe_columns` of the same columns.
        columns: Little-endian, one axis each.

    Raises:
        SourceError: The file cannot be written, and nothing is left of it; or a name is not UTF-8.
    """
    try:
        header_bytes = msgspec.json.encode(header)
    except UnicodeEncodeError as error:
        what = f"the name {error.object!r} cannot be kept in an index: it is not UTF-8"
        raise SourceError(what, where=os.fspath(path), fix="rename the file or data key") from error
    first = _aligned(_HEADER_START + len(header_bytes))
    total = first + _columns_bytes(header)
    preamble = _PREAMBLE.pack(_MAGIC, FORMAT_VERSION, len(header_bytes), total)
    with atomic_write(path, fsync=True, follow_links=follow_links) as file:
        file.write(preamble + xxhash.xxh3_128_digest(preamble + header_bytes) + header_bytes)
        for entry, column in zip(header.columns, columns.values(), strict=True):
            file.write(bytes(first + entry.offset - file.tell()))
            file.write(np.ascontiguousarray(column).data)
        file.write(bytes(total - file.tell()))
        file.flush()
        with contextlib.suppress(OSError):  # then the columns are compared with their checksums
            os.utime(file.fileno() if os.utime in os.supports_fd else file.name, ns=(header.written_ns,) * 2)


def open_stored(path: str | os.PathLike[str], *, known: bytes | None = None) -> Stored:
    """Map an index file. The mapping lives as long as one of its columns, and protects the file from being removed.

    Args:
        path: The file.
        known: Checksum of the header of an index whose columns were checked before: they are not checked again.

    Raises:
        SourceError: The file is missing, truncated, damaged, of another version, or not an index.
    """
    where = os.path.abspath(path)
    try:
        with open_regular(where) as file:
            hold_in_use(file.fileno())  # the mapping has a descriptor of its own, of the same open file
            status = os.fstat(file.fileno())
            size = status.st_size
            header, checksum, first = _read_header(file, size, where)
            mapping = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise SourceError("the index does not exist", where=where, fix=BUILD) from error
    except OSError as error:
        raise SourceError(f"cannot read the index: {error.strerror}", where=where) from error
    columns = {entry.name: _map_column(mapping, entry, first, where) for entry in header.columns}
    folder = Path(where).parent
    files = tuple(stamp.resolved(folder) for stamp in header.about.files)
    stored = Stored(where, header, checksum, msgspec.structs.replace(header.about, files=files), columns)
    is_untouched = status.st_mtime_ns == header.written_ns and size > _ALWAYS_CHECKED_BYTES
    if not is_untouched and checksum != known:
        check_checksums(stored)
    return stored


def stored_column(stored: Stored, name: str, dtypes: tuple[str, ...], size: int | None = None) -> NDArray[Any]:
    """Return a column that the index must have.

    Raises:
        SourceError: It is missing, or has another dtype or another number of values.
    """
    column = stored.columns.get(name)
    if column is None:
        raise SourceError(f"the index has no column {name!r}", where=stored.path, fix=REBUILD)
    if column.dtype.str not in dtypes or (size is not None and len(column) != size):
        what = f"the column {name!r} holds {len(column)} values of {column.dtype.str}, not {size} of {dtypes[0]}"
        raise SourceError(what, where=stored.path, fix=REBUILD)
    return column


def check_checksums(stored: Stored) -> None:
    """Compare every column with its checksum: reads the whole file.

    Raises:
        SourceError: A column is damaged.
    """
    for entry in stored.header.columns:
        checksum = xxhash.xxh3_128_hexdigest(stored.columns[entry.name].data)
        if checksum != entry.checksum:
            what = f"the column {entry.name!r} is damaged: its checksum is {checksum}, not {entry.checksum}"
            raise SourceError(what, where=stored.path, fix=REBUILD)


def _read_header(file: IO[bytes], size: int, where: str) -> tuple[IndexHeader, bytes, int]:
    """Return the header, its checksum, and the offset of the first column."""
    start = file.read(_HEADER_START)
    if not start.startswith(_MAGIC[: len(start)]):
        raise SourceError("this is not an index", where=where, fix=f"give another file, or {BUILD}")
    if len(start) < _HEADER_START:
        raise SourceError(f"the index is truncated: it has only {size} bytes", where=where, fix=REBUILD)
    _, version, header_size, total = _PREAMBLE.unpack_from(start)
    if version != FORMAT_VERSION:
        what = f"the index has format version {version}, this Headrace reads version {FORMAT_VERSION}"
        raise SourceError(what, where=where, fix=REBUILD)
    if total != size:
        raise SourceError(f"the index is truncated: it has {size} bytes, not {total}", where=where, fix=REBUILD)
    header_bytes = file.read(min(header_size, size))
    checksum = xxhash.xxh3_128_digest(start[: _PREAMBLE.size] + header_bytes)
    if checksum != start[_PREAMBLE.size :]:
        raise SourceError("the index is damaged: the checksum of its header is wrong", where=where, fix=REBUILD)
    try:
        header = msgspec.json.decode(header_bytes, type=IndexHeader)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SourceError(f"the header of the index is not readable: {error}", where=where, fix=REBUILD) from error
    return header, checksum, _aligned(_HEADER_START + header_size)


def _map_column(mapping: mmap.mmap, entry: ColumnEntry, first: int, where: str) -> NDArray[Any]:
    start = first + entry.offset
    if entry.dtype not in COLUMN_DTYPES or entry.size < 0 or entry.offset < 0 or entry.offset % _ALIGNMENT:
        raise SourceError(f"the index describes an impossible column {entry}", where=where, fix=REBUILD)
    dtype = np.dtype(entry.dtype)
    if start + entry.size * dtype.itemsize > len(mapping):
        raise SourceError(f"the column {entry.name!r} reaches beyond the end of the index", where=where, fix=REBUILD)
    if not entry.size:
        return np.frombuffer(b"", dtype=dtype)
    return np.frombuffer(mapping, dtype=dtype, count=entry.size, offset=start)


def _columns_bytes(header: IndexHeader) -> int:
    if not header.columns:
        return 0
    last = header.columns[-1]
    return _aligned(last.offset + last.size * np.dtype(last.dtype).itemsize)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
