"""Pipes that make several items of one open file: lines, rows, members of an archive.

Invariant of the state: it holds the origin of the file and how many of its parts were given; the file is then opened
again, and as many parts are skipped. In a file without an origin, opened by other code, there is no state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from ...core.base import IterPipe, State
from ...core.skeletons import ExpandingPipe
from ...core.streams import StreamWrapper, reopen


class FilePartsPipe(ExpandingPipe[Any]):
    """Reads (path, open file) pairs, and yields the parts of each file.

    Args:
        source_datapipe: The source.
    """

    _position_names = ("path", "origin", "num_given")
    _path: str | None = None  # of the current file
    _origin: dict[str, Any] | None = None

    def __init__(self, source_datapipe: IterPipe[Any]) -> None:
        self.source_datapipe = source_datapipe

    @abstractmethod
    def _parts(self, path: str, stream: Any) -> Iterator[Any]:
        """Yield the parts of a file."""

    def _open(self, item: Any) -> Iterator[Any]:
        self._path, stream = check_pair(item)
        self._origin = getattr(stream, "origin", None)
        return self._parts(self._path, stream)

    def _reopen(self) -> Iterator[Any]:
        assert self._path is not None
        assert self._origin is not None
        return self._parts(self._path, reopen(self._origin))

    def state(self) -> State | None:  # type: ignore[override]
        return None if self._path is not None and self._origin is None else super().state()


def check_pair(item: Any) -> tuple[str, Any]:
    """Return an item, checked to be a path and an open file.

    Raises:
        TypeError: It is not.
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
