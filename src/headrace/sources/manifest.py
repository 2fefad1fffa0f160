"""Manifests: text files with one JSON object a line, each for one sequence.

`scan_manifest` reads a manifest once and says where each line is; `decode_line` takes one that was read again, so that
nothing of the manifest but these positions needs to stay in memory. JSON is read strictly: NaN, for example, is not
JSON.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.errors import SourceError
from headrace.files import open_regular

_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_LARGEST_COUNT = 2**40  # a year of 24 kHz audio is less; more is an error that must not overflow later


def scan_manifest(path: str) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Read a manifest line by line; blank lines and a byte order mark at the start are skipped.

    Yields:
        Line number from 1, first byte of the line, its number of bytes, and the object.

    Raises:
        SourceError: The file cannot be read, or a line is not a JSON object.
    """
    start = 0
    try:
        with open_regular(path) as file:
            if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
                start = len(codecs.BOM_UTF8)
            file.seek(start)
            for line_number, line in enumerate(file, start=1):
                if line.strip():
                    yield line_number, start, len(line), decode_line(line, f"{path}, line {line_number}")
                start += len(line)
    except OSError as error:
        raise SourceError(f"the manifest cannot be read: {error.strerror or error}", where=path) from error


def decode_line(line: bytes, where: str) -> dict[str, Any]:
    """Return the object of a line.

    Raises:
        SourceError: It is none.
    """
    try:
        record = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(
            f"a line of the manifest is not JSON: {error}",
            where=where,
            fix="write one JSON object a line, as UTF-8, and numbers as JSON has them (no NaN)",
        ) from error
    if not isinstance(record, dict):
        raise SourceError(f"a line of the manifest is {type(record).__name__}, not a JSON object", where=where)
    return record


def field_of(record: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    """Return a field of a record that must be there and be of some type.

    Raises:
        SourceError: It is not there, or of another type.
    """
    if name not in record:
        raise SourceError(f"there is no field {name!r}, only {sorted(record)}", where=where)
    value = record[name]
    if not isinstance(value, kind):
        raise SourceError(f"the field {name!r} has {value!r}, which has the wrong type", where=where)
    return value


def count_of(record: Mapping[str, Any], name: str, smallest: int, where: str, *, fix: str | None = None) -> int | None:
    """Return a field that holds a whole number, or `None` if it is absent or null. `fix` is for the error.

    Raises:
        SourceError: It is no whole number, or less than `smallest`.
    """
    value = record.get(name)
    if value is None:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or value % 1 != 0 or not smallest <= value <= _LARGEST_COUNT:
        raise SourceError(
            f"the field {name!r} has {value!r}, not a whole number of at least {smallest}",
            where=where,
            fix=fix or "correct it, or leave it out: the recording says the same",
        )
    return int(value)
