"""How a worker reads the sequences of a batch: from a dataset of its own, or item by item from the user's object.

A `Reading` is carried to the workers and opened there. A sequence that cannot be read does not keep the others from
being read: its error takes its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Column
from headrace.datasets.configs import init_dataset
from headrace.datasets.parts import open_reader
from headrace.datasets.reading import reader as datasets
from headrace.datasets.reading.chunks import Cutter, SeqChunks
from headrace.datasets.reading.reader import Failed as Failed
from headrace.engine import NumberedTags, WorkerInfo, note_items, note_number, note_together
from headrace.sources import Source
from headrace.specs import DataSpec

from .batch import ITEM_TAG

# Read between two signs of life: few enough that no storage takes a minute for them.
_SEQS_AT_ONCE = 64
ITEM_NAME = "(item {})"  # of an item of the user's, while it is read


class ReadRequest(NamedTuple):
    """Sequences of one epoch that a worker is to read.

    Attributes:
        epoch: Its number.
        indices: Corpus indices, `int64[n]`.
        occurrences: How often each of them came before in the epoch, `int64[n]`; None if never.
        seqs: What was read already: tag and data of each; None if nothing was.
    """

    epoch: int
    indices: NDArray[np.int64]
    occurrences: NDArray[np.int64] | None
    seqs: list[tuple[str, Any]] | None = None


class Reader(ABC):
    """Reads in one worker. Not thread-safe.

    Attributes:
        is_all_ours: Whether no code of the user's reads, which might draw from the global generators.
        has_columns: Whether `columns` may be asked.
        reads_alone: Whether `read_alone` may be asked: tags follow from the corpus indices.
        reads_items: Whether `items` may be asked: tags follow from the corpus indices, see `ITEM_TAG`.
    """

    is_all_ours = False
    has_columns = False
    reads_alone = False
    reads_items = False

    @abstractmethod
    def read(self, wanted: ReadRequest) -> Iterator[tuple[str, Any]]:
        """Yield for each sequence that is wanted, in order, its tag and what was read; or a `Failed`."""

    def read_alone(self, epoch: int, corpus_idx: int) -> Any:
        """Return what was read of one sequence, without its tag, in a third of the time; raises its error."""
        raise NotImplementedError(f"{type(self).__name__} reads by requests, also sequence {corpus_idx} of {epoch}")

    def items(self, wanted: ReadRequest) -> Iterator[Any]:
        """Yield what was read as `read` does, or a `Failed`, without tags: in half the time."""
        raise NotImplementedError(f"{type(self).__name__} gives tags to what it reads, also in epoch {wanted.epoch}")

    def read_chunks(
        self, wanted: ReadRequest, chunks: Sequence[SeqChunks], cutter: Cutter
    ) -> Iterator[tuple[str, list[Any] | Failed]]:
        """Yield for each sequence that is wanted, in order, its tag and its chunks; or a `Failed`."""
        for (tag, seq), own in zip(self.read(wanted), chunks, strict=True):
            yield tag, seq if isinstance(seq, Failed) else cutter.cut(tag, seq, own)

    def columns(self, wanted: ReadRequest) -> tuple[list[str], dict[str, Column]]:
        """Return the tags and the columns of a request, which are read when they are written into a batch.

        What comes out is the same as from `read`, but an error need not name the sequence.
        """
        raise NotImplementedError(f"{type(self).__name__} reads one by one, also epoch {wanted.epoch}")


class Reading(ABC):
    """What is carried to the workers.

    Attributes:
        specs: What is known of the layout, by data key.
        is_by_key: Whether sequences are arrays by data key, and not just items.
    """

    specs: Mapping[str, DataSpec]
    is_by_key: bool

    @abstractmethod
    def open(self, info: WorkerInfo) -> Reader:
        """Get ready to read, in a worker."""


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

    def open(self, info: WorkerInfo) -> Reader:
        """Build the dataset. What was carried to another process is a copy already."""
        if info.runs_in == "process":
            return _DatasetReader(init_dataset(self.config).make_reader())
        return _DatasetReader(open_reader(self.config, in_thread=info.runs_in == "thread"))


class _DatasetReader(Reader):
    def __init__(self, reader: datasets.Reader) -> None:
        self._reader = reader
        source = reader.fast_source()
        if source is not None and not all(_SourceKey.can_read(source, key) for key in source.specs):
            source = None
        self._source, self.has_columns = source, source is not None
        self._keys = [] if source is None else [_SourceKey(source, key) for key in source.specs]
        self._tags = None if source is None else source.index.tags
        self.is_all_ours = source is not None and type(source).__module__.startswith("headrace.")

    def columns(self, wanted: ReadRequest) -> tuple[list[str], dict[str, Column]]:
        assert self._source is not None
        assert self._tags is not None
        tags, columns = self._tags.take(wanted.indices), dict[str, Column]()
        for key in self._keys:
            columns[key.name] = _SourceColumn(self._source, key, wanted, tags)
        return tags, columns

    def read_chunks(
        self, wanted: ReadRequest, chunks: Sequence[SeqChunks], cutter: Cutter
    ) -> Iterator[tuple[str, list[Any] | Failed]]:
        reader = self._reader

        def take(number: int) -> tuple[str, list[Any]]:
            found = cutter.read(reader, number, chunks[number])
            tag = None if found is None else reader.tag(number)
            if found is not None and tag is not None:
                return tag, found
            seq = reader.read(number)
            return seq.seq_tag, cutter.cut(seq.seq_tag, dict(seq.features), chunks[number])

        for tag, taken in reader.take_each(_request_of(wanted), take):
            if isinstance(taken, Failed):
                yield tag, taken
            else:
                yield taken

    def read(self, wanted: ReadRequest) -> Iterator[tuple[str, Any]]:
        are_own = self._reader.gives_own
        for tag, features in self._reader.features_each(_request_of(wanted)):
            # a transform may put others into it
            yield tag, features if are_own or isinstance(features, Failed) else dict(features)


def _request_of(wanted: ReadRequest) -> datasets.ReadRequest:
    # the members of a batch are not neighbours in the epoch: they have no positions there
    return datasets.ReadRequest.of(wanted.epoch, wanted.indices, wanted.occurrences)


class _SourceKey:
    """What a source says of a data key, for all batches: its dtype, the shape of a value without time, all lengths."""

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
    """What a source has for one data key of the sequences that are wanted. Lengths are those of the index."""

    def __init__(self, source: Source, key: _SourceKey, wanted: ReadRequest, tags: list[str]) -> None:
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
    """Reads items of the user's object, as they are.

    Args:
        items: Anything with `__getitem__`.
    """

    items: Any
    specs: Mapping[str, DataSpec] = field(default_factory=dict)
    is_by_key = False

    def open(self, info: WorkerInfo) -> Reader:
        """Get ready to read: there is nothing to be done."""
        del info
        return _ItemsReader(self.items)


_PLAIN = frozenset((np.ndarray, str, bytes, bool, int, float, complex))


def _are_plain(items: Any) -> bool:
    """Tell whether taking items, and stacking them, calls nothing but Python's and NumPy's own types; O(items)."""
    if type(items) in (np.ndarray, np.memmap):
        return items.ndim > 0 and items.dtype.kind in "biufc"
    return type(items) in (list, tuple) and _PLAIN.issuperset(map(type, items))


class _ItemsReader(Reader):
    def __init__(self, items: Any) -> None:
        self._items = items
        self._get_tag = getattr(items, "get_seq_tag", None)
        self.is_all_ours = _are_plain(items)
        self.reads_items = self.reads_alone = self._get_tag is None

    def read_alone(self, epoch: int, corpus_idx: int) -> Any:
        note_number(ITEM_NAME, corpus_idx, epoch)
        return self._items[corpus_idx]

    def items(self, wanted: ReadRequest) -> Iterator[Any]:
        return _each(wanted, partial(getitem, self._items))

    def read(self, wanted: ReadRequest) -> Iterator[tuple[str, Any]]:
        for corpus_idx, found in zip(wanted.indices.tolist(), _each(wanted, self._tagged), strict=True):
            yield (ITEM_NAME.format(corpus_idx), found) if type(found) is Failed else found

    def _tagged(self, corpus_idx: int) -> tuple[str, Any]:
        tag = ITEM_TAG.format(corpus_idx) if self._get_tag is None else str(self._get_tag(corpus_idx))
        return tag, self._items[corpus_idx]


def _each(wanted: ReadRequest, get: Callable[[int], Any]) -> Iterator[Any]:
    """Yield what is got for each corpus index, or a `Failed`; each is noted before."""
    indices = wanted.indices.tolist()
    for start in range(0, len(indices), _SEQS_AT_ONCE):
        part = indices[start : start + _SEQS_AT_ONCE]
        go_to = note_items(NumberedTags(ITEM_NAME, part), wanted.epoch)  # the first one is noted by this
        for number, corpus_idx in enumerate(part):
            if number:
                go_to(number)
            try:
                found = get(corpus_idx)
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                found = Failed(error)
            yield found
            del found  # before the next one is made: it gets the memory
        go_to(-1)
