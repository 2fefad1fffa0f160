"""`Reader`: reads the sequences of a dataset by their corpus indices, for one owner.

A worker has one, and so has a dataset that is made of others for each of its parts. So no object is moved to
another position while others read it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.engine import note_items
from headrace.order import ArrayOrder, Order
from headrace.sources import Source

from ..seq import DatasetSeq

Features = dict[str, NDArray[Any]]
_Taken = TypeVar("_Taken")


@dataclass(frozen=True, slots=True, eq=False)
class ReadRequest:
    """Sequences of one epoch that are to be read.

    Attributes:
        epoch: Its number; `None`: of no epoch.
        order: Their corpus indices.
        occurrences: How often each of them came before in the epoch, `int64[n]`; `None` if never, or nothing is drawn.
        first: The position of the first one in the epoch, if they are neighbours there; `None`: they are not.
        tags: What is asked for where the corpus indices are not known; the order is then 0, 1, ...
        is_whole: Whether they are all of the epoch, in the order that the dataset itself gives it.
    """

    epoch: int | None
    order: Order
    occurrences: NDArray[np.int64] | None = None
    first: int | None = None
    tags: Sequence[str] | None = None
    is_whole: bool = False

    @classmethod
    def of(
        cls,
        epoch: int | None,
        indices: NDArray[np.int64],
        occurrences: NDArray[np.int64] | None = None,
        first: int | None = None,
    ) -> ReadRequest:
        """Return the request for corpus indices, `int64[n]`; without an epoch, occurrences do not count."""
        may_repeat = occurrences is not None or epoch is None
        return cls(epoch, ArrayOrder(indices, may_repeat=may_repeat), occurrences, first)

    def part(self, start: int, stop: int) -> ReadRequest:
        """Return the request for numbers start..stop of this one."""
        counted = None if self.occurrences is None else self.occurrences[start:stop]
        first = None if self.first is None else self.first + start
        return ReadRequest(self.epoch, self.order.slice(start, stop), counted, first)

    @property
    def indices(self) -> NDArray[np.int64]:
        """The corpus indices, `int64[n]`."""
        return self.order.block(0, len(self.order))


@dataclass(frozen=True, slots=True, eq=False)
class GivenOrder:
    """An order that is given in place of the one that an epoch has: tags, or else corpus indices."""

    seq_list: Sequence[str] | None = None
    seq_order: Sequence[int] | NDArray[np.int64] | None = None

    @classmethod
    def of(cls, seq_list: Sequence[str] | None, seq_order: Sequence[int] | None) -> GivenOrder | None:
        """Return what `init_seq_order` was given; `None`: nothing."""
        return None if seq_list is None and seq_order is None else cls(seq_list, seq_order)


CountedOrder = tuple[Order, NDArray[np.int64] | None]
"""Corpus indices; and how often each of them came before, `int64[n]`, or `None` if nothing is drawn by it."""


@dataclass(frozen=True, slots=True)
class FailedSeq:
    """Takes the place of a sequence that could not be read or transformed."""

    error: Exception


class Reader(ABC):
    """Reads sequences of a dataset for one owner, which alone positions it. Not thread-safe.

    The sequences of a request are numbered from 0. They may be read in any order; but those of a dataset without random
    access in rising order, and each once.

    Attributes:
        gives_own: Whether arrays are the caller's own; else the same ones may come again.
        is_sequential: Whether sequences are read in rising order, each once: there is no random access, or it costs.
    """

    gives_own = False
    is_sequential = True

    @abstractmethod
    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next. Reads nothing yet, but workers of its own may begin to read ahead."""

    @abstractmethod
    def read(self, number: int) -> DatasetSeq:
        """Return a sequence, with all of its data keys."""

    def tags(self) -> list[str] | None:
        """Return the tags of the requested sequences if that reads none of them; otherwise `None`."""
        return None

    def tag(self, number: int) -> str | None:
        """Return the tag of a sequence, `None` if only reading it tells."""
        tags = self.tags()
        return None if tags is None else tags[number]

    def features(self, number: int) -> Features:
        """Return data key -> array of a sequence, in a dict that is the caller's own."""
        return dict(self.read(number).features)

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return one data key of a sequence, `dtype[T, ...]`."""
        return self.features(number)[key]

    def texts(self, number: int) -> Features:  # noqa: ARG002 (a contract)
        """Return the texts of a sequence, see `Dataset.get_text_keys`."""
        return {}

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return frames start..stop of one data key of a sequence; where it can, it reads no others."""
        return self.array(number, key)[start:stop]

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:  # noqa: ARG002 (a contract)
        """Return the lengths of the data keys of a sequence if its chunks are better read by `frames`; reads nothing.

        Returns:
            Data key -> number of frames, or `None` for a key that is to be taken by `array`; `None` if the sequence is
            better read at once, and then cut.
        """
        return None

    def known_frames(self, number: int) -> NumbersDict | None:  # noqa: ARG002 (a contract)
        """Return data key -> number of frames of a sequence, 1 without a time axis; `None` if only reading tells it."""
        return None

    def num_frames(self, number: int) -> NumbersDict:
        """Return data key -> number of frames of a sequence, which is read if need be."""
        known = self.known_frames(number)
        return self.read(number).num_frames if known is None else known

    def reads_by_key(self) -> bool:
        """Whether one data key can be read alone: nothing looks at the whole sequence."""
        return False

    def fast_source(self) -> Source | None:
        """Return the source, if sequences come out as they are in it, and it reads many at once quickly."""
        return None

    def read_each(
        self, wanted: ReadRequest, told_epoch: int | None = None
    ) -> Iterator[tuple[str, DatasetSeq | FailedSeq]]:
        """Yield the tag of each requested sequence, in order, and the sequence; one that fails does not stop others.

        The engine is told which one is being read, and in which epoch: `told_epoch`, if it has another number outside.
        """
        for tag, seq in self.take_each(wanted, self.read, told_epoch):
            yield tag if isinstance(seq, FailedSeq) else seq.seq_tag, seq

    def features_each(self, wanted: ReadRequest) -> Iterator[tuple[str, Features | FailedSeq]]:
        """Yield the tag of each requested sequence, in order, and only its arrays; see `read_each`."""
        for tag, seq in self.read_each(wanted):
            yield tag, seq if isinstance(seq, FailedSeq) else seq.features

    def take_each(
        self, wanted: ReadRequest, take: Callable[[int], _Taken], told_epoch: int | None = None
    ) -> Iterator[tuple[str, _Taken | FailedSeq]]:
        """Yield for each requested sequence its tag, as far as it is known without reading, and the result of `take`.

        Args:
            wanted: They are numbered as there.
            take: Called with the number of each.
            told_epoch: See `read_each`.
        """
        self.start(wanted)
        tags = self.tags()
        if tags is None:
            tags = [_unknown_tag(wanted.first, number, i) for number, i in enumerate(wanted.indices.tolist())]
        go_to = note_items(tags, wanted.epoch if told_epoch is None else told_epoch)
        for number, tag in enumerate(tags):
            go_to(number)
            try:
                taken = take(number)
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                yield tag, FailedSeq(error)
            else:
                yield tag, taken


