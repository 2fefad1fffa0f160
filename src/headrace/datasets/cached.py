"""`CachedDataset`: the sequences of a source, and the corpus that they are.

The family of datasets whose sequences can be read one by one from somewhere: HDF5, audio files, memory, a user's
object. The source says what sequence i is, the options say when; a bounded cache keeps sequences over epochs. What is
delivered is the same for every `cache_byte_size`. How it is read is in `reading/source.py`.
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, OptionalNotImplementedError
from headrace.index import CorpusIndex
from headrace.rng import wants_rng
from headrace.show.card import Card
from headrace.sources import SORT_LENGTHS, MapSource, Source
from headrace.specs import DataSpec

from . import workers as workers  # offers workers to the sources that are opened here
from .checks import check_count, check_key
from .corpus import Corpus, IndexedCorpus, IndexedFiles, LengthsOf
from .digests import digest_text
from .ordered import OrderedDataset
from .orders import Orders
from .reading.loaded import SeqCache
from .reading.reader import Features, Reader
from .reading.source import Finishing, SourceReader, Transform
from .seq import DatasetSeq


class SourceCorpus(IndexedCorpus):
    """The sequences of a source.

    Args:
        name: See `Corpus`.
        orders: Likewise.
        source: The source.
        parts: See `Corpus`.
        transform: See `CachedDataset`.
        window: See `Dataset`.
        group: See `Corpus`.
        cache: Keeps sequences as they are stored.
        sort_key: The data key, or name of a column of the index, whose lengths are sorted by; `None`: the first key.

    Attributes:
        source: See above.
    """

    knows_dtypes = True

    def __init__(
        self,
        name: str,
        orders: Orders,
        source: Source,
        parts: Sequence[Corpus] = (),
        *,
        transform: Transform | None = None,
        window: int = 1,
        group: int = 0,
        cache: SeqCache | None = None,
        sort_key: str | None = None,
    ) -> None:
        super().__init__(name, orders, parts)
        self.source, self.labels = source, dict(source.labels)
        self.window, self.group = window, group
        self._transform = transform
        self._draws = transform is not None and wants_rng(transform)
        self._cache = SeqCache(0) if cache is None else cache
        self._sort_key = sort_key

    @property
    def specs(self) -> Mapping[str, DataSpec]:  # type: ignore[override]  # those of a map-style object may be learnt
        """Layout by data key."""
        specs = self.source.specs
        if self.window == 1 or "data" not in specs or specs["data"].shape[-1:] in ((), (None,)):
            return specs
        *inner, last = specs["data"].shape
        assert last is not None
        joined = dataclasses.replace(specs["data"], shape=(*inner, last * self.window), dim=last * self.window)
        return {**specs, "data": joined}

    def apart(self) -> Corpus:
        """Return this corpus over a source for another thread, see `Corpus.apart`."""
        made = super().apart()
        assert isinstance(made, SourceCorpus)
        made.source = self.source.for_another_reader() or pickle.loads(pickle.dumps(self.source))  # noqa: S301 - ours
        made._cache = SeqCache(self._cache.max_bytes)
        return made

    def close(self) -> None:
        """Release files and the cache."""
        super().close()
        self._cache.clear()
        self.source.close()

    # --- sequences ---

    def size(self) -> int:
        """Return how many sequences the source has."""
        return len(self.source)

    @property
    def index(self) -> CorpusIndex:
        """That of the source."""
        return self.source.index

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Ask the source."""
        return self.source.tags_of(indices)

    has_fixed_lengths = True

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:  # noqa: ARG002
        """Ask the index, that of a map-style object only if it may cost something."""
        source = self.source
        check_key(key, source.specs, f"dataset {self.name!r}")
        is_asked = isinstance(source, MapSource)
        if is_asked and not may_cost:
            return None
        index = source.index
        if not index.has_lengths(key) and is_asked and index.has_lengths(SORT_LENGTHS):
            key = SORT_LENGTHS
        return index.lengths(key).__getitem__ if index.has_lengths(key) else None

    def sort_column(self) -> str | None:
        """Return whose lengths are sorted by; an empty corpus in memory has no data keys."""
        return next(iter(self.source.specs), None) if self._sort_key is None else self._sort_key

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:  # noqa: ARG002
        """Return `int[N]`: the lengths of the first data key, or what stands in place of it."""
        column = self.sort_column()
        if column is None:
            return np.zeros(0, dtype=np.int64)
        try:
            return self.index.lengths(column)
        except OptionalNotImplementedError as error:
            raise ConfigError(
                f"seq_ordering={self.orders.seq_ordering!r} sorts by length, and the lengths of this corpus are not "
                "known",
                where=f"dataset {self.name!r}",
                fix="give seq_order_seq_lens_file, or for your own object lengths= or a method get_seq_len",
            ) from error

    def knows_sort_lengths(self) -> bool:
        """Whether the index has them."""
        has_file, column = self.orders.lengths_file is not None, self.sort_column()
        return has_file or column is None or self.index.has_lengths(column)

    @property
    def may_change_lengths(self) -> bool:
        """Whether there is a transform."""
        return self._transform is not None or super().may_change_lengths

    @property
    def draws_by_occurrence(self) -> bool:
        """Whether the transform draws."""
        return self._draws or super().draws_by_occurrence

    @property
    def encodes_texts(self) -> bool:
        """Ask the source."""
        return self.source.encodes_texts or super().encodes_texts

    def indexed_files(self) -> list[IndexedFiles]:
        """Return the fingerprint of its files as they were indexed."""
        found = IndexedFiles.of(self.source)
        return [*([] if found is None else [found]), *super().indexed_files()]

    # --- reading ---

    def reader(self) -> Reader:
        """Return a reader of the source."""
        return SourceReader(
            self.source, self._cache, self.finishing(), self.group, self.texts if self.text_keys else None
        )

    def finishing(self) -> Finishing:
        """Return what is done to sequences after they are read from the source."""
        recipe = self.orders.recipe
        return Finishing(
            self.name,
            self.source.specs,
            self._transform,
            self.window,
            recipe.random_seed_offset or 0,
            recipe.fixed_random_seed,
            self.seeds_by_tag,
        )

    def texts(self, corpus_idx: int) -> Features:  # noqa: ARG002 (of a sub-class that has some)
        """Return the texts of a sequence by their keys, see `text_keys`."""
        return {}

    def fast_source(self) -> Source:
        """Return the source of all its sequences."""
        return self.source

    def can_give_stored(self) -> bool:
        """Yes."""
        return True

    def stored(self, corpus_idx: int) -> DatasetSeq:
        """Return a sequence without transform or window, through the cache; its arrays are the caller's own."""
        tag, features = self.source.tag(corpus_idx), self._cache.read(self.source, corpus_idx)
        return DatasetSeq(corpus_idx, features, seq_tag=tag, corpus_idx=corpus_idx)

    def holds(self, corpus_idx: int) -> bool:
        """Whether the cache has a sequence."""
        return corpus_idx in self._cache

    # --- what decides what comes ---

    def digest_text(self) -> str:
        """Return a digest of tags and lengths, and of the vocabularies that texts are encoded by."""
        digest, vocabularies = self.index.digest, self.source.vocabularies_text
        return digest_text(f"{digest} {vocabularies}") if vocabularies else digest

    def reading_texts(self) -> list[str]:
        """Return texts of what is done to sequences."""
        return [
            *([f"window {self.window}"] if self.window > 1 else []),
            *super().reading_texts(),
            *(["transform"] if self._transform is not None else []),
        ]


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

    def __init__(
        self,
        cache_byte_size: int = 0,
        *,
        source: Source | None = None,
        transform: Transform | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cache_byte_size = check_count("cache_byte_size", cache_byte_size, minimum=-1)
        self._transform = transform
        if source is not None:
            self._set_source(source)

    def _set_source(
        self,
        source: Source,
        corpus_class: type[SourceCorpus] = SourceCorpus,
        parts: Sequence[Corpus] = (),
        sort_key: str | None = None,
    ) -> None:
        """Read from a source from now on.

        Args:
            source: The source.
            corpus_class: What is made of it.
            parts: See `Corpus`.
            sort_key: See `SourceCorpus`.

        Raises:
            ConfigError: It has no specs, or the window does not fit.
        """
        if not isinstance(getattr(source, "specs", None), Mapping):
            raise ConfigError(
                f"{type(source).__name__} has no specs, which say what its data keys are",
                where=f"dataset {self.name!r}",
                fix='give the class an attribute: specs = {"data": DataSpec("float32", (40,))}',
            )
        if "data" in source.specs:
            spec = source.specs["data"]
            if self.window > 1 and (spec.sparse or len(spec.shape) != 1):
                raise ConfigError(
                    f"window={self.window} joins frames that are vectors; a frame of 'data' has the shape {spec.shape}",
                    where=f"dataset {self.name!r}",
                    fix="leave window at 1",
                )
        corpus = corpus_class(
            self.name,
            self._orders,
            source,
            parts,
            transform=self._transform,
            window=self.window,
            group=self.shuffle_frames_of_nseqs,
            cache=SeqCache(self.cache_byte_size),
            sort_key=sort_key,
        )
        self._set_corpus(corpus)
        self.num_outputs = {key: spec.num_outputs for key, spec in source.specs.items()}
        self.num_inputs = self.num_outputs.get("data", (0, 0))[0]

    @property
    def source(self) -> Source:
        """Where the sequences come from.

        Raises:
            ConfigError: None was given yet.
        """
        corpus = self._read
        assert isinstance(corpus, SourceCorpus)
        return corpus.source

    def _card(self) -> Card:
        card = super()._card()
        if self._corpus is None:
            return card
        known = self.source._card()
        return dataclasses.replace(card, facts=[*known.facts, *card.facts], keys=known.keys, lengths=known.lengths)

    # --- how much there is, layout ---

    @property
    def num_seqs_cached_at_start(self) -> int:
        """Number of sequences at the start of the current order that the cache holds."""
        num_seqs = self.num_seqs
        return next((seq_idx for seq_idx in range(num_seqs) if not self._is_kept(seq_idx)), num_seqs)

    def _is_kept(self, seq_idx: int) -> bool:
        corpus = self._read
        assert isinstance(corpus, SourceCorpus)
        return corpus.holds(self._corpus_idx(seq_idx))

    def is_cached(self, start: int, end: int, blocking: bool = False) -> bool:
        """Whether sequences start..end (exclusive) need no reading.

        Args:
            start: First position in the current order.
            end: Position after the last one.
            blocking: Read them first if they are not there.
        """
        end = min(end, self.num_seqs)
        if blocking:
            self.load_seqs(start, end)
        return all(self._is_kept(seq_idx) or seq_idx in self._loaded for seq_idx in range(start, end))

    def batch_set_generator_cache_whole_epoch(self) -> bool:
        """Whether batches can be kept: yes, they are planned from the index alone."""
        return True

    def _layout_of(self, key: str) -> DataSpec:
        self._check_key(key)
        return self.source.specs[key]

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype of a data key; "string" for a text."""
        return "string" if key in self._read.text_keys else super().get_data_dtype(key)
