"""What sources of tables have in common, whose rows are sequences, whose columns are data keys.

A table comes in pieces, which are read on demand: row groups of Parquet, record batches of Arrow, chunks of a dataset
in memory. The index says in which piece each sequence is, and in which row of it. A piece of a column that was looked
at is kept in a bounded cache: for Parquet because it was expensive to decode, for Arrow (views of a mapping) to spare
the look-up.

Of tables in files, at most a fixed number is open, and each is compared with its stamp when it is read. A descriptor is
kept beside what Arrow has open, since Arrow shows none: by it a file that was rewritten in place is told from one that
was replaced by another of the same name, which does no harm.
"""

from __future__ import annotations

import logging
import os
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError, check_count
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

from ..base import check_corpus_idx, check_data_key
from ..shared.open_files import MAX_OPEN_FILES, OpenFile, OpenFiles, check_stamp, older_half
from ..shared.paths import Files, IndexOption, PathLike, list_paths
from ..shared.source import IndexedSource, column_view
from .cells import Cells
from .choice import TableOptions, choose_options
from .fields import TableField
from .gather import Tables, gather_tables, read_cells
from .schema import Schema, import_arrow, read_schema

DEFAULT_CACHE_BYTES = 256 << 20
_VIEW_BYTES = 2048  # what a piece costs that is only views: the objects
_MANY_DECODED = 256  # pieces, if less than twice as many reads had use of them: the order does not suit the pieces
_LOGGER = logging.getLogger("headrace.sources")


@dataclass(frozen=True, slots=True)
class TableCorpus:
    """How tables are read.

    Attributes:
        tables: How their rows become sequences.
        cache_bytes: Bound of the cache of pieces; the last one of each column is kept in any case.
    """

    tables: TableOptions
    cache_bytes: int = DEFAULT_CACHE_BYTES


