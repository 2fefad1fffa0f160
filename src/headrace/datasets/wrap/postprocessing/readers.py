"""Where a `PostprocessingDataset` gets its next sequence from: made in place, by workers, or by a stream.

Invariant: a reader that has failed, or was interrupted, raises when it is asked for more; it never ends instead. One
that can make any sequence goes on behind the one that failed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError, takes_note
from headrace.order import Order, RangeOrder, occurrences

from ...base import Dataset
from ...parts import taken_away
from ...seq import DatasetSeq
from ..multi_proc import MultiProcDataset
from .inner import own_seq
from .map_seq import DrawKey, MapSeq


class SeqReader(ABC):
    """Gives the sequences of one epoch, or of a part of it."""

    @abstractmethod
    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Return the sequence at a position, `None` if it lies behind the end. Positions rise from call to call."""

    def check_end(self) -> None:  # noqa: B027 (only a stream may end elsewhere)
        """Refuse an end after the sequences that were read so far, where another number of them was said.

        Raises:
            HeadraceError: It was; then each later read raises it, too.
        """

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """End what is under way."""


@dataclass
class EpochPart:
    """What is known of an order, of an epoch or of a part of one.

    Attributes:
        epoch: The epoch.
        order: Corpus indices.
        occurrences: How often each came before, `int64[n]`; `None` if nobody has counted yet.
        first: Position under which its first sequence is read.
        shift: What is added to such a position to get the position in the epoch.
        args: Of `init_part` of the inner dataset; `None` for a whole epoch.
    """

    epoch: int = 0
    order: Order = field(default_factory=lambda: RangeOrder(range(0)))
    occurrences: NDArray[np.int64] | None = None
    first: int = 0
    shift: int = 0
    args: tuple[int, int, NDArray[np.int64], NDArray[np.int64] | None] | None = None

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence came before, `int64[n]`."""
        if self.occurrences is None:
            self.occurrences = occurrences(self.order)
        return self.occurrences


@dataclass
class IndexedReader(SeqReader):
    """Reads any sequence of the inner dataset, and calls the function.

    Attributes:
        inner: The inner dataset, started with the order.
        map_seq: The function.
        part: The order.
        sizes: Epoch -> sequences in all of it, where that is known: of a part it is found out when it is asked for.
        counts: Whether what is drawn depends on how often a sequence came before.
        by_tag: Whether tags are what generators are keyed by.
        knows_positions: Whether positions in the epoch are known; else functions get corpus indices instead.
    """

    inner: Dataset
    map_seq: MapSeq
    part: EpochPart
    sizes: dict[int, int]
    counts: bool
    by_tag: bool
    knows_positions: bool

    def __post_init__(self) -> None:
        """Note that the inner dataset is where it should be."""
        self._version = self.inner.order_version

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Read and change a sequence."""
        inner, part = self.inner, self.part
        offset = seq_idx - part.first
        if not 0 <= offset < len(part.order):
            return None
        if inner.order_version != self._version:
            raise taken_away(inner, "a PostprocessingDataset")
        try:
            if not inner.reads_singly:
                inner.load_seqs(seq_idx, seq_idx + 1)
            seq = own_seq(inner, inner.get_seq(seq_idx), seq_idx)
        except Exception as error:
            takes_note(error, f"while sequence {seq_idx} of the inner dataset {inner.name!r} was read")
            raise
        corpus_idx = int(part.order[offset])
        key = self._key(seq.seq_tag, corpus_idx, offset)
        position = seq_idx + part.shift if self.knows_positions else corpus_idx
        frac = (lambda: self._frac(position)) if self.knows_positions else None
        made = self.map_seq(seq, epoch=part.epoch, seq_idx=position, key=key, frac=frac)
        made.corpus_idx = corpus_idx
        if made.complete_frac is None and part.args is None:
            made.complete_frac = (seq_idx + 1) / len(part.order)
        return made

    def _key(self, tag: str, corpus_idx: int, offset: int) -> DrawKey:
        occurrence = int(self.part.count_occurrences()[offset]) if self.counts else 0
        return (
            DrawKey(f"map_seq of {tag}", 0, occurrence) if self.by_tag else DrawKey("map_seq", corpus_idx, occurrence)
        )

    def _frac(self, position: int) -> float:
        """Return how much of the epoch is done after a position; in a part, the order is made once to know its size."""
        part, inner = self.part, self.inner
        if part.args is not None and part.epoch not in self.sizes:
            inner.init_seq_order(epoch=part.epoch)
            self.sizes.clear()
            self.sizes[part.epoch] = len(inner.get_current_seq_order())
            inner.init_part(*part.args)
            self._version = inner.order_version
        num_seqs = len(part.order) if part.args is None else self.sizes[part.epoch]
        return min(1.0, (position + 1) / max(num_seqs, 1))


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
        close: Called at the end.
        num_seqs: How many there must be; `None` if nobody has said it.
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
        """Say that nobody reads on."""
        self._close()
