"""A source of CSV and TSV files (RFC 4180): each record a sequence, each column a data key.

A record may span lines, if a quoted field has line feeds in it. Python's module `csv` takes records apart; this file
finds where they begin and end, so that one can be read again at its position.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files.packed import PACKED_SUFFIXES
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex

from ..shared.decompressed import plain_copy
from ..shared.fields import IndexField
from ..shared.json_fields import JsonField
from ..shared.lines import LineStretch, scan_lines
from ..shared.paths import Files, IndexOption, list_paths
from .jsonl import DEFAULT_TAG_FIELD, ObjectSource, TextObjects, gather_objects, parse_fields

INDEX_KIND = "csv/1"  # with the version of what the columns and `meta` say
_TYPES = ("int", "float", "text")


_MAX_RECORD_BYTES = 64 << 20  # of a quoted field: where no quote comes for so long, one is missing
_TSV = re.compile(rf"\.tsv({'|'.join(map(re.escape, PACKED_SUFFIXES))})?$", re.IGNORECASE)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
csv.field_size_limit(max(csv.field_size_limit(), _MAX_RECORD_BYTES))  # a document has more than 128 KiB


@dataclass(frozen=True, slots=True)
class Delimited:
    """How records are written.

    Attributes:
        delimiter: What stands between fields.
        has_quotes: Whether a field that begins with a quotation mark ends with one, and may hold anything between.
    """

    delimiter: str = ","
    has_quotes: bool = True

    @classmethod
    def of(cls, path: str, delimiter: str | None = None, quotes: bool | None = None) -> Delimited:
        """Return the form that the ending of a name implies, where no option is given: TSV has tabs and no quotes.

        Raises:
            ConfigError: The delimiter is not one ASCII character.
        """
        if delimiter is None:
            delimiter = "\t" if _TSV.search(path) else ","
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise ConfigError(f"delimiter is {delimiter!r}, not one ASCII character", fix='for example "," or "\\t"')
        return cls(delimiter, delimiter != "\t" if quotes is None else bool(quotes))

    def split(self, data: bytes, where: str) -> list[str] | None:
        """Return the fields of a record; `None` if a quoted one has no end."""
        text = decode_utf8(data, where).removesuffix("\n").removesuffix("\r")
        rows = csv.reader(
            [text],
            delimiter=self.delimiter,
            quoting=csv.QUOTE_MINIMAL if self.has_quotes else csv.QUOTE_NONE,
            strict=True,
        )
        try:
            return next(rows, [""])
        except csv.Error as error:
            if "unexpected end of data" in str(error):
                return None
            raise SourceError(
                f"the record cannot be read: {error}", where=where, fix="quote fields as CSV does"
            ) from None


@dataclass(frozen=True)
class CsvObjects(TextObjects):
    """Records of CSV or TSV files.

    Attributes:
        forms: How the records of each file are written.
        columns: Columns of all files.
        types: Column -> "int", "float" or "text".
    """

    forms: tuple[Delimited, ...] = ()
    columns: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    @property
    def _own_kind(self) -> Any:
        return INDEX_KIND, self.types, [[form.delimiter, form.has_quotes] for form in self.forms]

    def scan(self, stretch: LineStretch) -> Iterator[tuple[int, int, dict[str, Any], str]]:
        """Yield first byte, number of bytes, and values of each record of a whole file, and what to call it."""
        path, name = self.files[stretch.file_idx], self.names[stretch.file_idx]
        rows = _scan_records(path, name, self.forms[stretch.file_idx])
        next(rows, None)  # the header
        for line, start, num_bytes, values in rows:
            where = f"{name}, line {line}"
            yield start, num_bytes, self._by_column(values, where), where

    def parse(self, file_idx: int, data: bytes, where: str) -> dict[str, Any]:
        """Return the values of a record."""
        return self._by_column(self.forms[file_idx].split(data, where) or [], where)

    def _by_column(self, values: Sequence[str], where: str) -> dict[str, str]:
        if len(values) != len(self.columns):
            what = f"the record has {len(values)} fields, and there are {len(self.columns)} columns"
            fix = "quote fields with delimiters in them; is the delimiter the right one?"
            raise SourceError(what, where=where, fix=fix)
        return dict(zip(self.columns, values, strict=True))

    def value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        """Return a value: a number, if its column has numbers."""
        text, wanted = record[name], self.types.get(name, "text")
        if wanted == "text" or name == self.tag_field:
            return text
        value = _number_of(text)
        if isinstance(value, str) or (wanted == "int" and isinstance(value, float)):
            raise SourceError(
                f"the column {name!r} has {text!r}, and {'a whole' if wanted == 'int' else 'a'} number is wanted",
                where=where,
                fix=f'fill it in, or give types={{"{name}": "text"}}',
            )
        return float(value) if wanted == "float" else value

    def with_types(self) -> CsvObjects:
        """Return it with the types of all columns: what the user said, or what all values can be."""
        types = dict(self.types)
        for one in self.fields.values():
            if not isinstance(one, JsonField):
                types[one.name] = "int" if isinstance(one, IndexField) else "text"
        found = {one.name: -1 for one in self.fields.values() if one.name not in types}  # position in `_TYPES`
        for file_idx in range(len(self.files) if found else 0):
            for *_, record, _ in self.scan(LineStretch(file_idx)):
                for name, before in found.items():
                    if before < 2 and record[name]:
                        value = _number_of(record[name])
                        found[name] = max(before, 2 if isinstance(value, str) else int(isinstance(value, float)))
        return replace(self, types={**types, **{name: _TYPES[widest] for name, widest in found.items()}})  # -1: a text


def _gather(options: CsvObjects) -> CorpusIndex:
    options = options.with_types()
    return gather_objects(options, map(LineStretch, range(len(options.files))), prefix="row-", types=options.types)


class CsvSource(ObjectSource):
    """The records of CSV or TSV files, one file after the other. The first line of each file names the columns.

    A column of numbers becomes a key without a time axis, a text its UTF-8 bytes, or classes of a vocabulary. Fields
    are quoted as in RFC 4180, and may hold delimiters and line feeds; in TSV, quotation marks are text. The files are
    read once, to find records, types and lengths; then a record is read by its offset. Blank lines are skipped.

    Args:
        files: One path, or several; patterns, folders and URLs, see `list_paths`; `.gz`, `.bz2`, `.xz` and `.zst` are
            decompressed once.
        fields: Data key -> name of the column; or a dict, `{"field": name, "dtype": "int64", "dim": 100}` for numbers,
            `{"field": name, "vocab": ...}` for texts, see `parse_field`. `None` takes all columns but the tag.
        types: Column -> "int", "float" or "text"; else it is what all of its values can be: "7" is whole, "7.0" a
            fraction, "007" a text. An empty cell is an empty text, and no number.
        tag_field: Column with the tag; tags may repeat. `"auto"` is "tag" if there is such a column. `None` numbers the
            records: `row-0`, `row-1`, ...
        delimiter: Between fields; a comma, and a tab for `.tsv`, if `None`.
        quotes: Whether quotation marks quote; not where the delimiter is a tab, if `None`.
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads the files; a path
            opens the index that `CsvSource(...).index.save(path)` wrote with the same options.

    Raises:
        ConfigError: An option is wrong, or there is no such column.
        SourceError: A file is missing, a record has too many or too few fields, a quote has no end, or a value is of
            another type (it names file and line); or files have different columns.
    """

    _options: CsvObjects

    def __init__(
        self,
        files: Files,
        *,
        fields: Mapping[str, Any] | None = None,
        types: Mapping[str, Literal["int", "float", "text"]] | None = None,
        tag_field: str | None = "auto",
        delimiter: str | None = None,
        quotes: bool | None = None,
        index: IndexOption = "auto",
    ) -> None:
        names = list_paths(files, "CsvSource")
        paths = tuple(map(plain_copy, names))
        forms = tuple(Delimited.of(name, delimiter, quotes) for name in names)
        columns = _common_columns(paths, names, forms)
        if tag_field == "auto":
            tag_field = DEFAULT_TAG_FIELD if DEFAULT_TAG_FIELD in columns else None
        parsed = parse_fields(fields, dict.fromkeys(columns, ""), tag_field, names[0])
        said: dict[str, str] = {**(types or {})}
        for column in [*(one.name for one in parsed.values()), *said, *([] if tag_field is None else [tag_field])]:
            if column not in columns:
                raise ConfigError(f"there is no column {column!r}", where=names[0], fix=did_you_mean(column, columns))
        for column, name in said.items():
            if name not in _TYPES:
                raise ConfigError(f"the type of {column!r} is {name!r}", where="CsvSource", fix=f"one of {_TYPES}")
        options = CsvObjects(paths, names, parsed, tag_field, forms, columns, said)
        self._open(options, paths, lambda: _gather(options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        super()._prepare()
        self._options = replace(self._options, types=self._index.meta["types"])


def _common_columns(paths: Sequence[str], names: Sequence[str], forms: Sequence[Delimited]) -> tuple[str, ...]:
    """Return the columns, which all files have alike."""
    common: tuple[str, ...] | None = None
    for path, name, form in zip(paths, names, forms, strict=True):
        header = next(_scan_records(path, name, form), None)
        if header is None:
            raise SourceError("the file is empty, and has no columns", where=name, fix="write a header")
        columns = _checked_columns(header[3], f"{name}, line {header[0]}")
        if common is not None and columns != common:
            what = f"the columns are {', '.join(columns)}, and those of {names[0]} {', '.join(common)}"
            raise SourceError(what, where=name, fix="files of one corpus have the same columns, in the same order")
        common = columns
    return common or ()


def _scan_records(path: str, name: str, form: Delimited) -> Iterator[tuple[int, int, int, list[str]]]:
    """Yield the records of a file, the header first; blank lines are skipped.

    Args:
        path: The file, decompressed.
        name: What errors call it.
        form: How records are written.

    Yields:
        Number of the first line, from 1; first byte; number of bytes; fields.

    Raises:
        SourceError: The file cannot be read, or a record cannot; it names the line.
    """
    begun, first_line, first_byte = b"", 0, 0  # of a record that has no end yet
    for block in scan_lines(path):
        spans = zip(block.starts.tolist(), block.stops.tolist(), strict=True)
        for number, (start, stop) in enumerate(spans, block.first_line):
            line = block.data[start : stop + 1]
            if not begun:
                if not line.strip():
                    continue
                first_line, first_byte = number, block.position + start
            data = begun + line
            where = f"{name}, line {first_line}"
            # Every second mark ends what another began, also where two stand for one: so most lines are told at once.
            is_open = form.has_quotes and data.count(b'"') % 2 == 1
            values = None if is_open else form.split(data, where)
            if values is not None:
                begun = b""
                yield first_line, first_byte, len(data), values
            elif len(data) > _MAX_RECORD_BYTES:
                break
            else:
                begun = data
        if len(begun) > _MAX_RECORD_BYTES:
            break
    if begun:
        fix = 'close it; where quotation marks are text, write "" for each, or give quotes=False'
        raise SourceError("a quoted field has no end", where=f"{name}, line {first_line}", fix=fix)


def _checked_columns(values: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the names of columns from a header.

    Raises:
        SourceError: A name is empty or comes twice.
    """
    for number, column in enumerate(values):
        if not column.strip() or column in values[:number]:
            what = f"column {number + 1} of the header has no name" if not column.strip() else f"two columns {column!r}"
            raise SourceError(what, where=where, fix="the first line names each column, once")
    return tuple(values)


def _number_of(text: str) -> Any:
    """Return the whole number or fraction that a text is, or the text: "007" and "1_000" are texts."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if text[:1] in "+-.0123456789" and text[-1:] in ".0123456789" and not re.fullmatch(r"[+-]?0\d+", text):
        try:
            return float(text) if "_" not in text else text
        except ValueError:
            pass
    return text
