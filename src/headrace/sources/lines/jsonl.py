"""A source of JSON lines, each of which is an object, and each of its fields a data key.

The files are read once, and one index of their objects is made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.codec import found_by
from ..shared.data_types import tell_unchosen
from ..shared.decompressed import plain_copy
from ..shared.fields import Field, parse_field
from ..shared.json_fields import JsonField
from ..shared.lines import (
    BAD_JSON,
    LineBlock,
    LineSource,
    LineStretch,
    decode_object,
    not_an_object,
    scan_lines,
    take_stretches,
)
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.source import make_index

_T = TypeVar("_T")
INDEX_KIND = "jsonl/3"  # with the version of what the columns and `meta` say
DEFAULT_TAG_FIELD = "tag"
_OWN_OPTIONS = ("field", "dtype", "dim")


class RowDecoder:
    """Decodes some fields of an object, and skips the others.

    Args:
        fields: Their names, each once.
        known: Names of all fields that an object may have; `None`: any.
        tag_field: The one of the names that is no data.

    Attributes:
        fields: The names, in this order.
    """

    def __init__(
        self, fields: tuple[str, ...], known: frozenset[str] | None = None, tag_field: str | None = None
    ) -> None:
        self.fields, self._known, self._tag_field = fields, known, tag_field
        self._decoder = self._strict = msgspec.json.Decoder(self._row_of(fields))
        if known is not None:  # that no line has another field is seen by msgspec itself; which one it is, line by line
            names = (*fields, *sorted(known.difference(fields)))
            self._strict = msgspec.json.Decoder(self._row_of(names, forbid_unknown_fields=True))
        self._attributes = [f"f{i}" for i in range(len(fields))]

    def _row_of(self, names: tuple[str, ...], **options: Any) -> type[msgspec.Struct]:
        attributes = [f"f{i}" for i in range(len(names))]
        types = [Any if name in self.fields else msgspec.Raw for name in names]
        return msgspec.defstruct(
            "Row",
            [(one, kind, msgspec.UNSET) for one, kind in zip(attributes, types, strict=True)],
            rename=dict(zip(attributes, names, strict=True)),
            **options,
        )

    def decode(self, line: bytes, where: str) -> tuple[Any, ...]:
        """Return the values, in the order of the names.

        Raises:
            SourceError: The line is no JSON object, or a field is missing or null, or there is one that is not known
                and would become data.
        """
        try:
            values = msgspec.structs.astuple(self._decoder.decode(line))
        except BAD_JSON as error:
            raise not_an_object(f"the line is not a JSON object: {error}", where) from error
        for name, value in zip(self.fields, values, strict=True):
            if value is None or value is msgspec.UNSET:
                there = ", ".join(msgspec.json.decode(line))
                raise SourceError(
                    f"the field {name!r} is {'null' if value is None else 'missing'}",
                    where=where,
                    fix=f"fill it in, or leave the field out: fields=; this line has {there or 'no fields'}",
                )
        if self._known is not None:
            self._refuse_unknown(line, where)
        return values

    def _refuse_unknown(self, line: bytes, where: str) -> None:
        assert self._known is not None
        for name, value in msgspec.json.decode(line).items():
            if name not in self._known and has_array_form(value):
                chosen = json.dumps({one: one for one in self.fields if one != self._tag_field}, ensure_ascii=False)
                raise SourceError(
                    f"the field {name!r} is here, and not in the first line, by which the fields are chosen: it would "
                    "be left out",
                    where=where,
                    fix=f"fill it in in all lines, or say that it is not wanted: fields={chosen}",
                )

    def decode_lines(self, data: bytes, num_lines: int) -> list[list[Any]] | None:
        """Return the values of whole lines, field by field: a list for each.

        `None` if the number of objects differs, or one of them is wrong: `decode` says which.
        """
        try:
            rows = self._strict.decode_lines(data)
        except BAD_JSON:
            return None
        columns = [[getattr(row, name) for row in rows] for name in self._attributes]
        is_whole = len(rows) == num_lines and not any(
            value is None or value is msgspec.UNSET for column in columns for value in column
        )
        return columns if is_whole else None

    def __reduce__(self) -> tuple[Any, ...]:
        return RowDecoder, (self.fields, self._known, self._tag_field)


def has_array_form(value: Any) -> bool:
    """Tell whether a value becomes an array without a vocabulary: a number, a text, or lists of numbers."""
    while isinstance(value, list) and value:
        if isinstance(value[0], str):
            return False
        value = value[0]
    return isinstance(value, bool | int | float | str | list)


@dataclass(frozen=True)
class JsonlOptions:
    """How objects become sequences.

    Attributes:
        files: The files as they are read: decompressed.
        names: What the user called them.
        fields: Data key -> what its arrays are made of.
        tag_field: Field with the tag; `None`: tags are numbers.
        known: Names of the fields of the first object, where it chose those that are read: another line may have no
            other ones. `None` where the user chose.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    fields: dict[str, Field]
    tag_field: str | None
    known: frozenset[str] | None = None

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process."""
        fields = [[key, field.identity] for key, field in self.fields.items()]
        said: dict[str, Any] = {"fields": fields, "tag": self.tag_field}
        if self.known is not None:
            said["known"] = sorted(self.known)
        return f"{INDEX_KIND} {json.dumps(said)}"


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
    lengths: dict[str, list[int]] = {key: [] for key in options.fields}
    tags: list[str] = []
    spans: list[NDArray[np.int64]] = []
    for _, _, part in take_stretches(options.files, partial(_take_stretch, options), options.fields.values()):
        tags += part.tags
        spans += part.spans
        for key, own in part.lengths.items():
            lengths[key] += own
    for field in options.fields.values():
        field.end_scan()
    file_of, line_start, line_bytes = np.concatenate(spans, axis=1) if spans else np.zeros((3, 0), np.int64)
    locators = {"line_start": line_start, "line_bytes": line_bytes}
    if len(options.files) > 1:
        locators["file"] = file_of
    return make_index(
        **found_by(options.fields),
        tags=GeneratedTags(len(line_start), "line-") if options.tag_field is None else tags,
        lengths=lengths,
        locators=locators,
    )


@dataclass
class _Objects:
    """What is known of the objects of a stretch of a file."""

    lengths: dict[str, list[int]]
    tags: list[str] = dataclass_field(default_factory=list)
    spans: list[NDArray[np.int64]] = dataclass_field(default_factory=list)
    num_lines: int = 0


def _take_stretch(options: JsonlOptions, stretch: LineStretch) -> _Objects:
    names, file_idx = row_fields(options), stretch.file_idx
    decoder, name = RowDecoder(names, options.known, options.tag_field), options.names[file_idx]
    found = _Objects({key: [] for key in options.fields})
    for block in scan_lines(options.files[file_idx], stretch=stretch):
        decode_utf8(block.data, name, first_byte=block.position, first_line=block.first_line)
        kept, columns = _decode_block(block, decoder, name)
        numbers = kept + block.first_line
        if options.tag_field is not None:
            found.tags += _scan_column(tag_of, columns[0], numbers, name)
        for key, field in options.fields.items():
            found.lengths[key] += _scan_column(field.scan, columns[names.index(field.name)], numbers, name)
        starts, stops = block.starts[kept], block.stops[kept]
        found.spans.append(np.stack([np.full(len(kept), file_idx), starts + block.position, stops - starts]))
        found.num_lines += len(block.starts)
    return found


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
    """Apply a function to each value; the name of the line is made only for an error, as it costs as much."""
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
        for number, _, line in block.records():
            return decode_object(line, f"{name}, line {number}")
    return {}


def parse_fields(
    fields: Mapping[str, Any] | None,
    first: Mapping[str, Any],
    tag_field: str | None,
    where: str,
) -> dict[str, Field]:
    """Return the field class for each data key.

    Args:
        fields: What the user said; `None`: all fields of the first object that have an array form, but the tag.
        first: The first object.
        tag_field: Field with the tag.
        where: The first file.

    Raises:
        ConfigError: An option is wrong.
    """
    if fields is None:
        names = [name for name, value in first.items() if name != tag_field and has_array_form(value)]
        texts = [name for name in names if isinstance(first.get(name), str) and first[name]]
        tell_unchosen(texts, [name for name in first if name not in (*names, tag_field)], where)
        fields = {name: name for name in names}
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is {fields!r}, not a dict data key -> field", where="JsonlSource")
    return {key: _parse(key, target) for key, target in fields.items()}


def _parse(key: str, target: Any) -> Field:
    if isinstance(target, str):
        return JsonField(target)
    if isinstance(target, Mapping) and "vocab" not in target and isinstance(target.get("field"), str):
        for option in target:
            if option not in _OWN_OPTIONS:
                fix = did_you_mean(str(option), (*_OWN_OPTIONS, "vocab", "labels"))
                raise ConfigError(f"unknown option {option!r}", where=f"field of the key {key!r}", fix=fix)
        dim = target.get("dim")
        if dim is not None and (type(dim) is not int or dim < 1):
            raise ConfigError(f"dim is {dim!r}, not a number of classes", where=f"field of the key {key!r}")
        return JsonField(target["field"], target.get("dtype"), dim)
    return parse_field(key, target)


class JsonlSource(LineSource):
    """The objects of files of JSON lines, one file after the other.

    A number becomes a key without a time axis, a list a key with time, a list of equally long lists frames that are
    vectors, and a text its UTF-8 bytes; a text may also become classes of a vocabulary. The files are read once, to
    find the lines and the lengths; then an object is read by its offset. Blank lines are skipped.

    Args:
        files: One path, or several; `.gz`, `.bz2`, `.xz` and `.zst` are decompressed once, see `plain_copy`.
        fields: Data key -> name of the field, in its natural form (see `JsonField`); or a dict: `{"field": name,
            "dtype": "int64", "dim": 100}` for numbers, `{"field": name, "vocab": ...}` for texts, see `parse_field`.
            `None` takes all fields that the first object has, but the tag, and those that have no array form; a later
            object may then have no other field that would become an array.
        tag_field: Field with the tag, a text or a whole number; tags may repeat. `"auto"` is "tag" if the first object
            has it. `None` numbers the objects: `line-0`, `line-1`, ...
        index: `"auto"` keeps the index of a large corpus in the cache folder; `None` always reads the files; a path
            opens the index that `JsonlSource(...).index.save(path)` wrote with the same options.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing, a line is no JSON object, lacks a field, or has one of another form than before,
            or one that the first line lacks while `fields` is `None` (it names the line); or a word has no class.
    """

    _options: JsonlOptions
    _changed_fix = "the file is not what was indexed: open the corpus again"

    def __init__(
        self,
        files: Files,
        *,
        fields: Mapping[str, Any] | None = None,
        tag_field: str | None = "auto",
        index: IndexOption = "auto",
    ) -> None:
        names = list_paths(files, "JsonlSource")
        paths = tuple(map(plain_copy, names))
        first: dict[str, Any] = {}
        for path, name in zip(paths, names, strict=True):
            first = first or first_object(path, name)
        if tag_field == "auto":
            tag_field = DEFAULT_TAG_FIELD if isinstance(first.get(DEFAULT_TAG_FIELD), str) else None
        if tag_field is not None and not isinstance(tag_field, str):
            raise ConfigError(f"tag_field is {tag_field!r}, not a name", where="JsonlSource")
        parsed = parse_fields(fields, first, tag_field, names[0] if names else "JSON lines")
        known = frozenset(first) if fields is None else None
        options = JsonlOptions(paths, names, parsed, tag_field, known)
        self._open(options, paths, lambda: gather_jsonl(options), index=index, kind=options.kind)

    def _prepare(self) -> None:
        super()._prepare()
        names = row_fields(self._options)
        self._decoder = RowDecoder(names)
        self._column_of = {key: names.index(field.name) for key, field in self._options.fields.items()}

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> tuple[Any, ...]:  # noqa: ARG002 - one line has all
        """Read a line again; return the values of its fields."""
        file_idx, start, num_bytes = self._lines.locate(corpus_idx)
        where = f"{self._options.names[file_idx]}, byte {start}"
        row = self._decoder.decode(self._files.read(file_idx, start, num_bytes), where)
        if self._options.tag_field is not None and tag_of(row[0], where) != self._index.tags[corpus_idx]:
            what = f"the tag was {self._index.tags[corpus_idx]!r} and is {row[0]!r}"
            raise SourceError(what, where=where, fix=self._changed_fix)
        return row

    def _encode(self, record: tuple[Any, ...], corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        return self._options.fields[data_key].encode(record[self._column_of[data_key]], where)
