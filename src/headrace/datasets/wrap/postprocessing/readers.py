"""Where a `PostprocessingDataset` gets its next sequence from: made in place, by workers, or by a stream.

Invariant: a reader that has failed, or was interrupted, raises when it is asked for more; it never ends instead. One
that can make any sequence goes on after the one that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import HeadraceError, takes_note
from headrace.order import occurrences

from ...base import Dataset
from ...reading.loaded import OrderCursor
from ...reading.reader import GivenOrder, Reader, ReadRequest
from ...seq import DatasetSeq
from ..multi_proc import MultiProcDataset
from .inner import with_texts
from .map_seq import DrawKey, MapSeq


class MapReader(Reader):
    """Reads any sequence of the inner dataset, and calls the function.

    Args:
        inner: The inner dataset: it is asked, and read by a reader.
        map_seq: The function.
        draws: Whether it gets a generator.
        by_tag: Whether tags are what generators are keyed by.
        keys: Data keys whose lengths the function leaves as they are; `None`: it may change them.
    """

    is_sequential = False

    def __init__(
        self, inner: Dataset, map_seq: MapSeq, *, draws: bool, by_tag: bool, keys: list[str] | None = None
    ) -> None:
        self._dataset, self._inner = inner, inner.make_reader()
        self._map_seq, self._draws, self._by_tag, self._keys = map_seq, draws, by_tag, keys
        self._occurrences: NDArray[np.int64] | None = None
        self._size: tuple[int | None, int] = None, 0  # of the epoch that somebody wanted to know it of
        self._is_all = False

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self._start(wanted, is_all=wanted.is_whole)

    def start_all(self, wanted: ReadRequest) -> None:
        """Set all sequences of an epoch to be read, in its own order or in one that was given."""
        self._start(wanted, is_all=True)

    def _start(self, wanted: ReadRequest, *, is_all: bool) -> None:
        if wanted.tags is not None:  # what is drawn is keyed by corpus indices, where they are known
            given = GivenOrder(wanted.tags)
            order, counted = self._dataset.get_epoch_order(wanted.epoch, given, counts=self._draws)
            wanted = replace(wanted, order=order, occurrences=counted)
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        self._inner.start(wanted)
        self._occurrences, self._is_all = wanted.occurrences, is_all
        if self._draws and self._occurrences is None and (is_all or wanted.epoch is None):
            self._occurrences = occurrences(wanted.order)

    def tags(self) -> list[str] | None:
        """Ask the reader of the inner dataset: the function leaves tags as they are."""
        return self._inner.tags()

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence, and call the function."""
        wanted = self._wanted
        position = number + (wanted.first or 0)
        try:
            seq = with_texts(self._inner.read(number), self._inner.texts(number), are_own=self._inner.gives_own)
        except Exception as error:
            takes_note(error, f"while sequence {position} of the inner dataset {self._dataset.name!r} was read")
            raise
        corpus_idx = self._cursor[number]
        told = corpus_idx if wanted.first is None else position
        frac = None if wanted.first is None else lambda: self._frac(position)
        key = self._key(seq.seq_tag, corpus_idx, number)
        made = self._map_seq(seq, epoch=wanted.epoch or 0, seq_idx=told, key=key, frac=frac)
        made.corpus_idx = corpus_idx
        if made.complete_frac is None and self._is_all:
            made.complete_frac = self._frac(position)
        return made

    def _key(self, tag: str, corpus_idx: int, number: int) -> DrawKey:
        occurrence = 0 if self._occurrences is None else int(self._occurrences[number])
        return (
            DrawKey(f"map_seq of {tag}", 0, occurrence) if self._by_tag else DrawKey("map_seq", corpus_idx, occurrence)
        )

    def _frac(self, position: int) -> float:
        """Return how much of the epoch is done after a position."""
        if self._is_all:
            num_seqs = self._cursor.stop
        else:
            epoch = self._wanted.epoch
            if self._size[0] != epoch:
                self._size = epoch, len(self._dataset.get_epoch_order(epoch)[0])
            num_seqs = self._size[1]
        return min(1.0, (position + 1) / max(num_seqs, 1))

    def known_frames(self, number: int) -> NumbersDict | None:
        """Ask the reader of the inner dataset, if it was said that lengths stay."""
        if self._keys is None:
            return None
        lengths = self._inner.num_frames(number)
        return NumbersDict({key: lengths[key] for key in self._keys})


