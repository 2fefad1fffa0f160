"""Parsing open files: lines, paragraphs, chunks of bytes, CSV rows, JSON."""

from __future__ import annotations

import csv
import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from headrace.errors import check_count

from ...core.base import IterPipe, State, read
from ...core.checks import check_positive, check_takes
from ...core.registry import functional_pipe
from ...core.skeletons import OneForOne
from .parts import FilePartsPipe, check_pair, close


class _LinesPipe(FilePartsPipe):
    """Makes items of the lines of files."""

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        skip_lines: int,
        decode: bool,
        encoding: str,
        errors: str,
        return_path: bool,
    ) -> None:
        super().__init__(source_datapipe)
        self.skip_lines = check_count("skip_lines", skip_lines)
        self.decode = decode
        self.encoding = encoding
        self.errors = errors
        self.return_path = return_path

    @abstractmethod
    def _items(self, lines: Iterator[Any]) -> Iterable[Any]:
        """Return the items that the lines of a file make."""

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        for item in self._items(self._lines(stream)):
            yield (path, item) if self.return_path else item
        close(stream)

    def _lines(self, stream: Any) -> Iterator[Any]:
        for line in islice(stream, self.skip_lines, None):
            yield line.decode(self.encoding, self.errors) if self.decode and isinstance(line, bytes) else line


@functional_pipe("readlines")
class LineReader(_LinesPipe):
    """Yield the lines of files.

    Args:
        source_datapipe: The source, whose items are (path, open file).
        skip_lines: How many lines to skip at the start of each file.
        strip_newline: Remove the newline at the end of each line.
        decode: Decode bytes to text.
        encoding: The encoding of the text.
        errors: How to treat invalid bytes, as for `bytes.decode`.
        return_path: Yield (path, line) instead of the line.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> text = chr(10).join(["one", "two"]).encode()
        >>> list(IterableWrapper([("a.txt", io.BytesIO(text))]).readlines(decode=True))
        [('a.txt', 'one'), ('a.txt', 'two')]
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> None:
        super().__init__(source_datapipe, skip_lines, decode, encoding, errors, return_path)
        self.strip_newline = strip_newline

    def _items(self, lines: Iterator[Any]) -> Iterable[Any]:
        if not self.strip_newline:
            return lines
        return (line.rstrip(b"\r\n" if isinstance(line, bytes) else "\r\n") for line in lines)


def join_lines(lines: list[str]) -> str:
    """Return lines with newlines between them."""
    return "\n".join(lines)


@functional_pipe("lines_to_paragraphs")
class ParagraphAggregator(IterPipe[Any]):
    """Join the lines of a file into paragraphs, which end at empty lines.

    Args:
        source_datapipe: The source, whose items are (path, line).
        joiner: Returns a paragraph made of a list of lines.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> lines = [("a.txt", "one"), ("a.txt", "two"), ("a.txt", ""), ("a.txt", "three")]
        >>> list(IterableWrapper(lines).lines_to_paragraphs(joiner=" ".join))
        [('a.txt', 'one two'), ('a.txt', 'three')]
    """

    def __init__(self, source_datapipe: IterPipe[Any], joiner: Callable[[list[Any]], Any] = join_lines) -> None:
        check_takes(joiner, 1)
        self.source_datapipe = source_datapipe
        self.joiner = joiner
        self.reset()

    def reset(self) -> None:
        self._path: Any = None
        self._pending: list[Any] = []
        self._has_ended = False

    def __iter__(self) -> Iterator[Any]:
        for path, line in () if self._has_ended else read(self.source_datapipe):
            before, lines = self._path, self._pending
            is_other = path != before
            if lines and (is_other or not line):
                self._path, self._pending = path, [line] if line else []
                yield before, self.joiner(lines)
            else:
                self._path = path
                self._pending += [line] if line else []
        self._has_ended = True
        if lines := self._pending:
            self._pending = []
            yield self._path, self.joiner(lines)

    def state(self) -> State:
        return {"path": self._path, "lines": list(self._pending), "has_ended": self._has_ended}

    def restore(self, state: State) -> None:
        self._path, self._pending, self._has_ended = state["path"], list(state["lines"]), state["has_ended"]


@functional_pipe("read_from_stream")
class StreamReader(FilePartsPipe):
    """Yield (path, content) of files.

    Args:
        datapipe: The source, whose items are (path, open file).
        chunk: How many bytes or characters of a file make an item; `None`: all of them.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> list(IterableWrapper([("a.bin", io.BytesIO(b"12345"))]).read_from_stream(chunk=3))
        [('a.bin', b'123'), ('a.bin', b'45')]
    """

    def __init__(self, datapipe: IterPipe[Any], chunk: int | None = None) -> None:
        super().__init__(datapipe)
        self.chunk = None if chunk is None else check_positive("chunk", chunk)

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        if self.chunk is None:
            yield path, stream.read()
        else:
            while data := stream.read(self.chunk):
                yield path, data
        close(stream)


@functional_pipe("parse_csv")
class CSVParser(_LinesPipe):
    """Yield the rows of CSV files as lists.

    Args:
        source_datapipe: The source, whose items are (path, open file).
        skip_lines: How many lines to skip at the start of each file.
        decode: Decode bytes to text.
        encoding: The encoding of the text.
        errors: How to treat invalid bytes, as for `bytes.decode`.
        return_path: Yield (path, row) instead of the row.
        as_tuple: Yield rows as tuples.
        fmtparams: Format parameters of `csv.reader`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> table = io.BytesIO(chr(10).join(["name,age", "Ann,3"]).encode())
        >>> list(IterableWrapper([("a.csv", table)]).parse_csv(skip_lines=1))
        [['Ann', '3']]
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(source_datapipe, skip_lines, decode, encoding, errors, return_path)
        self.as_tuple = as_tuple
        self.fmtparams = fmtparams

    def _items(self, lines: Iterator[Any]) -> Iterable[Any]:
        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows


