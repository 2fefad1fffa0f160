"""`SourceReader`: reads sequences of a source for an epoch, as a pure function of the epoch and the sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict, apply_window
from headrace.errors import HeadraceError, TransformError, takes_note
from headrace.order import ArrayOrder, occurrences
from headrace.rng import derive_rng, wants_rng
from headrace.sources import Source
from headrace.specs import DataSpec

from ..checks import check_indices
from ..seq import DatasetSeq
from .loaded import LastArrays, OrderCursor, SeqCache, shuffle_group_frames
from .reader import FailedSeq, Features, Reader, ReadRequest

Transform = Callable[..., Mapping[str, NDArray[Any]]]

_LAST_BYTES = 32 << 20  # kept of arrays that can only be read whole, where chunks of them are asked for


@dataclass(frozen=True, eq=False)
class Finishing:
    """What is done to the sequences of a dataset after they are read from its source.

    Attributes:
        name: Name of the dataset, for messages.
        specs: The layout that a transform keeps.
        transform: The user's, see `CachedDataset`.
        window: Frames that are joined into one.
        random_seed_offset: A transform draws by it and the epoch.
        fixed_random_seed: A transform draws by it alone, if it is not `None`.
        by_tag: Whether it draws by the tag of a sequence, not by its corpus index.
    """

    name: str
    specs: Mapping[str, DataSpec]
    transform: Transform | None = None
    window: int = 1
    random_seed_offset: int = 0
    fixed_random_seed: int | None = None
    by_tag: bool = False

    @cached_property
    def draws(self) -> bool:
        """Whether a generator is drawn from."""
        return self.transform is not None and wants_rng(self.transform)

    @property
    def does_nothing(self) -> bool:
        """Whether sequences stay as they are."""
        return self.transform is None and self.window == 1

    def apply(
        self, features: Features, epoch: int | None, corpus_idx: int, occurrence: int, get_tag: Callable[[], str]
    ) -> Features:
        """Return a sequence as an epoch delivers it.

        Args:
            features: As it is stored; from now on ours.
            epoch: The epoch number.
            corpus_idx: Which sequence it is.
            occurrence: How often it came before in that epoch.
            get_tag: Returns its tag.

        Raises:
            TransformError: The transform returns something else than features of the same layout.
        """
        if self.transform is not None:
            if self.draws:
                rng = self._rng(epoch or 0, corpus_idx, occurrence, get_tag)
                result: Any = self.transform(features, rng=rng)
            else:
                result = self.transform(features)
            wrong = self._what_is_wrong(result)
            if wrong is not None:
                what, fix = wrong
                where = f"sequence {get_tag()!r}, epoch {epoch or 0}, transform {_name_of(self.transform)}"
                raise TransformError(what, where=where, fix=fix)
            features = {key: result[key] for key in self.specs}
        if self.window > 1 and "data" in features:
            features["data"] = apply_window(features["data"], self.window)
        return features

    def _rng(self, epoch: int, corpus_idx: int, occurrence: int, get_tag: Callable[[], str]) -> np.random.Generator:
        fixed = self.fixed_random_seed
        return derive_rng(
            self.random_seed_offset if fixed is None else fixed,
            f"transform of {get_tag()}" if self.by_tag else "transform",
            epoch=epoch if fixed is None else 0,
            corpus_idx=0 if self.by_tag else corpus_idx,
            occurrence=occurrence,
        )

    def _what_is_wrong(self, result: Any) -> tuple[str, str | None] | None:
        """Say what is wrong with the result of a transform, and how to mend it; `None` if nothing is."""
        if not isinstance(result, Mapping):
            return f"a transform returns a mapping key -> array, got {type(result).__name__}", None
        if set(result) != set(self.specs):
            return f"a transform keeps the data keys: {sorted(self.specs)} became {sorted(result)}", None
        for key, value in result.items():
            spec = self.specs[key]
            if not isinstance(value, np.ndarray) or value.dtype != spec.dtype or value.ndim != spec.ndim:
                got = f"{value.dtype}, {value.ndim} axes" if isinstance(value, np.ndarray) else type(value).__name__
                what = f"a transform keeps dtype and axes: {key!r} has {spec.dtype}, {spec.ndim} axes, got {got}"
                return what, f"return numpy arrays, for example .astype({spec.dtype!r})"
        return None

    def add_note(self, error: Exception, epoch: int | None, get_tag: Callable[[], str], corpus_idx: int) -> None:
        """Add the sequence to an error: by its tag, or its number where the tag cannot be read either."""
        try:
            name = repr(get_tag())
        except (HeadraceError, LookupError, OSError):
            name = str(corpus_idx)
        takes_note(error, f"dataset {self.name!r}, epoch {epoch}, sequence {name}")


class SourceReader(Reader):
    """Reads sequences of a source.

    Args:
        source: The source to read from.
        cache: What keeps sequences as they are stored.
        finishing: What is done to them.
        group: Neighbours whose frames are shuffled among each other; 0: none are.
        texts_of: Returns the texts of a corpus index; `None`: there are none.
    """

    is_sequential = False

    def __init__(
        self,
        source: Source,
        cache: SeqCache,
        finishing: Finishing,
        group: int = 0,
        texts_of: Callable[[int], Features] | None = None,
    ) -> None:
        self._source, self._finishing, self._group = source, finishing, group
        self._read_seq = source.read_seq if cache.max_bytes == 0 else partial(cache.read, source)
        self.gives_own = finishing.transform is None
        self._is_stored, self._draws = finishing.does_nothing, finishing.draws
        self._texts_of = texts_of
        self._reads_by_key = cache.max_bytes == 0 and not group and self._is_stored
        self._start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next.

        Raises:
            ConfigError: A corpus index is not in the source.
        """
        if isinstance(wanted.order, ArrayOrder):
            check_indices(wanted.indices, len(self._source), f"dataset {self._finishing.name!r}")
        self._start(wanted)

    def _start(self, wanted: ReadRequest) -> None:
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        counted = wanted.occurrences
        if self._draws and wanted.epoch is None and counted is None:
            counted = occurrences(wanted.order)
        self._occurrences = counted
        self._tags: list[str] | None = None
        self._read_together: dict[int, Features] = {}  # of the last group, those that were not asked for yet

    def tags(self) -> list[str]:
        """Look up the tags."""
        if self._tags is None:
            self._tags = self._source.tags_of(self._wanted.indices)
        return self._tags

    def _get_tag(self, number: int) -> str:
        return self._source.tag(self._cursor[number]) if self._tags is None else self._tags[number]

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence."""
        return DatasetSeq.made_of(number, self.features(number), self._get_tag(number), None, self._cursor[number])

    def features(self, number: int) -> Features:
        """Read all arrays of a sequence."""
        try:
            if not self._group:
                features = self._read_seq(self._cursor[number])
                return features if self._is_stored else self._finished(number, features)
            if number not in self._read_together:
                self._read_together = self._read_group(number)
            return self._read_together.pop(number)
        except Exception as error:
            self._add_note(error, number)
            raise

    def features_each(self, wanted: ReadRequest) -> Iterator[tuple[str, Features | FailedSeq]]:
        """Read the arrays: tags are known without them."""
        if not self._reads_by_key:
            return self.take_each(wanted, self.features)
        indices, read_seq = wanted.indices.tolist(), self._source.read_seq

        def read_stored(number: int) -> Features:
            try:
                return read_seq(indices[number])
            except Exception as error:
                self._add_note(error, number)
                raise

        return self.take_each(wanted, read_stored)

    def _read_group(self, number: int) -> dict[int, Features]:
        """Read the sequences whose frames are shuffled together, by number: neighbours in the epoch."""
        start, size = self._wanted.first or 0, self._group
        first = start + number - (start + number) % size
        numbers = range(first - start, min(first - start + size, self._cursor.stop))
        stored = [self._read_seq(self._cursor[one]) for one in numbers]
        where = f"dataset {self._finishing.name!r}, sequences {first}..{start + numbers.stop - 1}"
        group = zip(numbers, shuffle_group_frames(stored, first, where=where), strict=True)
        return {one: self._finished(one, seq) for one, seq in group}

    def _add_note(self, error: Exception, number: int) -> None:
        get_tag = partial(self._get_tag, number)
        self._finishing.add_note(error, self._wanted.epoch, get_tag, (self._wanted.first or 0) + number)

    def _finished(self, number: int, features: Features) -> Features:
        if self._is_stored:
            return features
        occurrence = 0 if self._occurrences is None else int(self._occurrences[number])
        get_tag = partial(self._get_tag, number)
        return self._finishing.apply(features, self._wanted.epoch, self._cursor[number], occurrence, get_tag)

    def reads_by_key(self) -> bool:
        """Whether one data key can be read alone: nothing looks at the whole sequence."""
        return self._reads_by_key

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Read one array; of one that is kept, hand out a copy."""
        if not self._reads_by_key:
            return super().array(number, key)
        try:
            if key in self._kept_keys:
                return self._last.read(self._cursor[number], key).copy()
            return self._source.read(self._cursor[number], key)
        except Exception as error:
            self._add_note(error, number)
            raise

    def texts(self, number: int) -> Features:
        """Look up the texts."""
        return {} if self._texts_of is None else self._texts_of(self._cursor[number])

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return frames start..stop (what lies after the last one is left out) of one data key."""
        if not self._reads_by_key:
            return self.array(number, key)[start:stop]
        corpus_idx = self._cursor[number]
        try:
            if key in self._kept_keys:
                return self._last.read(corpus_idx, key)[start:stop].copy()
            length = self._source.seq_lengths(corpus_idx)[key]
            return self._source.read_slice(corpus_idx, key, min(start, length), min(stop, length))
        except Exception as error:
            self._add_note(error, number)
            raise

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Ask the index; a sequence to which something is done is read whole."""
        lengths = self._lengths
        if lengths is None or not self._reads_by_key:
            return None
        corpus_idx = self._cursor[number]
        return {key: None if column is None else int(column[corpus_idx]) for key, column in lengths.items()}

    @cached_property
    def _lengths(self) -> dict[str, NDArray[Any] | None] | None:
        """Data key -> frames of all sequences, `None` for a key that is taken whole; `None` if all of them are."""
        source, found = self._source, {}
        for key, spec in source.specs.items():
            is_read = key in self._kept_keys or source.reads_slices(key)
            is_cut = spec.has_time and source.index.has_lengths(key) and is_read
            found[key] = source.index.lengths(key) if is_cut else None
        return found if any(column is not None for column in found.values()) else None

    @cached_property
    def _kept_keys(self) -> frozenset[str]:
        """The data keys of which the source reads no slices, and gives the same each time."""
        source = self._source
        keys = [] if source.runs_user_code else source.specs
        return frozenset(key for key in keys if not source.reads_slices(key))

    @cached_property
    def _last(self) -> LastArrays:
        return LastArrays(self._source, _LAST_BYTES)

    def known_frames(self, number: int) -> NumbersDict | None:
        """Ask the index, unless a transform may change them."""
        if self._finishing.transform is not None:
            return None
        return NumbersDict(self._source.seq_lengths(self._cursor[number]))

    def fast_source(self) -> Source | None:
        """Return the source, where nothing is done to sequences."""
        return self._source if self._reads_by_key and self._source.has_fast_rows else None


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
