"""Open files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from headrace.errors import ConfigError

from .base import IterPipe, State, read
from .registry import functional_pipe
from .streams import open_local

_MODES = {"r": "r", "t": "rt", "rt": "rt", "tr": "rt", "b": "rb", "rb": "rb", "br": "rb"}


@functional_pipe("open_files")
class FileOpener(IterPipe[Any]):
    """Give (path, open file). A file closes itself when nobody refers to it any more.

    Args:
        datapipe: The source; its items are paths.
        mode: `"r"` or `"t"`: text; `"b"`: bytes.
        encoding: Of text.
        length: What `len` is; -1: that of the source.

    Raises:
        ConfigError: The mode is for writing or unknown, or there is an encoding of bytes.
        OSError: A file cannot be opened (while iterating).
    """

    def __init__(self, datapipe: Iterable[str], mode: str = "r", encoding: str | None = None, length: int = -1) -> None:
        if mode not in _MODES:
            raise ConfigError(f"Invalid mode {mode}", fix=f"use one of {', '.join(_MODES)}")
        if "b" in mode and encoding is not None:
            raise ConfigError("binary mode doesn't take an encoding argument")
        self.datapipe = datapipe
        self.mode = mode
        self.encoding = encoding
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        mode = _MODES[self.mode]
        for path in read(self.datapipe):
            if not isinstance(path, str):
                raise TypeError(f"Expected string type for pathname, but got {type(path)}")
            yield path, open_local(path, mode, self.encoding)

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return len(self.datapipe) if self.length == -1 else self.length  # type: ignore[arg-type]
