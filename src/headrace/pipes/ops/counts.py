"""Repeating, limiting and numbering items: cycle, repeat, header, set_length, enumerate, add_index."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.errors import ConfigError, check_count

from ..core.base import IterPipe, State, read
from ..core.registry import functional_pipe
from ..core.skeletons import OneForOne, Positioned


@functional_pipe("cycle")
class Cycler(Positioned[Any]):
    """Read the source several times. Each time is an epoch of its own: a shuffle gives another order.

    Args:
        source_datapipe: The source. If it is empty, so is this pipe.
        count: How many times; `None`: forever.

    Raises:
        ConfigError: `count` is negative.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").cycle(2))
        ['a', 'b', 'a', 'b']
    """

    _position_names = ("num_cycles", "has_items")
    _num_cycles = 0
    _has_items = False

    def __init__(self, source_datapipe: IterPipe[Any], count: int | None = None) -> None:
        if count is not None and count < 0:
            raise ConfigError(f"Expected non-negative count, got {count}")
        self.source_datapipe = source_datapipe
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        while self.count is None or self._num_cycles < self.count:
            for item in read(self.source_datapipe):
                self._has_items = True
                yield item
            if not self._has_items:
                return  # else it would look for an item forever
            self._has_items = False
            self._num_cycles += 1

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError(
                f"This {type(self).__name__} instance cycles forever, and therefore doesn't have valid length"
            )
        return len(self.source_datapipe) * self.count


@functional_pipe("repeat")
class Repeater(IterPipe[Any]):
    """Yield each item several times in succession.

    Args:
        source_datapipe: The source.
        times: How many times, at least 2.

    Raises:
        ConfigError: `times` is less than 2.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").repeat(2))
        ['a', 'a', 'b', 'b']
    """

    def __init__(self, source_datapipe: IterPipe[Any], times: int) -> None:
        if times <= 1:
            raise ConfigError(f"The number of repetition must be > 1, got {times}")
        self.source_datapipe = source_datapipe
        self.times = times
        self._pending: list[Any] = []
        self._num_left = 0

    def reset(self) -> None:
        self._pending, self._num_left = [], 0

    def __iter__(self) -> Iterator[Any]:
        for item in self._pending:
            for self._num_left in range(self._num_left - 1, -1, -1):
                yield item
        again = range(self.times - 1, -1, -1)
        for item in read(self.source_datapipe):
            self._pending = [item]
            for self._num_left in again:
                yield item
        self._pending = []

    def state(self) -> State:
        return {"pending": self._pending if self._num_left else [], "num_left": self._num_left}

    def restore(self, state: State) -> None:
        self._pending, self._num_left = state["pending"], state["num_left"]

    def __len__(self) -> int:
        return len(self.source_datapipe) * self.times


@functional_pipe("header")
class Header(Positioned[Any]):
    """Yield only the first items, and read no more than those from the source.

    Args:
        source_datapipe: The source.
        limit: How many items; `None`: all.

    Raises:
        ConfigError: `limit` is negative.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(100)).header(3))
        [0, 1, 2]
    """

    _position_names = ("num_given",)
    _num_given = 0

    def __init__(self, source_datapipe: IterPipe[Any], limit: int | None = 10) -> None:
        self.source_datapipe = source_datapipe
        self.limit = None if limit is None else check_count("limit", limit)

    def __iter__(self) -> Iterator[Any]:
        start, limit = self._num_given, self.limit
        if limit is not None and start >= limit:
            return
        source = read(self.source_datapipe)
        for self._num_given, item in enumerate(islice(source, None if limit is None else limit - start), start + 1):
            yield item

    def __len__(self) -> int:
        try:
            length = len(self.source_datapipe)
        except TypeError as error:
            if self.limit is None:
                raise TypeError(f"The length of this {type(self).__name__} cannot be determined.") from error
            warnings.warn(
                f"The length of this {type(self).__name__} is inferred to be equal to its limit. "
                "The actual value may be smaller if the source is shorter.",
                stacklevel=2,
            )
            return self.limit
        return length if self.limit is None else min(length, self.limit)


@functional_pipe("set_length")
class LengthSetter(Positioned[Any]):
    """Set what `len` returns. The items are not changed.

    Args:
        source_datapipe: The source.
        length: The number of items.

    Raises:
        ConfigError: The length is negative.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> len(IterableWrapper(range(8)).filter(lambda number: number % 2).set_length(4))
        4
    """

    maps_each = True

    def __init__(self, source_datapipe: IterPipe[Any], length: int) -> None:
        self.source_datapipe = source_datapipe
        self.length = check_count("length", length)

    def __iter__(self) -> Iterator[Any]:
        yield from read(self.source_datapipe)

    def __len__(self) -> int:
        return self.length


@functional_pipe("enumerate")
class Enumerator(OneForOne[Any]):
    """Number the items: yield (number, item).

    Args:
        source_datapipe: The source.
        starting_index: The first number.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper("ab").enumerate(starting_index=1))
        [(1, 'a'), (2, 'b')]
    """

    maps_each = False
    _position_names = ("num_given",)
    _num_given = 0

    def __init__(self, source_datapipe: IterPipe[Any], starting_index: int = 0) -> None:
        self.source_datapipe = source_datapipe
        self.starting_index = starting_index

    def __iter__(self) -> Iterator[Any]:
        before = self.starting_index - 1
        for self._num_given, item in enumerate(read(self.source_datapipe), self._num_given + 1):
            yield self._num_given + before, item


@functional_pipe("add_index")
class IndexAdder(OneForOne[Any]):
    """Add the number of the item, from 0, to each dict; yields shallow copies.

    Args:
        source_datapipe: The source, whose items are dicts.
        index_name: The key of the number.

    Raises:
        NotImplementedError: An item is not a dict (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([{"text": "a"}, {"text": "b"}]).add_index())
        [{'text': 'a', 'index': 0}, {'text': 'b', 'index': 1}]
    """

    maps_each = False
    _position_names = ("num_given",)
    _num_given = 0

    def __init__(self, source_datapipe: IterPipe[Any], index_name: str = "index") -> None:
        self.source_datapipe = source_datapipe
        self.index_name = index_name

    def __iter__(self) -> Iterator[Any]:
        for self._num_given, item in enumerate(read(self.source_datapipe), self._num_given + 1):
            if not isinstance(item, dict):
                raise NotImplementedError(
                    f"We only support adding index to row or batch in dict type, got {type(item).__name__}"
                )
            numbered = copy.copy(item)
            numbered[self.index_name] = self._num_given - 1
            yield numbered
