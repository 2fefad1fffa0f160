"""The lines of a text file: where each one is, found block by block at the speed of memory.

A line ends with a line feed, or the file; a carriage return before that belongs to the end. No other character ends
one, also if Unicode calls it a line separator: so every tool that counts lines counts the same. A byte order mark at
the start is skipped.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import open_regular

_BLOCK_BYTES = 4 << 20  # the scan of one takes milliseconds, and its arrays stay in the cache of the processor
_NEWLINE = 10


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines that follow one another in a file.

    Attributes:
        data: Their bytes.
        position: Place of the first one in the file.
        first_line: Number of the first line, from 1.
        starts: `int64[n]`: where each line starts in `data`.
        stops: `int64[n]`: where each line ends there, before its line feed.
    """

    data: bytes
    position: int
    first_line: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def lines(self) -> list[bytes]:
        """Return the lines, without the line feed."""
        return [self.data[a:b] for a, b in zip(self.starts.tolist(), self.stops.tolist(), strict=True)]


def scan_lines(path: str) -> Iterator[LineBlock]:
    """Read a file and say where its lines are; O(its size), whatever the lengths of the lines.

    Raises:
        SourceError: The file cannot be read.
    """
    try:
        with open_regular(path) as file:
            position, line = 0, 1
            begun: list[bytes] = []  # of a line that has no end yet
            block = file.read(_BLOCK_BYTES)
            if block.startswith(codecs.BOM_UTF8):
                position, block = len(codecs.BOM_UTF8), block[len(codecs.BOM_UTF8) :]
            while block:
                end = block.rfind(b"\n") + 1
                if end:
                    found = _block_of(b"".join([*begun, block[:end]]), position, line)
                    yield found
                    position, line = position + len(found.data), line + len(found.starts)
                    begun = []
                begun.append(block[end:])
                block = file.read(_BLOCK_BYTES)
            rest = b"".join(begun)
            if rest:
                yield _block_of(rest, position, line)
    except OSError as error:
        raise SourceError(f"the file cannot be read: {error.strerror or error}", where=path) from error


def _block_of(data: bytes, position: int, line: int) -> LineBlock:
    stops = np.flatnonzero(np.frombuffer(data, np.uint8) == _NEWLINE)
    if not data.endswith(b"\n"):
        stops = np.append(stops, len(data))
    starts = np.zeros(len(stops), np.int64)
    starts[1:] = stops[:-1] + 1
    return LineBlock(data, position, line, starts, stops)
