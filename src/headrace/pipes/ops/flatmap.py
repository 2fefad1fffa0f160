"""Operations that make several items of one.

Invariant of the state: of a list or tuple it holds the remaining values; of another iterable, the item that it was made
of and how many of its values were given, so that the function can be called again and those values skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive
from ..core.draws import Draws
from ..core.registry import functional_pipe
from ..core.skeletons import ShufflingPipe
from .columns import column_reader


def _same(*columns: Any) -> Any:
    return columns[0] if len(columns) == 1 else columns


def _flattener(fn: Callable[..., Any] | None, input_col: Any) -> Callable[[Any], Iterable[Any]]:
    return column_reader(_same if fn is None else fn, input_col)


class _Opened:
    """The values that a function made of an item, and how many of them were given."""

    __slots__ = ("item", "num_given", "values")

    def __init__(self, item: Any, values: Iterable[Any], num_given: int = 0) -> None:
        self.item, self.values, self.num_given = item, values, num_given

    def rest(self) -> Iterator[Any]:
        """Yield the remaining values, and count them."""
        start = self.num_given
        if type(self.values) in (list, tuple):
            values: Iterable[Any] = self.values[start:] if start else self.values  # type: ignore[index]
        else:
            values = islice(self.values, start, None) if start else self.values
        for self.num_given, value in enumerate(values, start + 1):
            yield value

    def state(self) -> list[Any]:
        if type(self.values) in (list, tuple):
            return ["rest", list(self.values[self.num_given :])]  # type: ignore[index]
        return ["again", self.item, self.num_given]


def _reopen(state: list[Any], function: Callable[[Any], Iterable[Any]]) -> _Opened:
    if state[0] == "rest":
        return _Opened(None, state[1])
    return _Opened(state[1], function(state[1]), state[2])


@functional_pipe("flatmap")
class FlatMapper(IterPipe[Any]):
    """Apply a function that returns several values to each item, and yield the values one by one.

    Args:
        datapipe: The source.
        fn: Returns an iterable of values. `None`: the item itself, or the column `input_col`, is the iterable; with
            several columns, these are the values.
        input_col: The columns that the function gets, see `Mapper`.

    Raises:
        ConfigError: The function cannot be called with that many arguments.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(["a b", "c"]).flatmap(str.split))
        ['a', 'b', 'c']
    """

    _not_shipped = ("_opened",)

    def __init__(self, datapipe: IterPipe[Any], fn: Callable[..., Any] | None = None, input_col: Any = None) -> None:
        _flattener(fn, input_col)
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col
        self._opened: _Opened | None = None

    def reset(self) -> None:
        self._opened = None

    def __iter__(self) -> Iterator[Any]:
        function = _flattener(self.fn, self.input_col)
        if self._opened is not None:
            yield from self._opened.rest()
        opened = self._opened = _Opened(None, ())
        for item in read(self.datapipe):
            opened.item, opened.values = item, function(item)
            for opened.num_given, value in enumerate(opened.values, 1):
                yield value
        self._opened = None

    def state(self) -> State:
        return {"opened": self._opened and self._opened.state()}

    def restore(self, state: State) -> None:
        opened = state["opened"]
        self._opened = opened and _reopen(opened, _flattener(self.fn, self.input_col))

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")


@functional_pipe("shuffled_flatmap")
class ShuffledFlatMapper(ShufflingPipe[Any]):
    """Keep several iterables open, and yield the next value of a random one each time: interleaves shards.

    Args:
        datapipe: The source.
        fn: Returns an iterable. `None`: as for `FlatMapper`.
        input_col: The columns that the function gets, see `Mapper`.
        buffer_size: How many iterables are open at once. 1: the order of `flatmap`.

    Raises:
        ConfigError: The function cannot be called with that many arguments, or `buffer_size` is less than 1.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(["abc", "xyz"]).shuffled_flatmap(list, buffer_size=2)
        >>> sorted(pipe)
        ['a', 'b', 'c', 'x', 'y', 'z']
    """

    _not_shipped = ("_opened",)
    _position_names = ("has_ended",)
    _has_ended = False

    def __init__(
        self,
        datapipe: IterPipe[Any],
        fn: Callable[..., Any] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        _flattener(fn, input_col)
        self.datapipe = datapipe
        self.fn = fn
        self.input_col = input_col
        self.buffer_size = check_positive("buffer_size", buffer_size)
        self._draws = Draws("pipes: shuffled flatmap")
        self._opened: list[_Opened] = []

    def reset(self) -> None:
        super().reset()
        self._opened = []

    def __iter__(self) -> Iterator[Any]:
        function = _flattener(self.fn, self.input_col)
        source = iter(()) if self._has_ended else read(self.datapipe)
        opened = self._opened
        values = [each.rest() for each in opened]
        draw = self._draws.generator.random
        max_open = self.buffer_size if self._enabled else 1
        while True:
            while len(opened) < max_open and not self._has_ended:
                try:
                    item = next(source)
                except StopIteration:
                    self._has_ended = True
                    break
                opened.append(_Opened(item, function(item)))
                values.append(opened[-1].rest())
            if not opened:
                return
            chosen = int(draw() * len(opened)) if self._enabled else 0
            try:
                value = next(values[chosen])
            except StopIteration:
                del opened[chosen], values[chosen]
                continue
            yield value

    def state(self) -> State:
        return super().state() | {"opened": [each.state() for each in self._opened]}

    def restore(self, state: State) -> None:
        super().restore(state)
        function = _flattener(self.fn, self.input_col)
        self._opened = [_reopen(each, function) for each in state["opened"]]

    def __len__(self) -> int:
        if self.fn is None and self.input_col is None and hasattr(self.datapipe, "iterable"):
            return sum(len(each) for each in self.datapipe.iterable)
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")
