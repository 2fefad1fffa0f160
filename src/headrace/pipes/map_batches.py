"""A function of several items at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from .arguments import check_positive, check_takes
from .base import IterPipe, State, read
from .registry import functional_pipe


@functional_pipe("map_batches")
class BatchMapper(IterPipe[Any]):
    """Apply a function to lists of items, and give what it returns one by one.

    Args:
        datapipe: The source.
        fn: Gets a list and returns an iterable, of any length.
        batch_size: How many items in a list. The last may be shorter.
        input_col: `None`: it gets items. An index or key: that column of each. A list: tuples of these columns.

    Raises:
        ConfigError: `batch_size` is less than 1, or the function takes another number of arguments than one.
    """

    def __init__(
        self, datapipe: IterPipe[Any], fn: Callable[[list[Any]], Iterable[Any]], batch_size: int, input_col: Any = None
    ) -> None:
        check_takes(fn, 1)
        self.datapipe = datapipe
        self.fn = fn
        self.batch_size = check_positive("batch_size", batch_size)
        self.input_col = input_col
        self.reset()

    def reset(self) -> None:
        self._pending: list[Any] = []
        self._num_given = 0

    def __iter__(self) -> Iterator[Any]:
        for self._num_given, item in enumerate(self._pending, 1):
            yield item
        source = read(self.datapipe)
        while batch := list(islice(source, self.batch_size)):
            self._pending = list(self.fn(self._columns(batch)))
            for self._num_given, item in enumerate(self._pending, 1):
                yield item
        self._pending = []

    def _columns(self, batch: list[Any]) -> list[Any]:
        column = self.input_col
        if column is None:
            return batch
        if isinstance(column, (list, tuple)):
            return [tuple(item[each] for each in column) for item in batch]
        return [item[column] for item in batch]

    def state(self) -> State:
        return {"pending": self._pending[self._num_given :]}

    def restore(self, state: State) -> None:
        self._pending, self._num_given = list(state["pending"]), 0

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")
