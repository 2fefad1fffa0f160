"""Several pipes in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .arguments import check_sources, known_length
from .base import IterPipe, State, read
from .registry import functional_pipe


@functional_pipe("mux")
class Multiplexer(IterPipe[Any]):
    """Give an item of each source in turn, in whole rounds: when a source has ended, so has this.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is no pipe.
    """

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("Multiplexer", datapipes)
        self._pending: tuple[Any, ...] = ()
        self._num_given = 0

    def reset(self) -> None:
        self._pending, self._num_given = (), 0

    def __iter__(self) -> Iterator[Any]:
        for self._num_given, item in enumerate(self._pending, 1):
            yield item
        for self._pending in zip(*[read(source) for source in self.datapipes], strict=False):
            for self._num_given, item in enumerate(self._pending, 1):
                yield item
        self._pending = ()

    def state(self) -> State:
        return {"rest": list(self._pending[self._num_given :])}

    def restore(self, state: State) -> None:
        self._pending, self._num_given = tuple(state["rest"]), 0

    def __len__(self) -> int:
        return min(known_length(self.datapipes)) * len(self.datapipes)


@functional_pipe("mux_longest")
class MultiplexerLongest(IterPipe[Any]):
    """Give an item of each source in turn, until all have ended; those that have are passed over.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is no pipe.
    """

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("MultiplexerLongest", datapipes)
        self.reset()

    def reset(self) -> None:
        self._ended = [False] * len(self.datapipes)
        self._turn = 0

    def __iter__(self) -> Iterator[Any]:
        ended = self._ended
        sources = [iter(()) if over else read(source) for over, source in zip(ended, self.datapipes, strict=True)]
        turn, last = self._turn, len(sources)
        while not all(ended):
            for place in range(turn, last):
                if ended[place]:
                    continue
                try:
                    item = next(sources[place])
                except StopIteration:
                    ended[place] = True
                    continue
                self._turn = place + 1
                yield item
            turn = 0

    def state(self) -> State:
        return {"ended": list(self._ended), "turn": self._turn}

    def restore(self, state: State) -> None:
        self._ended, self._turn = list(state["ended"]), state["turn"]

    def __len__(self) -> int:
        return sum(known_length(self.datapipes))
