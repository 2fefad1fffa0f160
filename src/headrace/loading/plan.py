"""The batches of one epoch, planned window by window when they are needed.

A window is some 65 thousand consecutive places of the order; each is planned on its own, so neither the start of an
epoch nor a resume depends on the number of sequences. Invariants: batch n is the same whoever asks, in whatever order,
and from wherever the plan was begun; nothing here knows of workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Batching, BatchOrder, PlanCounts, WindowKey, WindowPlan, num_windows, window_bounds
from headrace.errors import ConfigError, ResumeError

from .subject import EpochOrder
from .work import Task

_KEPT_WINDOWS = 2  # the current one and, at the end of an epoch that is padded, the first


@dataclass(frozen=True)
class PlanRecipe:
    """What decides the batches, besides the order.

    Attributes:
        batching: The policy.
        batch_order: In which order its batches come.
        window_seqs: Sequences of a window.
        seed: Of the loader.
    """

    batching: Batching
    batch_order: BatchOrder
    window_seqs: int
    seed: int


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank.

    Attributes:
        number: The batch of this rank.
        step: Number of the step in the epoch, the same on all ranks.
        is_repeat: Whether the batch only fills up the last step.
        position: Batches that all ranks are done with after it.
        window: The window of the next batch, and the number of the window's first batch.
    """

    number: int
    step: int
    is_repeat: bool
    position: int
    window: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Window:
    number: int
    first_place: int
    indices: NDArray[np.int64]
    lengths: NDArray[Any]
    plan: WindowPlan


class _Chain:
    """The ends of consecutive windows from one on, as far as they are known, in batches of the epoch."""

    def __init__(self, window: int, first: int) -> None:
        self.window, self.first = window, first
        self._ends: list[int] = []

    @property
    def end(self) -> int:
        """The number of the first batch behind the windows that are known."""
        return self._ends[-1] if self._ends else self.first

    @property
    def next_window(self) -> int:
        return self.window + len(self._ends)

    def append(self, num_batches: int) -> None:
        self._ends.append(self.end + num_batches)

    def locate(self, number: int) -> tuple[int, int]:
        """Return the window of a batch between `first` and `end`, and the number of the window's first batch."""
        offset = bisect_right(self._ends, number)
        return self.window + offset, self._ends[offset - 1] if offset else self.first


