"""A cache in memory, so that later epochs need not make the items again."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from ...core.base import IterPipe, State, read
from ...core.checks import check_positive
from ...core.draws import restore_draws, seeds_of
from ...core.registry import functional_pipe
from ...core.walk import list_pipes

_MEGABYTE = 1_000_000


@functional_pipe("in_memory_cache")
class InMemoryCacheHolder(IterPipe[Any]):
    """Keep the items of the first complete epoch, and yield the same objects in later epochs.

    If not all of them fit, the last ones are kept, and later epochs read only the first ones from the source. So the
    source must give the same items in the same order each time: shuffle after the cache, not before. `DataLoader2`
    gives the random pipes before the cache the seeds of the first epoch in all epochs; what functions there draw from
    global generators differs when the cache is filled again.
    The cache is not sent to workers, and is not part of a state; a state says with which random numbers of the pipes
    before it the cache was filled, so that a copy fills it in the same order.

    Args:
        source_dp: The source.
        size: How many megabytes of items to keep; `None` or 0: all items.

    Raises:
        ConfigError: `size` is negative.

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> pipe = IterableWrapper(range(3)).map(lambda number: number**2).in_memory_cache(size=100)  # MB
        >>> list(pipe), list(pipe)  # the second time, nothing is computed
        ([0, 1, 4], [0, 1, 4])
    """

    _not_shipped = ("_cache", "_num_head", "_seeds", "_noted")
    keeps_items = True
    _noted: tuple[int, ...] | None = None  # see `note_seeds`
    _cache: deque[Any] | None = None  # of a complete epoch
    _num_head = 0  # how many items of an epoch come before those in the cache
    _seeds: list[dict[str, Any]] | None = None  # of the pipes before this one, when the cache began to be filled

    def __init__(self, source_dp: IterPipe[Any], size: int | None = None) -> None:
        self.source_dp = source_dp
        self.size = check_positive("size", size) if size else None
        self.reset()

    def note_seeds(self, seeds: tuple[int, ...]) -> None:
        if seeds != self._noted:
            self._cache, self._num_head, self._noted = None, 0, seeds

    def reset(self) -> None:
        self._num_given = 0
        self._is_from_source = self._cache is None

    def __iter__(self) -> Iterator[Any]:
        given = self._num_given
        if self._cache is None:
            if given and not self._is_from_source:  # restored in a copy that has no cache: read up to there again
                yield from self._fill(given)
            elif given:
                yield from self._count(read(self.source_dp))
            else:
                yield from self._fill(0)
            return
        cache, head = self._cache, self._num_head
        if given < head:
            self._is_from_source = True
            yield from self._count(islice(read(self.source_dp), head - given))
        self._is_from_source = False
        yield from self._count(islice(cache, max(0, given - head), None))

    def _count(self, items: Iterator[Any]) -> Iterator[Any]:
        for self._num_given, item in enumerate(items, self._num_given + 1):
            yield item

    def _fill(self, num_skipped: int) -> Iterator[Any]:
        cache: deque[Any] = deque()
        sizes: deque[int] = deque()
        left = sys.maxsize if self.size is None else self.size * _MEGABYTE
        head = 0
        before = list_pipes(self.source_dp)
        if num_skipped and self._seeds:
            for pipe, seeds in zip(before, self._seeds, strict=True):
                restore_draws(pipe, seeds)
        else:
            self._seeds = seeds_of(before)
        self._is_from_source = True
        for number, item in enumerate(read(self.source_dp), 1):
            cache.append(item)
            if self.size is not None:
                sizes.append(num_bytes(item))
                left -= sizes[-1]
                while left < 0:
                    left += sizes.popleft()
                    cache.popleft()
                    head += 1
            if number > num_skipped:
                self._num_given = number
                yield item
        self._cache, self._num_head = cache, head

    def state(self) -> State | None:
        if self._num_head and not self._is_from_source:
            return None  # the source was left in the middle, and a copy has no cache to continue with
        seeds = None if self._is_from_source else self._seeds
        return {"num_given": self._num_given, "is_from_source": self._is_from_source, "seeds": seeds}

    def restore(self, state: State) -> None:
        self._num_given, self._is_from_source = state["num_given"], state["is_from_source"]
        if state["seeds"] is not None:
            self._cache, self._num_head, self._seeds = None, 0, state["seeds"]

    def __len__(self) -> int:
        if self._cache is not None:
            return self._num_head + len(self._cache)
        try:
            return len(self.source_dp)
        except TypeError:
            raise TypeError(
                f"{type(self).__name__} instance doesn't have valid length until the cache is loaded."
            ) from None


def num_bytes(item: Any) -> int:
    """Return how many bytes of memory an item takes, with all that it holds. Shared objects are counted each time."""
    if isinstance(item, np.ndarray):
        return sys.getsizeof(item) + (0 if item.flags.owndata else item.nbytes)
    if hasattr(item, "element_size") and hasattr(item, "nelement"):
        return int(item.element_size() * item.nelement()) + sys.getsizeof(item)
    own = sys.getsizeof(item)
    if isinstance(item, Mapping):
        return own + sum(num_bytes(key) + num_bytes(value) for key, value in item.items())
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return own + sum(map(num_bytes, item))
    if hasattr(item, "__dict__"):
        return own + num_bytes(vars(item))
    return own
