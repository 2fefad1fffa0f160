"""Arrow files, whose rows `ArrowSource` reads as sequences from a memory map, and `ArrowWriter` writes.

Both forms of Arrow's IPC are read: files (also called Feather) and streams (such as the `data-*-of-*.arrow` of Hugging
Face's datasets). Nothing is decoded: a row is a view of the file, and what is given out is one copy of it.

A memory map has its price: if a file is truncated while a row is copied from it, the process is killed by
the system (SIGBUS). Files are compared with their stamps before and after each read, so that a file that was cut or
rewritten before gives an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.specs import DataSpec

from ..shared.open_files import check_stamp
from .schema import has_dictionary, import_arrow
from .source import FileTableSource, TableFiles
from .writer import TableWriter

_FILE_MARK = b"ARROW1"
_FIRST_MESSAGE = 8  # position of the schema in a file: after the mark, filled up
_CONTINUES = b"\xff\xff\xff\xff"  # before each message of a stream, but for those of before Arrow 0.15


class _MappedFile:
    """One Arrow file, mapped.

    Args:
        path: Path of the file.
        descriptor: An open descriptor of it.

    Attributes:
        schema: Its Arrow schema.
        num_batches: How many batches it has.

    Raises:
        SourceError: It has no end.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        pa = import_arrow()
        # By its descriptor: a file of this name may be another one by now. `mmap.mmap` would keep one more open.
        with pa.memory_map(f"/dev/fd/{descriptor}") as mapped:
            self._buffer = mapped.read_buffer()  # holds the mapping for as long as a view of it is there
        self._last: tuple[int, Any] = (-1, None)
        self._messages: list[Any] = []
        self._batches: list[Any] = []
        self.num_batches: int
        if self._buffer[: len(_FILE_MARK)].to_pybytes() == _FILE_MARK:
            self._reader = pa.ipc.open_file(self._buffer)
            self.schema, self.num_batches = self._reader.schema, int(self._reader.num_record_batches)
            self._check_num_batches(pa, path)
            return
        self._reader = None
        # Without it, a stream that was truncated between two batches could not be told from a whole one.
        end_mark = bytes(4) if self._buffer[:4].to_pybytes() != _CONTINUES else _CONTINUES + bytes(4)
        if self._buffer[max(self._buffer.size - len(end_mark), 0) :].to_pybytes() != end_mark:
            raise SourceError(
                "the Arrow stream has no end mark: rows may be missing",
                where=path,
                fix="is it truncated? write or download it again",
            )
        self._read_stream(pa, path)

    def _check_num_batches(self, pa: Any, path: str) -> None:
        """Compare the number of batches in the footer with the messages that lie before it, which are a stream."""
        messages = pa.ipc.MessageReader.open_stream(self._buffer[_FIRST_MESSAGE:])
        num_found = sum(message.type == "record batch" for message in messages)
        if num_found != self.num_batches:
            raise SourceError(
                f"the footer of the file names {self.num_batches} batches, but there are {num_found}",
                where=path,
                fix="write or download it again: it is damaged",
            )

    def _read_stream(self, pa: Any, path: str) -> None:
        """Find the batches of a stream; those with dictionaries are made at once, as one needs what came before."""
        file = pa.BufferReader(self._buffer)
        stream = pa.ipc.open_stream(file)
        self.schema = stream.schema
        if any(has_dictionary(field.type) for field in self.schema):
            self._batches = list(stream)
        else:
            file.seek(0)
            messages = iter(pa.ipc.MessageReader.open_stream(file))
            next(messages)  # the schema
            self._messages = list(messages)
        self.num_batches = len(self._batches) or len(self._messages)
        if file.tell() != file.size():
            raise SourceError(
                f"the Arrow stream ends at byte {file.tell()} of {file.size()}: rows may be missing",
                where=path,
                fix="write or download it again; streams cannot be joined with `cat`: give them as several files",
            )

    def batch(self, number: int) -> Any:
        """Return a batch; the last one is kept."""
        if self._last[0] != number:
            pa = import_arrow()
            if self._reader is not None:
                batch = self._reader.get_batch(number)
            elif self._batches:
                batch = self._batches[number]
            else:
                batch = pa.ipc.read_record_batch(self._messages[number], self.schema)
            batch.validate()  # that its columns have as many rows as it says
            self._last = number, batch
        return self._last[1]

    def holds(self, array: Any) -> bool:
        """Tell whether an array is a view of the file."""
        start, end = self._buffer.address, self._buffer.address + self._buffer.size
        return all(buffer is None or not buffer.size or start <= buffer.address < end for buffer in array.buffers())


