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
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, check_count
from headrace.order import ArrayOrder, Order, occurrences

from ..base import Dataset, Owned
from ..cached2 import CachedDataset2
from ..checks import check_epoch
from ..configs import DatasetConfig
from ..corpus import Corpus, LengthsOf
from ..delegating import InnerAnswers, inherited_options, outer_options
from ..ordered import sum_lengths
from ..parts import check_no_cycle, open_part, taken_away
from ..reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq

_MAX_EPOCHS = 1_000_000  # more are a mistake, most likely
_MAX_TOLD = 10_000  # whose recipes are told one by one
_NOT_STARTED = -1
_MAX_SEQS = 2**31  # of an epoch: 16 GiB for their order


@dataclass(frozen=True, eq=False)
class Segment:
    """Neighbours in one epoch of the inner dataset.

    Attributes:
        start: The number of the first one.
        wanted: What is asked of the inner dataset.
    """

    start: int
    wanted: ReadRequest


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
            self.inner.answer_alone()
        self._forget()
        if type(self).__init__ is MultiEpochDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = ((), {**kwargs, "dataset": Owned(self.inner), "multi_epoch": self.multi_epoch})

    def _forget(self) -> None:
        self._segments: list[Segment] = []  # of the current order
        self._first = 0  # its first position
        self._order: Order | None = None  # all of it, once somebody asks
        self._order_reader: EpochsReader | None = None
        self._stream = StreamedEpochs(self.inner, iter(()))

    def inner_epochs(self, epoch: int) -> range:
        """Return the epochs of the inner dataset that an epoch consists of."""
        return _inner_epochs(self.multi_epoch, epoch)

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
        numbers = self.inner_epochs(epoch or 1)
        if not may_cost or not self._is_ordered or len(numbers) > _MAX_TOLD:
            return None
        columns = [self.inner.get_corpus(number).lengths(key, True) for number in numbers]
        found = [column for column in columns if column is not None]

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[Any]:
            first, *others = [column(indices) for column in found]
            for number, other in zip(numbers[1:], others, strict=True):
                if not np.array_equal(first, other):
                    raise ConfigError(
                        f"a sequence of {type(self.inner).__name__} has another length in epoch {number} than in epoch "
                        f"{numbers[0]}, and both are read in one epoch",
                        where=f"dataset {self.name!r}, epoch {epoch}",
                        fix="use FixedCount(n), or a multi_epoch of 1",
                    )
            return first

        return lengths_of if len(found) == len(columns) else None

    @property
    def supports_jumps(self) -> bool:
        """Whether the inner dataset supports it, and the order is known."""
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
        given = GivenOrder.of(seq_list, seq_order)
        if epoch is None and given is None:
            self._num_seqs = 0
        elif self._is_ordered:
            self._take(self._plan(epoch, given))
        elif given is not None:
            self.inner.start_given(None if epoch is None else self.inner_epochs(epoch)[0], given)
            self._stream = StreamedEpochs(self.inner, iter(()), is_started=True)
        elif epoch is not None:
            self._stream = StreamedEpochs(self.inner, iter(self.inner_epochs(epoch)))
        return True

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> list[Segment]:
        """Return what is read of which inner epoch; touches nothing of the current epoch."""
        inner = self.inner
        if epoch is None or given is not None:
            first = None if epoch is None else self.inner_epochs(epoch)[0]
            order, counted = inner.get_epoch_order(first, given)
            return [Segment(0, ReadRequest(first, order, counted, 0))]
        segments, start = [], 0
        for number in self.inner_epochs(epoch):
            order, counted = inner.get_epoch_order(number, counts=True)
            if len(order) * self.multi_epoch > _MAX_SEQS:
                raise ConfigError(
                    f"multi_epoch={self.multi_epoch} times {len(order):,} sequences are too many: their order is in "
                    "memory",
                    where=f"dataset {self.name!r}, epoch {epoch}",
                    fix="lower multi_epoch; an epoch may end sooner",
                )
            segments.append(Segment(start, ReadRequest(number, order, counted, 0, is_whole=True)))
            start += len(order)
        return segments

    def _take(self, segments: list[Segment], first: int = 0) -> None:
        """Take what is read in the current epoch, from a position on."""
        self._segments, self._first, self._order = segments, first, None
        self._num_seqs = first + _num_seqs_of(segments)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        del counts  # which epoch a sequence is of is always told
        if not self._is_ordered:
            self._not_offered("the order of an epoch")
        self._check_shard()
        segments = self._plan(check_epoch(epoch), given)
        return _chained(segments), self._codes(segments)

    def _codes(self, segments: Sequence[Segment]) -> NDArray[np.int64]:
        """Return, for each sequence, (times that it came before in its inner epoch) M + number of that epoch."""
        codes = [np.zeros(0, np.int64)]
        for wanted in (segment.wanted for segment in segments):
            # nothing inside may draw, but who reads it may
            counts = occurrences(wanted.order) if wanted.occurrences is None else wanted.occurrences
            codes.append(counts * self.multi_epoch + ((wanted.epoch or 1) - 1) % self.multi_epoch)
        return np.concatenate(codes)

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, under their own positions."""
        if not self._is_ordered:
            return super().start_part(wanted)
        super().init_seq_order(wanted.epoch)
        self._forget()
        self._take(_cut(self.multi_epoch, wanted), wanted.first or 0)
        return self._first

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order, if the inner dataset tells them."""
        if not self._is_ordered:
            self._not_offered("get_current_seq_order")
        if self._order is None:
            self._order = _chained(self._segments)
        return self._order

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return a code of the inner epoch of each sequence of the current order, `int64[n]`, see `_codes`."""
        return self._codes(self._segments)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, also inside."""
        super().finish_epoch(free_resources=free_resources)
        self._forget()

    # --- reading ---

    def _new_reader(self) -> Reader:
        return EpochsReader(self.inner.make_reader(), self.multi_epoch) if self._is_ordered else super()._new_reader()

    def _open_reader(self) -> EpochsReader:
        """Return what reads the current order."""
        if self._order_reader is None:
            self._order_reader = EpochsReader(self.inner.make_reader(), self.multi_epoch)
            self._order_reader.start_segments(self._segments)
        return self._order_reader

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if not self._is_ordered:
            seq = self._stream.read(seq_idx)
        else:
            number = seq_idx - self._first
            seq = self._open_reader().read(number) if 0 <= number < _num_seqs_of(self._segments) else None
        return None if seq is None else DatasetSeq.made_of(seq_idx, seq.features, seq.seq_tag, None, seq.corpus_idx)

    # --- how much there is, layout ---

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known."""
        return self._is_ordered

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self.get_current_seq_order()[seq_idx - self._first]

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch. Reads it where the inner dataset would."""
        if self._num_seqs is None or not self._is_ordered:
            self._not_offered("get_num_timesteps")
        corpus = self.inner.get_corpus()
        known = sum_lengths(corpus, self.get_data_keys(), self.get_current_seq_order())
        if known is not None and corpus.has_fixed_lengths:
            return known
        numbers = range(_num_seqs_of(self._segments))
        return sum(map(self._open_reader().num_frames, numbers), NumbersDict(0))


