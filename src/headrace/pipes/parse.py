"""CSV and JSON."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from headrace.errors import check_count

from .base import IterPipe, State, read
from .file_parts import FilePartsPipe, check_pair, close
from .registry import functional_pipe


@dataclass(frozen=True)
class _Text:
    """How lines of a file become text."""

    skip_lines: int
    decode: bool
    encoding: str
    errors: str

    def lines_of(self, stream: Any) -> Iterator[Any]:
        """Yield lines."""
        for line in islice(stream, self.skip_lines, None):
            yield line.decode(self.encoding, self.errors) if self.decode and isinstance(line, bytes) else line


@functional_pipe("parse_csv")
class CSVParser(FilePartsPipe):
    """Give the rows of CSV files, as lists.

    Args:
        source_datapipe: The source; its items are (path, open file).
        skip_lines: How many lines at the start of each file are left out.
        decode: Make text of bytes.
        encoding: How.
        errors: What to do with bytes that are no text, as of `bytes.decode`.
        return_path: Give (path, row).
        as_tuple: Rows are tuples.
        fmtparams: What `csv.reader` takes.
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
        super().__init__(source_datapipe)
        self.text = _Text(check_count("skip_lines", skip_lines), decode, encoding, errors)
        self.return_path = return_path
        self.as_tuple = as_tuple
        self.fmtparams = fmtparams

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        for row in csv.reader(self.text.lines_of(stream), **self.fmtparams):
            cells = tuple(row) if self.as_tuple else row
            yield (path, cells) if self.return_path else cells
        close(stream)


@functional_pipe("parse_csv_as_dict")
class CSVDictParser(FilePartsPipe):
    """Give the rows of CSV files, as dicts; the keys are the first row.

    Args:
        source_datapipe: The source; its items are (path, open file).
        skip_lines: How many lines at the start of each file are left out.
        decode: Make text of bytes.
        encoding: How.
        errors: What to do with bytes that are no text, as of `bytes.decode`.
        return_path: Give (path, row).
        fmtparams: What `csv.DictReader` takes.
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
        super().__init__(source_datapipe)
        self.text = _Text(check_count("skip_lines", skip_lines), decode, encoding, errors)
        self.return_path = return_path
        self.fmtparams = fmtparams

    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        for row in csv.DictReader(self.text.lines_of(stream), **self.fmtparams):
            yield (path, row) if self.return_path else row
        close(stream)


@functional_pipe("parse_json_files")
class JsonParser(IterPipe[Any]):
    """Give (path, what the JSON file holds).

    Args:
        source_datapipe: The source; its items are (path, open file).
        kwargs: What `json.loads` takes.
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

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.source_datapipe)