class SeqReader(ABC):
    """Gives the sequences of one epoch, from its start on."""

    @abstractmethod
    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Return the sequence at a position, `None` if it lies after the end. Positions rise from call to call."""

    def check_end(self) -> None:  # noqa: B027 (only a stream may end elsewhere)
        """Refuse an end after the sequences read so far, if another number of them was declared.

        Raises:
            HeadraceError: Another number was declared; each later read raises it, too.
        """

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """End running work."""


class OrderedSeqs(SeqReader):
    """The sequences of an order, which are made in place.

    Args:
        reader: Started with them.
        num_seqs: How many there are.
        first: Position of the first one.
    """

    def __init__(self, reader: MapReader, num_seqs: int, first: int) -> None:
        self._reader, self._num_seqs, self._first = reader, num_seqs, first

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Read and change a sequence."""
        number = seq_idx - self._first
        return self._reader.read(number) if 0 <= number < self._num_seqs else None

    def num_frames(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames of the sequence at a position."""
        return self._reader.num_frames(seq_idx - self._first)


class PoolReader(SeqReader):
    """Reads what workers have read and changed.

    Args:
        pool: Started with the order; it raises errors and goes on after them.
    """

    def __init__(self, pool: MultiProcDataset) -> None:
        self._pool = pool

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Take a sequence of the workers."""
        if not self._pool.is_less_than_num_seqs(seq_idx):
            return None
        self._pool.load_seqs(seq_idx, seq_idx + 1)
        return self._pool.get_seq(seq_idx)

    def close(self) -> None:
        """Cancel the work of the workers."""
        self._pool.finish_epoch()


class StreamedSeqs(SeqReader):
    """Reads an iterator from its start to its end.

    Args:
        seqs: Yields the sequences.
        close: Called at the end.
        num_seqs: How many there must be; `None` if that is not known.
        wrong_count: Returns the error if there is another number, from what it is.
        where: Whose they are, for messages.
    """

    def __init__(
        self,
        seqs: Iterator[DatasetSeq],
        close: Callable[[], Any],
        *,
        num_seqs: int | None,
        wrong_count: Callable[[str], HeadraceError],
        where: str,
    ) -> None:
        self._seqs, self._close = seqs, close
        self._expected, self._wrong_count = num_seqs, wrong_count
        self._where = where
        self._num_read = 0
        self._failure: BaseException | None = None

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Read on, as far as to the position."""
        seq = self._read(seq_idx)
        if self._expected is not None and (seq is None or self._num_read == self._expected):
            self.check_end()
        return seq

    def _read(self, seq_idx: int) -> DatasetSeq | None:
        if self._failure is not None:
            raise self._failure
        seq = None
        try:
            while self._num_read <= seq_idx:
                seq = next(self._seqs, None)
                if seq is None:
                    return None
                self._num_read += 1
        except Exception as error:
            self._failure = error
            raise
        except BaseException:
            self._failure = HeadraceError(
                "reading was interrupted", where=self._where, fix="start the epoch again with init_seq_order"
            )
            raise
        assert seq is not None
        seq.seq_idx = seq_idx
        if seq.complete_frac is None and self._expected:
            seq.complete_frac = (seq_idx + 1) / self._expected
        return seq

    def check_end(self) -> None:
        """Refuse an end where it should not be; one more sequence is made to see whether there are too many."""
        if self._expected is None:
            return
        num_read = self._num_read
        has_more = num_read == self._expected and self._read(num_read) is not None
        if num_read != self._expected or has_more:
            came = f"{f'more than {num_read}' if has_more else num_read} came out of {self._expected}"
            self._failure = self._wrong_count(came)
            raise self._failure

    def close(self) -> None:
        """End the stream: nothing more is read."""
        self._close()
