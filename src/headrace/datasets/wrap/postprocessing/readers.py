"""Where a `PostprocessingDataset` gets its next sequence from: made in place, by workers, or by a stream.

Invariant: a reader that has failed, or was interrupted, raises when it is asked for more; it never ends instead. One
that can make any sequence goes on behind the one that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, takes_note
from headrace.order import Order

from ...base import Dataset
from ...seq import DatasetSeq
from ..multi_proc import MultiProcDataset
from .call import DrawKey, MapSeq, own_seq, taken


class SeqReader(ABC):
    """Gives the sequences of one epoch, or of a part of it."""

    @abstractmethod
    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Return the sequence at a place, `None` if it lies behind the end. Places rise from call to call."""

    def fail(self, error: BaseException) -> None:  # noqa: B027 (only for those that cannot go on)
        """Raise this error on every later read."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """End what is under way."""


@dataclass
class EpochPart:
    """What is known of the order that an `IndexedReader` reads.

    Attributes:
        epoch: The epoch.
        first: Place under which its first sequence is read.
        shift: What is added to such a place to get the place in the epoch.
        order: Corpus indices.
        count_occurrences: Returns how often each came before, `int64[n]`; `None` if that does not count, or never.
        args: Of `init_part` of the inner dataset; `None` for a whole epoch.
        sizes: Epoch -> sequences in all of it, where that is known: of a part it is found out when it is asked for.
        by_tag: Whether tags are what generators are keyed by.
        knows_places: Whether places in the epoch are known; else functions get corpus indices instead.
    """

    epoch: int
    first: int
    shift: int
    order: Order
    count_occurrences: Callable[[], NDArray[np.int64]] | None
    args: tuple[int, int, NDArray[np.int64], NDArray[np.int64] | None] | None
    sizes: dict[int, int]
    by_tag: bool
    knows_places: bool


class IndexedReader(SeqReader):
    """Reads any sequence of the inner dataset, and calls the function.

    Args:
        inner: The inner dataset, started with the order.
        map_seq: The function.
        part: The order.
    """

    def __init__(self, inner: Dataset, map_seq: MapSeq, part: EpochPart) -> None:
        self._inner, self._map_seq, self._part = inner, map_seq, part
        self._version = inner.order_version
        self._occurrences: NDArray[np.int64] | None = None

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Read and change a sequence."""
        inner, part = self._inner, self._part
        offset = seq_idx - part.first
        if not 0 <= offset < len(part.order):
            return None
        if inner.order_version != self._version:
            raise taken(inner)
        try:
            if not inner.reads_singly:
                inner.load_seqs(seq_idx, seq_idx + 1)
            seq = own_seq(inner, inner.get_seq(seq_idx), seq_idx)
        except Exception as error:
            takes_note(error, f"while sequence {seq_idx} of the inner dataset {inner.name!r} was read")
            raise
        corpus_idx = int(part.order[offset])
        key = self._key(seq.seq_tag, corpus_idx, offset)
        place = seq_idx + part.shift if part.knows_places else corpus_idx
        frac = (lambda: self._frac(place)) if part.knows_places else None
        made = self._map_seq(seq, epoch=part.epoch, seq_idx=place, key=key, frac=frac)
        made.corpus_idx = corpus_idx
        return made

    def _key(self, tag: str, corpus_idx: int, offset: int) -> DrawKey:
        if self._occurrences is None and self._part.count_occurrences is not None:
            self._occurrences = self._part.count_occurrences()
        occurrence = 0 if self._occurrences is None else int(self._occurrences[offset])
        if self._part.by_tag:
            return DrawKey(f"map_seq of {tag}", 0, occurrence)
        return DrawKey("map_seq", corpus_idx, occurrence)

    def _frac(self, place: int) -> float:
        """Return how much of the epoch is done after a place; in a part, the order is made once to know its size."""
        part, inner = self._part, self._inner
        if part.args is not None and part.epoch not in part.sizes:
            inner.init_seq_order(epoch=part.epoch)
            part.sizes.clear()
            part.sizes[part.epoch] = len(inner.get_current_seq_order())
            inner.init_part(*part.args)
            self._version = inner.order_version
        num_seqs = len(part.order) if part.args is None else part.sizes[part.epoch]
        return min(1.0, (place + 1) / max(num_seqs, 1))


class PoolReader(SeqReader):
    """Reads what workers have read and changed.

    Args:
        pool: Started with the order; it raises errors and goes on behind them.
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
        """Cancel what the workers have before them."""
        self._pool.finish_epoch()


class StreamReader(SeqReader):
    """Reads an iterator from its start to its end.

    Args:
        seqs: Yields the sequences.
        where: Whose they are, for messages.
        closes: Called at the end, each.
    """

    def __init__(self, seqs: Iterator[DatasetSeq], where: str, *closes: Callable[[], Any]) -> None:
        self._seqs = seqs
        self._where = where
        self._closes = closes
        self._num_read = 0
        self._failure: BaseException | None = None

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Read on, as far as to the place."""
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
        return seq

    def fail(self, error: BaseException) -> None:
        """Raise this from now on."""
        self._failure = error

    def close(self) -> None:
        """Say that nobody reads on."""
        for close in self._closes:
            close()
