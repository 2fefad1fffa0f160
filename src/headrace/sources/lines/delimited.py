"""A source of CSV and TSV files: each record a sequence, each column a data key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.index import CorpusIndex

from ..shared.decompressed import plain_copy
from ..shared.delimited import Delimited, as_record, checked_columns, number_of, scan_records
from ..shared.fields import IndexField
from ..shared.json_fields import JsonField
from ..shared.lines import LineStretch
from ..shared.paths import Files, IndexOption, list_paths
from .jsonl import DEFAULT_TAG_FIELD, ObjectSource, TextObjects, gather_objects, parse_fields

INDEX_KIND = "csv/1"  # with the version of what the columns and `meta` say
_TYPES = ("int", "float", "text")


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
        rows = scan_records(path, name, self.forms[stretch.file_idx])
        next(rows, None)  # the header
        for line, start, num_bytes, values in rows:
            where = f"{name}, line {line}"
            yield start, num_bytes, as_record(self.columns, values, where), where

    def parse(self, file_idx: int, data: bytes, where: str) -> dict[str, Any]:
        """Return the values of a record."""
        return as_record(self.columns, self.forms[file_idx].split(data, where) or [], where)

    def value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        """Return a value: a number, if its column has numbers."""
        text, wanted = record[name], self.types.get(name, "text")
        if wanted == "text" or name == self.tag_field:
            return text
        value = number_of(text)
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
                        value = number_of(record[name])
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
        header = next(scan_records(path, name, form), None)
        if header is None:
            raise SourceError("the file is empty, and has no columns", where=name, fix="write a header")
        columns = checked_columns(header[3], f"{name}, line {header[0]}")
        if common is not None and columns != common:
            what = f"the columns are {', '.join(columns)}, and those of {names[0]} {', '.join(common)}"
            raise SourceError(what, where=name, fix="files of one corpus have the same columns, in the same order")
        common = columns
    return common or ()
