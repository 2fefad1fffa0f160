"""Items to lists of items, and back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.errors import ConfigError

from .arguments import check_positive
from .base import IterPipe, State, read
from .registry import functional_pipe


class DataChunk(list[Any]):
    """A batch: a list, with the documented extras."""

    __slots__ = ()  # so it travels as a list does, and not pickled

    @property
    def items(self) -> list[Any]:
        """The list itself."""
        return self

    def as_str(self, indent: str = "") -> str:
        """Return the items in brackets."""
        return f"{indent}[{', '.join(str(item) for item in self)}]"

    def raw_iterator(self) -> Iterator[Any]:
        """Iterate over the items, whatever `__iter__` of a sub-class does."""
        return super().__iter__()


@functional_pipe("batch")
class Batcher(IterPipe[Any]):
    """Put so many items in a row into a list.

    Args:
        datapipe: The source.
        batch_size: How many.
        drop_last: Drop the last batch if it is smaller.
        wrapper_class: What a batch is: called with the list.

    Raises:
        ConfigError: `batch_size` is less than 1.
    """

    def __init__(
        self,
        datapipe: IterPipe[Any],
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: type[Any] = DataChunk,
    ) -> None:
        self.datapipe = datapipe
        self.batch_size = check_positive("batch_size", batch_size)
        self.drop_last = drop_last
        self.wrapper_class = wrapper_class

    def __iter__(self) -> Iterator[Any]:
        source, size, wrap = read(self.datapipe), self.batch_size, self.wrapper_class
        while batch := list(islice(source, size)):
            if len(batch) < size and self.drop_last:
                return
            yield wrap(batch)

    def state(self) -> State:
        return {}

    def __len__(self) -> int:
        whole, rest = divmod(len(self.datapipe), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


@functional_pipe("unbatch")
class UnBatcher(IterPipe[Any]):
    """Take lists apart.

    Args:
        datapipe: The source; its items are lists.
        unbatch_level: How many levels of nesting are removed; -1: all of them.

    Raises:
        ConfigError: The level is less than -1.
    """

    def __init__(self, datapipe: IterPipe[Any], unbatch_level: int = 1) -> None:
        if unbatch_level < -1:
            raise ConfigError(f"unbatch_level must be -1 or >= 0, got {unbatch_level}")
        self.datapipe = datapipe
        self.unbatch_level = unbatch_level
        self._pending: list[Any] = []
        self._num_given = 0

    def reset(self) -> None:
        self._pending, self._num_given = [], 0

    def __iter__(self) -> Iterator[Any]:
        level = self.unbatch_level
        if self._pending:
            for self._num_given, item in enumerate(self._pending[self._num_given :], self._num_given + 1):
                yield item
        for batch in read(self.datapipe):
            self._pending = _flatten(batch, level)
            for self._num_given, item in enumerate(self._pending, 1):
                yield item
        self._pending = []

    def state(self) -> State:
        return {"items": self._pending[self._num_given :]}

    def restore(self, state: State) -> None:
        self._pending, self._num_given = list(state["items"]), 0


def _flatten(batch: Any, level: int) -> list[Any]:
    items = [batch]
    if level == -1:
        while any(isinstance(item, list) for item in items):
            items = [part for item in items for part in (item if isinstance(item, list) else (item,))]
        return items
    for _ in range(level):
        if not all(isinstance(item, list) for item in items):
            raise IndexError(f"unbatch_level {level} exceeds the depth of the DataPipe")
        items = [part for item in items for part in item]
    return items
