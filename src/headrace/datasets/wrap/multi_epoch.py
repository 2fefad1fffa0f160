"""`MultiEpochDataset`: several epochs of another dataset as one.

If the inner dataset knows its corpus, an epoch is the orders of its epochs, one after the other. The inner
epoch of a sequence, and how often the sequence came before in it, are encoded in one number, so that every reader of a
part of an epoch reads the same. Otherwise it is a stream, read from its start on.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, check_count
from headrace.order import ArrayOrder, Order, occurrences

from ..configs import DatasetConfig
from ..corpus import Corpus, InnerCorpus, LengthsOf
from ..parts import check_no_cycle, open_corpus
from ..reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest
from ..seq import DatasetSeq
from .inner import InnerDataset, inherited_options, outer_options

_MAX_EPOCHS = 1_000_000  # more are a mistake, most likely
_MAX_TOLD = 10_000  # whose recipes are told one by one
_MAX_SEQS = 2**31  # of an epoch: 16 GiB for their order


class EpochsCorpus(InnerCorpus):
    """M epochs of another corpus in a row, if that is indexed; else a stream.

    Args:
        name: See `Corpus`.
        inner: The other corpus.
        multi_epoch: M.
    """

    is_indexed = False

    def __init__(self, name: str, inner: Corpus, multi_epoch: int) -> None:
        super().__init__(name, inner)
        self._multi_epoch = multi_epoch

    def knows_order(self) -> bool:
        """Whether the inner corpus is indexed."""
        return self.inner.is_indexed

    @property
    def draws_by_occurrence(self) -> bool:
        """Always: it tells the inner epoch."""
        return self.inner.is_indexed

    @property
    def can_jump(self) -> bool:  # type: ignore[override]
        """Whether the inner corpus can, and the order is known."""
        return self.inner.is_indexed and self.inner.can_jump

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:
        """Return the lengths in an epoch, also where they may be others in each epoch of the inner corpus."""
        inner, numbers = self.inner, inner_epochs(self._multi_epoch, epoch or 1)
        if not inner.is_indexed:
            return None
        if inner.has_fixed_lengths:
            return inner.lengths(key, may_cost)
        if not may_cost or len(numbers) > _MAX_TOLD:
            return None
        columns = [inner.lengths(key, True, number) for number in numbers]

        def lengths_of(indices: NDArray[np.int64]) -> NDArray[Any]:
            first, *others = [column(indices) for column in columns if column is not None]
            for number, other in zip(numbers[1:], others, strict=True):
                if not np.array_equal(first, other):
                    raise ConfigError(
                        f"a sequence of {inner.kind} has another length in epoch {number} than in epoch "
                        f"{numbers[0]}, and both are read in one epoch",
                        where=f"dataset {self.name!r}, epoch {epoch}",
                        fix="use FixedCount(n), or a multi_epoch of 1",
                    )
            return first

        return None if None in columns else lengths_of

    def requests(self, epoch: int | None, given: GivenOrder | None = None) -> list[ReadRequest]:
        """Return what is read of which inner epoch. An order that is given is read once, in the first of them."""
        inner, numbers = self.inner, range(0) if epoch is None else inner_epochs(self._multi_epoch, epoch)
        if epoch is None or given is not None:
            first = numbers[0] if numbers else None
            return [ReadRequest(first, *inner.order(first, given), 0)]
        requests = []
        for number in numbers:
            order, counted = inner.order(number, counts=True)
            if len(order) * self._multi_epoch > _MAX_SEQS:
                raise ConfigError(
                    f"multi_epoch={self._multi_epoch} times {len(order):,} sequences are too many: their order is in "
                    "memory",
                    where=f"dataset {self.name!r}, epoch {epoch}",
                    fix="lower multi_epoch; an epoch may end sooner",
                )
            requests.append(ReadRequest(number, order, counted, 0))
        return requests

    def order(self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False) -> CountedOrder:
        """Return the orders of the inner epochs; and for each sequence a code of its epoch.

        It is (times that it came before in its inner epoch) M + number of that epoch.
        """
        del counts  # which epoch a sequence is of is always told
        if not self.inner.is_indexed:
            self._not_offered("the order of an epoch")
        codes = [np.zeros(0, np.int64)]
        requests = self.requests(epoch, given)
        for wanted in requests:
            # nothing inside may draw, but who reads it may
            counted = occurrences(wanted.order) if wanted.occurrences is None else wanted.occurrences
            codes.append(counted * self._multi_epoch + ((wanted.epoch or 1) - 1) % self._multi_epoch)
        return _chained(requests), np.concatenate(codes)

    def reader(self) -> Reader:
        """Return a reader of the inner corpus that goes from epoch to epoch."""
        return EpochsReader(self.inner.reader(), self._multi_epoch)

    def epochs(self, epoch: int | None, given: GivenOrder | None) -> Iterator[DatasetSeq]:
        """Read the epochs of an inner corpus that has no order for a reader to ask for."""
        numbers = range(0) if epoch is None else inner_epochs(self._multi_epoch, epoch)
        if given is not None:
            yield from self.inner.stream(numbers[0] if numbers else None, given)
            return
        for number in numbers:
            yield from self.inner.stream(number)

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner epochs, each of them: a function may give each another order, or corpus."""
        numbers = inner_epochs(self._multi_epoch, epoch)[:_MAX_TOLD]
        return f"{self._multi_epoch} epochs, {'; '.join(dict.fromkeys(map(self.inner.order_text, numbers)))}"

    def reading_text(self, epoch: int) -> str:
        """Return what decides what sequences hold in the inner epochs."""
        numbers = inner_epochs(self._multi_epoch, epoch)[:_MAX_TOLD]
        return f"{self._multi_epoch} epochs, {'; '.join(dict.fromkeys(map(self.inner.reading_text, numbers)))}"


