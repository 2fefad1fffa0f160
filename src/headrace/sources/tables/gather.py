"""From the pieces of tables to one index of the corpus.

`choose_fields` checks what the user said against the schema: which columns become which data keys. `Tables` is what a
format has to say of its files. `gather_tables` goes over all pieces once and writes down where each row is and how long
its arrays are: for lists from their offsets, for recordings from their headers. Parquet has no offsets without
decoding, so that one pass over the columns in use is made for it.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.fields import parse_field
from ..shared.source import make_index
from .cells import Cells, cells_of
from .fields import NumberField, RecordingField, TableField, TextField
from .schema import Column, Layout, Schema

_NUMBER_OPTIONS = ("field", "vocab")
_TEXT_OPTIONS = ("field", "vocab", "labels")
_RECORDING_OPTIONS = ("field", "features", "sample_rate", "channel")


def choose_fields(
    schema: Schema, fields: Mapping[str, Any] | None, *, tag_column: str | None, audio_root: str | None, where: str
) -> list[TableField]:
    """Choose how columns become data keys.

    Args:
        schema: Of the table.
        fields: Data key -> name of a column, or a dict; None: all columns that become arrays, but for that of the tags.
        tag_column: The column of the tags.
        audio_root: See `RecordingField`.
        where: The table, for messages.

    Raises:
        ConfigError: A column does not exist or becomes no array, or an option does not fit its type.
    """
    if fields is None:
        names = dict.fromkeys([*(name for name in schema.specs if name in schema.top), *schema.top])
        usable = [name for name in names if name != tag_column and schema.columns[name].layout is not None]
        targets = {name: {"field": name, **_as_bytes(schema.columns[name])} for name in usable}
        return [_choose(key, target, schema, audio_root, where) for key, target in targets.items()]
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is a dict data key -> column, not {fields!r}", where=where)
    return [_choose(key, target, schema, audio_root, where) for key, target in fields.items()]


def _choose(key: str, target: Any, schema: Schema, audio_root: str | None, where: str) -> TableField:
    options = target
    if isinstance(target, str):
        options = {"field": target, **(_as_bytes(schema.column(target, where)) if key == "orth" else {})}
    if not isinstance(options, Mapping) or not isinstance(options.get("field"), str):
        raise ConfigError(
            f"the field of the data key {key!r} cannot be read: {target!r}",
            where=where,
            fix='give the name of a column, or {"field": name, ...}',
        )
    column = schema.column(options["field"], where)
    if column.layout is None:
        raise ConfigError(
            f"the column {column.name!r} has the type {column.arrow_type}, which becomes no array",
            where=where,
            fix="name another column, or a field of it, or convert it to numbers, text or bytes",
        )
    valid = {"recording": _RECORDING_OPTIONS, "text": _TEXT_OPTIONS}.get(column.layout.leaf, _NUMBER_OPTIONS)
    for name in options:
        if name not in valid:
            raise ConfigError(
                f"a column of {column.arrow_type} has no option {name!r}",
                where=f"{where}, data key {key!r}",
                fix=did_you_mean(str(name), valid),
            )
    if column.layout.leaf == "recording":
        return RecordingField(key, column, options, audio_root)
    if column.layout.leaf == "text" and options.get("vocab") != "bytes":
        return TextField(key, column, parse_field(key, dict(options)))
    return _number_field(key, column, schema, options.get("vocab"), where)


def _number_field(key: str, column: Column, schema: Schema, vocab: Any, where: str) -> NumberField:
    labels, num_classes = schema.labels.get(column.name, column.labels), None
    if vocab is not None and _leaf_of(column) not in ("text", "bytes"):
        if isinstance(vocab, list | tuple) and all(isinstance(label, str) for label in vocab):
            labels = list(vocab)
        elif type(vocab) is int and vocab > 0:
            labels, num_classes = None, vocab
        else:
            raise ConfigError(
                f"the vocab of a column of numbers is their number of classes, or a list of labels, not {vocab!r}",
                where=f"{where}, data key {key!r}",
            )
        if np.dtype(_leaf_of(column)).kind not in "iu":
            raise ConfigError(f"{column.arrow_type} are no class indices", where=f"{where}, data key {key!r}")
    declared = schema.specs.get(column.name) if vocab is None else None
    return NumberField(key, column, declared, labels, num_classes)


def _as_bytes(column: Column) -> dict[str, Any]:
    """Return the option by which a text is its UTF-8 bytes."""
    return {"vocab": "bytes"} if _leaf_of(column) == "text" else {}


def _leaf_of(column: Column) -> str:
    return column.layout.leaf if column.layout is not None else ""


NULLS = ("refuse", "empty")
_PART_LAYOUTS = {"bytes": Layout((), "bytes"), "path": Layout((), "text")}
Rows = NDArray[np.int64]


class Tables(ABC):
    """The pieces of one or more tables of one schema. Files are opened when they are needed, also after `close`.

    Attributes:
        num_tables: How many tables there are, one after the other.
        slow_hint: Hint for a user whose order of rows makes pieces be decoded again and again.
    """

    num_tables: int
    slow_hint: str = ""

    @abstractmethod
    def name(self, table_idx: int) -> str:
        """Return what messages call a table: its path."""

    @abstractmethod
    def schema(self, table_idx: int) -> Schema:
        """Return the schema of a table."""

    @abstractmethod
    def num_pieces(self, table_idx: int) -> int:
        """Return the number of pieces of a table."""

    @abstractmethod
    def piece_sizes(self, table_idx: int) -> Iterator[int]:
        """Yield the number of rows of each piece."""

    @abstractmethod
    def array(self, table_idx: int, piece: int, path: Sequence[str]) -> Any:
        """Return a column of a piece, or a field of it, as an Arrow array.

        Raises:
            SourceError: It cannot be read.
        """

    def is_view(self, table_idx: int, array: Any) -> bool:  # noqa: ARG002
        """Tell whether an array takes no memory of its own."""
        return True

    def check_size(self, table_idx: int) -> None:  # noqa: B027 - a table in memory cannot change
        """Refuse a table whose file was cut or made longer: before views of it are used.

        Raises:
            SourceError: It was.
        """

    def note_used(self, table_idx: int) -> None:  # noqa: B027 - as above
        """Look at the file of a table now and then: after a view of it was copied. See `confirm_reads`.

        Raises:
            SourceError: It is not what it was when it was indexed.
        """

    def confirm(self, tables: Sequence[int]) -> None:  # noqa: B027 - as above
        """Look at the files of tables: after views of them were copied.

        Raises:
            SourceError: One is not what it was when it was indexed.
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and what is kept of them."""


@dataclass(frozen=True)
class TableOptions:
    """How the rows of tables become sequences, for good: it is pickled with a source.

    Attributes:
        fields: Of each data key.
        tag: The column with the tags; None: they are made up.
        nulls: What a null is: `"refuse"` or `"empty"`.
        takes_all: Whether all columns are wanted that become arrays, of whatever name.
    """

    fields: Sequence[TableField]
    tag: Column | None
    nulls: str
    takes_all: bool

    @property
    def identity_text(self) -> str:
        """A text that names all that changes an index."""
        fields = [[field.data_key, *field.identity] for field in self.fields]
        return json.dumps([fields, None if self.tag is None else self.tag.name, self.nulls], default=repr)


class Piece(NamedTuple):
    """What a field needs of one piece of a table.

    Attributes:
        cells: Of each part of the column.
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


