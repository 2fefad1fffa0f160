"""The batches of a stream, planned window by window while it is read.

A window is a block of a number of sequences that the recipe names. Where the recipe leaves it open, a window is as many
blocks as fill some batches, whatever the budget: this depends on the stream alone, so every reader finds the same
windows. The number of a window is that of its first block, so a state tells where to begin.
Invariants: batch n is the same for every reader, and for every start of the plan; no more than the windows that the
next step of all ranks needs are in memory.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import WINDOW_SEQS, Pieces, PlanCounts, ReuseCheck, WindowKey, WindowPlan
from headrace.batching.data_key import data_key_of_item, frames_of, texts_of
from headrace.errors import ConfigError, ResumeError, SourceError, takes_note
from headrace.rng.process import kept_globals, seed_globals

from ..plan import PlanRecipe, Progress, is_all_over
from ..work import Task
from .input import StreamSubject
from .marks import MAX_SEQS, mark_of_window

_logger = logging.getLogger("headrace.loading")
_MIN_BATCHES = 8  # that a window fills, where it grows: so the last one of a window, which is not full, is one in eight


@dataclass(frozen=True, slots=True)
class _StreamWindow:
    number: int
    first_seq_idx: int
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
        is_marked: Whether to mark what is read, to be compared with what is read should this be begun anew.
        keeps_globals: Whether to restore the global generators after they were seeded.
    """

    def __init__(
        self,
        subject: StreamSubject,
        recipe: PlanRecipe,
        epoch: int,
        start: tuple[int, int],
        *,
        is_marked: bool = False,
        keeps_globals: bool = True,
    ) -> None:
        self.epoch = epoch
        self.counts = PlanCounts()
        self.num_planned = 0
        self._subject = subject
        self._recipe = recipe
        self._data_key: str | None = None  # whose lengths count: the first item says it
        self._texts = texts_of(subject.reading.specs)
        self._start = start
        self._next_window, self.end = start
        self._reuse = ReuseCheck()
        self._is_over = False
        self._keep_globals = kept_globals if recipe.seeds_globals and keeps_globals else nullcontext
        self._seqs = subject.read_from(epoch, start[0] * recipe.window_seqs, _block_seeder(recipe, epoch))
        self._windows: list[_StreamWindow] = []  # those that the next batches come from
        self._is_marked, self._mark = is_marked, 0
        self._marks: list[tuple[int, int]] = []
        self._again: StreamPlan | None = None  # from the start, for repeats

    @property
    def progress(self) -> Progress:
        """What is known so far."""
        before = self._start[0]  # blocks, where windows grow: how many windows these were is not known
        is_known = self._is_over and not (self._recipe.grows and before)
        return Progress(self.num_planned, str(before + self.num_planned) if is_known else "?", self.counts)

    @property
    def num_windows(self) -> int:
        """How many windows (of `window_seqs` sequences) were read so far, from the start of the epoch."""
        return self._next_window

    def take_marks(self) -> list[tuple[int, int]]:
        """Return the windows that were read since the last call, with their marks; none if they are not needed.

        Before them comes the last one reported before: by its mark, a restarted reader is compared with the one before.
        """
        marks, self._marks = self._marks, self._marks[-1:]
        return marks

    def has(self, number: int) -> bool:
        """Tell whether there is such a batch; reads as far as needed."""
        while number >= self.end and not self._is_over:
            self._read_window()
        return number < self.end

    def locate(self, number: int) -> tuple[int, int]:
        """Return the window of a batch and the number of its first batch; for a batch after the end, the end."""
        if not self.has(number):
            return self._next_window, self.end
        window = self._window_of(number)
        return window.number, window.first_batch

    def pass_over(self, number: int) -> None:
        """Forget what only earlier batches need, except those that may be repeated at the end."""
        while len(self._windows) > 1 and self._windows[1].first_batch <= number:
            del self._windows[0]

    def task(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        """Return a batch that there is, with its sequences, and where these are; earlier windows are given up."""
        if not self._windows or number < self._windows[0].first_batch:
            return self._task_again(number)
        self.pass_over(number)
        window = self._windows[0]
        batch = window.plan[number - window.first_batch]
        seq_idx = window.first_seq_idx + batch.members.astype(np.int64)
        is_cut = batch.chunk_starts is not None
        task = Task(
            self.epoch,
            number,
            seq_idx,
            rows=batch.rows,
            chunk_starts=batch.chunk_starts,
            chunk_frames=batch.chunk_frames,
            seq_frames=window.lengths[batch.members] if is_cut else None,
            seqs=[window.seqs[member] for member in batch.members.tolist()],
        )
        return task, seq_idx

    def leave_out(self, first: int) -> None:
        """Note that no rank gets the batches from this one on."""
        found = [(self._window_of(number), number) for number in range(first, self.end)]
        num_pieces = sum(len(window.plan[number - window.first_batch]) for window, number in found)
        self.counts += PlanCounts(remainder=num_pieces)

    def _task_again(self, number: int) -> tuple[Task, NDArray[np.int64]]:
        if self._again is None or number < self._again.first_kept:
            self._again = StreamPlan(self._subject, self._recipe, self.epoch, (0, 0))
        if not self._again.has(number):
            raise ResumeError(
                f"the stream has fewer than {number + 1} batches when it is read again",
                where=f"{self._subject.name}, epoch {self.epoch}",
                fix="let the stream give the same sequences for the same epoch",
            )
        return self._again.task(number)

    @property
    def first_kept(self) -> int:
        """The first batch that can still be asked for."""
        return self._windows[0].first_batch if self._windows else self.end

    def _window_of(self, number: int) -> _StreamWindow:
        return next(window for window in reversed(self._windows) if window.first_batch <= number)

    def _read_window(self) -> None:
        recipe, number = self._recipe, self._next_window
        seqs, lengths = self._read_seqs()
        if not seqs:
            return
        plan = recipe.batching.plan_window(lengths, WindowKey(recipe.seed, self.epoch, number), recipe.batch_order)
        if self.num_planned == 0 and is_all_over(plan.counts):
            _logger.warning("all of the first %d sequences of the stream are over %s", len(seqs), recipe.batching)
        if len(plan):
            self._windows.append(_StreamWindow(number, number * recipe.window_seqs, self.end, seqs, lengths, plan))
        self.counts += plan.counts
        self.num_planned += 1
        self.end += len(plan)
        self._next_window += -(-len(seqs) // recipe.window_seqs)

    def _read_seqs(self) -> tuple[list[tuple[str, Any]], NDArray[np.int64]]:
        """Read the sequences of the next window, and their lengths: a block, or as many as fill some batches."""
        recipe, number = self._recipe, self._next_window
        seqs: list[tuple[str, Any]] = []
        all_lengths: list[NDArray[np.int64]] = []
        num_batches, num_given_up = 0.0, 0
        while not self._is_over and num_batches < _MIN_BATCHES and num_given_up < WINDOW_SEQS:
            block = self._read_block(len(seqs))
            self._is_over = len(block) < recipe.window_seqs
            lengths = np.array([self._length_of(*seq) for seq in block], np.int64)
            if self._is_marked and block:
                marks = [self._subject.mark_of(*seq) for seq in block[:: len(block) // MAX_SEQS + 1]]
                self._mark = mark_of_window(self._mark, lengths, marks)
                self._marks.append((number + len(seqs) // recipe.window_seqs, self._mark))
            if recipe.grows:
                pieces = self._cut(lengths)
                num_given_up += _give_up_others(block, pieces)
                num_batches += recipe.batching.fullness(pieces.frames)
            else:
                num_batches = math.inf
            seqs += block
            all_lengths.append(lengths)
        return seqs, np.concatenate(all_lengths) if all_lengths else np.zeros(0, np.int64)

    def _cut(self, lengths: NDArray[np.int64]) -> Pieces:
        """Return what a plan will make of a block of sequences; all of them, if it will refuse them."""
        pieces = Pieces.of_lengths(lengths)
        try:
            return self._recipe.batching.cut(pieces)
        except (ConfigError, SourceError):
            return pieces

    def _read_block(self, num_before: int) -> list[tuple[str, Any]]:
        seqs: list[tuple[str, Any]] = []
        try:
            with self._keep_globals():
                seqs += self._reuse.kept(itertools.islice(self._seqs, self._recipe.window_seqs))
                self._reuse.look()
        except Exception as error:
            position = self._next_window * self._recipe.window_seqs + num_before + len(seqs)
            takes_note(error, f"headrace: while {self._subject.name} was read, epoch {self.epoch}, sequence {position}")
            raise
        return seqs

    def _length_of(self, tag: str, seq: Any) -> int:
        batching, where = self._recipe.batching, f"{tag}, epoch {self.epoch}"
        if not isinstance(seq, Mapping):
            if batching.needs_lengths:
                raise ConfigError(
                    f"{batching} needs lengths, and the items are not dicts by data key",
                    where=where,
                    fix="let items be dicts, such as {'data': array}, or use FixedCount(n)",
                )
            return 1
        if self._data_key is None or self._data_key not in seq:
            self._data_key = data_key_of_item(batching, seq, where, texts=self._texts)
        return 1 if self._data_key is None else frames_of(seq[self._data_key])


def _block_seeder(recipe: PlanRecipe, epoch: int) -> Callable[[int], None]:
    """Return a function that seeds the global generators before each block, for user code that yields its sequences."""

    def on_read(position: int) -> None:
        if recipe.seeds_globals and position % recipe.window_seqs == 0:
            seed_globals(recipe.seed, "stream", epoch=epoch, number=position // recipe.window_seqs)

    return on_read


def _give_up_others(block: list[tuple[str, Any]], pieces: Pieces) -> int:
    """Let go the data of the sequences that are in no piece, and return how many these are: there may be very many."""
    is_kept = np.zeros(len(block), np.bool_)
    is_kept[pieces.positions] = True
    others = np.flatnonzero(~is_kept).tolist()
    for position in others:
        block[position] = block[position][0], None
    return len(others)
