"""Several pipes one after another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .arguments import check_sources, known_length
from .base import IterPipe, State, read
from .registry import functional_pipe


@functional_pipe("concat")
class Concater(IterPipe[Any]):
    """Give the items of the first source, then those of the next. `a + b` is the same.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is no pipe.
    """

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("Concater", datapipes)
        self._place = 0

    def reset(self) -> None:
        self._place = 0

    def __iter__(self) -> Iterator[Any]:
        for self._place in range(self._place, len(self.datapipes)):
            yield from read(self.datapipes[self._place])

    def state(self) -> State:
        return {"place": self._place}

    def restore(self, state: State) -> None:
        self._place = state["place"]

    def __len__(self) -> int:
        return sum(known_length(self.datapipes))
