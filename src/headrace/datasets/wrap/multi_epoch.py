"""`MultiEpochDataset`: several epochs of another dataset as one.

If the inner dataset knows its corpus, an epoch is the orders of its epochs, one after the other. The inner
epoch of a sequence, and how often the sequence came before in it, are encoded in one number, so that every reader of a
part of an epoch reads the same. Otherwise it is a stream, read from its start on.
"""

from __future__ import annotations

import dataclasses
import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order import ArrayOrder, Order, occurrences

from ..base import Dataset, Owned
from ..cached2 import CachedDataset2
from ..checks import check_epoch
from ..configs import DatasetConfig
from ..corpus import Corpus, LengthsOf
from ..delegating import InnerAnswers, inherited_options, outer_options
from ..foreign import EpochStream
from ..parts import check_no_cycle, open_part
from ..reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq

_MAX_EPOCHS = 1_000_000  # more are a mistake, most likely
_MAX_TOLD = 10_000  # whose recipes are told one by one
_MAX_SEQS = 2**31  # of an epoch: 16 GiB for their order


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
        if self._is_ordered:
            self.inner.foreign.answer_alone()
        if type(self).__init__ is MultiEpochDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = ((), {**kwargs, "dataset": Owned(self.inner), "multi_epoch": self.multi_epoch})

    def _reset(self) -> None:
        super()._reset()
        self._requests: list[ReadRequest] = []  # of the inner epochs of the current order
        self._first = 0  # its first position
        self._order_reader: EpochsReader | None = None
        self._seqs: Iterator[DatasetSeq] = iter(())  # of a stream
        self._position = 0  # of the next one of these

    @property
    def inner(self) -> Dataset:
        """The dataset whose epochs are read."""
        return self._inner

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the inner dataset knows; of lengths, those that are the same in all of its epochs."""
        corpus = self.inner.get_corpus()
        is_fixed = corpus.is_indexed and corpus.has_fixed_lengths
        return dataclasses.replace(
            corpus.without_index(),
            knows_order=lambda: self._is_ordered,
            lengths=corpus.lengths if is_fixed else partial(self._lengths_in, self._epoch if epoch is None else epoch),
            draws_by_occurrence=self._is_ordered,
        )

    def _lengths_in(self, epoch: int | None, key: str, may_cost: bool) -> LengthsOf | None:
        """Return the lengths in an epoch, where they may be others in each epoch of the inner dataset."""
        numbers = _inner_epochs(self.multi_epoch, epoch or 1)
        if not may_cost or not self._is_ordered or len(numbers) > _MAX_TOLD:
            return None
        columns = [self.inner.get_corpus(number).lengths(key, True) for number in numbers]

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[Any]:
            first, *others = [column(indices) for column in columns if column is not None]
            for number, other in zip(numbers[1:], others, strict=True):
                if not np.array_equal(first, other):
                    raise ConfigError(
                        f"a sequence of {type(self.inner).__name__} has another length in epoch {number} than in epoch "
                        f"{numbers[0]}, and both are read in one epoch",
                        where=f"dataset {self.name!r}, epoch {epoch}",
                        fix="use FixedCount(n), or a multi_epoch of 1",
                    )
            return first

        return None if None in columns else lengths_of

    @property
    def supports_jumps(self) -> bool:
        """Whether the inner dataset supports it, and the order is known."""
        return self._is_ordered and self.inner.supports_jumps

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner epochs, each of them: a function may give each another order, or corpus."""
        numbers = _inner_epochs(self.multi_epoch, epoch)[:_MAX_TOLD]
        return f"{self.multi_epoch} epochs, {'; '.join(dict.fromkeys(map(self.inner.order_text, numbers)))}"

    def reading_text(self, epoch: int) -> str:
        """Return what decides what sequences hold in the inner epochs."""
        numbers = _inner_epochs(self.multi_epoch, epoch)[:_MAX_TOLD]
        return f"{self.multi_epoch} epochs, {'; '.join(dict.fromkeys(map(self.inner.reading_text, numbers)))}"

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start an epoch. An order that is given is read once, in the first of the inner epochs."""
        super().init_seq_order(epoch, seq_list, seq_order)
        given = GivenOrder.of(seq_list, seq_order)
        if epoch is None and given is None:
            self._num_seqs = 0
        elif self._is_ordered:
            self._take(self._plan(epoch, given))
        else:
            self._seqs = self._stream(epoch, given)
        return True

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> list[ReadRequest]:
        """Return what is read of which inner epoch; touches nothing of the current epoch."""
        inner, numbers = self.inner, range(0) if epoch is None else _inner_epochs(self.multi_epoch, epoch)
        if epoch is None or given is not None:
            first = numbers[0] if numbers else None
            return [ReadRequest(first, *inner.get_epoch_order(first, given), 0)]
        requests = []
        for number in numbers:
            order, counted = inner.get_epoch_order(number, counts=True)
            if len(order) * self.multi_epoch > _MAX_SEQS:
                raise ConfigError(
                    f"multi_epoch={self.multi_epoch} times {len(order):,} sequences are too many: their order is in "
                    "memory",
                    where=f"dataset {self.name!r}, epoch {epoch}",
                    fix="lower multi_epoch; an epoch may end sooner",
                )
            requests.append(ReadRequest(number, order, counted, 0, is_whole=True))
        return requests

    def _take(self, requests: list[ReadRequest], first: int = 0) -> None:
        """Read these in the current epoch, from a position on."""
        self._requests, self._first = requests, first
        self._num_seqs = first + sum(len(request.order) for request in requests)
        self._order_reader = EpochsReader(self.inner.make_reader(), self.multi_epoch)
        self._order_reader.take(requests)

    def _stream(self, epoch: int | None, given: GivenOrder | None) -> Iterator[DatasetSeq]:
        """Read the epochs of an inner dataset that has no order for a reader to ask for."""
        inner, numbers = self.inner, range(0) if epoch is None else _inner_epochs(self.multi_epoch, epoch)
        if given is not None:
            inner.foreign.start_given(numbers[0] if numbers else None, given)
            yield from EpochStream(inner)
            return
        for number in numbers:
            yield from inner.make_stream(number)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        del counts  # which epoch a sequence is of is always told
        if not self._is_ordered:
            self._not_offered("the order of an epoch")
        self._check_shard()
        requests = self._plan(check_epoch(epoch), given)
        return _chained(requests), self._codes(requests)

    def _codes(self, requests: Sequence[ReadRequest]) -> NDArray[np.int64]:
        """Return, for each sequence, (times that it came before in its inner epoch) M + number of that epoch."""
        codes = [np.zeros(0, np.int64)]
        for wanted in requests:
            # nothing inside may draw, but who reads it may
            counts = occurrences(wanted.order) if wanted.occurrences is None else wanted.occurrences
            codes.append(counts * self.multi_epoch + ((wanted.epoch or 1) - 1) % self.multi_epoch)
        return np.concatenate(codes)

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, under their own positions."""
        if not self._is_ordered:
            return super().start_part(wanted)
        super().init_seq_order(wanted.epoch)
        self._take(_cut(self.multi_epoch, wanted), wanted.first or 0)
        return self._first

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order, if the inner dataset tells them."""
        if not self._is_ordered:
            self._not_offered("get_current_seq_order")
        return _chained(self._requests)

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return a code of the inner epoch of each sequence of the current order, `int64[n]`, see `_codes`."""
        return self._codes(self._requests)

    # --- reading ---

    def _new_reader(self) -> Reader:
        return EpochsReader(self.inner.make_reader(), self.multi_epoch) if self._is_ordered else super()._new_reader()

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        seq: DatasetSeq | None = None
        if self._order_reader is None:
            seq = next(itertools.islice(self._seqs, seq_idx - self._position, None), None)
            self._position = seq_idx + 1
        elif self._num_seqs is not None and self._first <= seq_idx < self._num_seqs:
            seq = self._order_reader.read(seq_idx - self._first)
        return None if seq is None else DatasetSeq.made_of(seq_idx, seq.features, seq.seq_tag, None, seq.corpus_idx)

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known."""
        return self._is_ordered

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self.get_current_seq_order()[seq_idx - self._first]


def _inner_epochs(multi_epoch: int, epoch: int) -> range:
    first = (max(epoch, 1) - 1) * multi_epoch + 1
    return range(first, first + multi_epoch)


def _cut(multi_epoch: int, wanted: ReadRequest) -> list[ReadRequest]:
    """Return what is read of which inner epoch, for sequences with the numbers that tell their epochs."""
    if wanted.epoch is None:
        return [wanted]
    indices, epochs = wanted.indices, _inner_epochs(multi_epoch, wanted.epoch)
    codes = np.zeros(len(indices), np.int64) if wanted.occurrences is None else np.asarray(wanted.occurrences)
    passes, counts = codes % multi_epoch, codes // multi_epoch
    requests = []
    for start, stop in itertools.pairwise([0, *(np.flatnonzero(np.diff(passes)) + 1).tolist(), len(indices)]):
        if start < stop:
            own = counts[start:stop] if counts[start:stop].any() else None
            first = None if wanted.first is None else wanted.first + start
            requests.append(ReadRequest.of(epochs[int(passes[start])], indices[start:stop], own, first))
    return requests


def _chained(requests: Sequence[ReadRequest]) -> Order:
    orders = [request.order for request in requests]
    return orders[0] if len(orders) == 1 else ArrayOrder(np.concatenate([np.zeros(0, np.int64), *orders]))


class EpochsReader(Reader):
    """Reads sequences of several epochs of a dataset; the request of each is started when it is reached.

    Args:
        inner: Reads the dataset.
        multi_epoch: How many epochs of it are one.
    """

    is_sequential = False

    def __init__(self, inner: Reader, multi_epoch: int) -> None:
        self._inner, self._multi_epoch = inner, multi_epoch
        self.gives_own = inner.gives_own
        self.take([])

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self.take(_cut(self._multi_epoch, wanted))

    def take(self, requests: list[ReadRequest]) -> None:
        """Set the sequences to read next, by inner epoch."""
        self._requests = requests
        self._starts = [0, *itertools.accumulate(len(request.order) for request in requests)]
        self._current = -1

    def _at(self, number: int) -> int:
        """Start the request of a sequence, unless it is the current one; return the number of the sequence in it."""
        current = bisect_right(self._starts, number) - 1
        if current != self._current:
            self._inner.start(self._requests[current])
            self._current = current
        return number - self._starts[current]

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence."""
        return self._inner.read(self._at(number))

    def tag(self, number: int) -> str | None:
        """Ask the reader of the inner dataset."""
        return self._inner.tag(self._at(number))

    def features(self, number: int) -> Features:
        """Read all data keys."""
        return self._inner.features(self._at(number))

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Read one data key."""
        return self._inner.array(self._at(number), key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Read some frames."""
        return self._inner.frames(self._at(number), key, start, stop)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the reader of the inner dataset."""
        return self._inner.sliced_frames(self._at(number))
