"""Shuffling, with a buffer or within each batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive
from ..core.draws import Draws
from ..core.registry import functional_pipe
from ..core.skeletons import SameLength, ShufflingPipe
from .batch import DataChunk, UnBatcher


@functional_pipe("shuffle")
class Shuffler(SameLength[Any], ShufflingPipe[Any], source="datapipe"):
    """Shuffle with a buffer: yield a random item from it for each new one, then the rest in random order.

    The order follows from the seed and the number of the epoch. Without a seed each epoch draws its own.

    Args:
        datapipe: The source.
        buffer_size: How many items the buffer holds. A source with no more items than that is shuffled uniformly.
        unbatch_level: Unbatch that many levels first, see `UnBatcher`.

    Raises:
        ConfigError: `buffer_size` is less than 1.
    """

    _not_shipped = ("_buffer",)
    _position_names = ("has_ended",)
    _has_ended = False

    def __init__(self, datapipe: IterPipe[Any], *, buffer_size: int = 10000, unbatch_level: int = 0) -> None:
        self.datapipe: Any = UnBatcher(datapipe, unbatch_level) if unbatch_level else datapipe
        self.buffer_size = check_positive("buffer_size", buffer_size)
        self.unbatch_level = unbatch_level
        self._draws = Draws("pipes: shuffle")
        self._buffer: list[Any] = []

    def reset(self) -> None:
        super().reset()
        self._buffer = []

    def __iter__(self) -> Iterator[Any]:
        source = iter(()) if self._has_ended else read(self.datapipe)
        buffer, draw = self._buffer, self._draws.generator.random
        if not self._enabled:
            while buffer:
                yield buffer.pop(0)
            yield from source
            return
        size = self.buffer_size
        buffer.extend(islice(source, size - len(buffer)))
        for item in source:
            drawn = int(draw() * size)
            given, buffer[drawn] = buffer[drawn], item
            yield given
        self._has_ended = True
        while buffer:
            drawn = int(draw() * len(buffer))
            buffer[drawn], buffer[-1] = buffer[-1], buffer[drawn]
            yield buffer.pop()

    def state(self) -> State:
        return super().state() | {"buffer": list(self._buffer)}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._buffer = list(state["buffer"])


@functional_pipe("in_batch_shuffle")
class InBatchShuffler(SameLength[Any], ShufflingPipe[Any], source="datapipe"):
    """Shuffle the items within each batch.

    Args:
        datapipe: The source, whose items are lists.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> [sorted(batch) for batch in IterableWrapper(range(4)).batch(2).in_batch_shuffle()]
        [[0, 1], [2, 3]]
    """

    def __init__(self, datapipe: IterPipe[Any]) -> None:
        self.datapipe = datapipe
        self._draws = Draws("pipes: in-batch shuffle")

    def __iter__(self) -> Iterator[Any]:
        sample = self._draws.generator.sample
        for batch in read(self.datapipe):
            yield DataChunk(sample(batch, len(batch))) if self._enabled else batch
