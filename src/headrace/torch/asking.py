"""How far ahead a sampler is asked: no further than torch asks it, where that is seen.

A sampler that draws while it is asked moves a generator: the loader's, or a global one that the training draws from as
well. How far it is then must not depend on how quick the workers are, or what is drawn after a loop that was left early
would differ from run to run. So such a sampler is asked as torch asks it: `prefetch_factor * num_workers` batches at
the start, and one more for each that was delivered. Most of torch's own draw their whole order at the first batch; they
are asked as far ahead as it is quick. One of a user's that moves no generator while torch would ask for its first
batches is asked further ahead, by a fixed number: small batches are quick only if a worker gets many at once.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

# Their order is complete when they have given their first index. Exact types: a sub-class may draw at any time.
_ORDERED_AT_ONCE = (SequentialSampler, DistributedSampler, SubsetRandomSampler, WeightedRandomSampler, range, list)


_QUIET_AHEAD = 256


class Asking(Iterator[Any]):
    """The tasks of a loader's batches, for the engine, which may pull as many as `max_open` says.

    Args:
        tasks: Asks the sampler for each.
        first: Number of the first one in its epoch.
        free: How many batches of the epoch may be asked for at any time; see `num_free`.
        ahead: How many more than were delivered are asked for of the others.
        asked: What was asked for and not delivered: `tasks` adds to it.
    """

    def __init__(self, tasks: Iterator[Any], first: int, free: float, ahead: int, asked: deque[Any]) -> None:
        self._tasks, self._number, self._free, self._ahead, self._asked = tasks, first, free, ahead, asked
        self._waiting: deque[Any] = deque()  # asked for, and not pulled by the engine yet
        self._end: Exception | None = None

    def begin(self, num_delivered: int, look: Callable[[], object] | None) -> None:
        """Ask for what torch asks for before the first batch.

        Args:
            num_delivered: How many batches of the epoch were delivered before.
            look: Returns the states of the generators, to be compared. `None`: as far ahead as torch in any case.
        """
        if look is not None:
            self._ask()  # many draw their whole order now
            before = look()
        self.keep_up(num_delivered)
        if look is not None and self._ahead > 1 and look() == before:
            self._ahead = max(self._ahead, _QUIET_AHEAD)
            self.keep_up(num_delivered)

    def keep_up(self, num_delivered: int) -> None:
        """Ask for what torch would have asked for, when so many batches of the epoch were delivered."""
        due = num_delivered + self._ahead
        if due > self._free:
            while self._number < due and self._end is None:
                self._ask()

    def max_open(self) -> int:
        """Return how many tasks may be with the engine; one more at the end, of which it learns by asking."""
        return max(len(self._asked) + max(int(self._free) - self._number, 0) + (self._end is not None), 1)

    def __next__(self) -> Any:
        if not self._waiting and self._end is None:
            self._ask()
        if self._waiting:
            return self._waiting.popleft()
        assert self._end is not None
        raise self._end

    def _ask(self) -> None:
        try:
            self._waiting.append(next(self._tasks))
            self._number += 1
        except Exception as error:  # noqa: BLE001 - raised where the engine asks, after the batches before it
            self._end = error


def num_free(loader: Any) -> float:
    """Return how many batches of an epoch a loader's sampler may be asked for at any time: infinity for all of them.

    Args:
        loader: A loader of torch's, of a map-style dataset.
    """
    sampler = _who_orders(loader)
    if type(sampler) in _ORDERED_AT_ONCE:
        return math.inf
    if type(sampler) is not RandomSampler:
        return 0
    if sampler.generator is None:  # it makes one of its own for each epoch
        return math.inf
    if (
        sampler.replacement
        or not isinstance(sampler.data_source, Sized)
        or sampler.num_samples > len(sampler.data_source)
    ):
        return 0
    return len(loader) - 1  # it draws once more at its end, which the last batch may reach


def draws_in_parts(loader: Any) -> bool:
    """Tell whether it is known of a loader's sampler that it may draw at some batches, and not at others."""
    return type(_who_orders(loader)) is RandomSampler


def _who_orders(loader: Any) -> Any:
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return sampler.sampler if type(sampler) is BatchSampler else sampler
