"""The batches of a stream, planned window by window while it is read.

Invariants: batch n is the same whoever reads, and from wherever the plan was begun; no more than the windows that the
next step of all ranks needs are in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import PlanCounts, WindowKey, WindowPlan
from headrace.errors import ConfigError, ResumeError, takes_note

from .data_key import data_key_of_item, frames_of
from .plan import PlanRecipe, is_all_over
from .stream import StreamSubject
from .stream_marks import mark_of_window
from .work import Task

_logger = logging.getLogger("headrace.loading")


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a stream so far.

    Attributes:
        num_planned: Windows that were planned.
        num_windows: How many there are, as text; `"?"` before the end.
        counts: What happened to their sequences.
    """

    num_planned: int = 0
    num_windows: str = "?"
    counts: PlanCounts = field(default_factory=PlanCounts)


@dataclass(frozen=True, slots=True)
class _Window:
    number: int
    first_place: int
    first_batch: int
    seqs: list[tuple[str, Any]]
    lengths: NDArray[np.int64]
    plan: WindowPlan


class StreamPlan:
    """The batches of a stream, window by window, forwards only: what `EpochPlan` is for known orders.

    Only the first batches can be asked for again, once the end is known: the stream is begun anew for them.

    Args:
        subject: The stream.
        recipe: How its sequences form batches.
        epoch: The epoch.
        start: The window to begin with, and the number of its first batch.
        is_marked: Whether to mark what is read, to be compared with what others read.
    """

    def __init__(
        self,
        subject: StreamSubject,
        recipe: PlanRecipe,
        epoch: int,
        start: tuple[int, int],
        *,
        is_marked: bool = False,
    ) -> None:
        self.epoch = epoch
        self.counts = PlanCounts()
        self.num_planned = 0
        self._subject = subject
        self._recipe = recipe
        self._data_key: str | None = None  # whose lengths count: the first item says it
        self._start = start
        self._next_window, self.end = start
        self._is_over = False
        self._seqs = subject.read_from(epoch, start[0] * recipe.window_seqs)
        self._windows: list[_Window] = []  # those that the next batches come from
        self._is_marked, self._mark = is_marked, 0
        self._marks: list[tuple[int, int]] = []
        self._again: StreamPlan | None = None  # from the start, for repeats

    @property
    def progress(self) -> Progress:
        """What is known so far."""
        return Progress(self.num_planned, str(self._next_window) if self._is_over else "?", self.counts)

    @property
    def num_windows(self) -> int:
        """How many windows there were so far, from the start of the epoch."""
        return self._next_window

    def take_marks(self) -> list[tuple[int, int]]:
        """Return the windows that were read since this was asked last, with their marks; none if nobody wants them."""
        marks, self._marks = self._marks, []
        return marks

    def has(self, number: int) -> bool:
        """Tell whether there is such a batch; reads on as far as it."""
        while number >= self.end and not self._is_over:
            self._read_window()
        return number < self.end

    def locate(self, number: int) -> tuple[int, int]:
        """Return the window of a batch and the number of its first batch; for one behind the end, the end."""
        if not self.has(number):
            return self._next_window, self.end
        window = self._window_of(number)
        return window.number, window.first_batch

    def pass_over(self, number: int) -> None:
        """Take it that no batch before this one will be asked for, but for repeats at the end."""
        while len(self._windows) > 1 and self._windows[1].first_batch <= number:
            del self._windows[0]

    def task(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        """Return a batch that there is, with its sequences, and their places; earlier windows are given up."""
        if not self._windows or number < self._windows[0].first_batch:
            return self._task_again(number)
        self.pass_over(number)
        window = self._windows[0]
        batch = window.plan[number - window.first_batch]
        places = window.first_place + batch.members.astype(np.int64)
        is_cut = batch.chunk_starts is not None
        task = Task(
            self.epoch,
            number,
            places,
            rows=batch.rows,
            chunk_starts=batch.chunk_starts,
            chunk_frames=batch.chunk_frames,
            seq_frames=window.lengths[batch.members] if is_cut else None,
            seqs=[window.seqs[member] for member in batch.members.tolist()],
        )
        return task, places

    def _task_again(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        if self._again is None or number < self._again.first_kept:
            self._again = StreamPlan(self._subject, self._recipe, self.epoch, (0, 0))
        if not self._again.has(number):
            raise ResumeError(
                f"the stream has fewer than {number + 1} batches now that it is read again",
                where=f"{self._subject.name}, epoch {self.epoch}",
                fix="let the stream give the same sequences for the same epoch",
            )
        return self._again.task(number)

    @property
    def first_kept(self) -> int:
        """The first batch that can still be asked for."""
        return self._windows[0].first_batch if self._windows else self.end

    def _window_of(self, number: int) -> _Window:
        return next(window for window in reversed(self._windows) if window.first_batch <= number)

    def _read_window(self) -> None:
        recipe, number = self._recipe, self._next_window
        seqs = self._read_seqs()
        self._is_over = len(seqs) < recipe.window_seqs
        if not seqs:
            return
        lengths = np.array([self._length_of(*seq) for seq in seqs], np.int64)
        if self._is_marked:
            self._mark = mark_of_window(self._mark, lengths, [self._subject.mark_of(*seq) for seq in seqs])
            self._marks.append((number, self._mark))
        plan = recipe.batching.plan_window(lengths, WindowKey(recipe.seed, self.epoch, number), recipe.batch_order)
        if self.num_planned == 0 and is_all_over(plan.counts):
            _logger.warning("all of the first %d sequences of the stream are over %s", len(seqs), recipe.batching)
        if len(plan):
            self._windows.append(_Window(number, number * recipe.window_seqs, self.end, seqs, lengths, plan))
        self.counts += plan.counts
        self.num_planned += 1
        self.end += len(plan)
        self._next_window += 1

    def _read_seqs(self) -> list[tuple[str, Any]]:
        """Read the sequences of the next window."""
        seqs: list[tuple[str, Any]] = []
        try:
            for seq in self._seqs:
                seqs.append(seq)
                if len(seqs) == self._recipe.window_seqs:
                    break
        except Exception as error:
            place = self._next_window * self._recipe.window_seqs + len(seqs)
            takes_note(error, f"headrace: while {self._subject.name} was read, epoch {self.epoch}, sequence {place}")
            raise
        return seqs

    def _length_of(self, tag: str, seq: Any) -> int:
        batching, where = self._recipe.batching, f"{tag}, epoch {self.epoch}"
        if not isinstance(seq, Mapping):
            if batching.needs_lengths:
                raise ConfigError(
                    f"{batching} needs lengths, and the items are not by data key",
                    where=where,
                    fix="let items be dicts, such as {'data': array}, or use FixedCount(n)",
                )
            return 1
        if self._data_key is None or self._data_key not in seq:
            self._data_key = data_key_of_item(batching, seq, where)
        return 1 if self._data_key is None else frames_of(seq[self._data_key])


class NoLengthError(ConfigError, TypeError):
    """The length is not known; a `TypeError`, so that `list(loader)` works."""
