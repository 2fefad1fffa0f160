"""Tables and their pieces: row groups of Parquet, record batches of Arrow, or those of a table in memory.

Pieces are read on demand. Of tables in files, at most a fixed number is open, and each is compared with its stamp when
it is opened.

Nothing of an Arrow file is decoded: a row is a view of a memory map, and what is given out is one copy of it. A memory
map has its price: if a file is truncated while a row is copied from it, the process is killed by the system (SIGBUS).
So its size is looked at before each read, by a descriptor that is kept: a file that was cut before gives an error.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

from ..shared.open_files import MAX_OPEN_FILES, check_stamp, older_half
from .schema import Schema, has_dictionary, import_arrow, read_schema

_FILE_MARK = b"ARROW1"
_FIRST_MESSAGE = 8  # position of the schema in a file: after the mark, filled up
_CONTINUES = b"\xff\xff\xff\xff"  # before each message of a stream, but for those of before Arrow 0.15
_TORN_FIX = "is it truncated, or of another format? write or download it again"


class TableFile(ABC):
    """One open table, in pieces.

    Attributes:
        schema: Its Arrow schema.
        num_pieces: How many pieces it has.
    """

    schema: Any
    num_pieces: int

    @abstractmethod
    def num_rows(self, piece: int) -> int:
        """Return the number of rows of a piece."""

    @abstractmethod
    def column(self, piece: int, name: str) -> Any:
        """Return a column of a piece."""

    def holds(self, array: Any) -> bool:  # noqa: ARG002
        """Tell whether an array is a view of the table, and was not decoded."""
        return False

    def check(self, stamp: FileStamp) -> None:  # noqa: B027
        """Refuse a file that was cut, if reading it beyond its end would not give an error."""

    def close(self) -> None:  # noqa: B027
        """Close it."""


class ArrowFile(TableFile):
    """One Arrow file, mapped; a piece is a record batch.

    Args:
        path: Path of the file.

    Raises:
        SourceError: It has no end.
    """

    _descriptor = -1

    def __init__(self, path: str) -> None:
        pa = import_arrow()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # By its descriptor: a file of this name may be another one by now. `mmap.mmap` would keep one more open.
        with pa.memory_map(f"/dev/fd/{self._descriptor}") as mapped:
            self._buffer = mapped.read_buffer()  # holds the mapping for as long as a view of it is there
        self._last: tuple[int, Any] = (-1, None)
        is_file = self._buffer[: len(_FILE_MARK)].to_pybytes() == _FILE_MARK
        # The messages before the footer of a file are a stream.
        stream = pa.BufferReader(self._buffer[_FIRST_MESSAGE:] if is_file else self._buffer)
        messages = [one for one in pa.ipc.MessageReader.open_stream(stream) if one.type == "record batch"]
        reader = pa.ipc.open_file(self._buffer) if is_file else pa.ipc.open_stream(self._buffer)
        self.schema, self.num_pieces = reader.schema, len(messages)
        if is_file:
            self._make: Callable[[int], Any] = reader.get_batch
            if reader.num_record_batches != len(messages):
                what = (
                    f"the footer of the file names {reader.num_record_batches} batches, but there are {len(messages)}"
                )
                raise SourceError(what, where=path, fix=_TORN_FIX)
            return
        if any(has_dictionary(field.type) for field in self.schema):  # a batch needs those that came before
            self._make = list(reader).__getitem__
        else:
            self._make = lambda number: pa.ipc.read_record_batch(messages[number], self.schema)
        # Without the mark, a stream that was truncated between two batches could not be told from a whole one.
        end_mark = bytes(4) if self._buffer[:4].to_pybytes() != _CONTINUES else _CONTINUES + bytes(4)
        end, size = stream.tell(), stream.size()
        if end != size or self._buffer[max(size - len(end_mark), 0) :].to_pybytes() != end_mark:
            what = (
                f"the Arrow stream of {size} bytes has no end mark, or another one at byte {end}: rows may be missing"
            )
            raise SourceError(what, where=path, fix=f"{_TORN_FIX}; give several streams as several files")

    def num_rows(self, piece: int) -> int:
        """Return the number of rows of a batch."""
        return int(self._batch(piece).num_rows)

    def column(self, piece: int, name: str) -> Any:
        """Return a column of a batch: a view of the file, if it is not compressed."""
        return self._batch(piece).column(name)

    def _batch(self, number: int) -> Any:
        """Return a batch; the last one is kept."""
        if self._last[0] != number:
            batch = self._make(number)
            batch.validate()  # that its columns have as many rows as it says
            self._last = number, batch
        return self._last[1]

    def check(self, stamp: FileStamp) -> None:
        """Refuse a file that was cut, or made longer.

        Raises:
            SourceError: See above.
        """
        if os.lseek(self._descriptor, 0, os.SEEK_END) != stamp.size:
            check_stamp(stamp, self._descriptor)

    def close(self) -> None:
        """Close its descriptor; the map ends with the last view of it."""
        if self._descriptor >= 0 and os is not None:  # at the end of the interpreter, which closes what is open
            os.close(self._descriptor)
        self._descriptor = -1

    __del__ = close

    def holds(self, array: Any) -> bool:
        """Tell whether an array is a view of the file."""
        start, end = self._buffer.address, self._buffer.address + self._buffer.size
        return all(buffer is None or not buffer.size or start <= buffer.address < end for buffer in array.buffers())


class ParquetFile(TableFile):
    """One Parquet file; a piece is a row group, the least that Parquet decodes.

    Args:
        path: Path of the file. Arrow reads it by positions (`pread`), so that a forked process may go on with it.
    """

    def __init__(self, path: str) -> None:
        parquet = import_arrow().parquet
        self._file = parquet.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        self.schema, self.num_pieces = self._file.schema_arrow, int(self._file.metadata.num_row_groups)

    def num_rows(self, piece: int) -> int:
        """Return the number of rows of a row group."""
        return int(self._file.metadata.row_group(piece).num_rows)

    def column(self, piece: int, name: str) -> Any:
        """Return a column of a row group, decoded."""
        # One thread: workers share the cores already.
        column = self._file.read_row_group(piece, columns=[name], use_threads=False).column(name)
        if column.num_chunks == 1:
            return column.chunk(0)
        pa = import_arrow()
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)

    def close(self) -> None:
        """Close it."""
        self._file.close()


class Tables:
    """The pieces of tables of one schema, one table in each file.

    Args:
        opener: What opens one: `ArrowFile` or `ParquetFile`.
        stamps: The files as they were indexed.

    Attributes:
        num_tables: How many tables there are, one after the other.
        are_shared: Whether other processes can open them, from what is pickled of this.
    """

    are_shared = True

    def __init__(self, opener: Callable[[str], TableFile], stamps: Sequence[FileStamp]) -> None:
        self._opener, self._stamps, self.num_tables = opener, stamps, len(stamps)
        self._handles: dict[int, TableFile] = {}

    def name(self, table_idx: int) -> str:
        """Return what messages call a table: its path."""
        return self._stamps[table_idx].path

    def schema(self, table_idx: int) -> Schema:
        """Return the schema of a table."""
        return read_schema(self._handle(table_idx).schema, self.name(table_idx))

    def num_pieces(self, table_idx: int) -> int:
        """Return the number of pieces of a table."""
        return int(self._handle(table_idx).num_pieces)

    def num_rows(self, table_idx: int, piece: int) -> int:
        """Return the number of rows of a piece."""
        with self._refusing_damage(table_idx, piece):
            return int(self._handle(table_idx).num_rows(piece))

    def array(
        self, table_idx: int, piece: int, path: Sequence[str], rows: NDArray[np.int64] | None = None
    ) -> tuple[Any, bool]:
        """Return a column of a piece, or a field of it, or some rows, and whether it is a view of the table.

        A field is null where its structure is.
        """
        self.check_size(table_idx)
        with self._refusing_damage(table_idx, piece):
            handle = self._handle(table_idx)
            array = handle.column(piece, path[0])
            for name in path[1:]:
                array = array.flatten()[array.type.get_field_index(name)]
            array = getattr(array, "storage", array)
            array.validate(full=True)  # before anything is done with what it points at
            if len(array) != handle.num_rows(piece):
                raise ValueError(f"the column {path[0]!r} has {len(array)} rows, not {handle.num_rows(piece)}")
            return (array, handle.holds(array)) if rows is None else (array.take(import_arrow().array(rows)), False)

    @contextmanager
    def _refusing_damage(self, table_idx: int, piece: int) -> Iterator[None]:
        try:
            yield
        except (import_arrow().ArrowException, OSError, KeyError, ValueError) as error:
            if isinstance(error, SourceError):
                raise
            where = f"{self.name(table_idx)}, piece {piece}"
            raise SourceError(
                f"the piece is damaged, or cannot be read: {error}", where=where, fix=_TORN_FIX
            ) from error

    def check_size(self, table_idx: int) -> None:
        """Refuse a file that was cut, whose lost part would kill the process."""
        handle = self._handles.get(table_idx)
        if handle is not None:
            handle.check(self._stamps[table_idx])
        elif 0 <= table_idx < self.num_tables:  # it was closed for others, and what was read of it may be kept
            check_stamp(self._stamps[table_idx])

    def _handle(self, table_idx: int) -> Any:
        """Return an open file.

        Raises:
            SourceError: It is gone, changed, or cannot be read.
        """
        handle = self._handles.get(table_idx)
        if handle is None:
            stamp = self._stamps[table_idx]
            check_stamp(stamp)
            while len(self._handles) >= MAX_OPEN_FILES:
                self._drop(next(iter(self._handles)))
            handle = self._handles[table_idx] = self._opened(stamp.path)
        return handle

    def _opened(self, path: str) -> TableFile:
        """Open a file; where the system allows no more open files, close half of the others."""
        pa = import_arrow()
        while True:
            try:
                return self._opener(path)
            except (pa.ArrowException, OSError, ValueError) as error:
                too_many = isinstance(error, OSError) and error.errno in TOO_MANY_OPEN
                if not (too_many and self._handles):
                    fix = TOO_MANY_OPEN_FIX if too_many else _TORN_FIX
                    raise SourceError(f"this cannot be read: {error}", where=path, fix=fix) from error
            for table_idx in older_half(self._handles):
                self._drop(table_idx)

    def _drop(self, table_idx: int) -> None:
        self._handles.pop(table_idx).close()

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        while self._handles:
            self._drop(next(iter(self._handles)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Tables, (self._opener, self._stamps)