class MultiEpochDataset(InnerDataset):
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

    def __init__(self, *, dataset: DatasetConfig, multi_epoch: int, **kwargs: Any) -> None:
        super().__init__(**outer_options(kwargs, type(self).__name__))
        check_no_cycle(dataset)
        self.multi_epoch = check_count("multi_epoch", multi_epoch, minimum=1, maximum=_MAX_EPOCHS)
        inherited = inherited_options(kwargs, f"{type(self).__name__} {kwargs.get('name') or ''}")
        inner = open_corpus(dataset, inherited, owner=self)
        self.shuffle_frames_of_nseqs = inner.group
        self._set_corpus(EpochsCorpus(self.name, inner, self.multi_epoch))

    def _start_stream(self, epoch: int | None, given: GivenOrder | None) -> None:
        corpus = self._read
        assert isinstance(corpus, EpochsCorpus)
        self._seqs, self._position = corpus.epochs(epoch, given), 0

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if self._seqs is None:
            return super()._collect_single_seq(seq_idx)
        seq = next(itertools.islice(self._seqs, seq_idx - self._position, None), None)
        self._position = seq_idx + 1
        return None if seq is None else DatasetSeq.made_of(seq_idx, seq.features, seq.seq_tag, None, seq.corpus_idx)


def inner_epochs(multi_epoch: int, epoch: int) -> range:
    """Return the inner epochs of an epoch."""
    first = (max(epoch, 1) - 1) * multi_epoch + 1
    return range(first, first + multi_epoch)


def _cut(multi_epoch: int, wanted: ReadRequest) -> list[ReadRequest]:
    """Return what is read of which inner epoch, for sequences with the numbers that tell their epochs."""
    if wanted.epoch is None:
        return [wanted]
    indices, epochs = wanted.indices, inner_epochs(multi_epoch, wanted.epoch)
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
        self._take([])

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self._take(_cut(self._multi_epoch, wanted))

    def _take(self, requests: list[ReadRequest]) -> None:
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
