"""Shuffling, with a buffer or within each batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive
from ..core.draws import Draws
from ..core.registry import functional_pipe
from ..core.skeletons import SameLength, ShufflingPipe
from ..core.skipping import WantedItems
from .batch import DataChunk, UnBatcher


@functional_pipe("shuffle")
class Shuffler(SameLength[Any], ShufflingPipe[Any], source="datapipe", skips_ahead=True):
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
    # After `skip_ahead`, until the items are read: which of the items that the source then gives are given on, and
    # which fill the buffer.
    _skipped_to: tuple[list[int], list[int]] | None = None

    def __init__(self, datapipe: IterPipe[Any], *, buffer_size: int = 10000, unbatch_level: int = 0) -> None:
        self.datapipe: Any = UnBatcher(datapipe, unbatch_level) if unbatch_level else datapipe
        self.buffer_size = check_positive("buffer_size", buffer_size)
        self.unbatch_level = unbatch_level
        self._draws = Draws("pipes: shuffle")
        self._buffer: list[Any] = []

    def reset(self) -> None:
        super().reset()
        self._buffer = []
        self._skipped_to = None

    def can_skip_ahead(self) -> bool:
        return super().can_skip_ahead() and not self._has_ended

    def skip_ahead(self, wanted: WantedItems) -> WantedItems:
        """Repeat the draws of `__iter__` on item numbers: needed are the wanted items and those left in the buffer."""
        if not self._enabled or not wanted.start:
            return wanted
        size, draw = self.buffer_size, self._draws.generator.random
        start = size + wanted.start
        held, given = list(range(size)), []
        before = iter([*wanted.before, start])
        next_wanted = next(before)
        for number in range(size, start):
            drawn = int(draw() * size)
            if number - size == next_wanted:
                given.append(held[drawn])
                next_wanted = next(before)
            held[drawn] = number
        needed = sorted(given + held)
        rank_of = {number: rank for rank, number in enumerate(needed)}
        self._skipped_to = [rank_of[number] for number in given], [rank_of[number] for number in held]
        return replace(wanted, start=start, before=needed, group=1)

    def __iter__(self) -> Iterator[Any]:
        source = iter(()) if self._has_ended else read(self.datapipe)
        buffer, draw = self._buffer, self._draws.generator.random
        if not self._enabled:
            while buffer:
                yield buffer.pop(0)
            yield from source
            return
        size = self.buffer_size
        if self._skipped_to is not None:
            yield from self._fill_as_skipped(source, *self._skipped_to)
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

    def _fill_as_skipped(self, source: Iterator[Any], given: list[int], held: list[int]) -> Iterator[Any]:
        items = list(islice(source, len(given) + len(held)))
        self._buffer += [items[rank] for rank in held]
        self._skipped_to = None
        yield from [items[rank] for rank in given]

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
