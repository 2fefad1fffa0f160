"""`ConcatSeqsDataset`: several sequences of another dataset in a row, as one.

A text file says which. The joined sequences are a corpus of their own, with tags and lengths, so all that a corpus with
random access offers works: orders, sub-epochs, shards, resuming. Their parts are asked of the inner dataset by its
corpus indices, as a whole order, so that its workers can be ahead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.errors import ConfigError, OptionalNotImplementedError
from headrace.index import CorpusIndex
from headrace.order import RangeOrder
from headrace.sources import SORT_LENGTHS, Source
from headrace.specs import DataSpec

from ..base import Dataset, Owned
from ..cached import CachedDataset
from ..checks import absolute_name, check_flag, check_path
from ..configs import DatasetConfig
from ..corpus import Corpus
from ..digests import digest_text
from ..parts import open_part, tags_of
from ..reading.loaded import OrderCursor
from ..reading.reader import Features, Reader, ReadRequest
from ..reading.source import Finishing
from ..seq import DatasetSeq
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
        specs, labels = _specs_of(self._inner), self._inner.labels
        joining: dict[str, Any] = {
            "remove_in_between_postfix": remove_in_between_postfix,
            "repeat_in_between_last_frame_up_to_multiple_of": repeat_in_between_last_frame_up_to_multiple_of,
            "pad_narrow_data_to_multiple_of_target_len": pad_narrow_data_to_multiple_of_target_len,
        }
        parts = SeqParts.read(self.seq_list_file, seq_tag_delim)
        tags = tags_of(self._inner)
        self._inner.check_tags()
        name = f"inner dataset {self._inner.name!r}"
        indices = None if tags is None else parts.find(tags, name)
        tags_of_parts = parts.part_tags if tags is None else tags.tags
        self._seqs = JoinedSeqs(self._inner, parts, Joining.of(joining, list(specs)), tags_of_parts, indices)
        index = self._make_index(list(specs))
        self._seqs = replace(self._seqs, parts=parts.without_tags())  # an object for each is a lot
        self._set_source(JoinedSource(specs, labels, index, self._seqs))
        _warn_of_order(self._inner)
        if type(self).__init__ is ConcatSeqsDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = (
                (Owned(self._inner), self.seq_list_file, self.seq_len_file, seq_tag_delim),
                {**kwargs, **joining},
            )

    @property
    def inner(self) -> Dataset:
        """The inner dataset."""
        return self._inner

    def get_parts(self) -> Sequence[Dataset]:
        """Return the inner dataset."""
        return (self._inner,)

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the index of the joined sequences knows."""
        corpus, inner = super().get_corpus(epoch), self._inner.get_corpus(epoch)
        joining, num_parts = self._seqs.joining, self._inner.partition_epoch
        told = "" if num_parts == 1 else f" {num_parts} sub-epochs"  # no order, but what a transform draws
        return replace(
            corpus,
            digest_text=lambda: digest_text(f"{self.source.index.digest} {joining} {inner.digest_text()}{told}"),
            may_change_lengths=corpus.may_change_lengths or inner.may_change_lengths,
            draws_by_occurrence=corpus.draws_by_occurrence or inner.draws_by_occurrence,
            encodes_texts=inner.encodes_texts,
        )

    def _make_index(self, data_keys: Sequence[str]) -> CorpusIndex:
        parts, indices, lengths = self._seqs.parts, self._seqs.indices, {}
        is_last = parts.is_last()

        def lengths_of(key: str) -> NDArray[Any]:
            corpus = self._inner.get_corpus()
            found = corpus.lengths(key, False) if corpus.is_indexed and corpus.has_fixed_lengths else None
            if found is None or indices is None:
                raise OptionalNotImplementedError(f"the lengths of {key!r} are not known")
            return found(indices)

        for key in data_keys:
            try:
                lengths[key] = parts.sums(self._seqs.joining.lengths(lengths_of, key, is_last))
            except NotImplementedError:
                continue
        if self.seq_len_file is not None:
            lengths[SORT_LENGTHS] = parts.lengths_of_file(self.seq_len_file)
        return CorpusIndex.from_columns(tags=parts.tags, lengths=lengths)

    def _sort_key(self) -> str | None:
        return SORT_LENGTHS if self.seq_len_file is not None else super()._sort_key()

    # --- reading ---

    def _new_reader(self) -> Reader:
        return JoinedReader(self._seqs, self.source, self._finishing())

    def have_get_corpus_seq(self) -> bool:
        """Whether the inner dataset supports it."""
        return self._seqs.has_stored()

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any joined sequence, of what the inner dataset has stored."""
        if not self._seqs.has_stored():
            self._not_offered("get_corpus_seq")
        return super().get_corpus_seq(corpus_seq_idx)


@dataclass(frozen=True, eq=False)
class JoinedSeqs:
    """Which sequences of a dataset are joined, and how.

    Attributes:
        inner: The dataset.
        parts: Which.
        joining: How.
        tags: By corpus index of the dataset; by index in the list, where that is not known.
        indices: Corpus index of each tag of the list, `int64[M]`; `None` if the dataset does not tell its tags.
    """

    inner: Dataset
    parts: SeqParts
    joining: Joining
    tags: Sequence[str]
    indices: NDArray[np.int64] | None

    def _tag_of(self, part: int) -> str:
        return self.tags[part] if self.indices is None else self.tags[int(self.indices[part])]

    def request(self, wanted: ReadRequest) -> tuple[ReadRequest, NDArray[np.int64]]:
        """Return the request to the dataset, and where the parts of each joined sequence start, `int64[n + 1]`."""
        lines, corpus = wanted.indices, self.inner.get_corpus()
        parts, starts = self.parts.parts_of(lines)
        if self.indices is None or not corpus.is_indexed:
            tags = [self._tag_of(part) for part in parts.tolist()]
            return ReadRequest(wanted.epoch, RangeOrder(range(len(tags))), tags=tags), starts
        counted = None
        if corpus.draws_by_occurrence:
            repeats = np.zeros(len(lines), np.int64) if wanted.occurrences is None else wanted.occurrences
            counted = occurrences_of_parts(self.indices, parts, np.repeat(repeats, np.diff(starts)))
        return ReadRequest.of(wanted.epoch, self.indices[parts], counted), starts

    def join(self, line: int, seqs: list[Features], *, are_own: bool) -> Features:
        """Return a joined sequence.

        Args:
            line: Which.
            seqs: Its parts.
            are_own: Whether their arrays are not shared: a function inside may return the same ones each time.
        """
        if len(seqs) == 1:
            return seqs[0] if are_own else {key: array.copy(order="K") for key, array in seqs[0].items()}
        first = int(self.parts.starts[line])
        return self.joining.join(
            seqs, lambda number: f"tag {self._tag_of(first + number)!r} in {self.parts.where(first + number)}"
        )

    def has_stored(self) -> bool:
        """Whether the dataset gives any sequence as it is stored."""
        return self.indices is not None and self.inner.have_get_corpus_seq()

    def stored(self, line: int) -> Features:
        """Return a joined sequence, of what the dataset has stored."""
        assert self.indices is not None
        parts = self.indices[self.parts.starts[line] : self.parts.starts[line + 1]]
        seqs = [self.inner.get_corpus_seq(part).features for part in parts.tolist()]
        return self.join(line, seqs, are_own=False)


class JoinedSource(Source):
    """The corpus of joined sequences: what is known of it, and how each is stored.

    Args:
        specs: Layouts by data key.
        labels: Class labels by data key.
        index: Tags and lengths.
        seqs: The sequences.
    """

    def __init__(
        self, specs: Mapping[str, DataSpec], labels: Mapping[str, Sequence[str]], index: CorpusIndex, seqs: JoinedSeqs
    ) -> None:
        self.specs, self.labels = specs, labels
        self._index, self._seqs = index, seqs

    @property
    def index(self) -> CorpusIndex:
        """Tags and lengths."""
        return self._index

    @property
    def runs_user_code(self) -> bool:
        """Yes, as the dataset inside may."""
        return True

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one data key of one sequence, as it is stored."""
        return self.read_seq(corpus_idx)[data_key]

    def read_seq(self, corpus_idx: int) -> Features:
        """Return all data keys of one sequence, as they are stored."""
        return self._seqs.stored(corpus_idx)


