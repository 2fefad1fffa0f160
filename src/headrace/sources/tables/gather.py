"""From the pieces of tables to one index of the corpus.

`gather_tables` goes over all pieces once and notes where each row is and how long its arrays are: for lists from their
offsets, for recordings from their headers. Parquet has no offsets without decoding, so that one pass over the columns
in use is made for it. Several processes may share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.codec import found_by
from ..shared.parts import are_large, count_workers, map_parts
from ..shared.records import Gathered
from ..shared.source import make_index
from .cells import Cells
from .fields import TableField, TableOptions
from .files import Tables
from .schema import CellType

LOCATORS = ("table", "piece", "row")
_PART_LAYOUTS = {"bytes": CellType((), "bytes"), "path": CellType((), "text")}
Rows = NDArray[np.int64]


def read_cells(
    tables: Tables, table: int, piece: int, field: TableField, nulls: str, rows: Rows | None = None
) -> tuple[Sequence[Cells], int, bool]:
    """Return what a field needs of one piece, or of some rows of it; its size in memory; and whether it was decoded.

    Raises:
        SourceError: It cannot be read.
    """
    found, num_bytes, was_decoded = [], 0, False
    for part in field.parts:
        array, is_view = tables.array(table, piece, (*field.column.path, part) if part else field.column.path, rows)
        layout = _PART_LAYOUTS.get(part) or field.column.layout
        assert layout is not None
        where = f"{tables.name(table)}, piece {piece}"
        cells = Cells(array, layout, nulls_are_empty=nulls == "empty" and not part, name=field.column.name, where=where)
        found.append(cells)
        num_bytes += cells.num_bytes(is_view=is_view)
        was_decoded |= not is_view
    return found, num_bytes, was_decoded


def gather_tables(tables: Tables, options: TableOptions, rows: Rows | None = None) -> CorpusIndex:
    """Index the rows of all tables; the fields conclude their layouts.

    Args:
        tables: The tables.
        options: How their rows become sequences.
        rows: `int64[N]`, the rows of the only table that are the sequences, in order; None: all.

    Raises:
        SourceError: The schema of a table differs from that of the first one, or a row becomes no array.
    """
    wanted = None if rows is None else np.unique(rows)
    names = [tables.name(table) for table in range(tables.num_tables)]
    num_workers = count_workers(len(names), pays=are_large(names)) if tables.are_shared else 0
    codecs = {own.data_key: own.codec for own in options.fields}
    found = Gathered.of(codecs, LOCATORS)
    for part in map_parts(partial(_take_table, tables, options, wanted), range(len(names)), num_workers=num_workers):
        found.add(part)
    lengths, locators = found.columns()
    if rows is not None and wanted is not None:
        order = np.searchsorted(wanted, rows)
        lengths, locators = ({key: column[order] for key, column in one.items()} for one in (lengths, locators))
        found.tags = [found.tags[i] for i in order.tolist()] if options.tag else []
    for key, codec in codecs.items():
        codec.conclude(found.facts[key])
        if not codec.spec.has_time:
            lengths[key] = np.ones(len(lengths[key]), np.int64)
    tags = found.tags if options.tag else GeneratedTags(len(locators["row"]))
    return make_index(**found_by(codecs), tags=tags, lengths=lengths, locators=locators)


def _take_table(tables: Tables, options: TableOptions, wanted: Rows | None, table: int) -> Gathered:
    """Return what is known of the rows of a table, or of those of them that are wanted."""
    found = Gathered.of([own.data_key for own in options.fields], LOCATORS)
    if table:
        _check_same(tables, table, options)
    first_row = 0
    for piece in range(tables.num_pieces(table)):
        num_rows = tables.num_rows(table, piece)
        chosen = None
        if wanted is not None:
            start, stop = np.searchsorted(wanted, [first_row, first_row + num_rows])
            chosen = wanted[start:stop] - first_row
        first_row += num_rows
        rows = np.arange(num_rows) if chosen is None else chosen
        if not len(rows):
            continue
        for own in options.fields:
            cells, *_ = read_cells(tables, table, piece, own, options.nulls, chosen)
            found.lengths[own.data_key].frombytes(own.note(cells, found.facts[own.data_key]).tobytes())
        if options.tag is not None:
            array, _ = tables.array(table, piece, options.tag.path, chosen)
            found.tags += _tags_in(array, options.tag.name, options.tag.layout, f"{tables.name(table)}, piece {piece}")
        for name, column in zip(LOCATORS, (np.full_like(rows, table), np.full_like(rows, piece), rows), strict=True):
            found.locators[name].frombytes(column.tobytes())
    return found


def _tags_in(array: Any, name: str, layout: CellType | None, where: str) -> list[str]:
    assert layout is not None
    cells = Cells(array, layout, nulls_are_empty=False, name=name, where=where)
    cells.check()
    if layout.is_numbers:
        return [str(value) for value in cells.values.tolist()]
    return [cells.text(row) for row in range(cells.num_rows)]


def _check_same(tables: Tables, table: int, options: TableOptions) -> None:
    """Refuse a table whose columns are not those of the first one, where that matters.

    Raises:
        SourceError: A column differs, or is missing, or is new where all columns are wanted.
    """
    first, other, first_name, name = tables.schema(0), tables.schema(table), tables.name(0), tables.name(table)
    for column in [*(field.column for field in options.fields), *([] if options.tag is None else [options.tag])]:
        if column.name not in other.columns:
            what = f"there is no column {column.name!r}, which {first_name} has"
            raise SourceError(what, where=name, fix=did_you_mean(column.name, other.columns))
        for fact in ("layout", "labels", "shape", "specs"):
            theirs, said = (getattr(schema.columns[column.name], fact) for schema in (other, first))
            if theirs != said:
                what = f"the column {column.name!r} has other {fact}: {theirs}, and in {first_name} {said}"
                fix = "files of one corpus have one schema: convert one of them, or open them apart"
                raise SourceError(what, where=name, fix=fix)
    for new in other.top if options.takes_all else ():
        if new not in first.columns and other.columns[new].layout is not None:
            what = f"there is a column {new!r}, which {first_name} does not have"
            raise SourceError(what, where=name, fix="name the columns that are wanted, by fields=")
