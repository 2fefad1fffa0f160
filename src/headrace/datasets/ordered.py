"""`OrderedDataset`: the epoch API of datasets that know their order, as an order and a reader.

A sub-class says the order of an epoch and makes the reader (`_new_reader`). A position of the order is then a number of
what the reader was asked for. Invariant: the reader is this object's own, and reads nothing before it is asked.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.index import CorpusIndex
from headrace.order import ArrayOrder, Order, RangeOrder, occurrences

from .base import Dataset
from .checks import check_epoch, check_indices, check_tags, is_of_headrace
from .corpus import Corpus
from .reading.loaded import OrderCursor
from .reading.reader import CountedOrder, Features, GivenOrder, Reader, ReadRequest
from .seq import DatasetSeq, count_frames


class OrderedDataset(Dataset):
    """A dataset whose sequences are those of an index."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._has_user_keys = not all(is_of_headrace(getattr(type(self), way)) for way in ("get_data", "get_tag"))
        self._take_order(RangeOrder(range(0)))

    def _take_order(
        self,
        order: Order,
        first: int = 0,
        *,
        count: Callable[[], NDArray[np.int64]] | None = None,
        is_whole: bool = False,
    ) -> None:
        """Take the order of an epoch, or of a part of one.

        Args:
            order: Corpus indices.
            first: The position of the first one.
            count: Returns how often each sequence came before, `int64[n]`; `None`: it is counted in this order.
            is_whole: Whether it is the order that this dataset gives an epoch.
        """
        self._cursor = OrderCursor(order, first)
        self._order_epoch = self._epoch  # which `finish_epoch` forgets
        self._count = partial(occurrences, order) if count is None else count
        self._counted: NDArray[np.int64] | None = None
        self._order_is_whole = is_whole
        self._forget_reader()

    def _forget_reader(self) -> None:
        self._started_reader: Reader | None = None
        # By position: each array is handed out once, and then is its reader's. One that was asked for alone is dropped
        # with the next, so that memory does not grow with random access.
        self._loaded: OrderedDict[int, Features] = OrderedDict()
        self._alone = -1

    @property
    @abstractmethod
    def _corpus_index(self) -> CorpusIndex:
        """Tags and lengths by corpus index."""

    @abstractmethod
    def _num_stored(self) -> int:
        """Return how many sequences the corpus has, before any filter; builds no index where it need not."""

    @property
    def _order_reader(self) -> Reader:
        """What reads the current order."""
        reader = self._started_reader
        if reader is None:
            reader = self._new_reader()
            reader.start(self._order_request())
            self._started_reader = reader
        return reader

    def _order_request(self) -> ReadRequest:
        order = self._cursor.order
        draws = order.may_repeat and self.get_corpus().draws_by_occurrence
        counted = self.count_occurrences() if draws else None
        return ReadRequest(self._order_epoch, order, counted, self._cursor.first, is_whole=self._order_is_whole)

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`. Reads no data."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._take_order(RangeOrder(range(0)))  # if there is no other one: an error is no reason to read on
        given = GivenOrder.of(seq_list, seq_order)
        order, count = self._plan(epoch, given)
        self._take_order(order, count=count, is_whole=given is None and epoch is not None)
        return True

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> tuple[Order, Callable[[], NDArray[np.int64]]]:
        """Return an order, and what counts how often each sequence came before; touches nothing of the current epoch.

        It is what is given, or else that of the epoch; `None`: an empty one.
        """
        if given is not None and given.seq_list is not None:
            order: Order = ArrayOrder(self._corpus_index.find_tags(check_tags(given.seq_list)))
        elif given is not None and given.seq_order is not None:
            order = self._explicit_order(given.seq_order, self._num_stored())
        elif epoch is not None:
            order = self._order_of_epoch(epoch)
            return order, self._counter(epoch, order)
        else:
            order = RangeOrder(range(0))
        return order, partial(occurrences, order)

    def _counter(self, epoch: int, order: Order) -> Callable[[], NDArray[np.int64]]:
        """Return what counts how often each sequence of the order of an epoch, just made, came before."""
        return self._planner.counter(epoch) if self._plans_order else partial(occurrences, order)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        self._check_shard()
        order, count = self._plan(check_epoch(epoch), given)
        draws = order.may_repeat and (counts or self.get_corpus().draws_by_occurrence)
        return order, count() if draws else None

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, under their own positions."""
        super().init_seq_order(wanted.epoch)
        order, first = wanted.order, wanted.first or 0
        if isinstance(order, ArrayOrder):
            check_indices(wanted.indices, self._num_stored(), f"dataset {self.name!r}")
        counted = wanted.occurrences
        self._take_order(order, first, count=None if counted is None else lambda: counted)
        return first

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        if self._counted is None:
            self._counted = self._count()
        return self._counted

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        self._forget_reader()
        if free_resources:
            self._take_order(RangeOrder(range(0)))
            self._file_lengths = None

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        return self._cursor.order

    def supports_sharding(self) -> bool:
        """Any shard of any order: yes."""
        return True

    def _keep_mask(self) -> NDArray[np.bool_]:
        if self._keep is None:
            self._keep = super()._keep_mask()
        return self._keep

    def _first_of_tag(self) -> NDArray[np.int64]:
        return self._corpus_index.tag_groups()

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter."""
        return self._corpus_index.tags

    def get_total_num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002 (fast but for joins and filters)
        """Return the number of sequences of the whole corpus, without those that a filter drops."""
        kept = self._kept()
        return self._num_stored() if kept is None else int(np.count_nonzero(kept))

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, without those that a filter drops; they may live on disk."""
        kept, tags = self._kept(), self._corpus_index.tags
        return tags if kept is None else tags.take(np.flatnonzero(kept))

    # --- reading ---

    def _corpus_idx(self, seq_idx: int) -> int:
        try:
            return self._cursor[seq_idx]
        except IndexError as error:
            hint = "" if self._cursor.stop else "; has init_seq_order(epoch=...) been called?"
            raise IndexError(f"{error} (dataset {self.name!r}, epoch {int(self.epoch) or None}{hint})") from None

    def _number(self, seq_idx: int) -> int:
        """Return the number of a sequence for the reader.

        Raises:
            IndexError: It is outside of the epoch; said before anything is read.
        """
        self._corpus_idx(seq_idx)
        return seq_idx - self._cursor.first

    @abstractmethod
    def _check_key(self, key: str) -> None:
        """Raise a `ConfigError` with those that there are, if there is no such data key."""

    def load_seqs(self, start: int, end: int) -> None:
        """Read sequences start..end (exclusive; may exceed the epoch); drop those before `start`."""
        first, loaded = self._cursor.first, self._loaded
        if not start <= self._alone < end:
            loaded.pop(self._alone, None)
        while loaded and next(iter(loaded)) < start:
            loaded.popitem(last=False)
        for seq_idx in range(max(start, first), min(end, self._cursor.stop)):
            if seq_idx not in loaded:
                loaded[seq_idx] = (self._started_reader or self._order_reader).features(seq_idx - first)

    def _load_alone(self, seq_idx: int, number: int) -> Features:
        """Read a sequence that is not loaded as a whole; keep it until another one is asked for alone."""
        if seq_idx not in self._loaded:
            self._loaded.pop(self._alone, None)
            self._alone = seq_idx
        features = self._loaded[seq_idx] = self._order_reader.features(number)
        return features

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`. It is the caller's own: asked again, it is read again.

        That of a part without random access is not read again: until the next sequence it comes again as it is.
        """
        features = self._loaded.get(seq_idx)
        if features is None or key not in features:
            self._check_key(key)
            number, reader = self._number(seq_idx), self._order_reader
            if reader.reads_by_key():
                return reader.array(number, key)
            features = self._load_alone(seq_idx, number)
        assert self._started_reader is not None
        return features[key] if self._started_reader.is_sequential else features.pop(key)

    def get_data_slice(self, seq_idx: int, key: str, start_frame: int, end_frame: int) -> NDArray[Any]:
        """Return frames start..end (exclusive; what lies after the last frame is left out) of one data key.

        Where the source can, the other frames are not read.

        Raises:
            IndexError: A frame is negative, or the end lies before the start.
        """
        self._check_key(key)
        if not 0 <= start_frame <= end_frame:
            where = f"sequence {seq_idx} of dataset {self.name!r}"
            raise IndexError(f"frames {start_frame}..{end_frame} of {key!r}, {where}")
        features = self._loaded.get(seq_idx)
        if features is not None and key in features:
            return features[key][start_frame:end_frame].copy()
        if self._has_user_keys or not self._order_reader.reads_by_key():
            return self.get_data(seq_idx, key)[start_frame:end_frame]
        return self._order_reader.frames(self._number(seq_idx), key, start_frame, end_frame)

    def get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one sequence with all of its data keys."""
        corpus_idx = self._corpus_idx(seq_idx)
        frac = self.get_complete_frac(seq_idx)
        if self._has_user_keys:
            data = {key: self.get_data(seq_idx, key) for key in self.get_data_keys()}
            tag = self.get_tag(seq_idx)
            return DatasetSeq(seq_idx, data, seq_tag=tag, complete_frac=frac, corpus_idx=corpus_idx)
        reader = self._order_reader
        features = self._loaded.get(seq_idx)
        if features is None or len(features) < len(self.get_data_keys()):
            features = reader.features(seq_idx - self._cursor.first)
        elif reader.is_sequential:
            features = dict(features)  # it may be asked for again, and cannot be read again
        else:
            self._loaded[seq_idx] = {}
        return DatasetSeq.made_of(seq_idx, features, self.get_tag(seq_idx), frac, corpus_idx)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence if they are not known, or may be others."""
        number = self._number(seq_idx)
        known = self._order_reader.known_frames(number)
        if known is None:
            features = self._loaded.get(seq_idx)
            if features is None or len(features) < len(self.get_data_keys()):
                features = self._load_alone(seq_idx, number)
            known = NumbersDict({key: count_frames(array) for key, array in features.items()})
        return known

    def _sort_lengths(self) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by."""
        self._not_offered("lengths to sort by")

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that sequences are sorted by."""
        corpus_idx = self._corpus_idx(seq_idx)
        lengths = self._lengths_of_file() if self.seq_order_seq_lens_file is not None else self._sort_lengths()
        return lengths[corpus_idx].item()  # type: ignore[no-any-return]

    def get_num_timesteps(self) -> int | NumbersDict:
        """Return data key -> number of frames of the current epoch; from the index, where that tells them.

        As in RETURNN, an `HDFDataset`, or one over it that it controls, returns an int instead: the number of frames of
        the first data key in all files, whatever the epoch.
        """
        stored = self.stored_counts()
        if stored is not None:
            return stored.num_frames
        known = sum_lengths(self.get_corpus(), self.get_data_keys(), self._cursor.order)
        return super().get_num_timesteps() if known is None else known

    def have_corpus_seq_idx(self) -> bool:
        """Yes."""
        return True

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self._corpus_idx(seq_idx)

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch."""
        return self._cursor.stop


def sum_lengths(corpus: Corpus, data_keys: Sequence[str], order: Order) -> NumbersDict | None:
    """Return data key -> number of frames of all sequences of an order, `None` if some would have to be read."""
    lengths_of = {key: None if corpus.may_change_lengths else corpus.lengths(key, False) for key in data_keys}
    indices = order.block(0, len(order))
    sums = {key: int(of(indices).sum(dtype=np.int64)) for key, of in lengths_of.items() if of is not None}
    return NumbersDict(sums) if len(sums) == len(lengths_of) else None
