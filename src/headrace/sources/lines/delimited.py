"""A source of CSV and TSV files: each record a sequence, each column a data key."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.codec import found_by
from ..shared.decompressed import plain_copy
from ..shared.delimited import Delimited, as_record, checked_columns, number_of, scan_records
from ..shared.fields import Field, IndexField
from ..shared.json_fields import JsonField
from ..shared.lines import LineSource
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.source import make_index
from .jsonl import DEFAULT_TAG_FIELD, parse_fields

INDEX_KIND = "csv/1"  # with the version of what the columns and `meta` say
_TYPES = ("int", "float", "text")


@dataclass(frozen=True)
class CsvOptions:
    """How records become sequences.

    Attributes:
        files: The files as they are read: decompressed.
        names: What the user called them.
        forms: How the records of each are written.
        columns: Columns of all files.
        fields: Data key -> what its arrays are made of.
        tag_field: Column with the tag; `None`: tags are numbers.
        types: Column -> "int", "float" or "text", as the user said.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    forms: tuple[Delimited, ...]
    columns: tuple[str, ...]
    fields: dict[str, Field]
    tag_field: str | None
    types: dict[str, str]

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process."""
        fields = [[key, field.identity] for key, field in self.fields.items()]
        forms = [[form.delimiter, form.has_quotes] for form in self.forms]
        return f"{INDEX_KIND} {json.dumps([fields, self.tag_field, self.types, forms])}"

    def records(self) -> Iterator[tuple[int, int, int, dict[str, str], str]]:
        """Yield number of the file, first byte, number of bytes, and values by column of each record, and its place."""
        for file_idx, (path, name, form) in enumerate(zip(self.files, self.names, self.forms, strict=True)):
            rows = scan_records(path, name, form)
            next(rows, None)  # the header
            for line, start, num_bytes, values in rows:
                where = f"{name}, line {line}"
                yield file_idx, start, num_bytes, as_record(self.columns, values, where), where


def gather_records(options: CsvOptions) -> CorpusIndex:
    """Read the files twice, for the types of columns and for lengths. The fields learn their layouts and labels.

    Raises:
        SourceError: A file cannot be read, or a record is wrong; it names the line.
    """
    types = _types_of(options)
    lengths = {key: array("q") for key in options.fields}
    spans = [array("q") for _ in range(3)]
    tags: list[str] = []
    for *span, record, where in options.records():
        for column, number in zip(spans, span, strict=True):
            column.append(number)
        if options.tag_field is not None:
            tags.append(record[options.tag_field])
        for key, field in options.fields.items():
            lengths[key].append(field.scan(_value(record[field.name], types[key], field.name, where), where))
    for field in options.fields.values():
        field.end_scan()
    file_of, line_start, line_bytes = (np.frombuffer(column, np.int64) for column in spans)
    locators = {"line_start": line_start, "line_bytes": line_bytes}
    if len(options.files) > 1:
        locators["file"] = file_of
    return make_index(
        **found_by(options.fields),
        tags=GeneratedTags(len(line_start), "row-") if options.tag_field is None else tags,
        lengths={key: np.frombuffer(own, np.int64) for key, own in lengths.items()},
        locators=locators,
        types=types,
    )


def _types_of(options: CsvOptions) -> dict[str, str]:
    """Return by data key what its values are: what the user said, or what all of them can be."""
    types: dict[str, str] = {}
    for key, field in options.fields.items():
        if isinstance(field, IndexField):
            types[key] = "int"
        elif not isinstance(field, JsonField):
            types[key] = "text"
        elif field.name in options.types:
            types[key] = options.types[field.name]
    unknown = {key: field.name for key, field in options.fields.items() if key not in types}
    found = dict.fromkeys(unknown, -1)  # position in `_TYPES` of the widest
    for *_, record, _ in options.records() if unknown else ():
        for key, name in unknown.items():
            if found[key] < 2 and record[name]:
                value = number_of(record[name])
                found[key] = max(found[key], 2 if isinstance(value, str) else int(isinstance(value, float)))
    return {key: types.get(key) or _TYPES[found[key]] for key in options.fields}  # -1: no value, which is a text


def _value(text: str, type_name: str, column: str, where: str) -> Any:
    if type_name == "text":
        return text
    value = number_of(text)
    if isinstance(value, str) or (type_name == "int" and isinstance(value, float)):
        wanted = "a whole number" if type_name == "int" else "a number"
        raise SourceError(
            f"the column {column!r} has {text!r}, and {wanted} is wanted",
            where=where,
            fix=f'fill it in, or give types={{"{column}": "text"}}',
        )
    return float(value) if type_name == "float" else value


class CsvSource(LineSource):
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

    _options: CsvOptions
    _changed_fix = "the file is not what was indexed: open the corpus again"

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
        for column in [*(field.name for field in parsed.values()), *said, *([] if tag_field is None else [tag_field])]:
            if column not in columns:
                raise ConfigError(f"there is no column {column!r}", where=names[0], fix=did_you_mean(column, columns))
        for column, name in said.items():
            if name not in _TYPES:
                raise ConfigError(f"the type of {column!r} is {name!r}", where="CsvSource", fix=f"one of {_TYPES}")
        options = CsvOptions(paths, names, forms, columns, parsed, tag_field, said)
        self._open(options, paths, lambda: gather_records(options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        super()._prepare()
        self._types: dict[str, str] = self._index.meta["types"]

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> dict[str, str]:  # noqa: ARG002 - one has all
        """Read a record again."""
        options = self._options
        file_idx, start, num_bytes = self._lines.locate(corpus_idx)
        where = f"{options.names[file_idx]}, byte {start}"
        record = options.forms[file_idx].record(options.columns, self._files.read(file_idx, start, num_bytes), where)
        if options.tag_field is not None and record[options.tag_field] != self._index.tags[corpus_idx]:
            what = f"the tag was {self._index.tags[corpus_idx]!r} and is {record[options.tag_field]!r}"
            raise SourceError(what, where=where, fix=self._changed_fix)
        return record

    def _encode(self, record: dict[str, str], corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        field = self._options.fields[data_key]
        return field.encode(_value(record[field.name], self._types[data_key], field.name, where), where)


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
