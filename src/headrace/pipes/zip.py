"""Several pipes side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .arguments import check_sources, known_length
from .base import IterPipe, State, read
from .registry import functional_pipe


@functional_pipe("zip")
class Zipper(IterPipe[Any]):
    """Give tuples with an item of each source, until the shortest ends.

    Args:
        datapipes: The sources.

    Raises:
        ConfigError: There are none.
        TypeError: One is no pipe.
    """

    def __init__(self, *datapipes: IterPipe[Any]) -> None:
        self.datapipes = check_sources("Zipper", datapipes)

    def __iter__(self) -> Iterator[Any]:
        yield from zip(*[read(source) for source in self.datapipes], strict=False)

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        return min(known_length(self.datapipes))


@functional_pipe("zip_longest")
class ZipperLongest(IterPipe[Any]):
    """Give tuples with an item of each source, until the longest ends.

    Args:
        datapipes: The sources.
        fill_value: What stands for the items of those that have ended.

    Raises:
        ConfigError: There are none.
        TypeError: One is no pipe.
    """

    def __init__(self, *datapipes: IterPipe[Any], fill_value: Any = None) -> None:
        self.datapipes = check_sources("ZipperLongest", datapipes)
        self.fill_value = fill_value
        self._ended = [False] * len(datapipes)

    def reset(self) -> None:
        self._ended = [False] * len(self.datapipes)

    def __iter__(self) -> Iterator[Any]:
        fill, ended = self.fill_value, self._ended
        sources = [iter(()) if over else read(source) for over, source in zip(ended, self.datapipes, strict=True)]
        while True:
            items = []
            for place, source in enumerate(sources):
                if ended[place]:
                    items.append(fill)
                    continue
                try:
                    items.append(next(source))
                except StopIteration:
                    ended[place] = True
                    items.append(fill)
            if all(ended):
                return
            yield tuple(items)

    def state(self) -> State:
        return {"ended": list(self._ended)}

    def restore(self, state: State) -> None:
        self._ended = list(state["ended"])

    def __len__(self) -> int:
        return max(known_length(self.datapipes))
