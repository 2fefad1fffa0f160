"""Batching: lists of consecutive items, lists of items with one key, and back to single items."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from headrace.errors import ConfigError, check_count

from ..core.base import IterPipe, State, read
from ..core.checks import check_positive, check_takes
from ..core.registry import functional_pipe
from ..core.skeletons import PendingPipe, Positioned
from ..core.streams import close_streams


class DataChunk(list[Any]):
    """A batch: a list, with the methods of torchdata's `DataChunk`.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> batch = next(iter(IterableWrapper("abc").batch(2)))
        >>> batch, batch.as_str()
        (['a', 'b'], '[a, b]')
    """

    __slots__ = ()  # so that it is sent like a list, not pickled

    @property
    def items(self) -> list[Any]:
        """The list itself."""
        return self

    def as_str(self, indent: str = "") -> str:
        """Return the items as text, in brackets."""
        return f"{indent}[{', '.join(str(item) for item in self)}]"

    def raw_iterator(self) -> Iterator[Any]:
        """Iterate over the items, whatever `__iter__` of a sub-class does."""
        return super().__iter__()


def count_batches(num_items: int, batch_size: int, *, drop_last: bool = False) -> int:
    """Return how many batches a number of items makes."""
    return num_items // batch_size if drop_last else -(-num_items // batch_size)


@functional_pipe("batch")
class Batcher(Positioned[Any]):
    """Make batches of consecutive items.

    Args:
        datapipe: The source.
        batch_size: How many items a batch has.
        drop_last: Drop the last batch if it is smaller.
        wrapper_class: The class of a batch, which is called with a list of the items.

    Raises:
        ConfigError: `batch_size` is less than 1.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper(range(5)).batch(2))
        [[0, 1], [2, 3], [4]]
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

    def __len__(self) -> int:
        return count_batches(len(self.datapipe), self.batch_size, drop_last=self.drop_last)


@functional_pipe("unbatch")
class UnBatcher(PendingPipe[Any]):
    """Yield the items of batches one by one.

    Args:
        datapipe: The source, whose items are lists.
        unbatch_level: How many levels of nesting are removed; -1: all of them.

    Raises:
        ConfigError: The level is less than -1.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> list(IterableWrapper([[1, 2], [3]]).unbatch())
        [1, 2, 3]
    """

    _pending_name = "items"

    def __init__(self, datapipe: IterPipe[Any], unbatch_level: int = 1) -> None:
        if unbatch_level < -1:
            raise ConfigError(f"unbatch_level must be -1 or >= 0, got {unbatch_level}")
        self.datapipe = datapipe
        self.unbatch_level = unbatch_level

    def _groups(self) -> Iterator[list[Any]]:
        for batch in read(self.datapipe):
            yield _flatten(batch, self.unbatch_level)


def _flatten(batch: Any, level: int) -> list[Any]:
    items = [batch]
    if level == -1:
        while any(isinstance(item, list) for item in items):
            items = [part for item in items for part in (item if isinstance(item, list) else (item,))]
        return items
    for _ in range(level):
        if not all(isinstance(item, list) for item in items):
            raise IndexError(f"unbatch_level {level} exceeds the depth of the DataPipe")  # torchdata's text
        items = [part for item in items for part in item]
    return items


@functional_pipe("groupby")
class Grouper(IterPipe[Any]):
    """Group items with the same key.

    A group is yielded when it has `group_size` items, or at the end. When the buffer is full, its largest group is
    yielded.

    Args:
        datapipe: The source.
        group_key_fn: Returns the key of an item.
        keep_key: Yield (key, group) instead of the group.
        buffer_size: How many items the buffer holds, of all groups together.
        group_size: The maximum size of a group; `None`: no limit.
        guaranteed_group_size: The minimum size of a group that is yielded because the buffer is full; `None`:
            `group_size`.
        drop_remaining: If the largest group is smaller than that, drop it instead of raising an error.

    Raises:
        ConfigError: The sizes contradict each other.
        RuntimeError: The buffer is full of groups that are too small (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> words = IterableWrapper(["ant", "bee", "ape", "bug"])
        >>> list(words.groupby(lambda word: word[0], group_size=2))
        [['ant', 'ape'], ['bee', 'bug']]
    """

    _not_shipped = ("_buffer",)

    def __init__(
        self,
        datapipe: IterPipe[Any],
        group_key_fn: Callable[[Any], Any],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        check_takes(group_key_fn, 1)
        check_count("buffer_size", buffer_size, minimum=1)
        if group_size is not None and not 0 < group_size <= buffer_size:
            raise ConfigError(f"group_size must be > 0 and <= buffer_size ({buffer_size}), got {group_size}")
        if guaranteed_group_size is not None and (group_size is None or not 0 < guaranteed_group_size <= group_size):
            raise ConfigError(
                "guaranteed_group_size must be > 0 and <= group_size and group_size must be set, "
                f"got {guaranteed_group_size} and {group_size}"
            )
        self.datapipe = datapipe
        self.group_key_fn = group_key_fn
        self.keep_key = keep_key
        self.buffer_size = buffer_size
        self.group_size = group_size
        self.guaranteed_group_size = guaranteed_group_size
        self.drop_remaining = drop_remaining
        self.reset()

    def reset(self) -> None:
        self._buffer: dict[Any, list[Any]] = {}
        self._num_held = 0
        self._has_ended = False

    def __iter__(self) -> Iterator[Any]:
        buffer, key_of = self._buffer, self.group_key_fn
        for item in () if self._has_ended else read(self.datapipe):
            key = key_of(item)
            group = buffer.setdefault(key, [])
            group.append(item)
            self._num_held += 1
            if len(group) == self.group_size:
                yield self._take(key)
            elif self._num_held >= self.buffer_size:
                largest = max(buffer, key=lambda each: len(buffer[each]))
                if self._is_large_enough(largest):
                    yield self._take(largest)
                else:
                    close_streams(list(self._take(largest)))
        self._has_ended = True
        while buffer:
            yield self._take(next(iter(buffer)))

    def _is_large_enough(self, key: Any) -> bool:
        needed = self.guaranteed_group_size or self.group_size or 1
        if len(self._buffer[key]) >= needed:
            return True
        if self.drop_remaining:
            return False
        raise RuntimeError(
            f"Failed to group items: {self._num_held} items fill the buffer, and the largest group, {key!r}, has "
            f"{len(self._buffer[key])} of {needed}. Give a larger buffer_size, or drop_remaining=True."
        )

    def _take(self, key: Any) -> Any:
        group = DataChunk(self._buffer.pop(key))
        self._num_held -= len(group)
        return (key, group) if self.keep_key else group

    def state(self) -> State:
        return {"groups": [[key, list(group)] for key, group in self._buffer.items()], "has_ended": self._has_ended}

    def restore(self, state: State) -> None:
        self._buffer = {key: list(group) for key, group in state["groups"]}
        self._num_held = sum(map(len, self._buffer.values()))
        self._has_ended = state["has_ended"]
