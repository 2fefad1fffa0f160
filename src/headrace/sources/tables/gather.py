"""From the pieces of tables to one index of the corpus.

`gather_tables` goes over all pieces once and notes where
each row is and how long its arrays are: for lists from their offsets, for recordings from their headers. Parquet has no
offsets without decoding, so that one pass over the columns in use is made for it. Several processes may share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.parts import are_large, count_workers, scan_parts
from ..shared.source import make_index
from .cells import Cells, cells_of
from .fields import TableField, TableOptions
from .files import Tables
from .schema import Column, Layout, Schema

_STRETCHES_PER_WORKER = 4  # so that none waits long for the last one
_MAX_STRETCHES = 1 << 20  # more than processes: how many there are depends on the number of these
_PART_LAYOUTS = {"bytes": Layout((), "bytes"), "path": Layout((), "text")}
Rows = NDArray[np.int64]


class Piece(NamedTuple):
    """What a field needs of one piece of a table.

    Attributes:
        cells: Cells of each part of the column.
        num_bytes: How much memory they take.
        was_decoded: Whether it was more than looking at what is there.
    """

    cells: Sequence[Cells]
    num_bytes: int
    was_decoded: bool


def read_cells(tables: Tables, table: int, piece: int, field: TableField, nulls: str) -> Piece:
    """Return what a field needs of one piece.

    Raises:
        SourceError: It cannot be read.
    """
    cells, num_bytes, was_decoded = [], 0, False
    for part in field.parts:
        layout = field.column.layout if part == "" else _PART_LAYOUTS[part]
        assert layout is not None
        path = field.column.path if part == "" else (*field.column.path, part)
        array = tables.array(table, piece, path)
        where = f"{tables.name(table)}, piece {piece}"
        in_column = f"{where}, column {field.column.name!r}"
        cells.append(cells_of(array, layout, nulls_are_empty=nulls == "empty" and part == "", where=in_column))
        cells[-1].where = where
        is_view = tables.is_view(table, array)
        was_decoded |= not is_view
        num_bytes += 0 if is_view and layout.leaf != "bool" else cells[-1].num_bytes  # bools are packed in tables
    return Piece(cells, num_bytes, was_decoded)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Pieces of a table that one process looks at: from `start` to before `stop`; `None`: to the last one."""

    table: int
    start: int = 0
    stop: int | None = None


@dataclass
class _Rows:
    """What is known of the rows of some pieces: for each data key or locator, an array of each piece."""

    lengths: dict[str, list[NDArray[np.int64]]]
    tags: list[bytes] = field(default_factory=list)
    locators: dict[str, list[NDArray[Any]]] = field(default_factory=lambda: {"table": [], "piece": [], "row": []})

    def add(self, other: _Rows) -> None:
        """Add the rows of the next pieces."""
        self.tags += other.tags
        for key, lengths in other.lengths.items():
            self.lengths[key] += lengths
        for name, columns in other.locators.items():
            self.locators[name] += columns


def gather_tables(tables: Tables, options: TableOptions, rows: Rows | None = None) -> CorpusIndex:
    """Index the rows of all tables; the fields learn what they need to know.

    Args:
        tables: The tables.
        options: How their rows become sequences.
        rows: `int64[N]`, the rows of the only table that are the sequences, in order; None: all.

    Raises:
        SourceError: The schema of a table differs from that of the first one, or a row becomes no array.
    """
    wanted = None if rows is None else np.unique(rows)
    num_workers = 0
    if tables.are_shared:
        pays = are_large([tables.name(table) for table in range(tables.num_tables)])
        num_workers = count_workers(_MAX_STRETCHES, pays=pays)
    stretches = _stretches(tables, num_workers)
    take = partial(_take_rows, tables, options, wanted)
    found = _Rows({own.data_key: [] for own in options.fields})
    num_workers = min(num_workers, len(stretches)) if len(stretches) > 1 else 0
    for part in scan_parts(take, stretches, options.fields, num_workers=num_workers):
        found.add(part)
    return _index_of(found, options, None if rows is None or wanted is None else np.searchsorted(wanted, rows))


