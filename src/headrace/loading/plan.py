"""The batches of one epoch, planned window by window when they are needed.

A window is some 65 thousand consecutive positions of the order; each is planned on its own, so neither the start of an
epoch nor a resume depends on the number of sequences. Invariants: batch n is the same for every caller, in any order,
and from wherever the plan was begun; nothing here knows of workers.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import (
    Batching,
    BatchOrder,
    BatchTable,
    Pieces,
    PlanCounts,
    WindowKey,
    WindowPlan,
    num_windows,
    window_bounds,
)
from headrace.errors import ConfigError, ResumeError
from headrace.show.watched import watched_range

from .inputs import EpochOrder
from .work import Task

_SHOWN = "planning", "window"  # the label and unit of progress
_KEPT_WINDOWS = 2  # the current one and, at the end of an epoch that is padded, the first


@dataclass(frozen=True)
class PlanRecipe:
    """What determines the batches, in addition to the order.

    Attributes:
        batching: The policy.
        batch_order: In which order its batches come.
        window_seqs: Sequences of a window.
        seed: Seed of the loader.
        grows: Whether the windows of a stream are longer where they would not fill some batches.
        checks_lengths: Whether sequences may be read with other lengths than those that they are planned by.
        seeds_globals: Whether the global generators are seeded while a stream is read.
    """

    batching: Batching
    batch_order: BatchOrder
    window_seqs: int
    seed: int
    grows: bool = False
    checks_lengths: bool = False
    seeds_globals: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of an epoch so far.

    Attributes:
        num_planned: Windows that were planned.
        num_windows: How many there are, as text; `"?"` before the end.
        counts: What happened to their sequences.
    """

    num_planned: int = 0
    num_windows: str = "?"
    counts: PlanCounts = field(default_factory=PlanCounts)


@dataclass(frozen=True, slots=True)
class _PlannedWindow:
    """The plan of a window, and what its tasks say of each member, batch after batch."""

    plan: WindowPlan
    starts: list[int]  # of its batches, and the end
    seq_idx: NDArray[np.int64]
    indices: NDArray[np.int64]
    others: dict[str, NDArray[Any]]  # further attributes of `Task`


class _Chain:
    """The ends of consecutive windows from one on, as far as they are known, in batches of the epoch."""

    def __init__(self, window: int, first: int) -> None:
        self.window, self.first = window, first
        self._ends: list[int] = []

    @property
    def end(self) -> int:
        """The number of the first batch after the known windows."""
        return self._ends[-1] if self._ends else self.first

    @property
    def next_window(self) -> int:
        return self.window + len(self._ends)

    def append(self, num_batches: int) -> None:
        self._ends.append(self.end + num_batches)

    def locate(self, number: int) -> tuple[int, int, int]:
        """Return the window of a batch between `first` and `end`, its first batch, and the first batch after it."""
        offset = bisect_right(self._ends, number)
        return self.window + offset, self._ends[offset - 1] if offset else self.first, self._ends[offset]


