"""Records of CSV and TSV files (RFC 4180): where each is, and what it holds by column.

A record may span lines, if a quoted field has line feeds in it. All values are texts; the caller decides which are
numbers. Python's module `csv` takes records apart; this file finds where they begin and end, so that one can be read
again at its position.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, SourceError
from headrace.files.packed import PACKED_SUFFIXES
from headrace.files.utf8 import decode_utf8

from .lines import scan_lines

_MAX_RECORD_BYTES = 64 << 20  # of a quoted field: where no quote comes for so long, one is missing
_SUFFIX = re.compile(rf"\.(csv|tsv)({'|'.join(map(re.escape, PACKED_SUFFIXES))})?$", re.IGNORECASE)
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
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
            delimiter = "\t" if suffix_of(path) == "tsv" else ","
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


def as_record(columns: Sequence[str], values: Sequence[str], where: str) -> dict[str, str]:
    """Return the fields of a record by column.

    Raises:
        SourceError: The number of fields is not that of the columns.
    """
    if len(values) != len(columns):
        raise SourceError(
            f"the record has {len(values)} fields, and there are {len(columns)} columns",
            where=where,
            fix="quote fields with delimiters in them; is the delimiter the right one?",
        )
    return dict(zip(columns, values, strict=True))


def suffix_of(path: str) -> str | None:
    """Return "csv" or "tsv" for the name of such a file, which may be compressed; `None` for others."""
    match = _SUFFIX.search(path)
    return match and match[1].lower()


def scan_records(path: str, name: str, form: Delimited) -> Iterator[tuple[int, int, int, list[str]]]:
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


def checked_columns(values: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the names of columns from a header.

    Raises:
        SourceError: A name is empty or comes twice.
    """
    for number, column in enumerate(values):
        if not column.strip() or column in values[:number]:
            what = f"column {number + 1} of the header has no name" if not column.strip() else f"two columns {column!r}"
            raise SourceError(what, where=where, fix="the first line names each column, once")
    return tuple(values)


def number_of(text: str) -> Any:
    """Return the whole number or fraction that a text is, or the text: "007" and "1_000" are texts."""
    if INTEGER.fullmatch(text):
        return int(text)
    if text[:1] in "+-.0123456789" and text[-1:] in ".0123456789" and not re.fullmatch(r"[+-]?0\d+", text):
        try:
            return float(text) if "_" not in text else text
        except ValueError:
            pass
    return text
