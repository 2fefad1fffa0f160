"""A source of JSON lines, each of which is an object, and each of its fields a data key.

The files are read once, and one index of their objects is made. `TextObjects` and `ObjectSource` are what this has in
common with other texts whose records have names for their values.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.data_types import tell_unchosen
from ..shared.decompressed import plain_copy
from ..shared.fields import Field, parse_field
from ..shared.json_fields import JsonField
from ..shared.lines import LineSource, LineStretch, cut_stretches, decode_object, scan_lines
from ..shared.parts import map_parts
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.records import Gathered

INDEX_KIND = "jsonl/3"  # with the version of what the columns and `meta` say
DEFAULT_TAG_FIELD = "tag"
_OWN_OPTIONS = ("field", "dtype", "dim")


@dataclass(frozen=True)
class TextObjects(ABC):
    """Texts whose records are objects: values by name; and how they become sequences.

    Attributes:
        files: The files as they are read: decompressed.
        names: What the user called them.
        fields: Data key -> what its arrays are made of.
        tag_field: Name of the tag; `None`: tags are numbers.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    fields: dict[str, Field]
    tag_field: str | None

    @property
    def kind(self) -> str:
        """Identify the source and every option that changes its index: the same text in every process."""
        return json.dumps(
            [[[key, field.identity] for key, field in self.fields.items()], self.tag_field, self._own_kind]
        )

    @property
    @abstractmethod
    def _own_kind(self) -> Any:
        """Name and version of the format, and options of its own, as JSON data."""

    @abstractmethod
    def scan(self, stretch: LineStretch) -> Iterator[tuple[int, int, dict[str, Any], str]]:
        """Yield first byte, number of bytes, and values of each record, and what to call it.

        Raises:
            SourceError: The file cannot be read, or a record is wrong.
        """

    @abstractmethod
    def parse(self, file_idx: int, data: bytes, where: str) -> dict[str, Any]:
        """Return the values of one record.

        Raises:
            SourceError: It is wrong.
        """

    @abstractmethod
    def value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        """Return a value of a record.

        Raises:
            SourceError: It is missing, or of another kind.
        """

    def tag(self, record: Mapping[str, Any], where: str) -> str:
        """Return the tag, which may be a number in the file."""
        value = self.value(record, self.tag_field or "", where)
        if isinstance(value, str) or type(value) is int:
            return str(value)
        raise SourceError(f"the tag is {value!r}, not a text", where=where, fix="name another field by tag_field=")


def gather_objects(
    options: TextObjects, stretches: Iterable[LineStretch] | None = None, *, prefix: str = "line-", **meta: Any
) -> CorpusIndex:
    """Read the files once. The fields conclude their layouts and labels.

    Args:
        options: What is read.
        stretches: The files, if they cannot be cut at any line.
        prefix: Of tags that are numbers.
        **meta: JSON data that holds for the corpus.

    Raises:
        SourceError: A file cannot be read, or a record is wrong.
    """
    num_workers = 0
    if stretches is None:
        pays = any(field.is_slow for field in options.fields.values())
        stretches, num_workers = cut_stretches(options.files, pays=pays)
    found = Gathered.of(options.fields, ("line_start", "line_bytes", "file"))
    for part in map_parts(partial(_take_stretch, options), [*stretches], num_workers=num_workers):
        found.add(part)
    if len(options.files) == 1:
        del found.locators["file"]
    generated = GeneratedTags(len(found.locators["line_start"]), prefix) if options.tag_field is None else None
    return found.index(options.fields, tags=generated, **meta)


def _take_stretch(options: TextObjects, stretch: LineStretch) -> Gathered:
    found = Gathered.of(options.fields, ("line_start", "line_bytes", "file"))
    for start, num_bytes, record, where in options.scan(stretch):
        values = {key: options.value(record, field.name, where) for key, field in options.fields.items()}
        found.note(options.fields, values, where)
        found.locate(line_start=start, line_bytes=num_bytes, file=stretch.file_idx)
        if options.tag_field is not None:
            found.tags.append(options.tag(record, where))
    return found


class ObjectSource(LineSource):
    """A source whose records are objects of text files."""

    _options: TextObjects
    _changed_fix = "the file is not what was indexed: open the corpus again"

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - one line has all
        """Read a record again."""
        options = self._options
        file_idx, start, num_bytes = self._lines.locate(corpus_idx)
        where = f"{options.names[file_idx]}, byte {start}"
        record = options.parse(file_idx, self._files.read(file_idx, start, num_bytes), where)
        if options.tag_field is not None and options.tag(record, where) != self._index.tags[corpus_idx]:
            what = f"the tag was {self._index.tags[corpus_idx]!r} and is {options.tag(record, where)!r}"
            raise SourceError(what, where=where, fix=self._changed_fix)
        return record

    def _encode(self, record: dict[str, Any], corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        field = self._options.fields[data_key]
        return field.encode(self._options.value(record, field.name, where), where)


@dataclass(frozen=True)
class JsonObjects(TextObjects):
    """Objects of JSON lines.

    Attributes:
        known: Names of the fields of the first object, where it chose those that are read: another line may have no
            other ones. `None` where the user chose.
    """

    known: frozenset[str] | None = None

    @property
    def _own_kind(self) -> Any:
        return INDEX_KIND, None if self.known is None else sorted(self.known)

    def scan(self, stretch: LineStretch) -> Iterator[tuple[int, int, dict[str, Any], str]]:
        """Yield first byte, number of bytes, and values of each line that is not blank, and what to call it."""
        name = self.names[stretch.file_idx]
        for block in scan_lines(self.files[stretch.file_idx], stretch=stretch):
            decode_utf8(block.data, name, first_byte=block.position, first_line=block.first_line)
            for number, start, line in block.records():
                where = f"{name}, line {number}"
                record = decode_object(line, where)
                if self.known is not None and not record.keys() <= self.known:
                    self._refuse_unknown(record, where)
                yield start, len(line) - line.endswith(b"\n"), record, where

    def _refuse_unknown(self, record: dict[str, Any], where: str) -> None:
        for name, value in record.items():
            if name not in (self.known or ()) and has_array_form(value):
                chosen = json.dumps({field.name: field.name for field in self.fields.values()}, ensure_ascii=False)
                raise SourceError(
                    f"the field {name!r} is here, and not in the first line, by which the fields are chosen: it would "
                    "be left out",
                    where=where,
                    fix=f"fill it in in all lines, or say that it is not wanted: fields={chosen}",
                )

    def parse(self, file_idx: int, data: bytes, where: str) -> dict[str, Any]:  # noqa: ARG002
        """Return the object of a line."""
        return decode_object(data, where)

    def value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        """Return a value, which is not null."""
        value = record.get(name)
        if value is None:
            what = f"the field {name!r} is {'null' if name in record else 'missing'}"
            fix = f"fill it in, or leave the field out: fields=; this line has {', '.join(record) or 'no fields'}"
            raise SourceError(what, where=where, fix=fix)
        return value


def has_array_form(value: Any) -> bool:
    """Tell whether a value becomes an array without a vocabulary: a number, a text, or lists of numbers."""
    while isinstance(value, list) and value:
        if isinstance(value[0], str):
            return False
        value = value[0]
    return isinstance(value, bool | int | float | str | list)


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


class JsonlSource(ObjectSource):
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
        options = JsonObjects(paths, names, parsed, tag_field, known)
        self._open(options, paths, lambda: gather_objects(options), index=index, kind=options.kind)
