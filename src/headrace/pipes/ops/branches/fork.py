"""Splitting a pipe: `fork` gives all readers the same items, `demux` each item to one, `unzip` a column to each."""

from __future__ import annotations

import copy as copying
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import ConfigError

from ...core.base import IterPipe, State
from ...core.checks import check_takes, wanted_columns
from ...core.registry import register_function
from ...sharding import length_of_share
from .splitter import Splitter, children_of

_COPIES: dict[str | None, Callable[[Any], Any]] = {"shallow": copying.copy, "deep": copying.deepcopy}


class Forker(Splitter):
    """Gives each item to every reader, see `fork`."""

    def __init__(self, datapipe: IterPipe[Any], num_instances: int, buffer_size: int, copy: str | None) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.copy = copy

    def _deal(self, item: Any, reader: int) -> None:
        self._check_ahead(reader)
        readers, copied = self._open, _COPIES.get(self.copy)
        items = [item] * len(readers) if copied is None else [copied(item) for _ in readers]
        for other, given in zip(readers, items, strict=True):
            self._buffers[other].append(given)


def fork(
    datapipe: IterPipe[Any], num_instances: int, buffer_size: int = 1000, copy: str | None = None
) -> list[IterPipe[Any]] | IterPipe[Any]:
    """Fork a pipe into several, each of which gives all items.

    The forks may be read in turn, one after another, or in several threads. The source is read once: items that one
    fork has read wait in buffers for the others. A fork that was deleted, or whose iteration was stopped early, does
    not hold up the others.

    Args:
        datapipe: The source.
        num_instances: How many forks. 1: the source itself is returned, not in a list.
        buffer_size: How many items the fastest fork may be ahead of the slowest; -1: no limit.
        copy: `None`: all forks give the same objects. `"shallow"` or `"deep"`: they give copies.

    Returns:
        The forks.

    Raises:
        ConfigError: A number is wrong, or `copy` is unknown.
        BufferError: A fork is too far ahead of another (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> numbers, same = IterableWrapper(range(3)).fork(2)
        >>> list(numbers.zip(same.map(lambda number: number * 10)))
        [(0, 0), (1, 10), (2, 20)]
    """
    if copy is not None and copy not in _COPIES:
        raise ConfigError(f"Unknown copy method `copy` = {copy!r}, choose one of None, `shallow` or `deep`.")
    if num_instances == 1:
        return datapipe
    return children_of(Forker(datapipe, num_instances, buffer_size, copy))


register_function(IterPipe, "fork", fork)


