"""What the workers of a `DistributeFilesDataset` are asked, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .shared import Carried, Reference, Shared
from .sub_epoch import SubEpochSpec

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
    """What came of a question.

    Attributes:
        value: The answer.
        failure: An encoded `Failure` instead, as in `ReadPart`.
    """

    value: Any = None
    failure: bytes | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """Numbers of one entry of the file list.

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

    The first one is a single sequence, and each is twice as long as the one before: the reader need not wait long for
    the first, however slow they are.

    Attributes:
        max_size: Sequences in a range, at most.
        end: Position after the last one, once it is known.
    """

    def __init__(self, plan: SharedPlan, position: int, max_size: int) -> None:
        self._plan = plan
        self._position = position
        self._size = 1
        self.max_size = max_size
        self.end: int | None = None

    def __next__(self) -> ReadRange:
        """Return the next range."""
        start, size = self._position, min(self._size, self.max_size)
        if self.end is not None and start >= self.end:
            raise StopIteration
        self._size = 2 * size
        self._position = start + size if self.end is None else min(start + size, self.end)
        return ReadRange(self._plan, start, self._position)
