"""What sources of tables have in common: rows are sequences, columns are data keys, pieces are read on demand.

A table comes in pieces: row groups of Parquet, record batches of Arrow, chunks of a dataset in memory. The index says
in which piece each sequence is, and in which row of it. A piece of a column that was looked at is kept in a bounded
cache: for Parquet because it was dear to decode, for Arrow (views of a mapping) to spare the look-up.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .arguments import check_corpus_idx, check_data_key, num_frames_of, slice_frames
from .base import Source
from .table_columns import Cells
from .table_fields import TableField
from .table_gather import TableOptions, Tables, read_cells

DEFAULT_CACHE_BYTES = 256 << 20
_VIEW_BYTES = 2048  # what a piece costs that is only views: the objects
_MANY_DECODED = 256  # pieces, if less than twice as many reads had use of them: the order does not suit the pieces
_LOGGER = logging.getLogger("headrace.sources")


class TableSource(Source):
    """Sequences of tables. Sub-classes say where the tables are.

    Args:
        tables: The tables.
        options: How their rows become sequences.
        index: What `gather_tables` found in them.
        cache_bytes: Bound of the cache of pieces; the last one of each column is kept in any case.
    """

    _tables: Tables

    def _attach(self, tables: Tables, options: TableOptions, index: CorpusIndex, cache_bytes: int) -> None:
        self._tables, self._options, self._index, self._cache_bytes = tables, options, index, cache_bytes
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in index.meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(index.meta["labels"])
        self._fields = {field.data_key: field for field in options.fields}
        for key, field in self._fields.items():
            field.settle(self.specs[key], self.labels.get(key), index.meta["facts"].get(key))
        self._columns = tuple(index.locator(name) for name in ("table", "piece", "row"))
        # Memory views give single numbers in less than half of NumPy's time.
        self._tables_of, self._pieces_of, self._rows_of = map(_memory_of, self._columns)
        self._lengths = {key: _memory_of(index.lengths(key)) for key in self.specs}
        self._num_seqs = index.num_seqs
        self._cache: OrderedDict[tuple[int, int, str], tuple[Sequence[Cells], int]] = OrderedDict()
        self._held_bytes = 0
        self._num_reads = self._num_decoded = 0

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and in which row of which piece each sequence is."""
        return self._index

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, as a new array.

        Raises:
            IndexError: There is no such sequence.
            SourceError: There is no such key, or a file is gone, changed or damaged, or the row cannot be decoded.
        """
        table = self._table_of(corpus_idx)
        self._tables.confirm(table)
        array = self._view(corpus_idx, data_key)
        if self._fields[data_key].is_plain:
            array = array.copy()
        self._tables.confirm(table)
        return array

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one data key; of stored numbers, no others are copied.

        Raises:
            IndexError: There is no such sequence, or not 0 <= start <= end <= its length.
            SourceError: As for `read`.
        """
        table = self._table_of(corpus_idx)
        self._tables.confirm(table)
        array = slice_frames(self._view(corpus_idx, data_key), self.specs[data_key], start, end).copy()
        self._tables.confirm(table)
        return array

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if all data keys are stored as they are given, and no shape has free axes."""
        return all(field.is_plain for field in self._fields.values()) and all(
            None not in spec.shape for spec in self.specs.values()
        )

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array; rows of one piece together."""
        spec = self.specs[check_data_key(data_key, self.specs)]
        self._check_all(corpus_indices)
        lengths = self._index.lengths(data_key)[corpus_indices].astype(np.int64)
        stops = np.cumsum(lengths)
        if len(out) != (int(stops[-1]) if len(stops) else 0):
            raise IndexError(f"{lengths.sum()} frames of {data_key!r} do not fit into {len(out)} rows")
        starts = stops - lengths
        tables = self._tables_in(corpus_indices)
        self._confirm(tables)
        for place in self._by_piece(corpus_indices):
            array = self._view(int(corpus_indices[place]), data_key)
            out[int(starts[place]) : int(stops[place])] = array if spec.has_time else array[None]
        self._confirm(tables)

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own; rows of one piece together."""
        check_data_key(data_key, self.specs)
        self._check_all(corpus_indices)
        tables = self._tables_in(corpus_indices)
        self._confirm(tables)
        for place in self._by_piece(corpus_indices):
            array = self._view(int(corpus_indices[place]), data_key)
            if (array.shape, array.dtype) != (outs[place].shape, outs[place].dtype):
                raise IndexError(f"{array.dtype} of the shape {array.shape} does not fit into {outs[place].shape}")
            outs[place][...] = array
        self._confirm(tables)

    def _table_of(self, corpus_idx: int) -> int:
        return self._tables_of[check_corpus_idx(corpus_idx, self._num_seqs)]

    def _tables_in(self, corpus_indices: NDArray[np.int64]) -> list[int]:
        found: list[int] = np.unique(self._columns[0][corpus_indices]).tolist()
        return found

    def _confirm(self, tables: list[int]) -> None:
        """Refuse tables that were rewritten: before rows of them are touched, and after these were copied."""
        for table in tables:
            self._tables.confirm(table)

    def _check_all(self, corpus_indices: NDArray[np.int64]) -> None:
        if corpus_indices.size:
            check_corpus_idx(int(corpus_indices.min()), self._index.num_seqs)
            check_corpus_idx(int(corpus_indices.max()), self._index.num_seqs)

    def _by_piece(self, corpus_indices: NDArray[np.int64]) -> list[int]:
        """Return the places of sequences, ordered so that no piece is needed twice."""
        table, piece, row = (column[corpus_indices] for column in self._columns)
        order: list[int] = np.lexsort((row, piece, table)).tolist()
        return order

    def _view(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        field = self._fields.get(data_key)
        if field is None or not 0 <= corpus_idx < self._num_seqs:
            check_data_key(data_key, self.specs)
            check_corpus_idx(corpus_idx, self._num_seqs)
        assert field is not None
        table, piece, row = self._tables_of[corpus_idx], self._pieces_of[corpus_idx], self._rows_of[corpus_idx]
        cells = self._cells(table, piece, field)
        if not 0 <= row < cells[0].num_rows:
            raise self._index.damaged(f"it says that sequence {corpus_idx} is row {row} of {cells[0].num_rows}")
        where = f"{self._tables.name(table)}, piece {piece}"
        array = field.view(cells, row, where)
        if num_frames_of(array, self.specs[data_key]) != self._lengths[data_key][corpus_idx]:
            raise SourceError(
                f"{data_key!r} has {len(array)} frames, and the index says {self._lengths[data_key][corpus_idx]}",
                where=f"{where}, row {row}",
                fix="the file or the vocabulary was changed: build the index again",
            )
        return array

    def _cells(self, table: int, piece: int, field: TableField) -> Sequence[Cells]:
        key = table, piece, field.column.name
        self._num_reads += 1
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found[0]
        if not (0 <= table < self._tables.num_tables and 0 <= piece < self._tables.num_pieces(table)):
            raise self._index.damaged(f"it names piece {piece} of table {table}")
        cells, num_bytes, was_decoded = read_cells(self._tables, table, piece, field, self._options.nulls)
        if was_decoded:
            self._note_decoded()
        self._cache[key] = cells, num_bytes + _VIEW_BYTES
        self._held_bytes += num_bytes + _VIEW_BYTES
        while self._held_bytes > self._cache_bytes and len(self._cache) > len(self._fields):
            self._held_bytes -= self._cache.popitem(last=False)[1][1]
        return cells

    def _note_decoded(self) -> None:
        """Say it, once, if most reads decode a piece of which they need one row."""
        self._num_decoded += 1
        if self._num_decoded == _MANY_DECODED and self._num_reads < 2 * _MANY_DECODED:
            _LOGGER.warning("%s: %s", self._tables.name(0), self._tables.slow_hint)

    def close(self) -> None:
        """Release files and pieces; a later read opens them again."""
        self._cache.clear()
        self._held_bytes = 0
        self._tables.close()


def _memory_of(column: NDArray[Any]) -> memoryview[int]:
    native = column.dtype.newbyteorder("=")
    return memoryview(column.astype(native, copy=False).view(native))  # type: ignore[arg-type] # as in hdf.py
