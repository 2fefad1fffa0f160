"""Pipes that make many items of one open file: lines, rows, members of an archive.

Invariant of the state: the file's origin and how many of its parts were given. The file is opened again and so many
parts are passed over. A file that was opened by somebody else, who left no origin, makes the position unknown.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Any

from ...core.base import IterPipe, State, read
from ...core.skeletons import Positioned
from ...core.streams import StreamWrapper, reopen


class FilePartsPipe(Positioned[Any]):
    """Reads pairs of a path and an open file, and gives the parts of each file.

    Args:
        source_datapipe: The source.
    """

    _position_names = ("path", "origin", "num_given")
    _path: str | None = None  # of the file under way
    _origin: dict[str, Any] | None = None
    _num_given = 0

    def __init__(self, source_datapipe: IterPipe[Any]) -> None:
        self.source_datapipe = source_datapipe

    @abstractmethod
    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        """Yield what a file consists of."""

    def __iter__(self) -> Iterator[Any]:
        if self._path is not None and self._origin is not None:
            parts = self._parts(self._path, reopen(self._origin))
            for self._num_given, part in enumerate(islice(parts, self._num_given, None), self._num_given + 1):
                yield part
            del parts
        for item in read(self.source_datapipe):
            path, stream = check_pair(item)
            del item  # else it would keep the file open
            self._path, self._origin = path, getattr(stream, "origin", None)
            parts = self._parts(path, stream)
            del stream
            for self._num_given, part in enumerate(parts, 1):
                yield part
            del parts
            self._path = None

    def state(self) -> State | None:  # type: ignore[override]
        return None if self._path is not None and self._origin is None else super().state()


def check_pair(item: Any) -> tuple[str, Any]:
    """Return a path and an open file.

    Raises:
        TypeError: The item is something else.
    """
    if not isinstance(item, (tuple, list)) or len(item) != 2:
        raise TypeError(f"pathname binary data should be tuple type, but it is type {type(item)}")
    path, stream = item
    if not isinstance(path, str):
        raise TypeError(f"pathname within the tuple should have string type pathname, but it is type {type(path)}")
    if not hasattr(stream, "read"):
        raise TypeError(
            "binary stream within the tuple should have IOBase or its subclasses as type, "
            f"but it is type {type(stream)}"
        )
    return path, stream


def close(stream: Any) -> None:
    """Close a file that was read to its end."""
    if isinstance(stream, StreamWrapper):
        stream.close()
