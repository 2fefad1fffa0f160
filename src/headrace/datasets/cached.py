"""`CachedDataset`: an order joined to a source.

The family of datasets whose sequences can be read one by one from somewhere: HDF5, audio files, memory, a user's
object. The source says what sequence i is, the order says when; this class keeps the sequences in between: those of the
current window (`load_seqs`), and a bounded cache over epochs. What it delivers is the same for every `cache_byte_size`.
What is kept, and what comes when, is in `reader.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict, apply_window
from headrace.errors import (
    ConfigError,
    HeadraceError,
    OptionalNotImplementedError,
    TransformError,
    did_you_mean,
    takes_note,
)
from headrace.order import ArrayOrder, Order, OrderCorpus, OrderPlanner, occurrences
from headrace.rng import derive_rng, wants_rng
from headrace.sources import SORT_LENGTHS, MapSource, Source
from headrace.specs import DataSpec

from .base import Dataset, is_of_headrace
from .checks import check_count, check_indices, check_tags
from .corpus import CorpusFacts, LengthsOf, num_left_out
from .digests import digest_array
from .reader import Features, LoadedSeqs, OrderCursor, SeqCache, outside_of_epoch, shuffle_group_frames
from .seq import DatasetSeq

Transform = Callable[..., Mapping[str, NDArray[Any]]]


class CachedDataset(Dataset):
    """Sequences of a source, in the order of an epoch.

    Args:
        cache_byte_size: Bound of the in-memory cache over epochs: 0 is off, -1 unlimited; any value works with any
            `partition_epoch`. (RETURNN divides it into a start cache and a rolling one, and refuses it with
            sub-epochs.)
        source: Where the sequences come from.
        transform: Called as `transform(features)` or, if it has a parameter `rng`, `transform(features,
            rng=generator)`, for each sequence when it is read; returns the new features. The generator is keyed by
            (seed, epoch, sequence), so what comes out does not depend on who calls it or when. Lengths are then those
            of what it returns.
        **kwargs: See `Dataset`.
    """

    supports_window = True
    supports_frame_shuffling = True
    supports_jumps = True
    knows_dtypes = True
    sorts_by_column = False  # whether `_sort_lengths` are numbers that are stored besides, and no lengths of data

    draws_classes = False
    """Whether classes are drawn in each epoch from what is stored, see `SamplingBytePairEncoding`."""

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
        self._begin_reading()
        # What a class of the user's own reads in its way, by the same names as in RETURNN.
        ways = {way for way in _WAYS if not is_of_headrace(getattr(type(self), way))}
        self._has_user_ways, self._has_user_keys = bool(ways), bool(ways & {"get_data", "get_tag"})
        self._has_user_seqs = bool(ways - {"get_data"})
        self._has_user_lengths = not is_of_headrace(type(self).get_seq_length)
        if source is not None:
            self._set_source(source)

    def _set_source(self, source: Source) -> None:
        self._source = source
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
        self._loaded.clear()

    @property
    def source(self) -> Source:
        """Where the sequences come from.

        Raises:
            ConfigError: None was given yet.
        """
        if self._source is None:
            raise ConfigError(
                f"{type(self).__name__} has no data yet",
                where=f"dataset {self.name!r}",
                fix="name them in the constructor (HDFDataset: files=, or add_file)",
            )
        return self._source

    # --- copies ---

    def __copy__(self) -> Self:
        """Return a dataset of the same options and of the same source as it was found, with an epoch of its own.

        Nothing is opened: a copy opens its files when it reads. A class of the user's own is made again.
        """
        source = self._source_of_copy()
        if source is None:
            return super().__copy__()
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._begin_as_copy(source)
        return made

    def _source_of_copy(self) -> Source | None:
        """Return what a copy of this dataset reads from; `None` if its constructor has to say it."""
        if self._source is None or not is_of_headrace(type(self)):
            return None
        return self._source.for_another_reader()

    def _begin_as_copy(self, source: Source) -> None:
        """Let go of the epoch of the dataset that this is a copy of, and of all that would be changed in both."""
        self._check_shard()
        self._source, self._cache = source, SeqCache(self._cache.max_bytes)
        self.labels, self.weights = dict(self.labels), dict(self.weights)
        self._order_options, self._planner = dict(self._order_options), OrderPlanner(self._recipe)
        self._apart, self.claimed_by = (False, None), None
        self.order_version, self._rnd_seq_drop = 0, None
        self._begin_reading()

    def _begin_reading(self) -> None:
        self._cursor = OrderCursor()
        self._order_is_given = False
        self._occurrences: NDArray[np.int64] | None = None
        self._loaded = LoadedSeqs()

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`."""
        super().init_seq_order(epoch, seq_list, seq_order)
        self._loaded.clear()
        self._occurrences = None
        self._order_is_given = seq_list is not None or seq_order is not None or self._has_own_order()
        if seq_list is not None:
            self._cursor = OrderCursor(ArrayOrder(self.source.index.find_tags(check_tags(seq_list))))
        elif seq_order is not None:
            self._cursor = OrderCursor(self._explicit_order(seq_order, len(self.source)))
        else:
            self._cursor = OrderCursor(None if epoch is None else self._order_of_epoch(epoch))
        return True

    def init_part(
        self, epoch: int, first: int, indices: NDArray[np.int64], occurrences: NDArray[np.int64] | None = None
    ) -> int:
        """Start a part of an epoch under its own places, see `Dataset.init_part`."""
        super().init_seq_order(epoch)
        self._loaded.clear()
        self._order_is_given = True
        self._occurrences = occurrences
        checked = check_indices(indices, len(self.source), f"dataset {self.name!r}")
        order = ArrayOrder(checked, may_repeat=occurrences is not None)
        self._cursor = OrderCursor(order, first)
        return first

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return how often each sequence of the current order came before, if a transform draws by it."""
        if not self._transform_wants_rng or not self._cursor.order.may_repeat:
            return None
        return self._occurrences_now()

    def _has_own_order(self) -> bool:
        """Whether the order of an epoch does not come from the planner."""
        return False

    def _order_of_epoch(self, epoch: int) -> Order:
        return self._lazy_order_for_epoch(epoch, len(self.source))

    def _order_corpus(self, num_seqs: int, get_seq_len: Any) -> OrderCorpus:
        corpus = super()._order_corpus(num_seqs, get_seq_len)
        lengths = corpus.lengths or self._sort_lengths  # not asked yet: it may cost a pass over the corpus
        return dataclasses.replace(corpus, lengths=lengths, is_fixed=True)

    def _keep_mask(self) -> NDArray[np.bool_]:
        if self._keep is None:
            self._keep = super()._keep_mask()
        return self._keep

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

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter."""
        return self.source.index.tags

    def _first_of_tag(self) -> NDArray[np.int64]:
        return self.source.index.tag_groups()

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        self._cursor = OrderCursor()
        self._loaded.clear()
        if free_resources:
            self._file_lengths = None
            self._cache.clear()
            if self._source is not None:
                self._source.close()

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order."""
        return self._cursor.order

    # --- what is known without reading ---

    def corpus_facts(self) -> CorpusFacts:
        """Return what the index knows."""
        return CorpusFacts(
            index=self.source.index,
            sort_lengths=self._sort_lengths,
            kept=lambda: None if self._wanted_tags is None else self._keep_mask(),
            draws_by_occurrence=self._transform_wants_rng,
            occurrences=self._occurrences_now,
            has_fixed_lengths=not self._has_user_lengths,
        )

    def num_filtered(self) -> tuple[int, int] | None:
        """Count what the filter of this dataset drops; without one the index is not built."""
        return None if self._wanted_tags is None else num_left_out(self._keep_mask())

    def known_specs(self) -> dict[str, DataSpec]:
        """Return the layout of the source."""
        return dict(self.source.specs)

    def corpus_lengths(self, key: str, *, may_cost: bool) -> LengthsOf | None:
        """Return the lengths of the index; those of a class of the user's own, if it says other ones."""
        self._check_key(key)
        if self._has_user_lengths:
            return super().corpus_lengths(key, may_cost=may_cost)
        if isinstance(self.source, MapSource) and not may_cost:
            return None
        index = self.source.index
        if not index.has_lengths(key) and isinstance(self.source, MapSource) and index.has_lengths(SORT_LENGTHS):
            key = SORT_LENGTHS
        return index.lengths(key).__getitem__ if index.has_lengths(key) else None

    def may_change_lengths(self) -> bool:
        """Whether there is a transform, or a class of the user's own reads in another way."""
        return self._transform is not None or self._has_user_ways

    def covers_lengths(self, key: str) -> bool:  # noqa: ARG002
        """Yes: they are part of the digest of the index; but not those that a class of the user's own says."""
        return not self._has_user_lengths

    def draws_text(self) -> str:
        """Return the seeds, if a transform draws."""
        return super().draws_text() if self._transform_wants_rng else ""

    def _order_details(self, epoch: int) -> list[str]:
        details = super()._order_details(epoch)
        if self.sorts_by_column:
            details.append(f"sorted by {digest_array(np.asarray(self._sort_lengths()))}")
        if self._has_own_order():
            details.append(f"own order {digest_array(np.asarray(self._order_of_epoch(epoch)))}")
        return details

    def _reading_details(self) -> list[str]:
        return [*super()._reading_details(), *(["transform"] if self._transform is not None else [])]

    def get_fast_source(self) -> Source | None:
        """Return the source, if neither an option nor a sub-class stands between it and a reader."""
        is_changed = any(getattr(type(self), way) is not getattr(CachedDataset, way) for way in _WAYS)
        return self.source if not is_changed and self.reads_by_key() and self.source.has_fast_rows else None

    def supports_seq_order_sorting(self) -> bool:
        """Whether lengths are known without reading sequences."""
        key = self._sort_key()
        return self.seq_order_seq_lens_file is not None or key is None or self.source.index.has_lengths(key)

    def supports_sharding(self) -> bool:
        """Any shard of any order: yes."""
        return True

    # --- reading ---

    def _corpus_idx(self, seq_idx: int) -> int:
        try:
            return self._cursor[seq_idx]
        except IndexError as error:
            raise outside_of_epoch(error, self, self._cursor) from None

    def _occurrence(self, seq_idx: int) -> int:
        return int(self._occurrences_now()[seq_idx - self._cursor.first])

    def _occurrences_now(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        if self._occurrences is None:
            given = self._order_is_given
            self._occurrences = (
                occurrences(self._cursor.order) if given else self._planner.occurrences_for_epoch(int(self.epoch))
            )
        return self._occurrences

    def _read_raw(self, corpus_idx: int) -> Features:
        """Return one sequence of the source, through the cache; its arrays are ours to give away."""
        if self._cache.max_bytes == 0:
            return self.source.read_seq(corpus_idx)
        features = self._cache.get(corpus_idx)
        if features is None:
            features = self.source.read_seq(corpus_idx)
            self._cache.put(corpus_idx, features)
        return features

    def _finish(self, seq_idx: int, features: Features) -> Features:
        """Apply the transform and the window to one sequence."""
        if self._transform is not None:
            features = self._apply_transform(seq_idx, features)
        if self.window > 1 and "data" in features:
            features["data"] = apply_window(features["data"], self.window)
        return features

    def _apply_transform(self, seq_idx: int, features: Features) -> Features:
        assert self._transform is not None
        if self._transform_wants_rng:
            fixed = self.fixed_random_seed
            rng = derive_rng(
                fixed if fixed is not None else self.random_seed_offset,
                f"transform of {self.get_tag(seq_idx)}" if self.seeds_by_tag else "transform",
                epoch=0 if fixed is not None else int(self.epoch),
                corpus_idx=0 if self.seeds_by_tag else self._corpus_idx(seq_idx),
                occurrence=self._occurrence(seq_idx),
            )
            result = self._transform(features, rng=rng)
        else:
            result = self._transform(features)
        wrong = self._what_is_wrong(result)
        if wrong is not None:
            what, fix = wrong
            transform = f"transform {_name_of(self._transform)}"
            where = f"sequence {self.get_tag(seq_idx)!r}, epoch {int(self.epoch)}, {transform}"
            raise TransformError(what, where=where, fix=fix)
        return {key: result[key] for key in self.source.specs}

    def _what_is_wrong(self, result: Any) -> tuple[str, str | None] | None:
        """Say what is wrong with the result of a transform, and how to mend it; `None` if nothing is."""
        if not isinstance(result, Mapping):
            return f"a transform returns a mapping key -> array, got {type(result).__name__}", None
        if set(result) != set(self.source.specs):
            return f"a transform keeps the data keys: {sorted(self.source.specs)} became {sorted(result)}", None
        for key, value in result.items():
            spec = self.source.specs[key]
            if not isinstance(value, np.ndarray) or value.dtype != spec.dtype or value.ndim != spec.ndim:
                got = f"{value.dtype}, {value.ndim} axes" if isinstance(value, np.ndarray) else type(value).__name__
                what = f"a transform keeps dtype and axes: {key!r} has {spec.dtype}, {spec.ndim} axes, got {got}"
                return what, f"return numpy arrays, for example .astype({spec.dtype!r})"
        return None

    def _read(self, seq_idx: int) -> dict[int, Features]:
        """Read one sequence as it is delivered, or the group whose frames are shuffled together, by place."""
        size = self.shuffle_frames_of_nseqs or 1
        first = seq_idx - seq_idx % size
        places = range(first, min(first + size, len(self._cursor)))
        try:
            group = [self._read_raw(self._corpus_idx(place)) for place in places]
            if self.shuffle_frames_of_nseqs:
                where = f"dataset {self.name!r}, sequences {places.start}..{places.stop - 1}"
                group = shuffle_group_frames(group, first, where=where)
            return {place: self._finish(place, features) for place, features in zip(places, group, strict=True)}
        except Exception as error:
            self._add_note(error, seq_idx)
            raise

    def _add_note(self, error: Exception, seq_idx: int) -> None:
        """Say at which sequence an error happened: by its tag, or its place where the tag cannot be read either."""
        try:
            name = repr(self.get_tag(seq_idx))
        except (HeadraceError, LookupError, OSError):
            name = str(seq_idx)
        takes_note(error, f"dataset {self.name!r}, epoch {int(self.epoch) or None}, sequence {name}")

    def _whole(self, seq_idx: int) -> Features:
        """Return all arrays of a sequence, none of them handed out yet; reads it if need be."""
        features = self._loaded.get(seq_idx)
        if features is None or len(features) < len(self.source.specs):
            self._corpus_idx(seq_idx)  # outside of the epoch: said before anything is read
            seqs = self._read(seq_idx)
            self._loaded.put_alone(seqs)
            features = seqs[seq_idx]
        return features

    def _take(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Hand out one array; from now on it is the caller's."""
        features = self._loaded.get(seq_idx)
        if features is None or key not in features:
            features = self._whole(seq_idx)
        return features.pop(key)

    def load_seqs(self, start: int, end: int) -> None:
        """Read sequences start..end (exclusive; may exceed the epoch); drop those before `start`."""
        self._loaded.drop_before(start)
        for seq_idx in range(max(start, 0), min(end, len(self._cursor))):
            if seq_idx not in self._loaded:
                self._loaded.put_window(self._read(seq_idx))

    def get_data(self, seq_idx: int, key: str) -> NDArray[Any]:
        """Return the array of one data key, `dtype[T, ...]`. It is the caller's own: asked again, it is read again."""
        self._check_key(key)
        if seq_idx not in self._loaded and self.reads_by_key():
            return self.source.read(self._corpus_idx(seq_idx), key)
        return self._take(seq_idx, key)

    def get_data_slice(self, seq_idx: int, key: str, start_frame: int, end_frame: int) -> NDArray[Any]:
        """Return frames start..end (exclusive; what lies behind the last frame is left out) of one data key.

        Where the source can, the other frames are not read.

        Raises:
            IndexError: A frame is negative, or the end lies before the start.
        """
        self._check_key(key)
        if not 0 <= start_frame <= end_frame:
            where = f"sequence {seq_idx} of dataset {self.name!r}"
            raise IndexError(f"frames {start_frame}..{end_frame} of {key!r}, {where}")
        if self._has_user_keys:
            return self.get_data(seq_idx, key)[start_frame:end_frame]
        if seq_idx in self._loaded or not self.reads_by_key():
            return self._take(seq_idx, key)[start_frame:end_frame]
        corpus_idx = self._corpus_idx(seq_idx)
        length = self.source.seq_lengths(corpus_idx)[key]
        return self.source.read_slice(corpus_idx, key, min(start_frame, length), min(end_frame, length))

    def reads_by_key(self) -> bool:
        """Whether one key can be read alone: nothing looks at the whole sequence."""
        return (
            self._cache.max_bytes == 0
            and self._transform is None
            and self.window == 1
            and not self.shuffle_frames_of_nseqs
            and not self._has_user_seqs
        )

    def take_features(self, seq_idx: int) -> Features:
        """Hand out all arrays of one sequence of the current order."""
        if self.shuffle_frames_of_nseqs or seq_idx in self._loaded:
            features = self._whole(seq_idx)
            taken = dict(features)
            features.clear()  # handed out
            return taken
        try:
            return self._finish(seq_idx, self._read_raw(self._corpus_idx(seq_idx)))
        except Exception as error:
            self._add_note(error, seq_idx)
            raise

    @property
    def reads_singly(self) -> bool:
        """Yes, but for a class of the user's own that reads in another way."""
        return not self._has_user_ways

    def get_tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of corpus indices."""
        return self.source.tags_of(indices)

    def get_seq(self, seq_idx: int) -> DatasetSeq:
        """Return one sequence with all of its data keys."""
        corpus_idx = self._corpus_idx(seq_idx)
        frac = self.get_complete_frac(seq_idx)
        if self._has_user_keys:
            features = {key: self.get_data(seq_idx, key) for key in self.get_data_keys()}
            return DatasetSeq(
                seq_idx, features, seq_tag=self.get_tag(seq_idx), complete_frac=frac, corpus_idx=corpus_idx
            )
        features = self.take_features(seq_idx)
        return DatasetSeq.made_of(seq_idx, features, self.source.tag(corpus_idx), frac, corpus_idx)

    def _iterate(self, version: int) -> Iterator[DatasetSeq]:
        if not self.reads_singly:
            yield from super()._iterate(version)
            return
        for seq_idx in range(len(self._cursor)):
            self._check_version(version, seq_idx)
            yield self.get_seq(seq_idx)
        self._check_version(version, len(self._cursor))

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence if a transform may change them."""
        corpus_idx = self._corpus_idx(seq_idx)
        if self._transform is None:
            return NumbersDict(self.source.seq_lengths(corpus_idx))
        return NumbersDict({key: len(array) if array.ndim else 1 for key, array in self._whole(seq_idx).items()})

    def get_estimated_seq_length(self, seq_idx: int) -> int:
        """Return the length that sequences are sorted by."""
        lengths = self._lengths_of_file() if self.seq_order_seq_lens_file is not None else self._sort_lengths()
        return lengths[self._corpus_idx(seq_idx)].item()  # type: ignore[no-any-return]

    def get_num_timesteps(self) -> NumbersDict:
        """Return data key -> number of frames of the current epoch, from the index."""
        is_stored = self._transform is None and not self._has_user_lengths
        if not is_stored or not all(self.source.index.has_lengths(key) for key in self.source.specs):
            return super().get_num_timesteps()
        indices = np.asarray(self._cursor.order)
        return NumbersDict(
            {key: int(self.source.index.lengths(key)[indices].sum(dtype=np.int64)) for key in self.source.specs}
        )

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        return self.source.tag(self._corpus_idx(seq_idx))

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, without those that the filter drops; they may live on disk."""
        tags = self.source.index.tags
        if self._wanted_tags is None:
            return tags
        return tags.take(np.flatnonzero(self._keep_mask()))

    def get_total_num_seqs(self, *, fast: bool = False) -> int:  # noqa: ARG002 (always fast but for the filter)
        """Return the number of sequences of the whole corpus, without those that the filter drops."""
        return len(self.source) if self._wanted_tags is None else int(np.count_nonzero(self._keep_mask()))

    def have_corpus_seq_idx(self) -> bool:
        """Yes."""
        return True

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the place in the corpus of a sequence of the current order."""
        return self._corpus_idx(seq_idx)

    def have_get_corpus_seq(self) -> bool:
        """Yes, unless what is stored becomes a sequence only when it is read in an epoch."""
        return not self.draws_classes

    def get_corpus_seq(self, corpus_seq_idx: int) -> DatasetSeq:
        """Return any sequence of the corpus as it is stored, without transform or window."""
        if self.draws_classes:
            self._not_offered("get_corpus_seq with a vocabulary that draws")
        features = self._read_raw(corpus_seq_idx)
        return DatasetSeq(corpus_seq_idx, features, seq_tag=self.source.tag(corpus_seq_idx), corpus_idx=corpus_seq_idx)

    # --- how much there is, layout ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch."""
        return len(self._cursor)

    @property
    def num_seqs_cached_at_start(self) -> int:
        """Number of sequences at the start of the current order that the cache holds."""
        for seq_idx in range(len(self._cursor)):
            if self._corpus_idx(seq_idx) not in self._cache:
                return seq_idx
        return len(self._cursor)

    def is_cached(self, start: int, end: int, blocking: bool = False) -> bool:
        """Whether sequences start..end (exclusive) need no reading.

        Args:
            start: First place in the current order.
            end: Behind the last place.
            blocking: Read them first if they are not there.
        """
        end = min(end, len(self._cursor))
        if blocking:
            self.load_seqs(start, end)
        return all(i in self._loaded or self._corpus_idx(i) in self._cache for i in range(start, end))

    def batch_set_generator_cache_whole_epoch(self) -> bool:
        """Batches are planned from the index alone, so they can be kept."""
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

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        self._check_key(key)
        return self.source.specs[key].dtype

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        self._check_key(key)
        return self.source.specs[key].sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame, `None` for a free axis."""
        self._check_key(key)
        shape = list(self.source.specs[key].shape)
        if key == "data" and self.window > 1 and shape and shape[-1] is not None:
            shape[-1] *= self.window
        return shape


_WAYS = ("load_seqs", "get_seq", "get_data", "get_tag", "take_features")


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
