"""`ConcatSeqsDataset`: several sequences of another dataset in a row, as one.

A text file says which. The joined sequences are a corpus of their own, with tags and lengths, so all that a corpus with
random access offers works: orders, sub-epochs, shards, resuming. Their parts are asked of the inner dataset by its
corpus indices, as a whole order, so that its workers can be ahead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, OptionalNotImplementedError
from headrace.index import CorpusIndex
from headrace.order import Order
from headrace.sources import SORT_LENGTHS, Source
from headrace.specs import DataSpec

from ..base import Dataset, Owned
from ..cached import CachedDataset
from ..checks import absolute_name, check_flag, check_path
from ..configs import DatasetConfig
from ..corpus import Corpus
from ..digests import digest_text
from ..parts import MetaPart, open_part
from ..reader import Features
from ..returnn.epoch_wise_filter import EpochWiseFilter, FilteredOrders
from .postprocessing.layout import layout_of
from .seq_joins import Joining, SeqParts, occurrences_of_parts

_LOGGER = logging.getLogger("headrace.datasets")


class ConcatSeqsDataset(CachedDataset):
    """Sequences that are several of another dataset, one after the other.

    Lengths are known without reading where those of the inner dataset are. Sequences are sorted by the sums of the
    lengths in `seq_len_file`, or without it by those of the first data key.

    Args:
        dataset: Config of the inner dataset. Its own order counts for nothing.
        seq_list_file: Text file: on each line the tags of one sequence, with `seq_tag_delim` in between. The line is
            the tag of the joined sequence; empty lines are skipped.
        seq_len_file: File (JSON or Python literal) with the length of each single tag, for sorting.
        seq_tag_delim: See `seq_list_file`.
        remove_in_between_postfix: Data key -> the label that each sequence ends with. It is taken off where another
            sequence follows.
        repeat_in_between_last_frame_up_to_multiple_of: Data key -> m: where another sequence follows, the last frame is
            repeated until the number of frames is a multiple of m.
        pad_narrow_data_to_multiple_of_target_len: Data key -> (target key, m): where another sequence follows, it is
            cut, or its last frame repeated, until it has m times as many frames as the target has.
        use_cache_manager: Without effect: the files are small, and read where they are.
        epoch_wise_filter: See `EpochWiseFilter`. It applies to the sequences of a sub-epoch, by the lengths that they
            are sorted by.
        **kwargs: See `Dataset`, and `transform` of `CachedDataset`.

    Raises:
        ConfigError: An option is wrong.
        SourceError: A file is missing or truncated; a tag is not in the inner dataset, twice in it, or has no length.
    """

    supports_frame_shuffling = False

    def __init__(
        self,
        dataset: DatasetConfig,
        seq_list_file: str | os.PathLike[str],
        seq_len_file: str | os.PathLike[str] | None = None,
        seq_tag_delim: str = ";",
        remove_in_between_postfix: Mapping[str, Any] | None = None,
        repeat_in_between_last_frame_up_to_multiple_of: Mapping[str, int] | None = None,
        pad_narrow_data_to_multiple_of_target_len: Mapping[str, tuple[str, int]] | None = None,
        use_cache_manager: bool = False,
        epoch_wise_filter: Any = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("cache_byte_size"):
            raise ConfigError("cache_byte_size has no effect here", fix="give it to the inner dataset")
        super().__init__(**kwargs)
        check_flag("use_cache_manager", use_cache_manager)
        offset = self.random_seed_offset
        self._inner = open_part(dataset, {"random_seed_offset": offset} if offset else None, owner=self)
        self.seq_list_file = _absolute("seq_list_file", seq_list_file)
        self.seq_len_file = None if seq_len_file is None else _absolute("seq_len_file", seq_len_file)
        self.epoch_wise_filter = EpochWiseFilter.of(epoch_wise_filter)
        self._filtered = FilteredOrders(self.epoch_wise_filter)
        specs, labels = _specs_of(self._inner), self._inner.labels
        joining: dict[str, Any] = {
            "remove_in_between_postfix": remove_in_between_postfix,
            "repeat_in_between_last_frame_up_to_multiple_of": repeat_in_between_last_frame_up_to_multiple_of,
            "pad_narrow_data_to_multiple_of_target_len": pad_narrow_data_to_multiple_of_target_len,
        }
        self._joining = Joining.of(joining, list(specs))
        self._seq_parts = SeqParts.read(self.seq_list_file, seq_tag_delim)
        self._part = MetaPart("inner", self._inner, {key: key for key in specs})
        tags = self._part.tag_index()
        name = f"inner dataset {self._inner.name!r}"
        self._indices = None if tags is None else self._seq_parts.find(tags, name)
        self._tags = self._seq_parts.part_tags if tags is None else tags.tags
        self._starts: NDArray[np.int64] | None = None  # of the parts of each place of the order, once it is begun
        self._set_source(JoinedSource(specs, labels, self._make_index(), self._read_stored))
        self._seq_parts = self._seq_parts.without_tags()  # an object for each is a lot
        self._inner.forget_places()  # they are those of parts
        _warn_of_order(self._inner)
        if type(self).__init__ is ConcatSeqsDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = (
                (Owned(self._inner), self.seq_list_file, self.seq_len_file, seq_tag_delim),
                {**kwargs, **joining, "epoch_wise_filter": self.epoch_wise_filter},
            )

    @property
    def inner(self) -> Dataset:
        """The inner dataset."""
        return self._inner

    def get_parts(self) -> Sequence[Dataset]:
        """Return the inner dataset."""
        return (self._inner,)

    @property
    def joins_changed_seqs(self) -> bool:
        """Whether a transform of the inner dataset may change lengths, so that the index does not say them."""
        return self._inner.get_corpus().may_change_lengths

    def get_corpus(self) -> Corpus:
        """Return what the index of the joined sequences knows."""
        corpus, inner = super().get_corpus(), self._inner.get_corpus()
        return replace(
            corpus,
            digest_text=lambda: digest_text(f"{self.source.index.digest} {self._joining} {inner.digest_text()}"),
            may_change_lengths=corpus.may_change_lengths or inner.may_change_lengths,
            draws_by_occurrence=corpus.draws_by_occurrence or self._inner_draws(),
        )

    def _make_index(self) -> CorpusIndex:
        parts, lengths = self._seq_parts, {}
        is_last = parts.is_last()

        def lengths_of(key: str) -> NDArray[Any]:
            corpus = self._part.corpus
            is_known = self._indices is not None and corpus.is_indexed and corpus.has_fixed_lengths
            found = corpus.lengths(key, False) if is_known else None
            if found is None or self._indices is None:
                raise OptionalNotImplementedError(f"the lengths of {key!r} are not known")
            return found(self._indices)

        for key in self._part.keys:
            try:
                lengths[key] = parts.sums(self._joining.lengths(lengths_of, key, is_last))
            except NotImplementedError:
                continue
        if self.seq_len_file is not None:
            lengths[SORT_LENGTHS] = parts.lengths_of_file(self.seq_len_file)
        return CorpusIndex.from_columns(tags=parts.tags, lengths=lengths)

    def _sort_key(self) -> str | None:
        return SORT_LENGTHS if self.seq_len_file is not None else super()._sort_key()

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`."""
        self._forget()
        return super().init_seq_order(epoch, seq_list, seq_order)

    def init_part(
        self, epoch: int, first: int, indices: NDArray[np.int64], occurrences: NDArray[np.int64] | None = None
    ) -> int:
        """Start a part of an epoch under its own places, see `Dataset.init_part`."""
        self._forget()
        return super().init_part(epoch, first, indices, occurrences)

    def _forget(self) -> None:
        self._starts = None
        self._part.forget()

    def _has_own_order(self) -> bool:
        return self.epoch_wise_filter is not None

    def _order_of_epoch(self, epoch: int) -> Order:
        get_lengths = self._sort_lengths if self.seq_order_seq_lens_file is None else self._lengths_of_file
        return self._filtered.of(epoch, super()._order_of_epoch(epoch), get_lengths)

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return how often each sequence of the current order came before, if anything is drawn by it."""
        if not self._cursor.order.may_repeat or not (self._transform_wants_rng or self._inner_draws()):
            return None
        return self.count_occurrences()

    def _inner_draws(self) -> bool:
        return self._part.corpus.draws_by_occurrence

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the inner dataset as well, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        self._forget()

    # --- reading ---

    def _begin(self) -> NDArray[np.int64]:
        """Start the inner dataset with the parts of the whole order; return where those of each place start."""
        if self._starts is None or not self._part.is_started:
            order = self._cursor.order
            corpus_indices = order.block(0, len(order))
            parts, starts = self._seq_parts.parts_of(corpus_indices)
            epoch = int(self.epoch) or None
            if not self._part.corpus.is_indexed or self._indices is None:
                self._part.start_by_tags(epoch, 0, [self._tag_of(part) for part in parts.tolist()])
            else:
                self._part.start_at(epoch, 0, self._indices[parts], self._occurrences_of(corpus_indices, parts))
            self._starts = starts
        return self._starts

    def _occurrences_of(self, corpus_indices: NDArray[np.int64], parts: NDArray[np.int64]) -> NDArray[np.int64] | None:
        if not self._inner_draws():
            return None
        assert self._indices is not None
        repeats = np.zeros(len(corpus_indices), np.int64)
        if self._cursor.order.may_repeat:
            repeats = self.count_occurrences()
        sizes = self._seq_parts.starts[corpus_indices + 1] - self._seq_parts.starts[corpus_indices]
        return occurrences_of_parts(self._indices, parts, np.repeat(repeats, sizes))

    def _join(self, seq_idx: int) -> Features:
        """Return the sequence at a place of the order, joined, and with the transform applied."""
        corpus_idx = self._corpus_idx(seq_idx)
        try:
            starts = self._begin()
            offset = seq_idx - self._cursor.first
            places = range(int(starts[offset]), int(starts[offset + 1]))
            self._part.load(places.start, places.stop)
            features = self._joined(corpus_idx, [self._part.get_features(place) for place in places])
            return self._finish(seq_idx, features)
        except Exception as error:
            self._add_note(error, seq_idx)
            raise

    def _joined(self, corpus_idx: int, seqs: list[Features]) -> Features:
        if len(seqs) == 1:  # a function inside may give the same arrays each time
            is_stored = self._inner.reads_singly and not self.joins_changed_seqs
            return seqs[0] if is_stored else {key: array.copy(order="K") for key, array in seqs[0].items()}
        parts, first = self._seq_parts, int(self._seq_parts.starts[corpus_idx])
        return self._joining.join(
            seqs, lambda number: f"tag {self._tag_of(first + number)!r} in {parts.where(first + number)}"
        )

    def _tag_of(self, part: int) -> str:
        return self._tags[part] if self._indices is None else self._tags[int(self._indices[part])]

    def _read_stored(self, corpus_idx: int) -> Features:
        """Return any joined sequence, of what the inner dataset has stored."""
        if self._indices is None or not self._inner.have_get_corpus_seq():
            self._not_offered("get_corpus_seq")
        parts = self._indices[self._seq_parts.starts[corpus_idx] : self._seq_parts.starts[corpus_idx + 1]]
        return self._joined(corpus_idx, [self._inner.get_corpus_seq(part).features for part in parts.tolist()])

    def have_get_corpus_seq(self) -> bool:
        """Whether the inner dataset has it."""
        return self._indices is not None and self._inner.have_get_corpus_seq()

    def _read(self, seq_idx: int) -> dict[int, Features]:
        return {seq_idx: self._join(seq_idx)}

    def reads_by_key(self) -> bool:
        """No: sequences are joined whole."""
        return False

    def take_features(self, seq_idx: int) -> Features:
        """Hand out all arrays of one sequence of the current order."""
        if seq_idx in self._loaded:
            return super().take_features(seq_idx)
        return self._join(seq_idx)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence if they are not known, or may be others."""
        corpus_idx, index = self._corpus_idx(seq_idx), self.source.index
        if self._transform is None and not self.joins_changed_seqs and all(map(index.has_lengths, self.source.specs)):
            return NumbersDict({key: int(index.lengths(key)[corpus_idx]) for key in self.source.specs})
        return NumbersDict({key: len(array) if array.ndim else 1 for key, array in self._whole(seq_idx).items()})

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch."""
        return Dataset.get_num_timesteps(self) if self.joins_changed_seqs else super().get_num_timesteps()


class JoinedSource(Source):
    """The corpus of joined sequences: what is known of it, and how each is stored.

    Args:
        specs: By data key.
        labels: By data key.
        index: Tags and lengths.
        read_stored: Reads a sequence.
    """

    def __init__(
        self,
        specs: Mapping[str, DataSpec],
        labels: Mapping[str, Sequence[str]],
        index: CorpusIndex,
        read_stored: Callable[[int], Features],
    ) -> None:
        self.specs, self.labels = specs, labels
        self._index = index
        self._read_stored = read_stored

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths."""
        return self._index

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, as it is stored."""
        return self._read_stored(corpus_idx)[data_key]

    def read_seq(self, corpus_idx: int) -> Features:
        """Return all data keys of one sequence, as they are stored."""
        return self._read_stored(corpus_idx)


def _absolute(name: str, path: Any) -> str:
    return absolute_name(check_path(name, path))


def _specs_of(dataset: Dataset) -> dict[str, DataSpec]:
    """Return the layout of a dataset; what it does not say is learnt from a sequence.

    Raises:
        ConfigError: It has none.
    """
    layout = layout_of(dataset)
    if layout is not None and not layout.any_dtype:
        return dict(layout.specs)
    dataset.init_seq_order(epoch=1)
    try:
        if not dataset.is_less_than_num_seqs(0):
            raise ConfigError(
                "the layout of the inner dataset is not known before its first sequence, and it has none",
                where=f"inner dataset {dataset.name!r}",
            )
        dataset.load_seqs(0, 1)
        features = dataset.get_seq(0).features
    finally:
        dataset.finish_epoch()
    known = {} if layout is None else layout.specs
    return {
        key: replace(known[key], dtype=array.dtype.name) if key in known else DataSpec.of_array(array)
        for key, array in features.items()
    }


def _warn_of_order(dataset: Dataset) -> None:
    if dataset.seq_ordering != "default" or dataset.partition_epoch > 1:
        _LOGGER.warning(
            "inner dataset %r of a ConcatSeqsDataset: seq_ordering=%r, partition_epoch=%d have no effect: give them to "
            "the outer one",
            dataset.name,
            dataset.seq_ordering,
            dataset.partition_epoch,
        )
