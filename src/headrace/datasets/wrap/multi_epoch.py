"""`MultiEpochDataset`: several epochs of another dataset as one.

If the inner dataset says its order, so does this one: a place leads to an epoch of the inner dataset and a corpus
index. Which of the epochs it is travels with the number of times that the sequence came before (`get_occurrences`), so
that whoever reads a part of an epoch reads the same.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, check_count
from headrace.order import ArrayOrder, Order, occurrences, sum_filtered

from ..base import Dataset, Owned
from ..cached2 import CachedDataset2
from ..checks import check_indices
from ..configs import DatasetConfig
from ..corpus import Corpus
from ..delegating import InnerAnswers, inherited_options, outer_options
from ..parts import check_no_cycle, open_part, taken_away
from ..seq import DatasetSeq

_MAX_EPOCHS = 1_000_000  # more are a mistake, most likely
_MAX_TOLD = 10_000  # whose recipes are told one by one
_MAX_SEQS = 2**31  # of an epoch: 16 GiB for their order


@dataclass(frozen=True, eq=False)
class Segment:
    """Neighbours in one epoch of the inner dataset.

    Attributes:
        epoch: Of the inner dataset; `None`: what it was started with already.
        start: The place of the first one.
        indices: Corpus indices, `int64[n]`; `None`: the whole epoch.
        occurrences: How often each of them came before in that epoch.
    """

    epoch: int | None
    start: int
    indices: NDArray[np.int64] | None = None
    occurrences: NDArray[np.int64] | None = None


class MultiEpochDataset(InnerAnswers, CachedDataset2):
    """M epochs of another dataset in a row: epoch E is its epochs (E - 1) M + 1 ... E M.

    Where the inner dataset knows its corpus and its order, the number of sequences is known, and any part of an epoch
    can be read; the orders of the M epochs are in memory then. Else it is a stream. Transforms draw by the inner epoch.

    Args:
        dataset: Config of the inner dataset.
        multi_epoch: M, at most 1,000,000.
        **kwargs: See `Dataset`. `random_seed_offset`, `_num_shards` and `_shard_index` are defaults for the inner
            dataset; all else about the order is its own.

    Raises:
        ConfigError: An option is wrong.
    """

    supports_window = False

    def __init__(self, *, dataset: DatasetConfig, multi_epoch: int, **kwargs: Any) -> None:
        super().__init__(**outer_options(kwargs, type(self).__name__))
        check_no_cycle(dataset)
        self.multi_epoch = check_count("multi_epoch", multi_epoch, minimum=1, maximum=_MAX_EPOCHS)
        inherited = inherited_options(kwargs, f"{type(self).__name__} {kwargs.get('name') or ''}")
        self._inner = open_part(dataset, inherited, owner=self)
        self.num_inputs, self.num_outputs = self.inner.num_inputs, self.inner.num_outputs
        self.labels = dict(self.inner.labels)
        self.shuffle_frames_of_nseqs = self.inner.shuffle_frames_of_nseqs
        self._follow_order()
        self._is_ordered = self.inner.get_corpus().is_indexed
        self._orders: list[Order] = []
        self._counts: list[NDArray[np.int64] | None] = []
        self._forget()
        if type(self).__init__ is MultiEpochDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = ((), {**kwargs, "dataset": Owned(self.inner), "multi_epoch": self.multi_epoch})

    def _forget(self) -> None:
        self._segments: list[Segment] = []
        self._coming: list[int] = []  # epochs of a stream that are not begun yet
        self._current: Segment | None = None
        self._shift = 0  # from a place to the place in the inner dataset
        self._version: int | None = None  # of the inner dataset, with the current segment
        self._orders, self._counts = [], []
        self._codes: NDArray[np.int64] | None = None  # occurrences of a part of an epoch

    def inner_epochs(self, epoch: int) -> range:
        """Return the epochs of the inner dataset that an epoch consists of."""
        first = (max(epoch, 1) - 1) * self.multi_epoch + 1
        return range(first, first + self.multi_epoch)

    @property
    def inner(self) -> Dataset:
        """The dataset whose epochs are read."""
        return self._inner

    def get_corpus(self) -> Corpus:
        """Return what the inner dataset knows; of lengths, those that are the same in all of its epochs."""
        corpus = self.inner.get_corpus()
        is_fixed = corpus.is_indexed and corpus.has_fixed_lengths
        return dataclasses.replace(
            corpus.without_index(),
            knows_order=lambda: self._is_ordered,
            lengths=corpus.lengths if is_fixed else lambda key, may_cost: None,  # noqa: ARG005
        )

    @property
    def supports_jumps(self) -> bool:
        """Whether the inner dataset does, and the order is known."""
        return self._is_ordered and self.inner.supports_jumps

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner epochs, each of them: a function may give each another order, or corpus."""
        texts = dict.fromkeys(self.inner.order_text(number) for number in self.inner_epochs(epoch)[:_MAX_TOLD])
        return f"{self.multi_epoch} epochs, {'; '.join(texts)}"

    def reading_text(self, epoch: int) -> str:
        """Return what decides what sequences hold in the inner epochs."""
        texts = dict.fromkeys(self.inner.reading_text(number) for number in self.inner_epochs(epoch)[:_MAX_TOLD])
        return f"{self.multi_epoch} epochs, {'; '.join(texts)}"

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start an epoch. An order that is given is read once, in the first of the inner epochs."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._forget()
        if epoch is None or seq_list is not None or seq_order is not None:
            first = None if epoch is None else self.inner_epochs(epoch)[0]
            self.inner.start_given(first, seq_list, seq_order)
            if epoch is None and seq_list is None and seq_order is None:
                self._num_seqs = 0
                return True
            self._segments = [Segment(None, 0)]
            self._current, self._version = self._segments[0], self.inner.order_version
            if self._is_ordered:
                self._orders, self._counts = [self.inner.get_current_seq_order()], [self.inner.get_occurrences()]
                self._num_seqs = len(self._orders[0])
            return True
        if not self._is_ordered:
            self._coming = list(self.inner_epochs(epoch))
            return True
        start = 0
        for number in self.inner_epochs(epoch):
            self.inner.init_seq_order(number)
            order = self.inner.get_checked_seq_order()
            if len(order) * self.multi_epoch > _MAX_SEQS:
                raise ConfigError(
                    f"multi_epoch={self.multi_epoch} times {len(order):,} sequences are too many: their order is in "
                    "memory",
                    where=f"dataset {self.name!r}, epoch {epoch}",
                    fix="lower multi_epoch; an epoch may end sooner",
                )
            self._orders.append(order)
            self._counts.append(self.inner.get_occurrences())
            self._segments.append(Segment(number, start))
            start += len(order)
        self._num_seqs = start
        return True

    def init_part(
        self, epoch: int, first: int, indices: NDArray[np.int64], occurrences: NDArray[np.int64] | None = None
    ) -> int:
        """Start a part of an epoch under its own places; `occurrences` are those of `get_occurrences`."""
        super().init_seq_order(epoch)
        self._forget()
        indices = check_indices(indices, 2**62, f"dataset {self.name!r}")
        codes = np.zeros(len(indices), np.int64) if occurrences is None else np.asarray(occurrences)
        passes, counts = codes % self.multi_epoch, codes // self.multi_epoch
        ends = np.flatnonzero(np.diff(passes)) + 1
        for start, stop in itertools.pairwise([0, *ends.tolist(), len(indices)]):
            if start < stop:
                number = self.inner_epochs(epoch)[int(passes[start])]
                own = counts[start:stop] if counts[start:stop].any() else None
                self._segments.append(Segment(number, first + start, indices[start:stop], own))
        self._orders, self._codes = [ArrayOrder(indices, may_repeat=occurrences is not None)], occurrences
        self._num_seqs = first + len(indices)
        return first

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order, if the inner dataset tells them."""
        if not self._is_ordered:
            self._not_offered("get_current_seq_order")
        return ChainedOrder(self._orders)

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return, for each sequence of the current order, (times that it came before in its inner epoch) M + pass."""
        if not self._orders or not self._counts:
            return self._codes
        codes = []
        for number, (order, counts) in enumerate(zip(self._orders, self._counts, strict=True)):
            if counts is None:  # nothing inside draws, but who reads it may
                counts = occurrences(order) if order.may_repeat else np.zeros(len(order), np.int64)
            codes.append(counts * self.multi_epoch + number)
        return np.concatenate(codes)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, also inside."""
        super().finish_epoch(free_resources=free_resources)
        self._forget()

    # --- reading ---

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        place = self._inner_place(seq_idx)
        if place is None:
            return None
        self.inner.load_seqs(place, place + 1)
        seq = self.inner.get_seq(place)
        return DatasetSeq.made_of(seq_idx, seq.features, seq.seq_tag, None, seq.corpus_idx)

    def _inner_place(self, seq_idx: int) -> int | None:
        """Return the place of a sequence in the inner dataset, started with its epoch; `None` behind the end."""
        if self._num_seqs is not None:
            if seq_idx >= self._num_seqs:
                return None
            number = bisect_right(self._segments, seq_idx, key=lambda segment: segment.start) - 1
            self._begin(self._segments[number])
            return seq_idx + self._shift
        while True:
            if self._segments:
                self._begin(self._segments[-1])
                if self.inner.is_less_than_num_seqs(seq_idx + self._shift):
                    return seq_idx + self._shift
            if not self._coming:
                return None
            self._segments.append(Segment(self._coming.pop(0), seq_idx))

    def _begin(self, segment: Segment) -> None:
        if segment is self._current:
            if self._version == self.inner.order_version:
                return
            if segment.epoch is None:
                raise taken_away(self.inner, self)
        place = 0
        if segment.indices is not None:
            assert segment.epoch is not None
            place = self.inner.init_part(segment.epoch, segment.start, segment.indices, segment.occurrences)
        elif segment.epoch is not None:
            self.inner.init_seq_order(segment.epoch)
        self._current, self._shift, self._version = segment, place - segment.start, self.inner.order_version

    # --- how much there is, layout ---

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known."""
        return self._is_ordered

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the place in the corpus of a sequence of the current order."""
        first = self._segments[0].start if self._segments else 0  # of a part of an epoch
        return self.get_current_seq_order()[seq_idx - first]

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch. Reads it where the inner dataset would."""
        if self._num_seqs is None:
            self._not_offered("get_num_timesteps")
        total = NumbersDict(0)
        for segment in self._segments:
            self._begin(segment)
            total += self.inner.get_num_timesteps()
        return total


class ChainedOrder(Order):
    """Several orders, one after the other.

    Args:
        orders: They may hold the same indices.
    """

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = list(orders)
        self._ends = list(itertools.accumulate(map(len, orders)))
        self._positions = range(self._ends[-1] if self._ends else 0)
        self.may_repeat = len(orders) > 1 or any(order.may_repeat for order in orders)
        self.num_filtered = sum_filtered(self._orders)

    def __len__(self) -> int:
        return len(self._positions)

    def block(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return positions start..stop as `int64[n]`."""
        part, blocks = self._positions[start:stop], [np.zeros(0, np.int64)]
        begin = 0
        for order, end in zip(self._orders, self._ends, strict=True):
            low, high = max(part.start, begin), min(part.stop, end)
            if low < high:
                blocks.append(order.block(low - begin, high - begin))
            begin = end
        return blocks[1] if len(blocks) == 2 else np.concatenate(blocks)

    def slice(self, start: int, stop: int) -> ChainedOrder:
        """Return positions start..stop as an order."""
        part = ChainedOrder(self._orders)
        part.num_filtered = None
        part._positions = self._positions[start:stop]
        return part
