"""Reads the sequences of a batch in a worker: from a dataset of its own, or item by item from the user's object.

A `Reading` is carried to the workers and opened there. A sequence that cannot be read does not keep the others from
being read: its error takes its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Column, ItemStack
from headrace.datasets.parts import open_here, open_reader
from headrace.datasets.reading import reader as datasets
from headrace.datasets.reading.chunks import Cutter, SeqChunks
from headrace.datasets.reading.reader import FailedSeq as FailedSeq
from headrace.engine import NumberedTags, WorkerInfo, note_each, note_number, note_together
from headrace.sources import Source
from headrace.specs import DataSpec

from .batch import ITEM_TAG

# Read between two signs of life: few enough that no storage takes a minute for them.
_SEQS_AT_ONCE = 64
_ITEMS_AT_ONCE = 1024  # of a user's object, noted together: as many as surely fit where a worker publishes them
ITEM_NAME = "(item {})"  # the name of a user's item while it is read


class BatchRequest(NamedTuple):
    """Sequences of one epoch that a worker is to read.

    Attributes:
        epoch: The epoch number.
        indices: Corpus indices, `int64[n]`.
        occurrences: How often each of them came before in the epoch, `int64[n]`; None if never.
        seqs: What was read already: tag and data of each; None if nothing was.
    """

    epoch: int
    indices: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None
    seqs: list[tuple[str, Any]] | None = None


class BatchReader(ABC):
    """Reads in one worker. Not thread-safe.

    Attributes:
        is_all_ours: Whether reading runs no user code, which might draw from the global generators.
        has_columns: Whether `columns` may be asked.
        reads_alone: Whether `read_alone` may be asked: tags follow from the corpus indices.
        reads_items: Whether `take_items` may be called: tags follow from the corpus indices, see `ITEM_TAG`.
    """

    is_all_ours = False
    has_columns = False
    reads_alone = False
    reads_items = False

    @abstractmethod
    def read(self, wanted: BatchRequest) -> Iterator[tuple[str, Any]]:
        """Yield the tag and the data of each requested sequence, in order; in place of the data, a `FailedSeq`."""

    def read_alone(self, epoch: int, corpus_idx: int) -> Any:
        """Read one sequence and return its data without the tag, in a third of the time of `read`; raises its error."""
        raise NotImplementedError(f"{type(self).__name__} reads by requests, also sequence {corpus_idx} of {epoch}")

    def take_items(self, wanted: BatchRequest, stack: ItemStack) -> list[tuple[int, Exception]]:
        """Stack the requested items, in order and without tags, in a third of the time of `read`.

        Returns:
            Those that could not be read: which of the request each was, and its error.
        """
        del stack
        raise NotImplementedError(f"{type(self).__name__} gives tags to what it reads, also in epoch {wanted.epoch}")

    def read_chunks(
        self, wanted: BatchRequest, chunks: Sequence[SeqChunks], cutter: Cutter
    ) -> Iterator[tuple[str, list[Any] | FailedSeq]]:
        """Yield the tag and the chunks of each requested sequence, in order; in place of the chunks, a `FailedSeq`."""
        for (tag, seq), own in zip(self.read(wanted), chunks, strict=True):
            yield tag, seq if isinstance(seq, FailedSeq) else cutter.cut(tag, seq, own)

    def columns(self, wanted: BatchRequest) -> tuple[list[str], dict[str, Column]]:
        """Return the tags and the columns of a request, which are read when they are written into a batch.

        What comes out is the same as from `read`, but an error need not name the sequence.
        """
        raise NotImplementedError(f"{type(self).__name__} reads one by one, also epoch {wanted.epoch}")


class Reading(ABC):
    """Opens a `BatchReader` in each worker; it is pickled and sent to them.

    Attributes:
        specs: The layout by data key, as far as it is known.
        is_by_key: Whether sequences are arrays by data key, and not just items.
    """

    specs: Mapping[str, DataSpec]
    is_by_key: bool

    @abstractmethod
    def open(self, info: WorkerInfo) -> BatchReader:
        """Return a reader, in a worker."""


@dataclass(frozen=True)
class DatasetReading(Reading):
    """Reads from a dataset that each worker builds for itself.

    Args:
        config: Of the dataset, or one that is copied.
        specs: What is known of its layout.
    """

    config: Any
    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    is_by_key = True

    def open(self, info: WorkerInfo) -> BatchReader:
        """Build the dataset and return a reader of it. In another process this object is a copy already."""
        if info.runs_in == "process":
            return _DatasetReader(open_here(self.config).reader())
        return _DatasetReader(open_reader(self.config, in_thread=info.runs_in == "thread"))


class _DatasetReader(BatchReader):
    def __init__(self, reader: datasets.Reader) -> None:
        self._reader = reader
        source = reader.fast_source()
        if source is not None and not all(_SourceKey.can_read(source, key) for key in source.specs):
            source = None
        self._source, self.has_columns = source, source is not None
        self._keys = [] if source is None else [_SourceKey(source, key) for key in source.specs]
        self._tags = None if source is None else source.index.tags
        self.is_all_ours = source is not None and not source.runs_user_code

    def columns(self, wanted: BatchRequest) -> tuple[list[str], dict[str, Column]]:
        assert self._source is not None
        assert self._tags is not None
        tags, columns = self._tags.take(wanted.indices), dict[str, Column]()
        for key in self._keys:
            columns[key.name] = _SourceColumn(self._source, key, wanted, tags)
        return tags, columns

    def read_chunks(
        self, wanted: BatchRequest, chunks: Sequence[SeqChunks], cutter: Cutter
    ) -> Iterator[tuple[str, list[Any] | FailedSeq]]:
        reader = self._reader

        def take(number: int) -> tuple[str, list[Any]]:
            found = cutter.read(reader, number, chunks[number])
            tag = None if found is None else reader.tag(number)
            if found is not None and tag is not None:
                return tag, found
            seq = reader.read(number)
            return seq.seq_tag, cutter.cut(seq.seq_tag, dict(seq.features), chunks[number])

        for tag, taken in reader.take_each(_request_of(wanted), take):
            if isinstance(taken, FailedSeq):
                yield tag, taken
            else:
                yield taken

    def read(self, wanted: BatchRequest) -> Iterator[tuple[str, Any]]:
        are_own = self._reader.gives_own
        for tag, features in self._reader.features_each(_request_of(wanted)):
            # a transform may put others into it
            yield tag, features if are_own or isinstance(features, FailedSeq) else dict(features)


def _request_of(wanted: BatchRequest) -> datasets.ReadRequest:
    # the members of a batch are not neighbours in the epoch: they have no positions there
    return datasets.ReadRequest.of(wanted.epoch, wanted.indices, wanted.occurrences)


class _SourceKey:
    """What a source says of a data key, for all batches: dtype, shape of a value without its time axis, all lengths."""

    def __init__(self, source: Source, name: str) -> None:
        spec = source.specs[name]
        self.name, self.dtype = name, np.dtype(spec.dtype)
        self.inner = tuple(size or 0 for size in spec.shape)  # it has no free axes
        self.lengths = source.index.lengths(name) if spec.has_time else None

    @staticmethod
    def can_read(source: Source, name: str) -> bool:
        """Tell whether values are numbers, and how long they are is known."""
        spec = source.specs[name]
        return np.dtype(spec.dtype).kind in "biufc" and (not spec.has_time or source.index.has_lengths(name))


class _SourceColumn(Column):
    """The values of one data key in the requested sequences, read from a source. Lengths are those of the index."""

    def __init__(self, source: Source, key: _SourceKey, wanted: BatchRequest, tags: list[str]) -> None:
        indices, lengths = wanted.indices, key.lengths
        self.key, self.num_seqs, self.dtype, self.inner = key.name, len(indices), key.dtype, key.inner
        self.lengths = None if lengths is None else lengths[indices].astype(np.int32)
        self._source, self._wanted, self._tags = source, wanted, tags

    def write(self, outs: Sequence[NDArray[Any]]) -> None:
        indices = self._wanted.indices
        for start in range(0, self.num_seqs, _SEQS_AT_ONCE):
            part = slice(start, start + _SEQS_AT_ONCE)
            note_together(self._tags[part], self._wanted.epoch)
            self._source.read_into(indices[part], self.key, outs[part])

    def stack(self, out: NDArray[Any]) -> None:
        indices = self._wanted.indices
        for start in range(0, self.num_seqs, _SEQS_AT_ONCE):
            part = slice(start, start + _SEQS_AT_ONCE)
            note_together(self._tags[part], self._wanted.epoch)
            self._source.read_rows(indices[part], self.key, out[part])


@dataclass(frozen=True)
class ItemsReading(Reading):
    """Reads the items of a user's object, unchanged.

    Args:
        items: Anything with `__getitem__`.
    """

    items: Any
    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    is_by_key = False

    def open(self, info: WorkerInfo) -> BatchReader:
        """Return a reader of the items."""
        del info
        return _ItemsReader(self.items)


_PLAIN = frozenset((np.ndarray, str, bytes, bool, int, float, complex))


def _are_plain(items: Any) -> bool:
    """Tell whether taking items, and stacking them, calls nothing but Python's and NumPy's own types; O(items)."""
    if type(items) in (np.ndarray, np.memmap):
        return items.ndim > 0 and items.dtype.kind in "biufc"
    return type(items) in (list, tuple) and _PLAIN.issuperset(map(type, items))


class _ItemsReader(BatchReader):
    def __init__(self, items: Any) -> None:
        self._items = items
        self._get_tag = getattr(items, "get_seq_tag", None)
        self.is_all_ours = _are_plain(items)
        self.reads_items = self.reads_alone = self._get_tag is None

    def read_alone(self, epoch: int, corpus_idx: int) -> Any:
        note_number(ITEM_NAME, corpus_idx, epoch)
        return self._items[corpus_idx]

    def take_items(self, wanted: BatchRequest, stack: ItemStack) -> list[tuple[int, Exception]]:
        items, failures = self._items, list[tuple[int, Exception]]()
        for number, corpus_idx in enumerate(_each_noted(wanted)):
            try:
                item = items[corpus_idx]
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                failures.append((number, error))
            else:
                stack.add(item)
                del item  # before the next one is made: it gets the memory
        return failures

    def read(self, wanted: BatchRequest) -> Iterator[tuple[str, Any]]:
        items, get_tag = self._items, self._get_tag
        for corpus_idx in _each_noted(wanted):
            try:
                tag = ITEM_TAG.format(corpus_idx) if get_tag is None else str(get_tag(corpus_idx))
                found = tag, items[corpus_idx]
            except Exception as error:  # noqa: BLE001 - as above
                found = ITEM_NAME.format(corpus_idx), FailedSeq(error)
            yield found
            del found  # before the next one is made: it gets the memory


def _each_noted(wanted: BatchRequest) -> Iterator[int]:
    """Return an iterator over the corpus indices: each is noted when it is to be read."""
    indices = wanted.indices.tolist()
    parts = [indices[start : start + _ITEMS_AT_ONCE] for start in range(0, len(indices), _ITEMS_AT_ONCE)]
    return chain.from_iterable(note_each(part, NumberedTags(ITEM_NAME, part), wanted.epoch) for part in parts)