class Demultiplexer(Splitter):
    """Gives each item to the reader that a function chooses, see `demux`."""

    def __init__(
        self,
        datapipe: IterPipe[Any],
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool,
        buffer_size: int,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        check_takes(classifier_fn, 1)
        self.classifier_fn = classifier_fn
        self.drop_none = drop_none

    def child_length(self, reader: int) -> int:
        raise TypeError(f"{type(self).__name__} instance {reader} doesn't have valid length")

    def _clear(self) -> None:
        super()._clear()
        self._num_waiting = 0

    def _deal(self, item: Any, reader: int) -> None:
        chosen = self.classifier_fn(item)
        if chosen is None and self.drop_none:
            return
        if chosen is None or not 0 <= chosen < self.num_instances:
            raise ConfigError(
                f"Output of the classification fn should be between 0 and {self.num_instances - 1}. "
                f"{chosen} is returned.",
                fix="return such a number, or None together with drop_none=True to drop the item",
            )
        self._give(item, chosen, reader)

    def _give(self, item: Any, chosen: int, reader: int) -> None:
        if chosen not in self._open:
            return
        buffer = self._buffers[chosen]
        if self._num_waiting >= self.buffer_size:  # an upper bound, as items that were taken are not subtracted
            self._num_waiting = sum(map(len, self._buffers))
        if chosen != reader and self._num_waiting >= self.buffer_size and self._is_crowded(self._num_waiting):
            raise BufferError(
                f"{type(self).__name__} buffer overflow, buffer size {self.buffer_size} is insufficient: "
                f"other children must read some of their items before child {reader} can continue"
            )
        self._num_waiting += 1
        buffer.append(item)


class RoundRobinDemultiplexer(Demultiplexer):
    """Gives each reader an item in turn, see `round_robin_demux`."""

    def __init__(self, datapipe: IterPipe[Any], num_instances: int, buffer_size: int) -> None:
        super().__init__(datapipe, num_instances, _no_class, False, buffer_size)

    def _clear(self) -> None:
        super()._clear()
        self._turn = 0

    def _deal(self, item: Any, reader: int) -> None:
        self._give(item, self._turn, reader)
        self._turn = (self._turn + 1) % self.num_instances

    def child_length(self, reader: int) -> int:
        return length_of_share(len(self.datapipe), self.num_instances, reader)

    def state(self) -> State:
        return super().state() | {"turn": self._turn}

    def restore(self, state: State) -> None:
        super().restore(state)
        self._turn = state["turn"]


def _no_class(item: Any) -> int:
    raise NotImplementedError(item)


def demux(
    datapipe: IterPipe[Any],
    num_instances: int,
    classifier_fn: Callable[[Any], int | None],
    drop_none: bool = False,
    buffer_size: int = 1000,
) -> list[IterPipe[Any]]:
    """Split a pipe into several: a function chooses the one that gets an item.

    Args:
        datapipe: The source.
        num_instances: How many pipes to split into.
        classifier_fn: Returns the number of the pipe that gets an item, from 0.
        drop_none: Drop items for which the function returns `None`.
        buffer_size: How many items may wait for pipes that are not being read; -1: no limit.

    Returns:
        The pipes.

    Raises:
        ConfigError: A number is wrong, or the function returned a wrong one (while iterating).
        BufferError: Too many items wait (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> even, odd = IterableWrapper(range(6)).demux(2, lambda number: number % 2)
        >>> list(even), list(odd)
        ([0, 2, 4], [1, 3, 5])
    """
    return children_of(Demultiplexer(datapipe, num_instances, classifier_fn, drop_none, buffer_size))


def round_robin_demux(datapipe: IterPipe[Any], num_instances: int, buffer_size: int = 1000) -> list[IterPipe[Any]]:
    """Split a pipe into several, which get the items in turn.

    Args:
        datapipe: The source.
        num_instances: How many pipes to split into. 1: the source itself, in a list.
        buffer_size: How many items may wait for pipes that are not being read; -1: no limit.

    Returns:
        The pipes.

    Raises:
        ConfigError: A number is wrong.
        BufferError: Too many items wait (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> first, second = IterableWrapper(range(5)).round_robin_demux(2)
        >>> list(first), list(second)
        ([0, 2, 4], [1, 3])
    """
    if num_instances == 1:
        warnings.warn(
            "The operation of `round_robin_demux` with `num_instances=1` is an no-op and returns the provided "
            "`datapipe` in a list directly",
            stacklevel=2,
        )
        return [datapipe]
    return children_of(RoundRobinDemultiplexer(datapipe, num_instances, buffer_size))


register_function(IterPipe, "demux", demux)
register_function(IterPipe, "round_robin_demux", round_robin_demux)


class UnZipper(Splitter):
    """Gives each reader a column, see `unzip`."""

    def _deal(self, item: Any, reader: int) -> None:
        self._check_ahead(reader)
        columns = self._open
        for column, value in zip(columns, [item[column] for column in columns], strict=True):
            self._buffers[column].append(value)


def unzip(
    source_datapipe: IterPipe[Any],
    sequence_length: int,
    buffer_size: int = 1000,
    columns_to_skip: Sequence[int] | None = None,
) -> list[IterPipe[Any]]:
    """Split a pipe into one for each column of its items.

    Args:
        source_datapipe: The source, whose items are sequences.
        sequence_length: How many columns each item has.
        buffer_size: How many items the fastest pipe may be ahead of the slowest; -1: no limit.
        columns_to_skip: Columns to leave out.

    Returns:
        A pipe for each column that is not skipped.

    Raises:
        ConfigError: A number is wrong.
        RuntimeError: All columns are skipped.
        BufferError: A pipe is too far ahead of another (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> numbers, letters = IterableWrapper([(1, "a"), (2, "b")]).unzip(sequence_length=2)
        >>> list(numbers), list(letters)
        ([1, 2], ['a', 'b'])
    """
    wanted = wanted_columns(sequence_length, columns_to_skip)
    return children_of(UnZipper(source_datapipe, sequence_length, buffer_size), wanted)


register_function(IterPipe, "unzip", unzip)
