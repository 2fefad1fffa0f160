"""`CachedDataset`: an order joined to a source.

The family of datasets whose sequences can be read one by one from somewhere: HDF5, audio files, memory, a user's
object. The source says what sequence i is, the order says when; this class keeps the sequences in between: those of the
current window (`load_seqs`), and a bounded cache over epochs. What it delivers is the same for every `cache_byte_size`.
How it is read is in `reading/source.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, OptionalNotImplementedError, did_you_mean
from headrace.index import CorpusIndex
from headrace.order import Order, OrderCorpus, OrderPlanner, RangeOrder
from headrace.rng import wants_rng
from headrace.show.card import Card
from headrace.sources import SORT_LENGTHS, MapSource, Source
from headrace.specs import DataSpec

from . import workers as workers  # offers workers to the sources that are opened here
from .checks import check_count, is_of_headrace
from .corpus import Corpus, IndexedFiles, LengthsOf, check_files, num_left_out
from .digests import digest_array, digest_text
from .ordered import OrderedDataset
from .reading.loaded import SeqCache
from .reading.reader import Features, Reader
from .reading.source import Finishing, SourceReader, Transform
from .seq import DatasetSeq

_Made = TypeVar("_Made", bound="CachedDataset")


class CachedDataset(OrderedDataset):
    """Sequences of a source, in the order of an epoch.

    Args:
        cache_byte_size: Bound of the in-memory cache over epochs: 0 is off, -1 unlimited; any value works with any
            `partition_epoch`. (RETURNN divides it into a start cache and a rolling one, and refuses it with
            sub-epochs.)
        source: Where the sequences come from.
        transform: Called as `transform(features)` or, if it has a parameter `rng`, `transform(features,
            rng=generator)`, for each sequence when it is read; returns the new features. The generator is keyed by
            (seed, epoch, sequence), so the result does not depend on the caller or the time. Lengths are then those
            of what it returns.
        **kwargs: See `Dataset`.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> source = hr.MemorySource([{"data": np.full((2, 1), number, np.float32)} for number in range(3)])
        >>> corpus = hr.CachedDataset(source=source, seq_ordering="reverse", cache_byte_size=-1)
        >>> [seq.tag for seq in corpus.epoch(1)]
        ['seq-2', 'seq-1', 'seq-0']
    """

    supports_window = True
    supports_frame_shuffling = True
    supports_jumps = True
    gives_own = True
    _own_attributes = frozenset(
        {"source", "_source", "_cache", "_planner", "_keep", "_file_lengths", "_rnd_seq_drop", "foreign", "claimed_by"}
        | {"_cursor", "_count", "_counted", "_started_reader", "_loaded", "_alone", "_ctor_args", "_given"}
    )
    sorts_by_column = False  # whether `_sort_lengths` are numbers that are stored besides, and no lengths of data

    def __init__(
        self,
        cache_byte_size: int = 0,
        *,
        source: Source | None = None,
        transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cache_byte_size = cache_byte_size
        self._cache = SeqCache(check_count("cache_byte_size", cache_byte_size, minimum=-1))
        self._transform = transform
        self._transform_wants_rng = transform is not None and wants_rng(transform)
        self._source: Source | None = None
        self._has_user_lengths = not is_of_headrace(type(self).get_seq_length)
        if source is not None:
            self._set_source(source)

    def _set_source(self, source: Source) -> None:
        if not isinstance(getattr(source, "specs", None), Mapping):
            raise ConfigError(
                f"{type(source).__name__} has no specs, which say what its data keys are",
                where=f"dataset {self.name!r}",
                fix='give the class an attribute: specs = {"data": DataSpec("float32", (40,))}',
            )
        self._source = self.source = source
        self.num_outputs = {key: spec.num_outputs for key, spec in source.specs.items()}
        self.labels = dict(source.labels)
        if "data" in source.specs:
            self.num_inputs = self.num_outputs["data"][0]
            spec = source.specs["data"]
            if self.window > 1 and (spec.sparse or len(spec.shape) != 1):
                raise ConfigError(
                    f"window={self.window} joins frames that are vectors; a frame of 'data' has the shape {spec.shape}",
                    where=f"dataset {self.name!r}",
                    fix="leave window at 1",
                )
        self._planner.invalidate()
        self._cache.clear()
        self._forget_reader()

    @cached_property
    def source(self) -> Source:
        """Where the sequences come from.

        Raises:
            ConfigError: None was given yet.
        """
        raise ConfigError(
            f"{type(self).__name__} has no data yet",
            where=f"dataset {self.name!r}",
            fix="name them in the constructor (HDFDataset: files=, or add_file)",
        )

    def initialize(self) -> None:
        """Get ready to read. A new dataset already has the order of no epoch."""
        if self._source is None or self.order_version or not self._is_ours:
            super().initialize()
        else:
            self.order_version = 1

    # --- copies ---

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle one of our classes with its source, as it was found; a user-defined one as constructor arguments."""
        if self._is_made_again:
            return super().__reduce__()
        return _made_of, (type(self), self._state_of_copy(), self._source)

    def __copy__(self) -> Self:
        """Return a dataset of the same options and of the same source as it was found, with an epoch of its own.

        Nothing is opened: a copy opens its files when it reads. A user-defined class is made again.
        """
        source = None if self._is_made_again or self._source is None else self._source.for_another_reader()
        return super().__copy__() if source is None else _made_of(type(self), self._state_of_copy(), source)

    @property
    def _is_made_again(self) -> bool:
        """Whether its constructor makes copies of it."""
        return self._source is None or not self._is_ours or bool(self.get_parts())

    def _state_of_copy(self) -> dict[str, Any]:
        """Return all attributes but those of the current epoch, and what was computed from the corpus."""
        self._check_shard()
        state = {name: value for name, value in vars(self).items() if name not in self._own_attributes}
        content = self.content_text() if self.content_options else self._content
        return {**state, "labels": dict(self.labels), "weights": dict(self.weights), "_content": content}

    def _card(self) -> Card:
        card = super()._card()
        if self._source is None:
            return card
        known = self._source._card()
        return dataclasses.replace(card, facts=[*known.facts, *card.facts], keys=known.keys, lengths=known.lengths)

    def indexed_files(self) -> list[IndexedFiles]:
        """Return the fingerprint of its files as they were indexed, see `Dataset.indexed_files`."""
        found = None if self._source is None else IndexedFiles.of(self._source)
        return [*([] if found is None else [found]), *super().indexed_files()]

    def indexed_source(self) -> Source | None:
        """Return the source of all its sequences."""
        return self.source

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "indexed": self.indexed_files()}

    def _restore(self, state: Mapping[str, Any]) -> None:
        super()._restore(state)
        check_files(self.indexed_files(), state["indexed"])

    def _begin(self, source: Source) -> None:
        """Begin without an epoch, as a copy of a dataset whose attributes are here already."""
        self._source = self.source = source
        self._cache = SeqCache(self.cache_byte_size)
        self._order_options, self._planner = dict(self._order_options), OrderPlanner(self._recipe)
        self._keep, self._file_lengths, self.order_version, self._rnd_seq_drop = None, None, 0, None
        self._take_order(RangeOrder(range(0)))

    # --- order ---

    @property
    def _corpus_index(self) -> CorpusIndex:
        return self.source.index

    def _num_stored(self) -> int:
        return len(self.source)

    def _order_of_epoch(self, epoch: int) -> Order:
        return self._lazy_order_for_epoch(epoch, len(self.source))

    def _order_corpus(self, num_seqs: int, get_seq_len: Any) -> OrderCorpus:
        corpus = super()._order_corpus(num_seqs, get_seq_len)
        lengths = corpus.lengths or self._sort_lengths  # not asked yet: it may cost a pass over the corpus
        return dataclasses.replace(corpus, lengths=lengths, is_fixed=True)

    def _sort_lengths(self) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by, the length of the first data key."""
        key = self._sort_key()
        if key is None:
            return np.zeros(0, dtype=np.int64)
        try:
            return self.source.index.lengths(key)
        except OptionalNotImplementedError as error:
            raise ConfigError(
                f"seq_ordering={self.seq_ordering!r} sorts by length, and the lengths of this corpus are not known",
                where=f"dataset {self.name!r}",
                fix="give seq_order_seq_lens_file, or for your own object lengths= or a method get_seq_len",
            ) from error

    def _sort_key(self) -> str | None:
        """Return the first data key; an empty corpus in memory has none."""
        return next(iter(self.source.specs), None)

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        if free_resources:
            self._cache.clear()
            if self._source is not None:
                self._source.close()

    # --- what is known without reading ---

    def source_of_tags(self) -> object:
        """Return the source."""
        return self.source

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the source knows; lengths are those of a user-defined class, if it gives other ones."""
        source, has_user_lengths = self.source, self._has_user_lengths
        return Corpus(
            digest_text=partial(_digest_of, source),
            knows_order=self.foreign.knows_order if self._has_user_order else lambda: True,
            size=lambda: len(source),
            is_indexed=True,
            index=lambda: source.index,
            tags_of=source.tags_of,
            specs=source.specs,
            knows_dtypes=True,
            lengths=partial(self.foreign.lengths, epoch=self._epoch if epoch is None else epoch)
            if has_user_lengths
            else self._lengths_of_index,
            has_fixed_lengths=not has_user_lengths,
            may_change_lengths=self._transform is not None or self._has_user_ways,
            sort_lengths=self._sort_lengths,
            kept=self._kept,
            num_filtered=lambda: num_left_out(self._kept()),
            draws_by_occurrence=self._transform_wants_rng,
            encodes_texts=source.encodes_texts,
        )

    def _lengths_of_index(self, key: str, may_cost: bool) -> LengthsOf | None:
        self._check_key(key)
        source = self.source
        is_asked = isinstance(source, MapSource)
        if is_asked and not may_cost:
            return None
        index = source.index
        if not index.has_lengths(key) and is_asked and index.has_lengths(SORT_LENGTHS):
            key = SORT_LENGTHS
        return index.lengths(key).__getitem__ if index.has_lengths(key) else None

    def _order_details(self, epoch: int) -> list[str]:
        details = super()._order_details(epoch)
        if self.sorts_by_column:
            details.append(f"sorted by {digest_array(np.asarray(self._sort_lengths()))}")
        return details

    def _reading_details(self) -> list[str]:
        return [*super()._reading_details(), *(["transform"] if self._transform is not None else [])]

    def supports_seq_order_sorting(self) -> bool:
        """Whether lengths are known without reading sequences."""
        key = self._sort_key()
        return self.seq_order_seq_lens_file is not None or key is None or self.source.index.has_lengths(key)

    # --- reading ---

    def _new_reader(self) -> Reader:
        group = self.shuffle_frames_of_nseqs
        return SourceReader(self.source, self._cache, self._finishing(), group, self._text_source())

    def _text_source(self) -> Callable[[int], Features] | None:
        """Return what reads the texts of a sequence, see `get_text_keys`, by its corpus index; `None`: it has none."""
        return None

    def _finishing(self) -> Finishing:
        """Return what is done to sequences after they are read from the source."""
        return Finishing(
            self.name,
            self.source.specs,
            self._transform,
            self.window,
            self.random_seed_offset,
            self.fixed_random_seed,
            self.seeds_by_tag,
        )

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        if self._has_user_ways:
            yield from super()._iterate(version)
            return
        for seq_idx in range(self._cursor.stop):
            self._check_version(version, seq_idx)
            yield self.get_seq(seq_idx)
        self._check_version(version, self._cursor.stop)

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        return self.source.tag(self._corpus_idx(seq_idx))

    def have_get_corpus_seq(self) -> bool:
        """Whether `get_corpus_seq` works: yes."""
        return True

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus as it is stored, without transform or window."""
        features = self._read_stored(corpus_seq_idx)
        return DatasetSeq(corpus_seq_idx, features, seq_tag=self.source.tag(corpus_seq_idx), corpus_idx=corpus_seq_idx)

    def _read_stored(self, corpus_idx: int) -> Features:
        """Return any sequence as it is stored, through the cache; its arrays are ours to give away."""
        return self._cache.read(self.source, corpus_idx)

    # --- how much there is, layout ---

    @property
    def num_seqs_cached_at_start(self) -> int:
        """Number of sequences at the start of the current order that the cache holds."""
        for seq_idx in range(self._cursor.stop):
            if self._corpus_idx(seq_idx) not in self._cache:
                return seq_idx
        return self._cursor.stop

    def is_cached(self, start: int, end: int, blocking: bool = False) -> bool:
        """Whether sequences start..end (exclusive) need no reading.

        Args:
            start: First position in the current order.
            end: Position after the last one.
            blocking: Read them first if they are not there.
        """
        end = min(end, self._cursor.stop)
        if blocking:
            self.load_seqs(start, end)
        return all(self._holds(seq_idx) for seq_idx in range(start, end))

    def _holds(self, seq_idx: int) -> bool:
        return self._corpus_idx(seq_idx) in self._cache or seq_idx in self._loaded

    def batch_set_generator_cache_whole_epoch(self) -> bool:
        """Whether batches can be kept: yes, they are planned from the index alone."""
        return True

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        return list(self.source.specs)

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return [key for key in self.source.specs if key != "data"]

    def _check_key(self, key: str) -> None:
        if key not in self.source.specs:
            raise ConfigError(
                f"no data key {key!r}", where=f"dataset {self.name!r}", fix=did_you_mean(key, self.source.specs)
            )

    def _layout_of(self, key: str) -> DataSpec:
        self._check_key(key)
        return self.source.specs[key]


def _digest_of(source: Source) -> str:
    """Return a digest of tags and lengths, and of the vocabularies that texts are encoded by."""
    vocabularies = source.vocabularies_text
    return digest_text(f"{source.index.digest} {vocabularies}") if vocabularies else source.index.digest


def _made_of(cls: type[_Made], state: dict[str, Any], source: Source) -> _Made:
    made = cls.__new__(cls)
    vars(made).update(state)
    made._begin(source)
    return made
