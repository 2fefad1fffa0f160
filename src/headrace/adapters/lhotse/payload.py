"""Data of cuts that stay in their shard until a worker makes the batch: their location, and how they are read.

A sampler looks at ids and durations, and hardly ever at samples. So while a loader draws, `shar.py` substitutes a
`Payload` for the bytes; when it is pickled for a worker, it becomes the bytes themselves there. Code that needs the
bytes before gets them as well, read at once.

Invariant: bytes that are read are those of the file that was scanned, or there is an error.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from headrace.files import FileStamp
from headrace.sources.shared.plain_files import PlainFiles


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes of a shard.

    Attributes:
        shard: The file, as it was when it was scanned.
        start: First byte.
        num_bytes: Their number.
    """

    shard: FileStamp
    start: int
    num_bytes: int

    def read(self) -> bytes:
        """Return the bytes.

        Raises:
            SourceError: The shard is gone, was changed since it was scanned, or cannot be read.
        """
        return read_payload(self.shard, self.start, self.num_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return read_payload, (self.shard, self.start, self.num_bytes)

    def __deepcopy__(self, memo: object) -> Payload:
        return self

    def __copy__(self) -> Payload:
        return self


class _OpenShards:
    """Shards that a worker keeps open, as many as `PlainFiles` allows."""

    def __init__(self) -> None:
        self._stamps: list[FileStamp] = []
        self._numbers: dict[FileStamp, int] = {}
        self._files = PlainFiles(self._stamps)

    def read(self, shard: FileStamp, start: int, num_bytes: int) -> bytes:
        number = self._numbers.get(shard)
        if number is None:
            number = self._numbers[shard] = len(self._stamps)
            self._stamps.append(shard)
        data = self._files.read(number, start, num_bytes)
        self._files.confirm()
        return data


_open_shards: _OpenShards | None = None  # of a worker, whose only thread reads


def keep_shards_open() -> None:
    """Keep the shards open that are read from now on. Worker only; not for several threads."""
    global _open_shards
    _open_shards = _OpenShards()


def read_payload(shard: FileStamp, start: int, num_bytes: int) -> bytes:
    """Return bytes of a shard; the function that a pickled `Payload` calls.

    Raises:
        SourceError: As for `Payload.read`.
    """
    if _open_shards is not None:
        return _open_shards.read(shard, start, num_bytes)
    files = PlainFiles([shard])
    try:
        return files.read(0, start, num_bytes)
    finally:
        files.close()


class LeftToWorkers:
    """A `with` block in which this thread does not read the data of Shar's tar files. May be nested."""

    def __enter__(self) -> LeftToWorkers:
        _thread.depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _thread.depth -= 1


def is_left_to_workers() -> bool:
    """Tell whether this thread is in such a block."""
    return _thread.depth > 0


class _Thread(threading.local):
    depth = 0


_thread = _Thread()