def gather_tables(tables: Tables, options: TableOptions, rows: Rows | None = None) -> CorpusIndex:
    """Index the rows of all tables; the fields learn what they need to know.

    Args:
        tables: The tables.
        options: How their rows become sequences.
        rows: `int64[N]`, the rows of the only table that are the sequences, in order; None: all.

    Raises:
        SourceError: The schema of a table differs from that of the first one, or a row becomes no array.
    """
    gathered = _Gathered(options)
    wanted = None if rows is None else np.unique(rows)
    first_schema = tables.schema(0)
    for table in range(tables.num_tables):
        if table:
            _check_same(first_schema, tables.schema(table), options, tables.name(0), tables.name(table))
        first_row = 0
        for piece, num_rows in enumerate(tables.piece_sizes(table)):
            chosen = None if wanted is None else _within(wanted, first_row, num_rows)
            if chosen is None or len(chosen):
                gathered.add(tables, table, piece, num_rows, chosen)
            first_row += num_rows
    return gathered.index(None if rows is None or wanted is None else np.searchsorted(wanted, rows))


def _within(rows: Rows, first: int, num_rows: int) -> Rows:
    """Return those rows, sorted, that are in a piece, counted from its first one."""
    start, stop = np.searchsorted(rows, [first, first + num_rows])
    return rows[start:stop] - first


