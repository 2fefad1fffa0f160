"""Records of CSV and TSV files (RFC 4180): where each is, and what it holds by column, by Python's module `csv`.

A record may span lines, if a quoted field has line feeds in it. All values are texts; the caller decides which are
numbers.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.files.packed import PACKED_SUFFIXES
from headrace.files.utf8 import decode_utf8

_MAX_FIELD_BYTES = 64 << 20  # of a quoted field: where no quote comes for so long, one is missing
_TSV = re.compile(rf"\.tsv({'|'.join(map(re.escape, PACKED_SUFFIXES))})?$", re.IGNORECASE)
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")
_FIX = "quote fields with delimiters in them; is the delimiter right? where quotation marks are text, give quotes=False"
csv.field_size_limit(max(csv.field_size_limit(), _MAX_FIELD_BYTES))  # a document has more than 128 KiB


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
            delimiter = "\t" if _TSV.search(path) else ","
        if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
            raise ConfigError(f"delimiter is {delimiter!r}, not one ASCII character", fix='for example "," or "\\t"')
        return cls(delimiter, delimiter != "\t" if quotes is None else bool(quotes))

    def _reader(self, lines: Iterable[str]) -> Any:
        quotes = {} if self.has_quotes else {"quoting": csv.QUOTE_NONE}
        return csv.reader(lines, delimiter=self.delimiter, strict=True, **quotes)  # type: ignore[arg-type]

    def scan(self, path: str, name: str) -> Iterator[tuple[str, int, int, dict[str, str]]]:
        """Read a file whose first record names the columns; blank lines are skipped.

        Args:
            path: The file, decompressed.
            name: What errors call it.

        Yields:
            Of the header, whose values are the columns, and of each record: what to call it, first byte, number of
            bytes, and values by column.

        Raises:
            SourceError: The file cannot be read, or a record cannot; it names the line.
        """
        columns: list[str] = []
        try:
            with open_regular(path) as file:
                reader = self._reader(
                    decode_utf8(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw, name, first_line=number)
                    for number, raw in enumerate(file, 1)
                )
                while True:
                    start, where = file.tell(), f"{name}, line {reader.line_num + 1}"
                    values = next(reader, None)
                    if values is None:
                        break
                    if not values or (len(values) == 1 and not values[0].strip()):
                        continue
                    columns = columns or _checked_columns(values, where)
                    yield where, start, file.tell() - start, _by_column(columns, values, where)
        except OSError as error:
            raise SourceError(f"the file cannot be read: {error.strerror or error}", where=path) from error
        except csv.Error as error:
            raise SourceError(f"the record cannot be read: {error}", where=where, fix=_FIX) from None
        if not columns:
            raise SourceError("the file is empty, and has no columns", where=name, fix="write a header")

    def parse(self, data: bytes, columns: Sequence[str], where: str) -> dict[str, str]:
        """Return the values of one record by column.

        Raises:
            SourceError: It is none.
        """
        try:
            return _by_column(columns, next(self._reader([decode_utf8(data, where)]), []), where)
        except csv.Error as error:
            raise SourceError(f"the record cannot be read: {error}", where=where, fix=_FIX) from None


def _by_column(columns: Sequence[str], values: Sequence[str], where: str) -> dict[str, str]:
    if len(values) != len(columns):
        what = f"the record has {len(values)} fields, and there are {len(columns)} columns"
        raise SourceError(what, where=where, fix=_FIX)
    return dict(zip(columns, values, strict=True))


def _checked_columns(values: list[str], where: str) -> list[str]:
    for number, column in enumerate(values):
        if not column.strip() or column in values[:number]:
            what = f"column {number + 1} of the header has no name" if not column.strip() else f"two columns {column!r}"
            raise SourceError(what, where=where, fix="the first line names each column, once")
    return values


def number_of(text: str) -> Any:
    """Return the whole number or fraction that a text is, or the text: "007" and "1_000" are texts."""
    if _INTEGER.fullmatch(text):
        return int(text)
    if text[:1] in "+-.0123456789" and text[-1:] in ".0123456789" and not re.fullmatch(r"[+-]?0\d+", text):
        try:
            return float(text) if "_" not in text else text
        except ValueError:
            pass
    return text
