"""Random order, within a buffer or within each batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive
from ..core.draws import Draws
from ..core.registry import functional_pipe
from .batch import DataChunk, UnBatcher


@functional_pipe("shuffle")
class Shuffler(IterPipe[Any]):
    """Fill a buffer, then give a random item of it for each item that comes in; at the end give the rest at random.

    The order follows from the seed and the number of the epoch. Without a seed each epoch has another one.

    Args:
        datapipe: The source.
        buffer_size: How many items are held. A source that is no longer is shuffled uniformly.
        unbatch_level: Take batches apart first, see `UnBatcher`.

    Raises:
        ConfigError: `buffer_size` is less than 1.
    """

    _not_shipped = ("_buffer",)

    def __init__(self, datapipe: IterPipe[Any], *, buffer_size: int = 10000, unbatch_level: int = 0) -> None:
        self.datapipe: Any = UnBatcher(datapipe, unbatch_level) if unbatch_level else datapipe
        self.buffer_size = check_positive("buffer_size", buffer_size)
        self.unbatch_level = unbatch_level
        self._enabled = True
        self._draws = Draws("pipes: shuffle")
        self._buffer: list[Any] = []
        self._has_ended = False

    def set_shuffle(self, shuffle: bool = True) -> Shuffler:
        """Shuffle, or (False) let items pass as they come."""
        self._enabled = shuffle
        return self

    def set_seed(self, seed: int) -> Shuffler:
        """Let the order of the next epochs follow from a seed."""
        self._draws.set_seed(seed)
        return self

    def reset(self) -> None:
        self._draws.begin_epoch()
        self._buffer = []
        self._has_ended = False

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
        return {"draws": self._draws.state(), "buffer": list(self._buffer), "has_ended": self._has_ended}

    def restore(self, state: State) -> None:
        self._draws.restore(state["draws"])
        self._buffer = list(state["buffer"])
        self._has_ended = state["has_ended"]

    def __len__(self) -> int:
        return len(self.datapipe)


@functional_pipe("in_batch_shuffle")
class InBatchShuffler(IterPipe[Any]):
    """Shuffle the items within each batch.

    Args:
        datapipe: The source; its items are lists.
    """

    def __init__(self, datapipe: IterPipe[Any]) -> None:
        self.datapipe = datapipe
        self._enabled = True
        self._draws = Draws("pipes: in-batch shuffle")

    def set_shuffle(self, shuffle: bool = True) -> InBatchShuffler:
        """Shuffle, or (False) let batches pass as they come."""
        self._enabled = shuffle
        return self

    def set_seed(self, seed: int) -> InBatchShuffler:
        """Let the order of the next epochs follow from a seed."""
        self._draws.set_seed(seed)
        return self

    def reset(self) -> None:
        self._draws.begin_epoch()

    def __iter__(self) -> Iterator[Any]:
        sample = self._draws.generator.sample
        for batch in read(self.datapipe):
            yield DataChunk(sample(batch, len(batch))) if self._enabled else batch

    def state(self) -> State:
        return {"draws": self._draws.state()}

    def restore(self, state: State) -> None:
        self._draws.restore(state["draws"])

    def __len__(self) -> int:
        return len(self.datapipe)
