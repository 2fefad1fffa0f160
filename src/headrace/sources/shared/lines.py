"""Finds the lines of files; decodes JSON objects from lines; `LineSource` finds lines again by the index.

A line ends with a line feed, or the file; a carriage return before that belongs to the end. No other character ends
one, also if Unicode calls it a line separator: so every tool that counts lines counts the same. A byte order mark at
the start is skipped.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import open_regular

from .parts import count_workers
from .records import RecordSource
from .source import column_view

BAD_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_BLOCK_BYTES = 4 << 20  # the scan of one takes milliseconds, and its arrays stay in the cache of the processor
_STRETCH_BYTES = 1 << 20  # that one process reads by itself: a second or less with a slow tokenizer
_MIN_SHARED_BYTES = 32 << 20  # some seconds of work, which starting processes must not outlast
_NEWLINE = 10
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines that follow one another in a file.

    Attributes:
        data: Their bytes.
        position: Offset of the first one in the file.
        first_line: Number of the first line, from 1.
        starts: `int64[n]`: where each line starts in `data`.
        stops: `int64[n]`: where each line ends there, before its line feed.
    """

    data: bytes
    position: int
    first_line: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def records(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield number, first byte in the file, and text with its line feed, of each line that is not blank."""
        for number, (start, stop) in enumerate(zip(self.starts.tolist(), self.stops.tolist(), strict=True)):
            line = self.data[start : stop + 1]
            if line.strip():
                yield self.first_line + number, self.position + start, line


@dataclass(frozen=True, slots=True)
class LineStretch:
    """Whole lines of one of several files, to be read by themselves.

    Attributes:
        file_idx: Which file.
        start: First byte.
        stop: The one after the last; `None`: the end of the file.
        first_line: Number of the first line, from 1, for messages; 1 where it is not known.
    """

    file_idx: int
    start: int = 0
    stop: int | None = None
    first_line: int = 1


def cut_stretches(paths: Sequence[str], *, pays: bool) -> tuple[list[LineStretch], int]:
    """Cut files into stretches that several processes may scan side by side, and say how many should; 0: none.

    Args:
        paths: The files.
        pays: Whether what is done with a line takes many times as long as reading it.

    Raises:
        SourceError: A file cannot be read.
    """
    sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in paths]
    pays = pays and sum(sizes) >= _MIN_SHARED_BYTES
    num_workers = count_workers(sum(-(-size // _STRETCH_BYTES) for size in sizes), pays=pays)
    if not num_workers:
        return [LineStretch(file_idx) for file_idx in range(len(paths))], 0
    stretches = []
    for file_idx, path in enumerate(paths):
        try:
            with open_regular(path) as file:
                start, line = 0, 1
                while data := file.read(_STRETCH_BYTES) + file.readline():
                    stretches.append(LineStretch(file_idx, start, start + len(data), line))
                    start, line = start + len(data), line + data.count(b"\n")
        except OSError as error:
            raise SourceError(f"the file cannot be read: {error.strerror or error}", where=path) from error
    return stretches, num_workers


def scan_lines(path: str, stretch: LineStretch | None = None) -> Iterator[LineBlock]:
    """Read a file, or a part of it, and say where its lines are; O(its size), whatever the lengths of the lines.

    Raises:
        SourceError: The file cannot be read.
    """
    stretch = stretch or LineStretch(0)
    position, line = stretch.start, stretch.first_line
    try:
        with open_regular(path) as file:
            stop = os.fstat(file.fileno()).st_size if stretch.stop is None else stretch.stop
            file.seek(position)
            block, begun = file.read(min(_BLOCK_BYTES, stop - position)), list[bytes]()  # of a line that has no end yet
            if position == 0 and block.startswith(codecs.BOM_UTF8):
                position, block = len(codecs.BOM_UTF8), block[len(codecs.BOM_UTF8) :]
            while block:
                end = block.rfind(b"\n") + 1
                if end:
                    found = _block_of(b"".join([*begun, block[:end]]), position, line)
                    yield found
                    position, line = position + len(found.data), line + len(found.starts)
                    begun = []
                begun.append(block[end:])
                block = file.read(min(_BLOCK_BYTES, stop - file.tell()))
            if rest := b"".join(begun):
                yield _block_of(rest, position, line)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror or error}", where=path) from error


def decode_object(line: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object that a line is. JSON is read strictly: NaN, for example, is not JSON.

    Raises:
        SourceError: It is none.
    """
    try:
        record = _decoder.decode(line)
    except BAD_JSON as error:
        raise not_an_object(f"the line is not JSON: {error}", where) from error
    if not isinstance(record, dict):
        raise not_an_object(f"the line is a {type(record).__name__}, not a JSON object", where)
    return record


def not_an_object(what: str, where: str) -> SourceError:
    """Return the error for a line that is no JSON object."""
    fix = "write one JSON object a line, as UTF-8, and numbers as JSON has them (no NaN)"
    return SourceError(what, where=where, fix=fix)


LINE_START, LINE_BYTES, FILE = "line_start", "line_bytes", "file"


class LineSource(RecordSource):
    """A source whose records are lines of text files, found by the columns that `LINE_START` and the others name.

    Its `_options` have `names`, what the user called the files, and `fields`, data key -> field.
    """

    def _prepare(self) -> None:
        index = self._index
        self._starts, self._num_bytes = column_view(index.locator(LINE_START)), column_view(index.locator(LINE_BYTES))
        self._file_of = column_view(index.locator(FILE)) if index.has_locator(FILE) else None  # of several
        self._sizes = [stamp.size for stamp in index.files]
        for key, field in self._options.fields.items():
            field.settle(self.specs[key], self.labels.get(key))

    def _locate(self, corpus_idx: int, data_key: str = "") -> tuple[int, int, int]:  # noqa: ARG002 - one line has all
        file_idx = 0 if self._file_of is None else self._file_of[corpus_idx]
        start, num_bytes, sizes = self._starts[corpus_idx], self._num_bytes[corpus_idx], self._sizes
        if not 0 <= file_idx < len(sizes) or not 0 <= start <= start + num_bytes <= sizes[file_idx]:
            what = f"it says that sequence {corpus_idx} is at bytes {start}..{start + num_bytes} of file {file_idx}"
            raise self._index.damaged(what)
        return file_idx, start, num_bytes

    @property
    def encodes_texts(self) -> bool:
        """Whether a key has a vocabulary."""
        return any(field.is_slow for field in self._options.fields.values())

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.names[self._locate(corpus_idx)[0]]}, tag {self._index.tags[corpus_idx]!r}"


def _block_of(data: bytes, position: int, line: int) -> LineBlock:
    stops = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    if not data.endswith(b"\n"):
        stops = np.append(stops, len(data))
    starts = np.zeros(len(stops), np.int64)
    starts[1:] = stops[:-1] + 1
    return LineBlock(data, position, line, starts, stops)
