"""Items that are there before they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .arguments import check_positive
from .base import IterPipe, read
from .read_ahead import ReadAheadPipe
from .registry import functional_pipe


@functional_pipe("prefetch")
class Prefetcher(ReadAheadPipe):
    """Read the source in a thread, some items ahead. What it raises comes in its place.

    The thread lives as long as the iteration. What runs in it shares Python's lock with the consumer: it helps where
    the source waits for files, networks or NumPy.

    Args:
        source_datapipe: The source.
        buffer_size: How many items ahead.

    Raises:
        ConfigError: `buffer_size` is less than 1.
    """

    def __init__(self, source_datapipe: IterPipe[Any], buffer_size: int = 10) -> None:
        self.source_datapipe = source_datapipe
        self.buffer_size = check_positive("buffer_size", buffer_size)

    def __iter__(self) -> Iterator[Any]:
        few = self.buffer_size // 2
        with self._reading_ahead(
            iter(()) if self._has_ended else read(self.source_datapipe), self.buffer_size
        ) as ahead:
            buffer = ahead.buffer
            take = buffer.popleft
            while buffer or ahead.wait():
                item = take()
                if ahead.is_at_rest and len(buffer) <= few:
                    ahead.wake()
                yield item

    def __len__(self) -> int:
        return len(self.source_datapipe)