def _unknown_tag(first: int | None, number: int, corpus_idx: int) -> str:
    """Return what a sequence is called whose tag may not be known before it is read."""
    position = "" if first is None else f"sequence {first + number}, "
    return f"({position}corpus index {corpus_idx})"


class SeqStream(Iterator[DatasetSeq]):
    """The sequences of an epoch, one after the other.

    Attributes:
        position: That of the sequence that comes next. Where `jumps`, it may be set; else to the next but one after an
            error, to pass over the one that failed.
        num_seqs: How many there are; `None` if that is not known.
        jumps: Whether the sequence at any position is given without reading those before it.
        gives_own: See `Reader`.
    """

    position = 0
    num_seqs: int | None = None
    jumps = False
    gives_own = False

    @abstractmethod
    def has_next(self) -> bool:
        """Whether there is a sequence at the position; it may have to be read."""

    @abstractmethod
    def texts(self) -> Features:
        """Return the texts of the sequence that came last, see `Reader.texts`."""

    def frac(self) -> float | None:
        """Return how much of the epoch is done after the sequence that came last; `None` if that is not known."""
        return None if self.num_seqs is None else min(1.0, self.position / max(self.num_seqs, 1))


class OrderStream(SeqStream):
    """What a reader was asked for, as a stream.

    Args:
        reader: It was started.
        num_seqs: With how many sequences.
    """

    def __init__(self, reader: Reader, num_seqs: int) -> None:
        self._reader, self.num_seqs = reader, num_seqs
        self.jumps, self.gives_own = not reader.is_sequential, reader.gives_own

    def has_next(self) -> bool:
        """Whether there is one more."""
        return self.num_seqs is None or self.position < self.num_seqs

    def __next__(self) -> DatasetSeq:
        """Read the next sequence."""
        if not self.has_next():
            raise StopIteration
        position = self.position
        seq = self._reader.read(position)
        self.position = position + 1
        return seq

    def texts(self) -> Features:
        """Ask the reader."""
        return self._reader.texts(self.position - 1)