class _ArrowTables(TableFiles[_MappedFile]):
    """Arrow files; a piece is a record batch."""

    slow_hint = (
        "most sequences come from another compressed batch than those before, and each time one is decompressed; "
        "`headrace convert` makes an uncompressed file of it"
    )

    def _open(self, path: str, descriptor: int) -> _MappedFile:
        return _MappedFile(path, descriptor)

    def _schema_of(self, handle: _MappedFile) -> Any:
        return handle.schema

    def _release(self, handle: _MappedFile) -> None:
        """Nothing to do: the map ends with the last view of it."""

    def num_pieces(self, table_idx: int) -> int:
        """Return the number of batches."""
        return self.handle(table_idx).num_batches

    def num_rows(self, table_idx: int, piece: int) -> int:
        """Return the number of rows of a batch.

        Raises:
            SourceError: The batch is damaged.
        """
        handle, pa = self.handle(table_idx), import_arrow()
        try:
            return int(handle.batch(piece).num_rows)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SourceError(
                f"this batch cannot be read: {error}",
                where=f"{self.name(table_idx)}, piece {piece}",
                fix="is the file truncated? write or download it again",
            ) from error

    def _column_of(self, handle: _MappedFile, piece: int, name: str) -> Any:
        return handle.batch(piece).column(name)

    def check_size(self, table_idx: int) -> None:
        """Refuse a file that was cut, whose lost part would kill the process; a third of the time of a whole look."""
        file = self._files.get(table_idx)
        if file is None:
            self._check_closed(table_idx)
        elif os.lseek(file.descriptor, 0, os.SEEK_END) != file.size:
            file.look()

    def note_used(self, table_idx: int) -> None:
        """Look at the file now and then."""
        file = self._files.get(table_idx)
        if file is None:
            self._check_closed(table_idx)
        else:
            self._open_files.note_read(file)

    def confirm(self, tables: Sequence[int]) -> None:
        """Look at the files."""
        for table_idx in tables:
            file = self._files.get(table_idx)
            if file is None:
                self._check_closed(table_idx)
            else:
                self._open_files.look(file)

    def _check_closed(self, table_idx: int) -> None:
        """Refuse a file that was closed for others and changed, by its name: views of it may be kept."""
        if 0 <= table_idx < self.num_tables:
            check_stamp(self._stamps[table_idx])

    def is_view(self, table_idx: int, array: Any) -> bool:
        """Tell whether an array is a view of the file: not if it was compressed."""
        return self.handle(table_idx).holds(array)


class ArrowSource(FileTableSource):
    """Random access to the rows of Arrow files, of the file (Feather) or the stream format. Needs `headrace[arrow]`.

    Columns become data keys as `ParquetSource` describes. Lengths come from the offsets of lists: no value is read.
    Files are memory-mapped: do not change or cut them while they are read; to replace one, write another file and
    rename it. Compressed files are read, too; their batches are decompressed one by one and kept for some time.

    Args:
        files: One path, or several with the same columns.
        fields: See `ParquetSource`.
        tag_field: See `ParquetSource`.
        nulls: See `ParquetSource`.
        root: See `ParquetSource`.
        audio_root: See `ParquetSource`.
        cache_bytes: How much of decompressed batches to keep, in each process; see `ParquetSource`.
        index: See `ParquetSource`; gathering it reads offsets of lists, texts that are encoded, and headers of audio.

    Raises:
        ConfigError: An option is wrong, or pyarrow is missing.
        SourceError: A file is missing, truncated, or has other columns than the first; or a row becomes no array.
    """

    _kind, _tables_class = "arrow/2", _ArrowTables


_COMPRESSIONS = ("zstd", "lz4")
_FORMS = ("file", "stream")
_GROUP_BYTES = 4 << 20  # the most that is in memory here; a reader maps batches of any size


class ArrowWriter(TableWriter):
    """Writes one Arrow file (Feather), sequence by sequence; a context manager, which aborts if its block fails.

    A sequence is a row, a data key a column; the tags are a column, too. `ArrowSource` reads back what was written:
    data keys, dtypes, shapes, labels. Complex numbers and frames of no numbers cannot be held.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        overwrite: Whether an existing file may be replaced.
        rows_per_group: Rows in a record batch. If `None`, as many as 4 MiB hold.
        compression: `"zstd"`, `"lz4"`, or `None`, so that nothing has to be unpacked to be read.
        form: `"file"`, or `"stream"`, the form that Hugging Face's datasets have.
        tag_field: Name of the column of the tags.

    Raises:
        ConfigError: An option is wrong, or the file exists, or pyarrow is missing.
        SourceError: The folder is missing or cannot be written to.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        rows_per_group: int | None = None,
        compression: str | None = None,
        form: Literal["file", "stream"] = "file",
        tag_field: str = "tag",
    ) -> None:
        for name, value, valid in (("compression", compression, _COMPRESSIONS), ("form", form, _FORMS)):
            if value not in valid and (name == "form" or value is not None):
                raise ConfigError(f"unknown {name} {value!r}", where="ArrowWriter", fix=did_you_mean(str(value), valid))
        self._compression, self._form = compression, form
        super().__init__(
            path,
            specs=specs,
            labels=labels,
            overwrite=overwrite,
            rows_per_group=rows_per_group,
            group_bytes=_GROUP_BYTES,
            tag_field=tag_field,
        )

    def _open_sink(self, path: str, schema: Any) -> Any:
        ipc = import_arrow().ipc
        options = ipc.IpcWriteOptions(compression=self._compression)
        new = ipc.new_file if self._form == "file" else ipc.new_stream
        return new(path, schema, options=options)

    def _write_group(self, sink: Any, batch: Any) -> None:
        sink.write_batch(batch)