class TableSource(IndexedSource):
    """Sequences of tables. Sub-classes say where the tables are."""

    _changed_fix = "the file or the vocabulary was changed: build the index again"
    _options: TableCorpus
    _tables: Tables

    @abstractmethod
    def _open_tables(self) -> Tables:
        """Return the tables, as they were indexed."""

    def _prepare(self) -> None:
        index = self._index
        self._fields = {field.data_key: field for field in self._options.tables.fields}
        for key, field in self._fields.items():
            field.settle(self.specs[key], self.labels.get(key), index.meta["facts"].get(key))
        self._columns = tuple(index.locator(name) for name in ("table", "piece", "row"))
        self._tables_of, self._pieces_of, self._rows_of = map(column_view, self._columns)

    def _prepare_files(self) -> None:
        super()._prepare_files()
        self._tables = self._open_tables()
        self._cache: OrderedDict[tuple[int, int, str], tuple[Sequence[Cells], int]] = OrderedDict()
        self._held_bytes = 0
        self._num_reads = self._num_decoded = 0

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        table = self._tables_of[corpus_idx]
        self._tables.check_size(table)
        array = self._view(corpus_idx, data_key)
        if self._fields[data_key].is_plain:
            array = array.copy()
        self._tables.note_used(table)
        return array

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return all data keys of one sequence; its file is looked at once."""
        table = self._tables_of[check_corpus_idx(corpus_idx, self._num_seqs)]
        self._tables.check_size(table)
        arrays = {key: self._checked(corpus_idx, key, self._view(corpus_idx, key)) for key in self.specs}
        arrays = {key: array.copy() if self._fields[key].is_plain else array for key, array in arrays.items()}
        self._tables.note_used(table)
        return arrays

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames of a key; of stored numbers, no others are copied."""
        table = self._tables_of[corpus_idx]
        self._tables.check_size(table)
        array = self._checked(corpus_idx, data_key, self._view(corpus_idx, data_key))[start:end].copy()
        self._tables.note_used(table)
        return array

    def reads_slices(self, data_key: str) -> bool:
        """Yes, if values are stored as they are given: a slice is a view of the rows that are held."""
        return data_key in self._fields and self._fields[data_key].is_plain

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if all data keys are stored as they are given, and no shape has free axes."""
        return all(field.is_plain for field in self._fields.values()) and all(
            None not in spec.shape for spec in self.specs.values()
        )

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array; rows of one piece together."""
        spec = self.specs[check_data_key(data_key, self.specs)]
        self._checked_indices(corpus_indices)
        lengths = self._index.lengths(data_key)[corpus_indices].astype(np.int64)
        stops = np.cumsum(lengths)
        if len(out) != (int(stops[-1]) if len(stops) else 0):
            raise IndexError(f"{lengths.sum()} frames of {data_key!r} do not fit into {len(out)} rows")
        starts = stops - lengths
        tables = self._tables_in(corpus_indices)
        for number in self._by_piece(corpus_indices):
            corpus_idx = int(corpus_indices[number])
            array = self._checked(corpus_idx, data_key, self._view(corpus_idx, data_key))
            out[int(starts[number]) : int(stops[number])] = array if spec.has_time else array[None]
        self._tables.confirm(tables)

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own; rows of one piece together."""
        check_data_key(data_key, self.specs)
        self._checked_indices(corpus_indices)
        tables = self._tables_in(corpus_indices)
        for number in self._by_piece(corpus_indices):
            array = self._view(int(corpus_indices[number]), data_key)
            if (array.shape, array.dtype) != (outs[number].shape, outs[number].dtype):
                raise IndexError(f"{array.dtype} of the shape {array.shape} does not fit into {outs[number].shape}")
            outs[number][...] = array
        self._tables.confirm(tables)

    def _tables_in(self, corpus_indices: NDArray[np.int64]) -> list[int]:
        """Return the tables that some sequences are in; none was cut, so that views of it may be used."""
        found: list[int] = np.unique(self._columns[0][corpus_indices]).tolist()
        for table in found:
            self._tables.check_size(table)
        return found

    def _by_piece(self, corpus_indices: NDArray[np.int64]) -> list[int]:
        """Return the numbers of sequences in a list of them, ordered so that no piece is needed twice."""
        table, piece, row = (column[corpus_indices] for column in self._columns)
        order: list[int] = np.lexsort((row, piece, table)).tolist()
        return order

    def _view(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one key of one sequence, as a view where it is plain."""
        field = self._fields[data_key]
        key = self._tables_of[corpus_idx], self._pieces_of[corpus_idx], field.column.name
        self._num_reads += 1
        found = self._cache.get(key)
        if found is None:
            cells = self._read_piece(key, field)
        else:
            self._cache.move_to_end(key)
            cells = found[0]
        row = self._rows_of[corpus_idx]
        if not 0 <= row < cells[0].num_rows:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is row {row} of {cells[0].num_rows}")
        return field.view(cells, row)

    def _where(self, corpus_idx: int) -> str:
        name = self._tables.name(self._tables_of[corpus_idx])
        return f"{name}, piece {self._pieces_of[corpus_idx]}, row {self._rows_of[corpus_idx]}"

    def _read_piece(self, key: tuple[int, int, str], field: TableField) -> Sequence[Cells]:
        """Get a piece of a column into the cache."""
        table, piece, _ = key
        if not (0 <= table < self._tables.num_tables and 0 <= piece < self._tables.num_pieces(table)):
            raise self._index.damaged(f"it names piece {piece} of table {table}")
        cells, num_bytes, was_decoded = read_cells(self._tables, table, piece, field, self._options.tables.nulls)
        if was_decoded:
            self._note_decoded()
        self._cache[key] = cells, num_bytes + _VIEW_BYTES
        self._held_bytes += num_bytes + _VIEW_BYTES
        while self._held_bytes > self._options.cache_bytes and len(self._cache) > len(self._fields):
            self._held_bytes -= self._cache.popitem(last=False)[1][1]
        return cells

    def _note_decoded(self) -> None:
        """Log a hint, once, if most reads decode a whole piece for one row."""
        self._num_decoded += 1
        if self._num_decoded == _MANY_DECODED and self._num_reads < 2 * _MANY_DECODED:
            _LOGGER.warning("%s: %s", self._tables.name(0), self._tables.slow_hint)

    def close(self) -> None:
        """Release files and pieces; a later read opens them again."""
        self._cache.clear()
        self._held_bytes = 0
        self._tables.close()


_Handle = TypeVar("_Handle")


