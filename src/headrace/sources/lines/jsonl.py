"""A source of JSON lines, each of which is an object, and each of its fields a data key.

The files are read once, and one index of their objects is made. `Objects` and `ObjectSource` are what this has in
common with other texts whose records have names for their values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.utf8 import decode_utf8
from headrace.index import CorpusIndex, GeneratedTags

from ..shared.data_types import tell_unchosen
from ..shared.decompressed import plain_copy
from ..shared.fields import Field, parse_field
from ..shared.json_fields import JsonField
from ..shared.lines import (
    FILE,
    LINE_BYTES,
    LINE_START,
    LineSource,
    LineStretch,
    cut_stretches,
    decode_object,
    scan_lines,
)
from ..shared.parts import map_parts
from ..shared.paths import Files, IndexOption, list_paths
from ..shared.records import Gathered

DEFAULT_TAG_FIELD = "tag"
_LOCATORS = (LINE_START, LINE_BYTES, FILE)


@dataclass(frozen=True)
class Objects:
    """Texts whose records are objects: values by name; and how they become sequences.

    Attributes:
        files: The files as they are read: decompressed.
        names: What the user called them.
        fields: Data key -> what its arrays are made of.
        tag_field: Name of the tag; `None`: tags are numbers.
        known: Names of the fields of the first object, where it chose those that are read: another line may have no
            other ones. `None` where the user chose.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    fields: dict[str, Field]
    tag_field: str | None
    known: frozenset[str] | None = None

    def stretches(self) -> tuple[list[LineStretch], int]:
        """Return the parts of the files that are read by themselves, and the number of processes that should."""
        return cut_stretches(self.files, pays=any(field.is_slow for field in self.fields.values()))

    def scan(self, stretch: LineStretch) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
        """Yield of each record what to call it, first byte, number of bytes, and values.

        Raises:
            SourceError: The file cannot be read, or a record is wrong.
        """
        name = self.names[stretch.file_idx]
        for block in scan_lines(self.files[stretch.file_idx], stretch=stretch):
            decode_utf8(block.data, name, first_byte=block.position, first_line=block.first_line)
            for number, start, line in block.records():
                where = f"{name}, line {number}"
                record = decode_object(line, where)
                if self.known is not None and not record.keys() <= self.known:
                    self._refuse_unknown(record, where)
                yield where, start, len(line) - line.endswith(b"\n"), record

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
        """Return the values of one record.

        Raises:
            SourceError: It is wrong.
        """
        return decode_object(data, where)

    def value(self, record: Mapping[str, Any], name: str, where: str) -> Any:
        """Return a value, which is not null.

        Raises:
            SourceError: It is missing, or null.
        """
        value = record.get(name)
        if value is None:
            what = f"the field {name!r} is {'null' if name in record else 'missing'}"
            fix = f"fill it in, or leave the field out: fields=; this line has {', '.join(record) or 'no fields'}"
            raise SourceError(what, where=where, fix=fix)
        return value

    def tag(self, record: Mapping[str, Any], where: str) -> str:
        """Return the tag, which may be a number in the file."""
        value = self.value(record, self.tag_field or "", where)
        if isinstance(value, str) or type(value) is int:
            return str(value)
        raise SourceError(f"the tag is {value!r}, not a text", where=where, fix="name another field by tag_field=")

    def gather(self, tag_prefix: str) -> CorpusIndex:
        """Read the files once. The fields conclude their layouts and labels.

        Args:
            tag_prefix: Of tags that are numbers.

        Raises:
            SourceError: A file cannot be read, or a record is wrong.
        """
        stretches, num_workers = self.stretches()
        found = Gathered.of(self.fields, _LOCATORS)
        for part in map_parts(self._take, stretches, num_workers=num_workers):
            found.add(part)
        if len(self.files) == 1:
            del found.locators[FILE]
        generated = GeneratedTags(len(found.locators[LINE_START]), tag_prefix) if self.tag_field is None else None
        return found.index(self.fields, tags=generated)

    def _take(self, stretch: LineStretch) -> Gathered:
        found = Gathered.of(self.fields, _LOCATORS)
        for where, start, num_bytes, record in self.scan(stretch):
            values = {key: self.value(record, field.name, where) for key, field in self.fields.items()}
            found.note(self.fields, values, where)
            found.locate(line_start=start, line_bytes=num_bytes, file=stretch.file_idx)
            if self.tag_field is not None:
                found.tags.append(self.tag(record, where))
        return found


class ObjectSource(LineSource):
    """A source whose records are objects of text files."""

    _options: Objects
    _changed_fix = "the file is not what was indexed: open the corpus again"

    def _open_objects(self, options: Objects, version: str, index: IndexOption, tag_prefix: str, *more: Any) -> None:
        fields = [[key, field.identity] for key, field in options.fields.items()]
        kind = f"{version} {json.dumps([fields, options.tag_field, *more])}"
        self._open(options, options.files, partial(options.gather, tag_prefix), index=index, kind=kind)

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002 - one line has all
        file_idx, start, num_bytes = self._locate(corpus_idx)
        data = self._files.read(file_idx, start, num_bytes)
        return self._options.parse(file_idx, data, f"{self._options.names[file_idx]}, byte {start}")

    def _encode(self, record: dict[str, Any], corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:  # noqa: ARG002
        field = self._options.fields[data_key]
        return field.encode(self._options.value(record, field.name, where), where)


def parse_fields(fields: Mapping[str, Any] | None, default: Sequence[str]) -> dict[str, Field]:
    """Return the field class for each data key, of the user's options or of the default names of fields.

    Raises:
        ConfigError: An option is wrong.
    """
    if fields is None:
        fields = {name: name for name in default}
    if not isinstance(fields, Mapping):
        raise ConfigError(f"fields is {fields!r}, not a dict data key -> field")
    return {key: parse_field(key, target, natural=JsonField) for key, target in fields.items()}


def has_array_form(value: Any) -> bool:
    """Tell whether a value becomes an array without a vocabulary: a number, a text, or lists of numbers."""
    while isinstance(value, list) and value:
        if isinstance(value[0], str):
            return False
        value = value[0]
    return isinstance(value, bool | int | float | str | list)


def _first_object(path: str, name: str) -> dict[str, Any]:
    """Return the first object of a file, {} if there is none."""
    lines = (line for block in scan_lines(path) for line in block.records())
    return next((decode_object(line, f"{name}, line {number}") for number, _, line in lines), {})


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
        first = next(filter(None, map(_first_object, paths, names)), {})
        if tag_field == "auto":
            tag_field = DEFAULT_TAG_FIELD if isinstance(first.get(DEFAULT_TAG_FIELD), str) else None
        if tag_field is not None and not isinstance(tag_field, str):
            raise ConfigError(f"tag_field is {tag_field!r}, not a name", where="JsonlSource")
        natural = [name for name, value in first.items() if name != tag_field and has_array_form(value)]
        if fields is None:
            texts = [name for name in natural if isinstance(first[name], str) and first[name]]
            tell_unchosen(texts, [name for name in first if name not in (*natural, tag_field)], names[0])
        known = frozenset(first) if fields is None else None
        options = Objects(paths, names, parse_fields(fields, natural), tag_field, known)
        self._open_objects(options, "jsonl/4", index, "line-", None if known is None else sorted(known))
