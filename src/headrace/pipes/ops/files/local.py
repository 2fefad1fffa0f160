"""Opening and writing local files."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.errors import ConfigError
from headrace.files import atomic_write

from ...core.base import IterPipe, read
from ...core.checks import check_takes
from ...core.registry import functional_pipe
from ...core.skeletons import OneForOne, Positioned
from ...core.streams import open_local

_OPEN_MODES = {"r": "r", "t": "rt", "rt": "rt", "tr": "rt", "b": "rb", "rb": "rb", "br": "rb"}


@functional_pipe("open_files")
class FileOpener(Positioned[Any]):
    """Yield (path, open file). A file closes itself when its last reference is gone.

    Args:
        datapipe: The source, whose items are paths.
        mode: `"r"` or `"t"`: text; `"b"`: bytes.
        encoding: The encoding of text.
        length: What `len` returns; -1: the length of the source.

    Raises:
        ConfigError: The mode is for writing or unknown, or an encoding was given for bytes.
        OSError: A file cannot be opened (while iterating).
    """

    maps_each = True

    def __init__(self, datapipe: Iterable[str], mode: str = "r", encoding: str | None = None, length: int = -1) -> None:
        if mode not in _OPEN_MODES:
            raise ConfigError(f"Invalid mode {mode}", fix=f"use one of {', '.join(_OPEN_MODES)}")
        if "b" in mode and encoding is not None:
            raise ConfigError("binary mode doesn't take an encoding argument")
        self.datapipe = datapipe
        self.mode = mode
        self.encoding = encoding
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        mode = _OPEN_MODES[self.mode]
        for path in read(self.datapipe):
            if not isinstance(path, str):
                raise TypeError(f"Expected string type for pathname, but got {type(path)}")
            yield path, open_local(path, mode, self.encoding)

    def __len__(self) -> int:
        return len(self.datapipe) if self.length == -1 else self.length  # type: ignore[arg-type]


_WRITE_MODES = {"w": "w", "t": "w", "wt": "w", "tw": "w", "b": "wb", "wb": "wb", "bw": "wb"}


def check_write_mode(mode: str) -> str:
    """Return the mode to write a new file: `"w"` or `"wb"`.

    Raises:
        ConfigError: The mode is unknown, or would change a file in place.
    """
    if mode not in _WRITE_MODES:
        raise ConfigError(
            f"Invalid mode {mode}", fix=f"use one of {', '.join(_WRITE_MODES)}: files are only written as a whole"
        )
    return _WRITE_MODES[mode]


def save_whole(path: str, data: Any, mode: str) -> None:
    """Write a file that appears whole or not at all; make its folder if needed.

    Args:
        path: The file; an existing one is replaced.
        data: Bytes, text, or an open file, which is copied.
        mode: `"w"` or `"wb"`. Bytes are written unchanged in either mode, text in UTF-8.

    Raises:
        SourceError: It cannot be written, for example because the disk is full.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    if isinstance(data, str) and mode == "wb":
        data = data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        mode = "wb"
    with atomic_write(path, mode) as file:
        put(data, file)


def put(data: Any, file: Any) -> None:
    """Write bytes or text, or copy an open file."""
    if hasattr(data, "read"):
        shutil.copyfileobj(data, file)
    else:
        file.write(data)


class SavingPipe(OneForOne[str]):
    """Writes each item to a file and yields the path, see `Saver`."""

    def __init__(
        self, source_datapipe: IterPipe[Any], mode: str = "w", filepath_fn: Callable[[Any], str] | None = None
    ) -> None:
        if filepath_fn is not None:
            check_takes(filepath_fn, 1)
        self.source_datapipe = source_datapipe
        self.mode = check_write_mode(mode)
        self.filepath_fn = filepath_fn

    @abstractmethod
    def _save(self, path: str, data: Any) -> None:
        """Write a file."""

    def __iter__(self) -> Iterator[str]:
        for name, data in read(self.source_datapipe):
            path = name if self.filepath_fn is None else self.filepath_fn(name)
            self._save(path, data)
            yield path


@functional_pipe("save_to_disk")
class Saver(SavingPipe):
    """Write each item to a file, which appears whole or not at all, and yield its path.

    Args:
        source_datapipe: The source, whose items are (name, data): bytes, text or an open file.
        mode: `"w"` for text, `"wb"` for bytes.
        filepath_fn: Returns the path for a name; `None`: the name is the path. Check names that come from archives or
            other hosts here: they may point to any folder.

    Raises:
        ConfigError: The mode is unknown.
        SourceError: A file cannot be written (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     texts = IterableWrapper([("a.txt", b"hello")])
        ...     saved = texts.save_to_disk(filepath_fn=lambda name: f"{folder}/{name}")
        ...     [Path(path).read_text() for path in saved]
        ['hello']
    """

    def _save(self, path: str, data: Any) -> None:
        save_whole(path, data, self.mode)
