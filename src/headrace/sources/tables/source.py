"""What sources of tables have in common, whose rows are sequences, whose columns are data keys.

A table comes in pieces, which are read on demand: row groups of Parquet, record batches of Arrow, chunks of a dataset
in memory. The index says in which piece each sequence is, and in which row of it. A piece of a column that was looked
at is kept in a bounded cache: for Parquet because it was expensive to decode, for Arrow (views of a mapping) to spare
the look-up.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import check_count
from headrace.files import FileStamp

from ..base import check_data_key
from ..shared.paths import Files, IndexOption, PathLike, list_paths
from ..shared.source import IndexedSource, column_view
from .cells import Cells
from .fields import DEFAULT_CACHE_BYTES, TableField, TableOptions, choose_options
from .files import ArrowFile, ParquetFile, Tables
from .gather import LOCATORS, Rows, gather_tables, read_cells

_VIEW_BYTES = 2048  # what a piece costs that is only views: the objects
_MANY_DECODED = 256  # pieces, if less than twice as many reads had use of them: the order does not suit the pieces
_SLOW_HINT = (
    "most sequences come from another row group or compressed batch than those before, and each time one is decoded; "
    "convert it to an uncompressed Arrow file (`headrace convert`), or use smaller pieces or a larger cache_bytes"
)
_LOGGER = logging.getLogger("headrace.sources")


class TableSource(IndexedSource):
    """Sequences of tables. Sub-classes say where the tables are."""

    _changed_fix = "the file or the vocabulary was changed: build the index again"
    _options: TableOptions
    _tables: Tables

    @abstractmethod
    def _open_tables(self) -> Tables:
        """Return the tables, as they were indexed."""

    def _prepare(self) -> None:
        self._fields: dict[str, TableField] = {field.data_key: field for field in self._options.fields}
        self._settle({key: field.codec for key, field in self._fields.items()})
        self._columns = [self._index.locator(name) for name in LOCATORS]
        self._tables_of, self._pieces_of, self._rows_of = map(column_view, self._columns)

    def _prepare_files(self) -> None:
        super()._prepare_files()
        self._tables = self._open_tables()
        self._cache: OrderedDict[tuple[int, int, str], tuple[Sequence[Cells], int]] = OrderedDict()
        self._held_bytes = self._num_reads = self._num_decoded = 0

    def _load(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        self._tables.check_size(self._tables_of[corpus_idx])
        array = self._view(corpus_idx, data_key)
        return array.copy() if self._fields[data_key].is_plain else array

    def _load_part(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        self._tables.check_size(self._tables_of[corpus_idx])
        return self._checked(corpus_idx, data_key, self._view(corpus_idx, data_key))[start:end].copy()

    def reads_slices(self, data_key: str) -> bool:
        """Yes, if values are stored as they are given: a slice is a view of the rows that are held."""
        return data_key in self._fields and self._fields[data_key].is_plain

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if all data keys are stored as they are given, and no shape has free axes."""
        return all(field.is_plain for field in self._fields.values()) and all(
            None not in spec.shape for spec in self.specs.values()
        )

    def read_rows(self, corpus_indices: Rows, data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array; rows of one piece together."""
        arrays = self._by_piece(corpus_indices, data_key)
        stops = np.cumsum(self._index.lengths(data_key)[corpus_indices], dtype=np.int64)
        if len(out) != stops[-1:].sum():
            raise IndexError(f"{stops[-1:].sum()} frames of {data_key!r} do not fit into {len(out)} rows")
        parts = np.split(out, stops[:-1])
        for number, array in arrays:
            parts[number][...] = array

    def read_into(self, corpus_indices: Rows, data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own; rows of one piece together."""
        for number, array in self._by_piece(corpus_indices, data_key):
            if (array.shape, array.dtype) != (outs[number].shape, outs[number].dtype):
                raise IndexError(f"{array.dtype} of the shape {array.shape} does not fit into {outs[number].shape}")
            outs[number][...] = array

    def _by_piece(self, corpus_indices: Rows, data_key: str) -> Iterator[tuple[int, NDArray[Any]]]:
        """Return the arrays of sequences with their numbers in a list, in an order that needs no piece twice."""
        check_data_key(data_key, self.specs)
        indices = self._checked_indices(corpus_indices)
        table, piece, row = (column[corpus_indices] for column in self._columns)
        for table_idx in np.unique(table).tolist():
            self._tables.check_size(table_idx)  # views of it are used
        order: list[int] = np.lexsort((row, piece, table)).tolist()
        return ((i, self._checked(indices[i], data_key, self._view(indices[i], data_key))) for i in order)

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
        return field.read(cells, row)

    def _where(self, corpus_idx: int) -> str:
        name = self._tables.name(self._tables_of[corpus_idx])
        return f"{name}, piece {self._pieces_of[corpus_idx]}, row {self._rows_of[corpus_idx]}"

    def _read_piece(self, key: tuple[int, int, str], field: TableField) -> Sequence[Cells]:
        """Get a piece of a column into the cache."""
        table, piece, _ = key
        if not (0 <= table < self._tables.num_tables and 0 <= piece < self._tables.num_pieces(table)):
            raise self._index.damaged(f"it names piece {piece} of table {table}")
        cells, num_bytes, was_decoded = read_cells(self._tables, table, piece, field, self._options.nulls)
        self._num_decoded += was_decoded
        if was_decoded and self._num_decoded == _MANY_DECODED and self._num_reads < 2 * _MANY_DECODED:
            _LOGGER.warning("%s: %s", self._tables.name(0), _SLOW_HINT)
        self._cache[key] = cells, num_bytes + _VIEW_BYTES
        self._held_bytes += num_bytes + _VIEW_BYTES
        while self._held_bytes > self._options.cache_bytes and len(self._cache) > len(self._fields):
            self._held_bytes -= self._cache.popitem(last=False)[1][1]
        return cells

    def close(self) -> None:
        """Release files and pieces; a later read opens them again."""
        self._cache.clear()
        self._held_bytes = 0
        self._tables.close()


class FileTableSource(TableSource):
    """Sequences of tables in files. Sub-classes say how a file is opened; for arguments, see `ParquetSource`."""

    _kind: str
    _opener: type[ArrowFile] | type[ParquetFile]

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
        tables = Tables(self._opener, [FileStamp.of(path) for path in paths])
        try:
            options = choose_options(
                tables.schema(0),
                paths[0],
                fields=fields,
                tag_field=tag_field,
                nulls=nulls,
                root=root,
                audio_root=audio_root,
                cache_bytes=cache_bytes,
            )
            kind = f"{self._kind} {options.identity_text}"
            self._open(options, paths, lambda: gather_tables(tables, options), index=index, kind=kind)
        finally:
            tables.close()

    def _open_tables(self) -> Tables:
        return Tables(self._opener, self._index.files)


class ParquetSource(FileTableSource):
    """Random access to the rows of Parquet files. Needs `headrace[arrow]`.

    Columns become data keys by their types:

    - numbers and bools: one value without a time axis; a list of them: frames, `dtype[T]`; lists of lists: `dtype[T,
    D]`,
      with a free axis if D differs from row to row; an axis of a fixed-size list is never time;
    - texts and binaries: their bytes, `uint8[T]`; texts by a vocabulary, if fields say so;
    - a structure of `bytes` and `path`, as Hugging Face stores audio: samples, `float32[T, 1]`;
    - integers with at most one axis are class indices, with labels where the schema has them.

    Other columns (times, decimals, lists of texts, ...) are left out, and refused if they are named. Fields of
    structures are named "column.field". Files that `ParquetWriter` wrote come back as they were: data keys, dtypes,
    shapes, labels, tags.

    Args:
        files: One path, or several with the same columns.
        fields: Data key -> name of a column, or a dict `{"field": name, ...}` with "vocab" (of texts as in
            `parse_field`; of integers the number of classes or a list of labels) or "features", "sample_rate" and
            "channel" (of audio, as in `AudioSource`). Texts without "vocab" are labels, but UTF-8 bytes for a bare
            name as the data key "orth". If `None`, all columns that become arrays, texts as UTF-8 bytes.
        tag_field: Column with the tags, texts or whole numbers; they may repeat. If `None`, that of `ParquetWriter`,
            else they are "seq-0", "seq-1", ...
        nulls: `"refuse"`, or `"empty"`: a null list or text has no frames, and a null float is a NaN. Other nulls are
            always refused.
        root: Folder of recordings and images of which the file has only paths; they must not lead out of it.
        audio_root: Another name of `root`.
        cache_bytes: How much of decoded row groups to keep, in each process; one group of each column is always kept.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always gathers it, in memory; a path opens an index that was saved with the same options. Gathering
            decodes the columns in use once: Parquet says of no row how long it is.

    Raises:
        ConfigError: An option is wrong, or pyarrow is missing.
        SourceError: A file is missing, truncated, or has other columns than the first; or a row becomes no array.
    """

    _kind, _opener = "parquet/3", ParquetFile


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

    _kind, _opener = "arrow/3", ArrowFile