class _Gathered:
    """Columns of an index in the making."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options
        self._tags: list[bytes] = []
        self._lengths: dict[str, list[NDArray[np.int64]]] = {field.data_key: [] for field in options.fields}
        self._locators: dict[str, list[NDArray[Any]]] = {"table": [], "piece": [], "row": []}

    def add(self, tables: Tables, table: int, piece: int, num_rows: int, chosen: Rows | None) -> None:
        """Add the rows of a piece, or some of them."""
        where = f"{tables.name(table)}, piece {piece}"
        for field in self._options.fields:
            cells, *_ = read_cells(tables, table, piece, field, self._options.nulls)
            _check_num_rows(field.column, cells[0], num_rows, where)
            self._lengths[field.data_key].append(field.scan(cells, chosen))
        rows = np.arange(num_rows, dtype=np.int32) if chosen is None else chosen.astype(np.int32)
        if self._options.tag is not None:
            self._tags += _tags_of(tables, table, piece, self._options.tag, rows, num_rows)
        self._locators["row"].append(rows)
        self._locators["table"].append(np.full(len(rows), table, np.int32))
        self._locators["piece"].append(np.full(len(rows), piece, np.int32))

    def index(self, order: Rows | None) -> CorpusIndex:
        """Return the index, its sequences in this order of those that were added."""
        locators = {name: _joined(parts, np.int32) for name, parts in self._locators.items()}
        lengths = {key: _joined(parts, np.int64) for key, parts in self._lengths.items()}
        tags = self._tags
        if order is not None:
            locators = {name: column[order] for name, column in locators.items()}
            lengths = {key: column[order] for key, column in lengths.items()}
            tags = [tags[i] for i in order.tolist()] if tags else tags
        specs = {field.data_key: field.end_scan() for field in self._options.fields}
        num_seqs = len(locators["row"])
        for key, spec in specs.items():
            if not spec.has_time:
                lengths[key] = np.ones(num_seqs, np.int64)
        fields = self._options.fields
        return make_index(
            specs=specs,
            labels={field.data_key: list(field.labels) for field in fields if field.labels is not None},
            tags=tags if self._options.tag is not None else GeneratedTags(num_seqs),
            lengths=lengths,
            locators=locators,
            facts={field.data_key: field.facts for field in fields if field.facts is not None},
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


def choose_tag(schema: Schema, tag_field: str | None, where: str) -> Column | None:
    """Return the column of the tags: the one that is named, or else the one that our writer made.

    Raises:
        ConfigError: There is no such column, or it has neither texts nor whole numbers.
    """
    name = tag_field
    if name is None:
        if schema.tag not in schema.top:  # of another writer, or somebody took the column away
            return None
        name = str(schema.tag)
    column = schema.column(name, where)
    layout = column.layout
    if layout is None or layout.axes or (layout.leaf != "text" and np.dtype(layout.leaf).kind not in "iu"):
        raise ConfigError(
            f"the column {name!r} of {column.arrow_type} cannot be the tags", where=where, fix="name a column of texts"
        )
    return column


def choose_options(
    schema: Schema,
    where: str,
    *,
    fields: Mapping[str, Any] | None,
    tag_field: str | None,
    nulls: str,
    audio_root: str | os.PathLike[str] | None,
    may_be_empty: bool = False,
) -> TableOptions:
    """Check what the user said of the columns against the schema of the first table.

    Raises:
        ConfigError: An option is wrong, or a column does not exist or does not fit.
    """
    if nulls not in NULLS:
        raise ConfigError(f"nulls is {nulls!r}", fix=did_you_mean(str(nulls), NULLS))
    tag = choose_tag(schema, tag_field, where)
    root = None if audio_root is None else os.path.abspath(audio_root)
    chosen = choose_fields(schema, fields, tag_column=None if tag is None else tag.name, audio_root=root, where=where)
    if not chosen and schema.tag is None and not may_be_empty:  # our writer makes files without data keys
        raise ConfigError(
            f"none of the columns {list(schema.top)} becomes an array",
            where=where,
            fix="name those that are wanted, or fields of them, by fields=",
        )
    return TableOptions(chosen, tag, nulls, takes_all=fields is None)


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
