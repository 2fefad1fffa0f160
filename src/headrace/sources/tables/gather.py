"""From the pieces of tables to one index of the corpus.

`gather_tables` goes over all pieces once and notes where each row is and how long its arrays are: for lists from their
offsets, for recordings from their headers. Parquet has no offsets without decoding, so that one pass over the columns
in use is made for it. Several processes may share it.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.parts import are_large, count_workers, map_parts
from ..shared.records import Gathered
from .cells import Cells, cells_of
from .fields import TableField, TableOptions, text_of
from .files import Tables
from .schema import Column, Layout, Schema

_PART_LAYOUTS = {"bytes": Layout((), "bytes"), "path": Layout((), "text")}
Rows = NDArray[np.int64]


def read_cells(
    tables: Tables, table: int, piece: int, field: TableField, nulls: str
) -> tuple[Sequence[Cells], int, bool]:
    """Return what a field needs of one piece, its size in memory, and whether it was decoded.

    Raises:
        SourceError: It cannot be read.
    """
    cells, num_bytes, was_decoded = [], 0, False
    for part in field.parts:
        layout = field.column.layout if part == "" else _PART_LAYOUTS[part]
        assert layout is not None
        array, is_view = tables.array(table, piece, field.column.path if part == "" else (*field.column.path, part))
        where = f"{tables.name(table)}, piece {piece}"
        in_column = f"{where}, column {field.column.name!r}"
        cells.append(cells_of(array, layout, nulls_are_empty=nulls == "empty" and part == "", where=in_column))
        cells[-1].where = where
        was_decoded |= not is_view
        num_bytes += 0 if is_view and layout.leaf != "bool" else cells[-1].num_bytes  # bools are packed in tables
    return cells, num_bytes, was_decoded


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
    fields: dict[str, Any] = {own.data_key: own for own in options.fields}
    found = _nothing(options)
    for part in map_parts(partial(_take_table, tables, options, wanted), range(len(names)), num_workers=num_workers):
        found.add(part)
    num_seqs = len(found.locators["row"])
    if rows is not None and wanted is not None:
        order, num_seqs = np.searchsorted(wanted, rows).tolist(), len(rows)
        for columns in (found.lengths, found.locators):
            columns.update({name: array("q", map(column.__getitem__, order)) for name, column in columns.items()})
        found.tags = [found.tags[i] for i in order] if found.tags else []
    return found.index(
        fields, adopt=partial(_without_time, fields), tags=None if options.tag else GeneratedTags(num_seqs)
    )


def _without_time(fields: Mapping[str, TableField], lengths: dict[str, Rows]) -> None:
    for key, own in fields.items():
        if not own.spec.has_time:
            lengths[key] = np.ones(len(lengths[key]), np.int64)


def _nothing(options: TableOptions) -> Gathered:
    return Gathered.of([own.data_key for own in options.fields], ("table", "piece", "row"))


def _take_table(tables: Tables, options: TableOptions, wanted: Rows | None, table: int) -> Gathered:
    """Return what is known of the rows of a table, or of those of them that are wanted."""
    found = _nothing(options)
    if table:
        _check_same(tables.schema(0), tables.schema(table), options, tables.name(0), tables.name(table))
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
            cells, *_ = read_cells(tables, table, piece, own, options.nulls)
            found.lengths[own.data_key].frombytes(own.note(cells, chosen, found.facts[own.data_key]).tobytes())
        if options.tag is not None:
            found.tags += _tags_of(tables, table, piece, options.tag, rows)
        for name, column in (("table", np.full(len(rows), table)), ("piece", np.full(len(rows), piece)), ("row", rows)):
            found.locators[name].frombytes(column.astype(np.int64).tobytes())
    return found


def _tags_of(tables: Tables, table: int, piece: int, column: Column, rows: Rows) -> list[str]:
    assert column.layout is not None
    where = f"{tables.name(table)}, piece {piece}"
    cells = cells_of(tables.array(table, piece, column.path)[0], column.layout, nulls_are_empty=False, where=where)
    cells.where = where
    wrong = cells.first_wrong(rows)
    if wrong is not None:
        cells.check(wrong, column.name)
    if cells.starts is None:
        return [str(value) for value in cells.values[rows].tolist()]
    return [text_of(cells, row, column.name) for row in rows.tolist()]


def _check_same(first: Schema, other: Schema, options: TableOptions, first_name: str, name: str) -> None:
    """Refuse a table whose columns are not those of the first one, where that matters.

    Raises:
        SourceError: A column differs, or is missing, or is new where all columns are wanted.
    """
    for column in [*(field.column for field in options.fields), *([] if options.tag is None else [options.tag])]:
        if column.name not in other.columns:
            what = f"there is no column {column.name!r}, which {first_name} has"
            raise SourceError(what, where=name, fix=did_you_mean(column.name, other.columns))
        said = _said(first, column.name)
        for fact, theirs in _said(other, column.name).items():
            if theirs != said[fact]:
                raise SourceError(
                    f"the column {column.name!r} has other {fact}: {theirs}, and in {first_name} {said[fact]}",
                    where=name,
                    fix="files of one corpus have one schema: convert one of them, or open them apart",
                )
    if options.takes_all:
        for new in other.top:
            if new not in first.columns and other.columns[new].layout is not None:
                what = f"there is a column {new!r}, which {first_name} does not have"
                raise SourceError(what, where=name, fix="name the columns that are wanted, by fields=")


def _said(schema: Schema, name: str) -> dict[str, Any]:
    """Return what a schema says of a column."""
    column = schema.columns[name]
    labels, specs = schema.labels.get(name, column.labels), schema.specs.get(name)
    return {"type": column.layout, "labels": labels, "shape": column.shape, "specs": specs}
