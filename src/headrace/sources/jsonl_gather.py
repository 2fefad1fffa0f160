"""From files of JSON lines and the options of a source to one index of their objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.index import CorpusIndex, GeneratedTags
from headrace.specs import DataSpec

from .json_fields import JsonField
from .lines import LineBlock, scan_lines
from .manifest_fields import Field, parse_field
from .utf8 import decode_utf8

_T = TypeVar("_T")
INDEX_KIND = "jsonl/2"  # with the version of what the columns and `meta` say
DEFAULT_TAG_FIELD = "tag"
_BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_OWN_OPTIONS = ("field", "dtype", "dim")


@dataclass(frozen=True)
class JsonlOptions:
    """How objects become sequences.

    Attributes:
        files: The files as they are read: decompressed.
        names: What the user called them.
        fields: Data key -> what its arrays are made of.
        tag_field: Field with the tag; `None`: tags are numbers.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    fields: dict[str, Field]
    tag_field: str | None

    @property
    def kind(self) -> str:
        """Name the source and every option that changes what is in its index: the same text in every process."""
        fields = [[key, field.identity] for key, field in self.fields.items()]
        return f"{INDEX_KIND} {json.dumps({'fields': fields, 'tag': self.tag_field})}"


class RowDecoder:
    """Takes some fields of an object, and decodes no others.

    Args:
        fields: Their names, each once.

    Attributes:
        fields: The same.
    """

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields
        self._attributes = attributes = [f"f{i}" for i in range(len(fields))]
        row = msgspec.defstruct(
            "Row",
            [(name, Any, msgspec.UNSET) for name in attributes],
            rename=dict(zip(attributes, fields, strict=True)),
        )
        self._decoder = msgspec.json.Decoder(row)

    def decode(self, line: bytes, where: str) -> tuple[Any, ...]:
        """Return the values, in the order of the names.

        Raises:
            SourceError: The line is no JSON object, or a field is missing or null.
        """
        try:
            values = msgspec.structs.astuple(self._decoder.decode(line))
        except _BAD_JSON as error:
            raise SourceError(
                f"the line is not a JSON object: {error}",
                where=where,
                fix="write one JSON object a line, as UTF-8, and numbers as JSON has them (no NaN)",
            ) from error
        for name, value in zip(self.fields, values, strict=True):
            if value is None or value is msgspec.UNSET:
                raise SourceError(
                    f"the field {name!r} is {'null' if value is None else 'missing'}",
                    where=where,
                    fix="fill it in, or leave the field out: fields=",
                )
        return values

    def decode_lines(self, data: bytes, num_lines: int) -> list[list[Any]] | None:
        """Return the values of whole lines, field by field: a list for each.

        `None` if there are not so many objects, or one of them is wrong: `decode` says which.
        """
        try:
            rows = self._decoder.decode_lines(data)
        except _BAD_JSON:
            return None
        columns = [[getattr(row, name) for row in rows] for name in self._attributes]
        is_whole = len(rows) == num_lines and not any(
            value is None or value is msgspec.UNSET for column in columns for value in column
        )
        return columns if is_whole else None

    def __reduce__(self) -> tuple[Any, ...]:
        return RowDecoder, (self.fields,)


def row_fields(options: JsonlOptions) -> tuple[str, ...]:
    """Return the names of all fields that are needed, each once; the tag's first."""
    names = [field.name for field in options.fields.values()]
    return tuple(dict.fromkeys([options.tag_field, *names] if options.tag_field is not None else names))


def tag_of(value: Any, where: str) -> str:
    """Return a tag, which may be a number in the file."""
    if isinstance(value, str):
        return value
    if type(value) is int:
        return str(value)
    raise SourceError(f"the tag is {value!r}, not a text", where=where, fix="name another field by tag_field=")


def gather_jsonl(options: JsonlOptions) -> CorpusIndex:
    """Read the files once. The fields learn their layouts and labels.

    Raises:
        SourceError: A file cannot be read, or a line is wrong.
    """
    names = row_fields(options)
    decoder = RowDecoder(names)
    lengths: dict[str, list[int]] = {key: [] for key in options.fields}
    tags: list[str] = []
    places: list[NDArray[np.int64]] = []
    for file_idx, (path, name) in enumerate(zip(options.files, options.names, strict=True)):
        for block in scan_lines(path):
            decode_utf8(block.data, name, first_byte=block.position, first_line=block.first_line)
            kept, columns = _decode_block(block, decoder, name)
            numbers = kept + block.first_line
            if options.tag_field is not None:
                tags += _scan_column(tag_of, columns[0], numbers, name)
            for key, field in options.fields.items():
                lengths[key] += _scan_column(field.scan, columns[names.index(field.name)], numbers, name)
            starts, stops = block.starts[kept], block.stops[kept]
            places.append(np.stack([np.full(len(kept), file_idx), starts + block.position, stops - starts]))
    for field in options.fields.values():
        field.end_scan()
    file_of, line_start, line_bytes = np.concatenate(places, axis=1) if places else np.zeros((3, 0), np.int64)
    locators = {"line_start": line_start, "line_bytes": line_bytes}
    if len(options.files) > 1:
        locators["file"] = file_of
    return CorpusIndex.from_columns(
        tags=GeneratedTags(len(line_start), "line-") if options.tag_field is None else tags,
        lengths=lengths,
        locators=locators,
        meta={
            "specs": {key: field.spec.to_json() for key, field in options.fields.items()},
            "labels": {key: field.labels for key, field in options.fields.items() if field.labels is not None},
        },
    )


