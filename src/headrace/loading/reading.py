"""How a worker reads the sequences of a batch: from a dataset of its own, or item by item from the user's object.

A `Reading` is carried to the workers and opened there. A sequence that cannot be read does not keep the others from
being read: its error takes its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Column
from headrace.datasets.configs import init_dataset
from headrace.datasets.parts import open_reader
from headrace.datasets.reading import reader as datasets
from headrace.datasets.reading.reader import Failed as Failed
from headrace.engine import WorkerInfo, note_place, note_places
from headrace.sources import Source
from headrace.specs import DataSpec

from .chunks import Cutter, SeqChunks

# Read between two signs of life: few enough that no storage takes a minute for them.
_SEQS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class ReadRequest:
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
    """

    is_all_ours = False

    @abstractmethod
    def read(self, wish: ReadRequest) -> Iterator[tuple[str, Any]]:
        """Yield for each sequence of the wish, in order, its tag and what was read; or a `Failed`."""

    def read_chunks(
        self, wish: ReadRequest, chunks: Sequence[SeqChunks], cutter: Cutter
    ) -> Iterator[tuple[str, list[Any] | Failed]]:
        """Yield for each sequence of the wish, in order, its tag and its chunks; or a `Failed`."""
        for (tag, seq), own in zip(self.read(wish), chunks, strict=True):
            yield tag, seq if isinstance(seq, Failed) else cutter.cut(tag, seq, own)

    def columns(self, wish: ReadRequest) -> tuple[list[str], dict[str, Column]] | None:
        """Return the tags and the columns of a wish, which are read when they are written into a batch.

        What comes out is the same as from `read`, but an error need not name the sequence.

        Returns:
            None if the sequences have to be read one by one.
        """
        del wish
        return None


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
        has_texts = source is not None and any(_is_text(spec) for spec in source.specs.values())
        self._source = None if has_texts else source
        self.is_all_ours = self._source is not None and type(self._source).__module__.startswith("headrace.")

    def columns(self, wish: ReadRequest) -> tuple[list[str], dict[str, Column]] | None:
        source = self._source
        if source is None:
            return None
        tags = source.tags_of(wish.indices)
        return tags, {key: _SourceColumn(source, key, wish, tags) for key in source.specs}

    def read_chunks(
        self, wish: ReadRequest, chunks: Sequence[SeqChunks], cutter: Cutter
    ) -> Iterator[tuple[str, list[Any] | Failed]]:
        reader = self._reader

        def take(number: int) -> tuple[str | None, list[Any]]:
            found = cutter.read(reader, number, chunks[number])
            if found is not None:
                return None, found
            seq = reader.read(number)
            return seq.seq_tag, cutter.cut(seq.seq_tag, dict(seq.features), chunks[number])

        for tag, taken in reader.take_each(_wanted(wish), take):
            if isinstance(taken, Failed):
                yield tag, taken
            else:
                own_tag, found = taken
                yield tag if own_tag is None else own_tag, found

    def read(self, wish: ReadRequest) -> Iterator[tuple[str, Any]]:
        wanted, are_own = _wanted(wish), self._reader.gives_own
        for tag, seq in self._reader.read_each(wanted):
            if isinstance(seq, Failed):
                yield tag, seq
            else:  # a transform may put others into it
                yield tag, seq.features if are_own else dict(seq.features)


def _wanted(wish: ReadRequest) -> datasets.ReadRequest:
    # the members of a batch are not neighbours in the epoch: they have no positions there
    return datasets.ReadRequest.of(wish.epoch, wish.indices, wish.occurrences)


class _SourceColumn(Column):
    """What a source has for one data key of the sequences of a wish. Lengths are those of the index."""

    def __init__(self, source: Source, key: str, wish: ReadRequest, tags: list[str]) -> None:
        spec, indices = source.specs[key], wish.indices
        self.key, self.num_seqs, self.dtype = key, len(indices), np.dtype(spec.dtype)
        self.inner = tuple(size or 0 for size in spec.shape)  # it has no free axes
        self.lengths = source.index.lengths(key)[indices].astype(np.int32) if spec.has_time else None
        self._source, self._wish, self._tags = source, wish, tags

    def write(self, outs: Sequence[NDArray[Any]]) -> None:
        for part in self._parts():
            self._source.read_into(self._wish.indices[part], self.key, outs[part])

    def stack(self, out: NDArray[Any]) -> None:
        for part in self._parts():
            self._source.read_rows(self._wish.indices[part], self.key, out[part])

    def _parts(self) -> Iterator[slice]:
        """Yield a part of the sequences after the other, each with a sign of life."""
        for start in range(0, self.num_seqs, _SEQS_AT_ONCE):
            part = slice(start, start + _SEQS_AT_ONCE)
            note_places(self._tags[part], self._wish.epoch)(-1)
            yield part


def _is_text(spec: DataSpec) -> bool:
    return np.dtype(spec.dtype).kind not in "biufc"


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


class _ItemsReader(Reader):
    def __init__(self, items: Any) -> None:
        self._items = items
        self._get_tag = getattr(items, "get_seq_tag", "seq-{}".format)

    def read(self, wish: ReadRequest) -> Iterator[tuple[str, Any]]:
        for corpus_idx in wish.indices.tolist():
            tag = f"(item {corpus_idx})"
            note_place(tag, wish.epoch)
            try:
                tag, item = str(self._get_tag(corpus_idx)), self._items[corpus_idx]
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                yield tag, Failed(error)
            else:
                yield tag, item