def _inner_epochs(multi_epoch: int, epoch: int) -> range:
    first = (max(epoch, 1) - 1) * multi_epoch + 1
    return range(first, first + multi_epoch)


def _cut(multi_epoch: int, wanted: ReadRequest) -> list[Segment]:
    """Return what is read of which inner epoch, for sequences with the numbers that tell their epochs."""
    if wanted.epoch is None:
        return [Segment(0, wanted)]
    indices, epochs = wanted.indices, _inner_epochs(multi_epoch, wanted.epoch)
    codes = np.zeros(len(indices), np.int64) if wanted.occurrences is None else np.asarray(wanted.occurrences)
    passes, counts = codes % multi_epoch, codes // multi_epoch
    ends = np.flatnonzero(np.diff(passes)) + 1
    segments = []
    for start, stop in itertools.pairwise([0, *ends.tolist(), len(indices)]):
        if start < stop:
            own = counts[start:stop] if counts[start:stop].any() else None
            first = None if wanted.first is None else wanted.first + start
            segments.append(Segment(start, ReadRequest.of(epochs[int(passes[start])], indices[start:stop], own, first)))
    return segments


def _chained(segments: Sequence[Segment]) -> Order:
    orders = [segment.wanted.order for segment in segments]
    return orders[0] if len(orders) == 1 else ArrayOrder(np.concatenate([np.zeros(0, np.int64), *orders]))