class EpochPlan:
    """The plan of an epoch. Not thread-safe.

    Args:
        order: The sequences.
        recipe: How they form batches.
        start: A window, and the number of its first batch, which somebody knows from before.

    Raises:
        ConfigError: The policy needs lengths, and there are none.
        ResumeError: There is no such window.
    """

    def __init__(self, order: EpochOrder, recipe: PlanRecipe, start: tuple[int, int] = (0, 0)) -> None:
        if order.lengths_of is None and recipe.batching.needs_lengths:
            raise ConfigError(
                f"{recipe.batching} needs the lengths of the sequences, and this dataset does not know them",
                where=f"epoch {order.epoch}",
                fix="give lengths (MapDataset: lengths=, or a method get_seq_len), or use FixedCount(n)",
            )
        self.epoch = order.epoch
        self.num_seqs = len(order.order)
        self.num_windows = num_windows(self.num_seqs, recipe.window_seqs)
        self._order, self._recipe = order, recipe
        if start[0] > self.num_windows or (start[0] == 0 and start[1]):
            raise ResumeError(
                f"the state names window {start[0]}, which begins with batch {start[1]}, and this epoch has "
                f"{self.num_windows} windows",
                where=f"epoch {self.epoch}",
                fix="give the state as it was saved",
            )
        self._head = _Chain(0, 0)
        self._tail = _Chain(*start) if start[0] else self._head
        self._windows: dict[int, _Window] = {}
        self._counts: dict[int, PlanCounts] = {}

    @property
    def counts(self) -> PlanCounts:
        """What happened to the sequences of the windows that were planned so far."""
        return sum(self._counts.values(), PlanCounts())

    def count_all(self) -> PlanCounts:
        """Return what happens to all sequences of the epoch; plans every window that was not planned yet."""
        for number in range(self.num_windows):
            if number not in self._counts:
                self._plan(number)
        return self.counts

    @property
    def num_planned(self) -> int:
        """Windows that were planned so far."""
        return len(self._counts)

    @property
    def end(self) -> int:
        """The number of batches of the epoch, once `has` has said of any number that it is not there."""
        return self._tail.end

    def num_batches(self) -> int:
        """Return the number of batches of the epoch. The first call plans every window that was not planned yet."""
        while self._extend(self._head):
            pass
        if self._tail is not self._head:
            self._check_tail()
        return self._head.end

    def _check_tail(self) -> None:
        found = self._head.locate(self._tail.first) if self._tail.first < self._head.end else None
        is_end = self._tail.window == self.num_windows and self._tail.first == self._head.end
        # windows without batches may lie in between, so only the number is compared
        if not is_end and (found is None or found[1] != self._tail.first):
            raise ResumeError(
                f"the state says that window {self._tail.window} begins with batch {self._tail.first}, which is not so",
                where=f"epoch {self.epoch}",
                fix="give the state as it was saved",
            )
        while self._extend(self._tail):
            pass

    def has(self, number: int) -> bool:
        """Tell whether there is such a batch; plans windows up to it."""
        chain = self._chain_of(number)
        while chain.end <= number:
            if not self._extend(chain):
                return False
        return True

    def locate(self, number: int) -> tuple[int, int]:
        """Return the window of a batch and the number of its first batch; for one behind the end, the end."""
        chain = self._chain_of(number)
        return chain.locate(number) if self.has(number) else (chain.next_window, chain.end)

    def task(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        """Return a batch that there is, as a task for a worker, and the places of its members in the order."""
        window_number, first = self.locate(number)
        window = self._plan(window_number)
        batch = window.plan[number - first]
        places = window.first_place + batch.members.astype(np.int64)
        counted = self._order.occurrences
        task = Task(
            self.epoch,
            number,
            window.indices[batch.members],
            None if counted is None else counted[places],
            batch.rows,
            batch.chunk_starts,
            batch.chunk_frames,
            None if batch.chunk_starts is None else window.lengths[batch.members].astype(np.int64),
        )
        return task, places

    def _chain_of(self, number: int) -> _Chain:
        return self._tail if number >= self._tail.first else self._head

    def _extend(self, chain: _Chain) -> bool:
        """Learn how many batches the next window has; tell whether there was a next window."""
        number = chain.next_window
        if number >= self.num_windows:
            return False
        start, stop = window_bounds(number, self.num_seqs, self._recipe.window_seqs)
        known = self._recipe.batching.count_batches(stop - start)
        chain.append(len(self._plan(number).plan) if known is None else known)
        return True

    def _plan(self, number: int) -> _Window:
        window = self._windows.pop(number, None)
        if window is None:
            window = self._make_window(number)
            self._counts[number] = window.plan.counts
        self._windows[number] = window  # the last of the dict is the one that was used last
        while len(self._windows) > _KEPT_WINDOWS:
            del self._windows[next(iter(self._windows))]
        return window

    def _make_window(self, number: int) -> _Window:
        recipe, order = self._recipe, self._order
        start, stop = window_bounds(number, self.num_seqs, recipe.window_seqs)
        indices = order.order.block(start, stop)
        lengths = np.ones(stop - start, np.int64) if order.lengths_of is None else order.lengths_of(indices)
        key = WindowKey(recipe.seed, order.epoch, number)
        return _Window(number, start, indices, lengths, recipe.batching.plan_window(lengths, key, recipe.batch_order))


class Plan(Protocol):
    """What `plan_steps` asks of a plan."""

    @property
    def end(self) -> int:
        """See `EpochPlan`."""

    def has(self, number: int) -> bool:
        """See `EpochPlan`."""

    def locate(self, number: int) -> tuple[int, int]:
        """See `EpochPlan`."""


def plan_steps(plan: Plan, rank: int, world_size: int, position: int, remainder: str) -> Iterator[Step]:
    """Yield the steps of one rank from a position on; plans no more windows than the next step needs.

    Args:
        plan: Of the epoch.
        rank: Which rank, from 0.
        world_size: How many there are.
        position: Batches of the epoch that are done, on all ranks.
        remainder: `"drop"`, `"pad"` or `"keep"`, see `Steps`, whose arithmetic this is.
    """
    # which batch of a step must be there for this rank to have a step, and for any rank to have one
    own, any_rank = {"drop": (world_size - 1, world_size - 1), "pad": (0, 0), "keep": (rank, 0)}[remainder]
    step = position // world_size
    while plan.has(position + own):
        number, position = position + rank, position + world_size
        if not plan.has(position + any_rank):
            position = plan.end  # the epoch is over, also if a remainder is left out
        is_repeat = not plan.has(number)
        yield Step(number % plan.end if is_repeat else number, step, is_repeat, position, plan.locate(position))
        step += 1
