"""Manifests: text files with one JSON object a line, each for one sequence.

`scan_manifest` reads a manifest once and says where each line is; `ManifestReader` reads one line again by its place,
so that nothing of the manifest but these places needs to stay in memory. JSON is read strictly: NaN, for example, is
not JSON.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from headrace.errors import SourceError

_LARGEST_COUNT = 2**40  # a year of 24 kHz audio is less; more is an error that must not overflow later


def scan_manifest(path: str) -> Iterator[tuple[int, int, int, dict[str, Any]]]:
    """Read a manifest line by line; blank lines and a byte order mark at the start are skipped.

    Yields:
        Line number from 1, first byte of the line, its number of bytes, and the object.

    Raises:
        SourceError: The file cannot be read, or a line is not a JSON object.
    """
    decoder = msgspec.json.Decoder()
    start = 0
    try:
        with open(path, "rb") as file:
            if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
                start = len(codecs.BOM_UTF8)
            file.seek(start)
            for line_number, line in enumerate(file, start=1):
                if line.strip():
                    yield line_number, start, len(line), _decode(decoder, line, f"{path}, line {line_number}")
                start += len(line)
    except OSError as error:
        raise SourceError(f"the manifest cannot be read: {error.strerror or error}", where=path) from error


def _decode(decoder: msgspec.json.Decoder[Any], line: bytes, where: str) -> dict[str, Any]:
    try:
        record = decoder.decode(line)
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


class ManifestReader:
    """Reads lines of a manifest by their place. The file is open between the first read and `close`.

    It may be pickled, and shared by processes that were forked: no file position is kept.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
        self._fd: int | None = None

    def read(self, start: int, num_bytes: int) -> dict[str, Any]:
        """Return the object of one line.

        Raises:
            SourceError: The file is not what it was when its lines were counted.
        """
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            line = os.pread(self._fd, num_bytes, start)
        except OSError as error:
            raise SourceError(f"the manifest cannot be read: {error.strerror}", where=self._path) from error
        return _decode(self._decoder, line, f"{self._path}, byte {start}")

    def close(self) -> None:
        """Release the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        # os.close takes no lock and makes nothing, so it is safe in a finalizer.
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return ManifestReader, (self._path,)
