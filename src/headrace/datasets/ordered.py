"""`OrderedDataset`: a position in a corpus whose sequences can be read in any order.

A position of the order is a number of what a reader of the corpus was asked for. Invariant: the reader is this object's
own, and reads nothing before it is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.order import ArrayOrder, Order, RangeOrder, occurrences

from .base import Dataset
from .checks import check_indices, check_key, is_of_headrace
from .corpus import Corpus, IndexedCorpus
from .foreign import overrides_of
from .reading.loaded import OrderCursor
from .reading.reader import Features, GivenOrder, Reader, ReadRequest
from .seq import DatasetSeq, count_frames

_TAG_BLOCK = 256  # tags decoded at a time: alone, each takes ten times as long
_NOTHING = ReadRequest(None, RangeOrder(range(0)))


class OrderedDataset(Dataset):
    """A dataset whose sequences are those of an index."""

    gives_own = True
    supports_jumps = True
    _of_epoch = Dataset._of_epoch | {"_cursor", "_reader", "_loaded", "_alone", "_tag_start", "_tag_block"}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._has_user_keys = not all(is_of_headrace(getattr(type(self), way)) for way in ("get_data", "get_tag"))
        self._take(_NOTHING)

    def _begin(self) -> None:
        super()._begin()
        self._take(_NOTHING)

    def _set_corpus(self, corpus: Corpus) -> None:
        super()._set_corpus(corpus)
        self._take(_NOTHING)

    def _take(self, wanted: ReadRequest) -> None:
        """Read this in the current epoch."""
        self._request = wanted
        self._cursor = OrderCursor(wanted.order, wanted.first or 0)
        self._tag_start, self._tag_block = 0, list[str]()
        self._forget_reader()

    def _forget_reader(self) -> None:
        self._reader: Reader | None = None
        # By position: each array is handed out once, and then is its reader's. One that was asked for alone is dropped
        # with the next, so that memory does not grow with random access.
        self._loaded: OrderedDict[int, Features] = OrderedDict()
        self._alone = -1

    @property
    def _order_reader(self) -> Reader:
        """What reads the current order."""
        reader = self._reader
        if reader is None:
            assert self._request is not None
            reader = self._read.reader()
            reader.start(self._request)
            self._reader = reader
        return reader

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`. Reads no data."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._take(_NOTHING)  # if there is no other one: an error is no reason to read on
        given = GivenOrder.of(seq_list, seq_order)
        if epoch is not None or given is not None:
            self._take(self._plan(epoch, given))
        return True

    def _plan(self, epoch: int | None, given: GivenOrder | None) -> ReadRequest:
        if epoch is None or given is not None or is_of_headrace(type(self).get_seq_order_for_epoch):
            return super()._plan(epoch, given)
        num_seqs = self._read.size() or 0
        indices = check_indices(self.get_seq_order_for_epoch(epoch, num_seqs), num_seqs, f"dataset {self.name!r}")
        order = ArrayOrder(indices)
        draws = order.may_repeat and self._read.draws_by_occurrence
        return ReadRequest(epoch, order, occurrences(order) if draws else None, 0)

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences, under their own positions."""
        super().init_seq_order(wanted.epoch)
        if isinstance(wanted.order, ArrayOrder):
            check_indices(wanted.indices, self._read.size() or 0, f"dataset {self.name!r}")
        self._take(wanted)
        return wanted.first or 0

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        self._forget_reader()
        if free_resources:
            self._take(_NOTHING)

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

    def _check_key(self, key: str) -> None:
        check_key(key, self._read.layout() or {}, f"dataset {self.name!r}")

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        return list(self._read.layout() or ())

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return [key for key in self.get_data_keys() if key != "data"]

    def load_seqs(self, start: int, end: int) -> None:
        """Read sequences start..end (exclusive; may exceed the epoch); drop those before `start`."""
        first, loaded = self._cursor.first, self._loaded
        if not start <= self._alone < end:
            loaded.pop(self._alone, None)
        while loaded and next(iter(loaded)) < start:
            loaded.popitem(last=False)
        for seq_idx in range(max(start, first), min(end, self._cursor.stop)):
            if seq_idx not in loaded:
                loaded[seq_idx] = (self._reader or self._order_reader).features(seq_idx - first)

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
            number, reader = self._number(seq_idx), self._order_reader
            if key in self._read.text_keys:
                return reader.texts(number)[key]
            self._check_key(key)
            if reader.reads_by_key():
                return reader.array(number, key)
            features = self._load_alone(seq_idx, number)
        assert self._reader is not None
        return features[key] if self._reader.is_sequential else features.pop(key)

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

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        offset = seq_idx - self._tag_start
        if not 0 <= offset < len(self._tag_block):
            self._corpus_idx(seq_idx)  # outside of the epoch: said by an error
            number, order = seq_idx - self._cursor.first, self._cursor.order
            indices = order.block(number, min(number + _TAG_BLOCK, len(order)))
            self._tag_start, offset, self._tag_block = seq_idx, 0, self._read.tags_of(indices)
        return self._tag_block[offset]

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        if overrides_of(type(self)).reads:
            yield from super()._iterate(version)
            return
        for seq_idx in range(self._cursor.stop):
            self._check_version(version, seq_idx)
            yield self.get_seq(seq_idx)
        self._check_version(version, self._cursor.stop)

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that sequences are sorted by."""
        corpus = self._read
        assert isinstance(corpus, IndexedCorpus)
        return corpus.sort_keys(int(self.epoch) or None)[self._corpus_idx(seq_idx)].item()  # type: ignore[no-any-return]

    def get_num_timesteps(self) -> int | NumbersDict:
        """Return data key -> number of frames of the current epoch; from the index, where that tells them.

        As in RETURNN, an `HDFDataset`, or one over it that it controls, returns an int instead: the number of frames of
        the first data key in all files, whatever the epoch.
        """
        stored = self._read.stored_counts()
        if stored is not None:
            return stored.num_frames
        known = sum_lengths(self.get_corpus(), self.get_data_keys(), self._cursor.order)
        return super().get_num_timesteps() if known is None else known

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