class JoinedReader(Reader):
    """Reads the parts of sequences, and joins them.

    The dataset is asked for the parts of all that is wanted, so that its workers can be ahead.

    Args:
        seqs: The sequences.
        source: Knows their tags and lengths.
        finishing: What is done to them.
    """

    is_sequential = False

    def __init__(self, seqs: JoinedSeqs, source: Source, finishing: Finishing) -> None:
        self._seqs, self._source, self._finishing = seqs, source, finishing
        is_changed = finishing.transform is not None or seqs.inner.get_corpus().may_change_lengths
        self._knows_lengths = not is_changed and all(map(source.index.has_lengths, source.specs))
        self._inner = seqs.inner.make_reader()
        self.start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        self._starts: NDArray[np.int64] | None = None

    def _begin(self) -> NDArray[np.int64]:
        """Ask for the parts, once; return where those of each sequence start."""
        if self._starts is None:
            request, starts = self._seqs.request(self._wanted)
            self._inner.start(request)
            self._starts = starts
        return self._starts

    def tags(self) -> list[str]:
        """Look up the tags."""
        return self._source.tags_of(self._wanted.indices)

    def read(self, number: int) -> DatasetSeq:
        """Read and join a sequence."""
        corpus_idx = self._cursor[number]
        return DatasetSeq.made_of(number, self.features(number), self._source.tag(corpus_idx), None, corpus_idx)

    def features(self, number: int) -> Features:
        """Read and join all arrays of a sequence."""
        corpus_idx, wanted = self._cursor[number], self._wanted
        get_tag = partial(self._source.tag, corpus_idx)
        try:
            starts = self._begin()
            parts = range(int(starts[number]), int(starts[number + 1]))
            seqs = [self._inner.features(part) for part in parts]
            joined = self._seqs.join(corpus_idx, seqs, are_own=self._inner.gives_own)
            occurrence = 0 if wanted.occurrences is None else int(wanted.occurrences[number])
            return self._finishing.apply(joined, wanted.epoch, corpus_idx, occurrence, get_tag)
        except Exception as error:
            self._finishing.add_note(error, wanted.epoch, get_tag, corpus_idx)
            raise

    def known_frames(self, number: int) -> NumbersDict | None:
        """Ask the index, unless they are not known, or may be others."""
        if not self._knows_lengths:
            return None
        corpus_idx, index = self._cursor[number], self._source.index
        return NumbersDict({key: int(index.lengths(key)[corpus_idx]) for key in self._source.specs})


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
    try:
        first = next(dataset.make_stream(1), None)
    finally:
        dataset.finish_epoch()
    if first is None:
        raise ConfigError(
            "the layout of the inner dataset is not known before its first sequence, and it has none",
            where=f"inner dataset {dataset.name!r}",
        )
    known = {} if layout is None else layout.specs
    return {
        key: replace(known[key], dtype=array.dtype.name) if key in known else DataSpec.of_array(array)
        for key, array in first.features.items()
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