@functional_pipe("parse_csv_as_dict")
class CSVDictParser(_LinesPipe):
    """Yield the rows of CSV files as dicts, whose keys are the first row.

    Args:
        source_datapipe: The source, whose items are (path, open file).
        skip_lines: How many lines to skip at the start of each file.
        decode: Decode bytes to text.
        encoding: The encoding of the text.
        errors: How to treat invalid bytes, as for `bytes.decode`.
        return_path: Yield (path, row) instead of the row.
        fmtparams: Arguments of `csv.DictReader`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> table = io.BytesIO(chr(10).join(["name,age", "Ann,3"]).encode())
        >>> list(IterableWrapper([("a.csv", table)]).parse_csv_as_dict())
        [{'name': 'Ann', 'age': '3'}]
    """

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(source_datapipe, skip_lines, decode, encoding, errors, return_path)
        self.fmtparams = fmtparams

    def _items(self, lines: Iterator[Any]) -> Iterable[Any]:
        return csv.DictReader(lines, **self.fmtparams)


@functional_pipe("parse_json_files")
class JsonParser(OneForOne[Any]):
    """Yield (path, parsed content) of JSON files.

    Args:
        source_datapipe: The source, whose items are (path, open file).
        kwargs: Arguments of `json.loads`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import io
        >>> list(IterableWrapper([("a.json", io.BytesIO(b'{"age": 3}'))]).parse_json_files())
        [('a.json', {'age': 3})]
    """

    def __init__(self, source_datapipe: IterPipe[Any], **kwargs: Any) -> None:
        self.source_datapipe = source_datapipe
        self.kwargs = kwargs

    def __iter__(self) -> Iterator[Any]:
        for item in read(self.source_datapipe):
            path, stream = check_pair(item)
            data = stream.read()
            close(stream)
            yield path, json.loads(data, **self.kwargs)
