"""A function of one sequence, over a dataset that knows its order: any sequence is made, here or by workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict

from ...base import Dataset
from ..multi_proc import MultiProcDataset
from .inner import without_workers
from .map_seq import MapSeq
from .readers import EpochPart, IndexedReader, PoolReader, SeqReader


class IndexedSeqs:
    """Starts the inner dataset with an order, and makes its sequences. Workers stay over epochs.

    Args:
        inner: The inner dataset.
        map_seq: The function.
        draws: Whether it gets a generator.
        by_tag: Whether tags are what generators are keyed by.
        knows_positions: Whether positions in the epoch are known; else functions get corpus indices instead.
        make_pool: Returns the same sequences, made by workers; `None` to make them here.

    Attributes:
        part: The current order.
    """

    def __init__(
        self,
        inner: Dataset,
        map_seq: MapSeq,
        *,
        draws: bool,
        by_tag: bool,
        knows_positions: bool,
        make_pool: Callable[[], MultiProcDataset] | None,
    ) -> None:
        self._inner = inner
        self._base = without_workers(inner)
        self._map_seq = map_seq
        self._draws, self._by_tag, self._knows_positions = draws, by_tag, knows_positions
        self._make_pool = make_pool
        self._pool: MultiProcDataset | None = None
        self._started = self._base  # has the current order, and no workers
        self._sizes: dict[int, int] = {}
        self.part = EpochPart()

    def start(self, epoch: int | None, seq_list: Sequence[str] | None, seq_order: Sequence[int] | None) -> None:
        """Start an order, see `Dataset.init_seq_order`."""
        starts, self._started = self._inner, self._base
        if self._make_pool is not None:
            if self._pool is None:
                self._pool = self._make_pool()
            starts, self._started = self._pool, self._pool.inner
        starts.start_given(epoch, seq_list, seq_order)
        self.part = EpochPart(epoch or 0, starts.get_checked_seq_order(), self._started.get_occurrences())

    def start_part(
        self, epoch: int, first: int, indices: NDArray[np.int64], occurrences: NDArray[np.int64] | None
    ) -> int:
        """Start a part of an epoch, see `Dataset.init_part`; it is read here, whoever makes whole epochs."""
        self._started = self._base
        start = self._base.init_part(epoch, first, indices, occurrences)
        args = epoch, first, indices, occurrences
        self.part = EpochPart(epoch, self._base.get_checked_seq_order(), occurrences, start, first - start, args)
        return start

    def forget(self) -> None:
        """End the current order."""
        self.part = EpochPart()

    def open(self) -> SeqReader:
        """Return what reads the current order."""
        if self._pool is not None and self.part.args is None:
            return PoolReader(self._pool)
        return IndexedReader(
            self._inner if self.part.args is None else self._base,
            self._map_seq,
            self.part,
            self._sizes,
            counts=self._draws and self.part.order.may_repeat,
            by_tag=self._by_tag,
            knows_positions=self._knows_positions,
        )

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return how often each sequence of the current order came before, if anything is drawn by it."""
        if self._draws and self.part.order.may_repeat:
            return self.part.count_occurrences()
        return self.part.occurrences

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames in the inner dataset."""
        return self._started.get_seq_length(seq_idx)

    def close(self) -> None:
        """End the workers."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close_workers()
