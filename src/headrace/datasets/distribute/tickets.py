"""The tickets that a `DistributeFilesDataset` sends to its workers, and their answers.

A ticket is a range of many sequences: with one each, a sequence of 2 KB costs the reader's process 60 us or more
instead of 3 (measured side by side on a busy machine).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..wrap.ahead import RunsAhead
from .shared import Carried, Reference, Shared
from .sub_epoch import SubEpochSpec

_SHORTER = 16  # times the first range of a pass than the others may be: ready in some 0.6 ms

SharedPlan = Shared | Reference | Carried


@dataclass(frozen=True, slots=True)
class ReadRange:
    """Read sequences `start <= position < stop` of the sub-epoch that comes first in a plan. Answer: `ReadPart`."""

    plan: SharedPlan
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class AskDataset:
    """Call a method of the dataset of the sub-epoch that comes first in a plan. `Answer`: what it returns."""

    plan: SharedPlan
    method: str


@dataclass(frozen=True, slots=True)
class CountSeqs:
    """Count the sequences of a sub-dataset of one entry of the file list. `Answer`: `Counted`.

    Attributes:
        spec: The sub-dataset.
        names: The files of the entry.
    """

    spec: SubEpochSpec
    names: list[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        value: The answer.
        failure: An encoded `Failure` instead, as in `ReadPart`.
    """

    value: Any = None
    failure: bytes | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers of sequences of one entry of the file list.

    Attributes:
        num_seqs: Sequences that a sub-dataset of it alone delivers.
        num_stored: Sequences in its files; -1 if unknown.
        num_stored_frames: Frames of the first data key in its files; -1 if unknown.
    """

    num_seqs: int
    num_stored: int
    num_stored_frames: int


Ticket = ReadRange | AskDataset | CountSeqs


class RangeTickets(Iterator[ReadRange]):
    """The ranges of one pass over a sub-epoch, from a position on, while its end is unknown or not reached.

    The first one is short, a single sequence while nothing is known of them, and each is at most twice as long as the
    one before: the reader need not wait long for the first, however slow they are. How long they are is said by the
    engine's `GroupSize`.

    Args:
        plan: The sub-epoch to read.
        position: Where they begin.
        ahead: Tracks the ranges in flight.

    Attributes:
        end: Position after the last one, once it is known.
    """

    def __init__(self, plan: SharedPlan, position: int, ahead: RunsAhead) -> None:
        self._plan = plan
        self._position = position
        self._size = max(ahead.choose() // _SHORTER, 1)
        self._ahead = ahead
        self.end: int | None = None

    def max_open(self) -> int:
        """Return how many ranges may be in flight now, see `Engine.run`.

        Few until the first one is here: all that lie beyond the end of a short sub-epoch, which is not known before,
        would be sent for nothing.
        """
        ahead = self._ahead
        return ahead.max_open() if ahead.has_arrived else min(ahead.max_open(), ahead.min_open())

    def __next__(self) -> ReadRange:
        """Return the next range."""
        start, size = self._position, min(self._size, self._ahead.choose())
        if self.end is not None and start >= self.end:
            raise StopIteration
        self._size = 2 * size
        self._position = start + size if self.end is None else min(start + size, self.end)
        self._ahead.send(start, self._position - start)
        return ReadRange(self._plan, start, self._position)