class EpochPlan:
    """The plan of an epoch. Not thread-safe.

    Args:
        order: The sequences.
        recipe: How they form batches.
        start: A window and the number of its first batch, if known, such as from a saved state.

    Attributes:
        order: The sequences.
        end: The number of the first batch that is not known to be there: of the epoch's batches, once `has` has said of
            any number that it is not there.

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
        if order.batch_starts is not None:  # they know nothing of windows
            recipe = replace(recipe, window_seqs=max(self.num_seqs, 1))
        self.num_windows = num_windows(self.num_seqs, recipe.window_seqs)
        self.order, self._recipe = order, recipe
        if start[0] > self.num_windows or (start[0] == 0 and start[1]):
            raise ResumeError(
                f"the state names window {start[0]}, which begins with batch {start[1]}, and this epoch has "
                f"{self.num_windows} windows",
                where=f"epoch {self.epoch}",
                fix="give the state unchanged, as it was saved",
            )
        self._head = _Chain(0, 0)
        self._tail = _Chain(*start) if start[0] else self._head
        self.end = self._tail.end
        self._located = 0, 0, 0  # a window, its first batch, and the first one after it: mostly asked for again
        self._current: tuple[int, int, _PlannedWindow] | None = None  # first batch, the one after, of that used last
        self._windows: dict[int, _PlannedWindow] = {}
        self._counts: dict[int, PlanCounts] = {}
        self._sizes: dict[int, int] = {}  # batches of the windows that were planned
        self._table: BatchTable | None = None  # of all windows
        self._is_checked = False
        self._num_remaining = 0

    @property
    def counts(self) -> PlanCounts:
        """What happened to the sequences of the windows that were planned so far."""
        return sum(self._counts.values(), PlanCounts(remainder=self._num_remaining))

    def leave_out(self, first: int) -> None:
        """Note, at the end of the epoch, that no rank gets the batches from this one on."""
        self._num_remaining = self.num_pieces_from(first)
        last = self.num_windows - 1
        if last >= 0 and last not in self._counts and self._size_of(last) == 0:
            self._plan(last)  # so that its sequences are counted: too few for a batch

    def num_pieces_from(self, first: int) -> int:
        """Return how many sequences (or chunks) are in the batches from one on, to the end; plans their windows."""
        return sum(len(self.task(number)[1]) for number in range(first, self.end))

    def count_all(self) -> PlanCounts:
        """Return what happens to all sequences of the epoch; plans every window, unless that was done before."""
        for number in watched_range(self.num_windows, *_SHOWN):
            if number not in self._counts:
                self._plan(number)
        return sum(self._counts.values(), PlanCounts())

    @property
    def num_planned(self) -> int:
        """Windows that were planned so far."""
        return len(self._counts)

    def num_batches(self) -> int:
        """Return the number of batches of the epoch. The first call plans every window, unless that was done before.

        Raises:
            ResumeError: The window at which this plan started does not begin with the batch that the state says.
        """
        if self._table is None:
            sizes = [self._size_of(number) for number in watched_range(self.num_windows, *_SHOWN)]
            self._take_table(BatchTable(np.array(sizes, np.int64)))
        assert self._table is not None
        return self._table.num_batches

    def _take_table(self, table: BatchTable) -> None:
        window, first = self._tail.window, self._tail.first
        if table.first_batch(window) != first:
            raise ResumeError(
                f"the state says that window {window} begins with batch {first}, which is wrong",
                where=f"epoch {self.epoch}",
                fix="give the state unchanged, as it was saved",
            )
        self._table, self.end = table, table.num_batches

    def knows(self, start: tuple[int, int]) -> bool:
        """Tell whether a window is known to begin with this batch, so that nothing before it needs to be planned."""
        if self._table is not None:
            return start[0] <= self.num_windows and self._table.first_batch(start[0]) == start[1]
        return start in ((0, 0), (self._tail.window, self._tail.first))

    def has(self, number: int) -> bool:
        """Tell whether there is such a batch; plans windows up to it."""
        if self._table is not None:
            return number < self.end
        chain = self._chain_of(number)
        while chain.end <= number:
            if not self._extend(chain):
                return False
        return True

    def locate(self, number: int) -> tuple[int, int]:
        """Return the window of a batch and the number of its first batch; for a batch after the end, the end."""
        window, first, end = self._located
        if not first <= number < end:
            is_there = self.has(number)
            if self._table is not None:
                window = self._table.locate(number)[0] if is_there else self.num_windows
                first = self._table.first_batch(window)
                end = self._table.first_batch(window + 1) if is_there else first
            else:
                chain = self._chain_of(number)
                window, first, end = chain.locate(number) if is_there else (chain.next_window, chain.end, chain.end)
            if is_there:
                self._located = window, first, end
        return window, first

    def task(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        """Return a batch that there is, as a task for a worker, and where its members are; both view the plan."""
        current = self._current
        if current is None or not current[0] <= number < current[1]:
            window_number, first = self.locate(number)
            window = self._plan(window_number)
            current = self._current = first, first + len(window.plan), window
        first, _, window = current
        starts = window.starts
        part = slice(starts[number - first], starts[number - first + 1])
        others: dict[str, Any] = {key: array[part] for key, array in window.others.items()} if window.others else {}
        return Task(self.epoch, number, window.indices[part], **others), window.seq_idx[part]

    def _chain_of(self, number: int) -> _Chain:
        return self._tail if number >= self._tail.first else self._head

    def _extend(self, chain: _Chain) -> bool:
        """Learn how many batches the next window has; tell whether there was a next window."""
        number = chain.next_window
        if number >= self.num_windows:
            return False
        chain.append(self._size_of(number))
        self.end = self._tail.end
        return True

    def _size_of(self, number: int) -> int:
        """Return the number of batches of a window; plans it, if nothing less will do."""
        if number not in self._sizes:
            start, stop = window_bounds(number, self.num_seqs, self._recipe.window_seqs)
            known = self._recipe.batching.count_batches(stop - start)
            if known is not None:
                return known
            self._plan(number)
        return self._sizes[number]

    def _plan(self, number: int) -> _PlannedWindow:
        window = self._windows.pop(number, None)
        if window is None:
            window = self._make_window(number)
            if number not in self._counts:
                self._take_note(number, window.plan)
        self._windows[number] = window  # the last of the dict is the one that was used last
        while len(self._windows) > _KEPT_WINDOWS:
            del self._windows[next(iter(self._windows))]
        return window

    def _take_note(self, number: int, plan: WindowPlan) -> None:
        """Remember what a window is like."""
        self._sizes[number], self._counts[number] = len(plan), plan.counts
        if not self._is_checked:
            self._check_budget(plan.counts)

    def _check_budget(self, counts: PlanCounts) -> None:
        """Refuse a budget that no sequence fits into. All sequences are looked at only if a window is suspicious.

        Raises:
            ConfigError: No sequence of the epoch fits into the budget.
        """
        self._is_checked = True
        if self.order.shortest is None or not is_all_over(counts):
            return
        shortest, batching = self.order.shortest(), self._recipe.batching
        if is_all_over(batching.cut(Pieces.of_lengths(np.array([shortest], np.int64))).counts):
            raise ConfigError(
                f"{batching} is smaller than any sequence: the shortest has {shortest:,} frames",
                where=f"epoch {self.epoch}",
                fix="raise the budget (in frames of the data key), cut sequences by Chunks(...) or "
                'too_long="chunk", or give FixedCount(1)',
            )

    def _make_window(self, number: int) -> _PlannedWindow:
        recipe, order = self._recipe, self.order
        start, stop = window_bounds(number, self.num_seqs, recipe.window_seqs)
        indices = order.order.block(start, stop)
        lengths = np.ones(stop - start, np.int64) if order.lengths_of is None else order.lengths_of(indices)
        if order.batch_starts is not None:
            plan = _given_plan(order.batch_starts, lengths)
        else:
            key = WindowKey(recipe.seed, order.epoch, number)
            plan = recipe.batching.plan_window(lengths, key, recipe.batch_order)
        seq_idx = plan.members.astype(np.int64) + start
        has_frames = plan.chunk_starts is not None or recipe.checks_lengths
        others = {
            "occurrences": None if order.occurrences is None else order.occurrences[seq_idx],
            "rows": plan.rows,
            "chunk_starts": plan.chunk_starts,
            "chunk_frames": plan.chunk_frames,
            "seq_frames": lengths[plan.members].astype(np.int64) if has_frames else None,
        }
        known = {key: array for key, array in others.items() if array is not None}
        return _PlannedWindow(plan, plan.starts.tolist(), seq_idx, indices[plan.members], known)


def _given_plan(starts: NDArray[np.int64], lengths: NDArray[Any]) -> WindowPlan:
    """Return the plan whose batches are runs of consecutive sequences, none of them empty."""
    longest = np.maximum.reduceat(lengths, starts[:-1]).astype(np.int64)
    costs = longest * np.diff(starts)
    num_seqs, frames = len(lengths), int(lengths.sum(dtype=np.int64))
    counts = PlanCounts(seqs=num_seqs, pieces=num_seqs, frames=frames, padded_frames=int(costs.sum()))
    return WindowPlan(np.arange(num_seqs, dtype=np.int32), starts.astype(np.int32), costs, counts)


def is_all_over(counts: PlanCounts) -> bool:
    """Tell whether all sequences of a window (or as many chunks) are over the budget."""
    return counts.seqs <= counts.alone + counts.too_long


class NoLengthError(ConfigError, TypeError):
    """The length is not known; a `TypeError`, so that `list(loader)` works."""
