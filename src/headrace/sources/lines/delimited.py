"""A source of CSV and TSV files: each record a sequence, each column a data key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import ConfigError, SourceError, did_you_mean

from ..shared.decompressed import plain_copy
from ..shared.delimited import Delimited, number_of
from ..shared.json_fields import IndexField, JsonField
from ..shared.lines import LineStretch
from ..shared.paths import Files, IndexOption, list_paths
from .jsonl import DEFAULT_TAG_FIELD, Objects, ObjectSource, parse_fields

_TYPES = ("int", "float", "text")


@dataclass(frozen=True)
class CsvObjects(Objects):
    """Records of CSV or TSV files.

    Attributes:
        forms: How the records of each file are written.
        columns: Columns of all files.
        types: Column -> "int", "float", "text", or "number", which is either.
    """

    forms: tuple[Delimited, ...] = ()
    columns: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)

    def stretches(self) -> tuple[list[LineStretch], int]:
        """Return whole files, which cannot be cut at any line."""
        return [LineStretch(file_idx) for file_idx in range(len(self.files))], 0

    def scan(self, stretch: LineStretch) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
        """Yield the records of a whole file, but for the header."""
        file_idx = stretch.file_idx
        records = self.forms[file_idx].scan(self.files[file_idx], self.names[file_idx])
        next(records, None)
        return records

    def parse(self, file_idx: int, data: bytes, where: str) -> dict[str, Any]:
        """Return the values of a record."""
        return self.forms[file_idx].parse(data, self.columns, where)

    def value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        """Return a value, of the type of its column."""
        text, kind = record[name], self.types[name]
        if kind == "text":
            return text
        value = number_of(text)
        if isinstance(value, str) or (kind == "int" and isinstance(value, float)):
            raise SourceError(
                f"the column {name!r} has {text!r}, and {'a whole' if kind == 'int' else 'a'} number is wanted",
                where=where,
                fix=f'fill it in, or give types={{"{name}": "text"}}',
            )
        return float(value) if kind == "float" else value


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
        types: Column -> "int", "float" or "text"; else it has numbers if the first record has one there ("7", "0.5"),
            or texts ("007", an empty cell).
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
        headers, first = [], dict[str, str]()
        for form, path, name in zip(forms, paths, names, strict=True):
            header, *records = itertools.islice(form.scan(path, name), 2)
            headers.append(tuple(header[3]))
            first = first or (records[0][3] if records else {})
            if headers[-1] != headers[0]:
                what = f"the columns are {', '.join(headers[-1])}, and those of {names[0]} {', '.join(headers[0])}"
                raise SourceError(what, where=name, fix="files of one corpus have the same columns, in the same order")
        columns = headers[0]
        if tag_field == "auto":
            tag_field = DEFAULT_TAG_FIELD if DEFAULT_TAG_FIELD in columns else None
        parsed = parse_fields(fields, [column for column in columns if column != tag_field])
        known = {name: "text" if isinstance(number_of(text), str) else "number" for name, text in first.items()}
        for one in parsed.values():
            if isinstance(one, IndexField) or not isinstance(one, JsonField):
                known[one.name] = "int" if isinstance(one, IndexField) else "text"
        for column in [
            *(one.name for one in parsed.values()),
            *(types or {}),
            *([] if tag_field is None else [tag_field]),
        ]:
            if column not in columns:
                raise ConfigError(f"there is no column {column!r}", where=names[0], fix=did_you_mean(column, columns))
        for column, kind in (types or {}).items():
            if kind not in _TYPES:
                raise ConfigError(f"the type of {column!r} is {kind!r}", where="CsvSource", fix=f"one of {_TYPES}")
            known[column] = kind
        if tag_field is not None:
            known[tag_field] = "text"
        options = CsvObjects(paths, names, parsed, tag_field, None, forms, columns, known)
        written = [[form.delimiter, form.has_quotes] for form in forms]
        self._open_objects(options, "csv/2", index, "row-", written, known)