def _stretches(tables: Tables, num_workers: int) -> list[_Stretch]:
    """Return all pieces: table by table, or parts of tables where there are few for `num_workers` processes."""
    if tables.num_tables >= _STRETCHES_PER_WORKER * num_workers:
        return [_Stretch(table) for table in range(tables.num_tables)]
    num_pieces = [tables.num_pieces(table) for table in range(tables.num_tables)]
    size = -(-sum(num_pieces) // (_STRETCHES_PER_WORKER * num_workers)) or 1
    return [
        _Stretch(table, start, min(start + size, num))
        for table, num in enumerate(num_pieces)
        for start in range(0, num or 1, size)
    ]


def _take_rows(tables: Tables, options: TableOptions, wanted: Rows | None, part: _Stretch) -> _Rows:
    """Return what is known of the rows of some pieces, or of those of them that are wanted."""
    table, found = part.table, _Rows({own.data_key: [] for own in options.fields})
    if table and not part.start:
        _check_same(tables.schema(0), tables.schema(table), options, tables.name(0), tables.name(table))
    first_row = 0
    for piece in range(part.start, tables.num_pieces(table) if part.stop is None else part.stop):
        num_rows = tables.num_rows(table, piece)
        chosen = None if wanted is None else _within(wanted, first_row, num_rows)
        if chosen is None or len(chosen):
            _take_piece(found, tables, options, table, piece, num_rows, chosen)
        first_row += num_rows
    return found


def _within(rows: Rows, first: int, num_rows: int) -> Rows:
    """Return those rows, sorted, that are in a piece, counted from its first one."""
    start, stop = np.searchsorted(rows, [first, first + num_rows])
    return rows[start:stop] - first


def _take_piece(
    found: _Rows, tables: Tables, options: TableOptions, table: int, piece: int, num_rows: int, chosen: Rows | None
) -> None:
    """Add the rows of a piece, or some of them."""
    where = f"{tables.name(table)}, piece {piece}"
    for own in options.fields:
        cells, *_ = read_cells(tables, table, piece, own, options.nulls)
        _check_num_rows(own.column, cells[0], num_rows, where)
        found.lengths[own.data_key].append(own.scan(cells, chosen))
    rows = np.arange(num_rows, dtype=np.int32) if chosen is None else chosen.astype(np.int32)
    if options.tag is not None:
        found.tags += _tags_of(tables, table, piece, options.tag, rows, num_rows)
    found.locators["row"].append(rows)
    found.locators["table"].append(np.full(len(rows), table, np.int32))
    found.locators["piece"].append(np.full(len(rows), piece, np.int32))


def _index_of(found: _Rows, options: TableOptions, order: Rows | None) -> CorpusIndex:
    """Return the index, its sequences in this order of those that were found."""
    locators = {name: _joined(parts, np.int32) for name, parts in found.locators.items()}
    lengths = {key: _joined(parts, np.int64) for key, parts in found.lengths.items()}
    tags = found.tags
    if order is not None:
        locators = {name: column[order] for name, column in locators.items()}
        lengths = {key: column[order] for key, column in lengths.items()}
        tags = [tags[i] for i in order.tolist()] if tags else tags
    specs = {own.data_key: own.end_scan() for own in options.fields}
    num_seqs = len(locators["row"])
    for key, spec in specs.items():
        if not spec.has_time:
            lengths[key] = np.ones(num_seqs, np.int64)
    return make_index(
        specs=specs,
        labels={own.data_key: list(own.labels) for own in options.fields if own.labels is not None},
        tags=tags if options.tag is not None else GeneratedTags(num_seqs),
        lengths=lengths,
        locators=locators,
        guessed=[own.data_key for own in options.fields if own.guesses_labels],
        vocabularies={own.data_key: own.identity for own in options.fields if own.is_slow},
        facts={own.data_key: own.facts for own in options.fields if own.facts is not None},
    )


def _joined(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def _check_num_rows(column: Column, cells: Cells, num_rows: int, where: str) -> None:
    if cells.num_rows != num_rows:
        raise SourceError(
            f"the column {column.name!r} has {cells.num_rows} rows, and the piece {num_rows}",
            where=where,
            fix="write or download the file again",
        )


def _tags_of(tables: Tables, table: int, piece: int, column: Column, rows: NDArray[Any], num_rows: int) -> list[bytes]:
    assert column.layout is not None
    where = f"{tables.name(table)}, piece {piece}"
    cells = cells_of(tables.array(table, piece, column.path), column.layout, nulls_are_empty=False, where=where)
    _check_num_rows(column, cells, num_rows, where)
    wrong = cells.first_wrong(rows.astype(np.int64))
    if wrong is not None:
        raise SourceError(f"the tag {column.name!r} is null", where=f"{where}, row {wrong}", fix="filter the rows")
    if cells.starts is None or cells.stops is None:
        return [str(value).encode() for value in cells.values[rows].tolist()]
    first = int(cells.starts[0]) if cells.num_rows else 0
    text = cells.values[first : int(cells.stops.max(initial=first))].tobytes()
    starts, stops = (edges[rows] - first for edges in (cells.starts, cells.stops))
    tags = [text[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    for row, tag in zip(rows.tolist(), tags, strict=True) if not text.isascii() else ():
        try:
            tag.decode()
        except UnicodeDecodeError as error:
            raise SourceError(
                f"the tag {tag!r} is not UTF-8: {error}",
                where=f"{where}, row {row}",
                fix="is the file truncated? write or download it again",
            ) from error
    return tags


def _check_same(first: Schema, other: Schema, options: TableOptions, first_name: str, name: str) -> None:
    """Refuse a table whose columns are not those of the first one, where that matters.

    Raises:
        SourceError: A column differs, or is missing, or is new where all columns are wanted.
    """
    columns = [field.column for field in options.fields] + ([options.tag] if options.tag is not None else [])
    for column in columns:
        found = other.columns.get(column.name)
        if found is None:
            raise SourceError(
                f"there is no column {column.name!r}, which {first_name} has",
                where=name,
                fix=did_you_mean(column.name, other.columns),
            )
        pairs = [
            ("type", column.arrow_type, found.arrow_type, column.layout == found.layout),
            ("labels", column.labels, found.labels, column.labels == found.labels),
            ("shape", column.shape, found.shape, column.shape == found.shape),
            ("specs", *(schema.specs.get(column.name) for schema in (first, other)), None),
            ("labels", *(schema.labels.get(column.name) for schema in (first, other)), None),
        ]
        for what, ours, theirs, is_same in pairs:
            if not (ours == theirs if is_same is None else is_same):
                raise SourceError(
                    f"the column {column.name!r} has other {what}: {theirs}, and in {first_name} {ours}",
                    where=name,
                    fix="files of one corpus have one schema: convert one of them, or open them apart",
                )
    if options.takes_all:
        new = [
            column for column in other.top if column not in first.columns and other.columns[column].layout is not None
        ]
        if new:
            raise SourceError(
                f"there is a column {new[0]!r}, which {first_name} does not have",
                where=name,
                fix="name the columns that are wanted, by fields=",
            )