class TableFiles(Tables, Generic[_Handle]):
    """Tables in files, one in each.

    Args:
        stamps: The files as they were indexed.
    """

    are_shared = True

    def __init__(self, stamps: Sequence[FileStamp]) -> None:
        self._stamps = stamps
        self.num_tables = len(stamps)
        self._handles: dict[int, _Handle] = {}
        self._open_files = OpenFiles()
        self._files = self._open_files.files

    @abstractmethod
    def _open(self, path: str, descriptor: int) -> _Handle:
        """Open a file, which `descriptor` has open, too. What Arrow raises becomes a `SourceError`."""

    @abstractmethod
    def _schema_of(self, handle: _Handle) -> Any:
        """Return the Arrow schema of an open file."""

    @abstractmethod
    def _column_of(self, handle: _Handle, piece: int, name: str) -> Any:
        """Return a column of a piece, as Arrow array. What Arrow raises becomes a `SourceError`."""

    @abstractmethod
    def _release(self, handle: _Handle) -> None:
        """Close a file."""

    def name(self, table_idx: int) -> str:
        """Return the path of a file."""
        return self._stamps[table_idx].path

    def schema(self, table_idx: int) -> Schema:
        """Return the schema of a file."""
        return read_schema(self._schema_of(self.handle(table_idx)), self.name(table_idx))

    def array(self, table_idx: int, piece: int, path: Sequence[str]) -> Any:
        """Return a column of a piece, or a field of it.

        Raises:
            SourceError: It cannot be read.
        """
        pa = import_arrow()
        self.check_size(table_idx)
        try:
            array = descend(self._column_of(self.handle(table_idx), piece, path[0]), path[1:])
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise SourceError(
                f"the column {path[0]!r} cannot be read: {error}",
                where=f"{self.name(table_idx)}, piece {piece}",
                fix="is the file truncated? write or download it again",
            ) from error
        self._open_files.look(self._files[table_idx])
        return array

    def handle(self, table_idx: int) -> _Handle:
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
            descriptor, handle = self._opened(stamp.path)
            self._files[table_idx] = OpenFile(descriptor, stamp)
            self._handles[table_idx] = handle
        return handle

    def _opened(self, path: str) -> tuple[int, _Handle]:
        """Open a file; where the system allows no more open files, close half of the others."""
        pa = import_arrow()
        while True:
            try:
                with ExitStack() as stack:
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    stack.callback(os.close, descriptor)
                    handle = self._open(path, descriptor)
                    stack.pop_all()
                    return descriptor, handle
            except (pa.ArrowException, OSError, ValueError) as error:
                too_many = isinstance(error, OSError) and error.errno in TOO_MANY_OPEN
                if not (too_many and self._handles):
                    fix = "is it truncated, or of another format? write or download it again"
                    fix = TOO_MANY_OPEN_FIX if too_many else fix
                    raise SourceError(f"this cannot be read: {error}", where=path, fix=fix) from error
            for table_idx in older_half(self._handles):
                self._drop(table_idx)

    def _drop(self, table_idx: int) -> None:
        self._open_files.drop(table_idx)
        self._release(self._handles.pop(table_idx))

    def close(self) -> None:
        """Close all files; they are opened again when needed."""
        while self._handles:
            self._drop(next(iter(self._handles)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stamps,)


class FileTableSource(TableSource):
    """Sequences of tables in files. Sub-classes say how a file is opened; for arguments, see `ParquetSource`."""

    _kind: str
    _tables_class: type[TableFiles[Any]]

    def __init__(
        self,
        files: Files,
        *,
        fields: Mapping[str, Any] | None = None,
        tag_field: str | None = None,
        nulls: Literal["refuse", "empty"] = "refuse",
        root: PathLike | None = None,
        audio_root: PathLike | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        index: IndexOption = "auto",
    ) -> None:
        check_count("cache_bytes", cache_bytes)
        paths = list_paths(files, type(self).__name__)
        tables = self._tables_class([FileStamp.of(path) for path in paths])
        try:
            options = choose_options(
                tables.schema(0),
                paths[0],
                fields=fields,
                tag_field=tag_field,
                nulls=nulls,
                root=root,
                audio_root=audio_root,
            )
            corpus = TableCorpus(options, cache_bytes)
            kind = f"{self._kind} {options.identity_text}"
            self._open(corpus, paths, lambda: gather_tables(tables, options), index=index, kind=kind)
        finally:
            tables.close()

    def _open_tables(self) -> Tables:
        return self._tables_class(self._index.files)


def descend(array: Any, path: Sequence[str]) -> Any:
    """Return a field of an Arrow array of structures; null where the structure is."""
    for name in path:
        array = array.flatten()[array.type.get_field_index(name)]
    return array


def one_array(chunked: Any) -> Any:
    """Return the one array of a column that came in chunks."""
    if chunked.num_chunks == 1:
        return chunked.chunk(0)
    pa = import_arrow()
    return pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