def _decode_block(block: LineBlock, decoder: RowDecoder, name: str) -> tuple[NDArray[np.int64], list[list[Any]]]:
    """Return which lines of a block are objects, and their values, field by field."""
    columns = decoder.decode_lines(block.data, len(block.starts))
    if columns is not None:
        return np.arange(len(block.starts)), columns
    kept: list[int] = []  # one by one, which is slower: there are blank lines, or one is wrong
    rows: list[tuple[Any, ...]] = []
    for position, line in enumerate(block.lines()):
        if line and not line.isspace():
            kept.append(position)
            rows.append(decoder.decode(line, f"{name}, line {block.first_line + position}"))
    return np.array(kept, np.int64), [list(column) for column in zip(*rows, strict=True)] or [
        [] for _ in decoder.fields
    ]


def _scan_column(scan: Callable[[Any, str], _T], values: list[Any], numbers: NDArray[np.int64], name: str) -> list[_T]:
    """Apply a function to values, which gets the name of the line only if it fails: to make it costs as much."""
    found: list[_T] = []
    try:
        for value in values:
            found.append(scan(value, ""))  # noqa: PERF401 - the number of those done is needed
    except SourceError as error:
        raise SourceError(error.what, where=f"{name}, line {numbers[len(found)]}", fix=error.fix) from error
    return found


def first_object(path: str, name: str) -> dict[str, Any]:
    """Return the first object of a file, {} if there is none.

    Raises:
        SourceError: The file cannot be read, or its first line is no JSON object.
    """
    for block in scan_lines(path):
        for number, line in enumerate(block.lines(), block.first_line):
            if line.strip():
                try:
                    found = msgspec.json.decode(line)
                except _BAD_JSON as error:
                    raise SourceError(
                        f"the line is not JSON: {error}", where=f"{name}, line {number}", fix="write one object a line"
                    ) from error
                if not isinstance(found, dict):
                    raise SourceError(
                        f"the line is {type(found).__name__}, not a JSON object", where=f"{name}, line {number}"
                    )
                return found
    return {}


def parse_fields(
    fields: Mapping[str, Any] | None, first: Mapping[str, Any], tag_field: str | None, given: Mapping[str, DataSpec]
) -> dict[str, Field]:
    """Choose the class for each data key.

    Args:
        fields: What the user said; `None`: all fields of the first object that have an array form, but the tag.
        first: The first object.
        tag_field: Field with the tag.
        given: Layouts by data key, which those found by a scan are replaced by.

    Raises:
        ConfigError: An option is wrong.
    """
    if fields is None:
        names = list(given) or [name for name, value in first.items() if name != tag_field and _has_array_form(value)]
        fields = {name: name for name in names}
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is {fields!r}, not a dict data key -> field", where="JsonlSource")
    return {key: _parse(key, target, given.get(key)) for key, target in fields.items()}


def _parse(key: str, target: Any, given: DataSpec | None) -> Field:
    if isinstance(target, str):
        return JsonField(target, given=given)
    if isinstance(target, Mapping) and "vocab" not in target and isinstance(target.get("field"), str):
        for option in target:
            if option not in _OWN_OPTIONS:
                fix = did_you_mean(str(option), (*_OWN_OPTIONS, "vocab", "labels"))
                raise ConfigError(f"unknown option {option!r}", where=f"field of the key {key!r}", fix=fix)
        dim = target.get("dim")
        if dim is not None and (type(dim) is not int or dim < 1):
            raise ConfigError(f"dim is {dim!r}, not a number of classes", where=f"field of the key {key!r}")
        return JsonField(target["field"], target.get("dtype"), dim, None if len(target) > 1 else given)
    return parse_field(key, target)


def _has_array_form(value: Any) -> bool:
    while isinstance(value, list) and value:
        if isinstance(value[0], str):
            return False
        value = value[0]
    return isinstance(value, bool | int | float | str | list)