def _num_seqs_of(segments: Sequence[Segment]) -> int:
    return segments[-1].start + len(segments[-1].wanted.order) if segments else 0


class EpochsReader(Reader):
    """Reads sequences of several epochs of a dataset; each segment of neighbours is started when it is reached.

    Args:
        inner: Reads the dataset.
        multi_epoch: How many epochs of it are one.
    """

    is_sequential = False

    def __init__(self, inner: Reader, multi_epoch: int) -> None:
        self._inner, self._multi_epoch = inner, multi_epoch
        self.gives_own = inner.gives_own
        self.start_segments([])

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self.start_segments(_cut(self._multi_epoch, wanted))

    def start_segments(self, segments: list[Segment]) -> None:
        """Set the sequences to read next."""
        self._segments = segments
        self._current: Segment | None = None

    def _at(self, number: int) -> tuple[Reader, int]:
        segment = self._segments[bisect_right(self._segments, number, key=lambda segment: segment.start) - 1]
        if segment is not self._current:
            self._inner.start(segment.wanted)
            self._current = segment
        return self._inner, number - segment.start

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence."""
        reader, own = self._at(number)
        return reader.read(own)

    def tag(self, number: int) -> str | None:
        """Ask the reader of the sequence."""
        reader, own = self._at(number)
        return reader.tag(own)

    def features(self, number: int) -> Features:
        """Read all data keys."""
        reader, own = self._at(number)
        return reader.features(own)

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Read one data key."""
        reader, own = self._at(number)
        return reader.array(own, key)

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Read some frames."""
        reader, own = self._at(number)
        return reader.frames(own, key, start, stop)

    def whole(self, number: int, key: str) -> NDArray[Any]:
        """Read one data key."""
        reader, own = self._at(number)
        return reader.whole(own, key)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the reader of the sequence."""
        reader, own = self._at(number)
        return reader.sliced_frames(own)

    def known_frames(self, number: int) -> NumbersDict | None:
        """Ask the reader of the sequence."""
        reader, own = self._at(number)
        return reader.known_frames(own)


class StreamedEpochs:
    """Several epochs, one after the other, of a dataset that is read from the start of each to its end.

    It has no order for a reader to ask for, so it is this object's own, and positioned by it.

    Args:
        dataset: The dataset to read; nothing else reads it.
        epochs: Their numbers.
        is_started: Whether it was started with something that comes before them.
    """

    def __init__(self, dataset: Dataset, epochs: Iterator[int], *, is_started: bool = False) -> None:
        self._dataset, self._epochs = dataset, epochs
        self._epoch: int | None = None  # the current one; `None`: what was started before
        self._begins_at = 0  # its first position
        self._version = dataset.order_version if is_started else None

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Return the sequence at a position, `None` after the end. Positions rise from call to call.

        Raises:
            HeadraceError: Somebody else has started an epoch of the dataset, in which a given order was read.
        """
        dataset = self._dataset
        while True:
            if self._version is not None:
                self._start()
                if dataset.is_less_than_num_seqs(seq_idx - self._begins_at):
                    own = seq_idx - self._begins_at
                    dataset.load_seqs(own, own + 1)
                    return dataset.get_seq(own)
            epoch = next(self._epochs, None)
            if epoch is None:
                return None
            self._epoch, self._begins_at, self._version = epoch, seq_idx, _NOT_STARTED

    def _start(self) -> None:
        """Start the current epoch, unless it is: somebody else may have started another one."""
        if self._version == self._dataset.order_version:
            return
        if self._epoch is None:
            raise taken_away(self._dataset, "a MultiEpochDataset")
        self._dataset.init_seq_order(self._epoch)
        self._version = self._dataset.order_version
