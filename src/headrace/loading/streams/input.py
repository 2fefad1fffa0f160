"""Streams: datasets that do not say beforehand which sequences an epoch has, or how long they are.

A stream is read in its order, a window of some hundred sequences at a time, and the batches of the window are planned
as those of any other (`plan.py`). So the number of batches is known at the end only, a rank of several that
share one stream reads all of it, and a resume begins with the window of the position: at once, where the dataset can
go there, else by skipping what comes before. Who reads, the trainer or one worker for all, is decided in
`epochs.py`.
Invariant: what the batches hold is a pure function of (stream, recipe, epoch), whichever process reads it.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from headrace.datasets import Dataset, init_dataset
from headrace.datasets.corpus import Corpus
from headrace.datasets.parts import open_apart
from headrace.engine import WorkerInfo
from headrace.errors import ConfigError

from ..inputs import EpochOrder, PlainCorpus, PlanNeeds, Subject, check_dataset_options
from ..reading import BatchReader, BatchRequest, Reading
from ..state import digest_text
from .marks import mark_of


class StreamSubject(Subject):
    """A stream, as the trainer and its reader see it.

    Attributes:
        has_workers: Whether it is read by workers of its own.
    """

    is_stream = True
    window_seqs = 512  # they are in the reader's memory, so not as many as are planned from an index
    has_workers = False

    @abstractmethod
    def for_worker(self, info: WorkerInfo) -> Self:
        """Return the stream that a worker reads: inline this one, otherwise a copy."""

    @abstractmethod
    def read_from(self, epoch: int, position: int, on_read: Callable[[int], None]) -> Iterator[tuple[str, Any]]:
        """Yield the tag and the data of each sequence of an epoch from a position on.

        Args:
            epoch: The epoch number.
            position: Position of the first one.
            on_read: Called with the position of each sequence before it is read, also of those that are passed over;
                with 0 before anything else.
        """

    def mark_of(self, tag: str, seq: Any) -> bytes:
        """Return bytes that identify a sequence, the same in each process that reads it; see `marks.py`."""
        del seq
        return tag.encode("utf-8", "surrogatepass")

    def knows_lengths(self, data_key: str | None) -> bool:
        """Sequences are read before they are planned."""
        del data_key
        return True

    def start(self, epoch: int, wanted: PlanNeeds) -> EpochOrder:
        """Not for streams."""
        raise ConfigError("the order of a stream is not known", where=f"{self.name}, epoch {epoch}, {wanted}")


class DatasetStream(StreamSubject):
    """A dataset whose order is not known.

    Args:
        dataset: It is read by the loader alone for as long as an epoch is iterated over.
        is_own: Whether it was made for the loader, which closes it.
    """

    def __init__(self, dataset: Dataset, *, is_own: bool) -> None:
        self.dataset, self._is_own = dataset, is_own
        self.name = type(dataset).__name__
        corpus = dataset.get_corpus()
        check_dataset_options(corpus, self.name, is_stream=True)
        self.data_key = next(iter(dataset.get_data_keys()), None)
        self.reading = StreamReading(corpus.specs, is_by_key=True)
        self.has_workers = corpus.has_workers()

    @property
    def corpus(self) -> Corpus:
        """That of the dataset."""
        return self.dataset.get_corpus()

    @property
    def num_shards(self) -> int:  # type: ignore[override]
        """Number of shards, from the dataset: ranks share files, and may be known only when an epoch begins."""
        return self.dataset.num_shards

    @property
    def sharded_by(self) -> str:  # type: ignore[override]
        """Name of the option that divides the stream."""
        return f"{self.corpus.sharded_by} of {self.name}"

    def for_worker(self, info: WorkerInfo) -> Self:
        """Return this stream inline and in another process, where it is a copy already; each thread gets a copy."""
        stream = copy.copy(self)
        if info.runs_in == "thread":
            stream.dataset = open_apart(self.dataset, in_thread=True)
        elif info.runs_in == "process":
            stream.dataset = init_dataset(self.dataset)
        return stream

    def read_from(self, epoch: int, position: int, on_read: Callable[[int], None]) -> Iterator[tuple[str, Any]]:
        """Yield one sequence after the other; a dataset that cannot jump reads those before the position, too."""
        on_read(0)
        stream = self.corpus.stream(epoch)
        if stream.jumps:
            stream.position = position
        while True:
            seq_idx = stream.position
            if seq_idx:
                on_read(seq_idx)
            seq = next(stream, None)
            if seq is None:
                return
            if seq_idx >= position:
                yield seq.seq_tag, {key: np.array(value) for key, value in seq.features.items()}  # no lease is held

    def close(self) -> None:
        """Close a dataset that was made for the loader."""
        if self._is_own:
            self.dataset.close()

    def order_text(self, epoch: int) -> str:
        """Return the recipe of the order, with all else that it depends on: the files, or who takes turns."""
        return self.corpus.order_text(epoch)


class IterableStream(StreamSubject):
    """Any iterable: each epoch is one pass over it, after its `set_epoch`, if it has one.

    Args:
        iterable: It must give the same items for the same epoch, to be resumed, and to be read on by a worker that is
            started in the place of one that died.
        convert: What is called with each item that is delivered; None: items stay as they are.
    """

    def __init__(self, iterable: Any, convert: Callable[[Any], Any] | None = None) -> None:
        self.name = type(iterable).__name__
        self._iterable, self._convert = iterable, convert
        self.reading = StreamReading({}, is_by_key=False)

    def for_worker(self, info: WorkerInfo) -> Self:
        """Return this stream, with a copy of the iterable for each thread: an iterable may hold its position."""
        if info.runs_in != "thread":
            return self
        stream = copy.copy(self)
        stream._iterable = copy.copy(self._iterable)
        return stream

    def read_from(self, epoch: int, position: int, on_read: Callable[[int], None]) -> Iterator[tuple[str, Any]]:
        """Iterate, and skip the sequences before the position."""
        on_read(0)
        set_epoch = getattr(self._iterable, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        for seq_idx, item in enumerate(self._iterable):
            if seq_idx >= position:
                yield f"seq-{seq_idx}", item if self._convert is None else self._convert(item)
            on_read(seq_idx + 1)

    def mark_of(self, tag: str, seq: Any) -> bytes:
        """Return some of its content: the tag is only its position."""
        del tag
        return mark_of(seq)

    @property
    def corpus(self) -> Corpus:
        """Only the name of an iterable is known."""
        return PlainCorpus(self.name, digest_text(self.name))

    def order_text(self, epoch: int) -> str:
        """Return a text saying that the stream defines its order."""
        del epoch
        return "its own"


@dataclass(frozen=True)
class StreamReading(Reading):
    """Uses the sequences that a task carries: they were read before.

    Args:
        specs: What is known of the layout.
        is_by_key: Whether sequences are arrays by data key.
    """

    specs: Any
    is_by_key: bool

    def open(self, info: WorkerInfo) -> BatchReader:
        """Return a reader of the carried sequences."""
        del info
        return _TakenSeqs()


class _TakenSeqs(BatchReader):
    def read(self, wanted: BatchRequest) -> Iterator[tuple[str, Any]]:
        assert wanted.seqs is not None
        yield from wanted.seqs
