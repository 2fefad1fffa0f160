"""Runs of consecutive sequences, how an order is cut into them, and how workers read them.

A run is large enough that what each message costs is shared by many sequences, and small enough that several of them
fit into what a worker may be ahead, and that one kept sequence, which holds the memory of its whole run, holds little.
The first runs of an epoch are small: its first sequence should not wait for many others. None of this changes the
stream. A ticket is a whole run, though the engine carries small tickets in bursts: with sequences of 1 KiB as tickets
of their own, each costs the reader's process 25 us instead of 1.4, because they are read, described and noted one by
one. How many go together is said by the engine's `GroupSize`, see `ahead.py`, within the limits here; where workers
have shards of their own, which take turns, all of them cut at the same positions.

A worker of a `MultiProcDataset` builds the inner dataset once. In the method "seq_order" each ticket is a run of
positions with their corpus indices: pure work, that any worker may do and do again. In "dedicated" a worker reads its
own shard from its start to its end. What comes out are the parts of a `SeqBlock`.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Failure, WorkerInfo, is_in_place, note_item, note_together
from headrace.errors import CacheError
from headrace.order import Order
from headrace.sources import MapSource

from ..corpus import Corpus
from ..parts import MadeElsewhere
from ..reading.reader import FailedSeq, Features, Reader, ReadRequest
from ..seq import DatasetSeq
from .blockwise import FailedSeqs, Parts, encoded, make_columns, read_columns

RunOfSeqs = tuple[int, int | None, bytes, bytes | None]
"""Epoch, first position (`None`: no neighbours), `int64[n]` corpus indices and occurrences; as bytes, which pickle
in a tenth of the time."""

MAX_RUN_BYTES = 1 << 20
_MAX_SEQS = 1024  # more gain nothing, as the cost of a message is shared by enough of them
_MIN_RUNS = 2  # before a worker: it reads one while the other is on its way
_SHARE_OF_RUN = 8  # runs that fit into a limit in bytes
_MAX_UNMEASURED = 8  # sequences in a run where all workers cut at the same positions, and no size is known


def seqs_in_run(buffer_size: int) -> int:
    """Return how many sequences a run has at most, where a worker may be `buffer_size` ahead."""
    return min(max(buffer_size // _MIN_RUNS, 1), _MAX_SEQS)


SeqSizes = list[tuple[NDArray[np.int64], int]]
"""For each data key the frames of each sequence of a corpus, and the bytes of a frame."""


def sizes_of(corpus: Corpus) -> SeqSizes | None:
    """Return the sizes of the sequences of a corpus, `None` where they are not known without reading."""
    source = corpus.fast_source() if corpus.knows_order() else None
    if source is None or isinstance(source, MapSource):
        return None  # a user's object would have to be asked for each of its lengths
    if not all(source.index.has_lengths(key) for key in source.specs):
        return None
    return [
        (source.index.lengths(key), np.dtype(spec.dtype).itemsize * math.prod(size or 1 for size in spec.shape))
        for key, spec in source.specs.items()
    ]


@dataclass(frozen=True)
class RunLimits:
    """The limits on the size of runs.

    Attributes:
        num_seqs: Sequences in a run.
        max_bytes: Bytes in a run, as far as they are known; one of a single group may be larger.
        group: Sequences that must stay together.
        sizes: Those of the sequences; `None` if they are not known, or never matter.
    """

    num_seqs: int
    max_bytes: int = MAX_RUN_BYTES
    group: int = 1
    sizes: SeqSizes | None = None

    @classmethod
    def of(cls, corpus: Corpus, buffer_size: int, max_bytes: int | None, *, are_shards: bool = False) -> RunLimits:
        """Return the limits for a corpus.

        Args:
            corpus: What is read.
            buffer_size: Sequences that a worker may be ahead.
            max_bytes: Bytes that it may be ahead, if limited.
            are_shards: Whether each worker has a shard of its own: all of them cut at the same positions, so no run may
                be larger, whatever is in it.
        """
        run_bytes = MAX_RUN_BYTES if max_bytes is None else min(MAX_RUN_BYTES, max(max_bytes // _SHARE_OF_RUN, 1))
        group = corpus.group or 1  # frames are shuffled among the sequences of a whole group
        sizes, num_seqs = sizes_of(corpus), seqs_in_run(buffer_size)
        if sizes is None:
            num_fitting = _MAX_UNMEASURED if max_bytes is None else 1
        else:  # O(number of sequences)
            largest = sum(int(lengths.max(initial=0)) * frame_bytes for lengths, frame_bytes in sizes)
            num_fitting = max(run_bytes // max(largest, 1), 1)
        if are_shards:
            num_seqs = min(num_seqs, num_fitting)
        num_seqs = -(-num_seqs // group) * group
        return cls(num_seqs, run_bytes, group, None if are_shards or num_seqs <= num_fitting else sizes)

    def cut(
        self, order: Order, first: int, num_workers: int, choose: Callable[[], int] | None = None
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield the runs of an order from a position on: position of the first sequence, and corpus indices `int64[n]`.

        Args:
            order: What is cut.
            first: A multiple of `group`.
            num_workers: Who take turns: after a run for each of them, the next ones are twice as large.
            choose: Returns how many sequences the next run should have at most; rounded up to whole groups.
        """
        group, num_runs, position, end = self.group, 0, first, len(order)
        while position < end:
            num_seqs = min(self.num_seqs, group << min(num_runs // num_workers, 60))
            if choose is not None:
                num_seqs = min(num_seqs, -(-choose() // group) * group)
            indices = order.block(position, min(position + num_seqs, end))
            if self.sizes is not None:
                seq_bytes = sum(lengths[indices].astype(np.int64) * frame_bytes for lengths, frame_bytes in self.sizes)
                num_fitting = int(np.searchsorted(np.cumsum(seq_bytes), self.max_bytes, "right"))
                if num_fitting < len(indices):
                    indices = indices[: max(num_fitting // group, 1) * group]
            yield position, indices
            position += len(indices)
            num_runs += 1


def run_of(wanted: ReadRequest, number: int, indices: NDArray[np.int64]) -> RunOfSeqs:
    """Return the ticket for sequences of a request, from a number on."""
    counted = None if wanted.occurrences is None else wanted.occurrences[number : number + len(indices)]
    position = None if wanted.first is None else wanted.first + number
    return wanted.epoch or 0, position, _as_bytes(indices), None if counted is None else _as_bytes(counted)


def _as_bytes(numbers: NDArray[np.int64]) -> bytes:
    return np.asarray(numbers, np.int64).tobytes()


RunResult = tuple[Parts, FailedSeqs, float, float]
"""The result of a run: the good sequences; those that failed; the seconds that it took; and the bytes of a sequence.
Plain data, as `Parts` are."""


def result_of(parts: Parts, failed: FailedSeqs, start: float, info: WorkerInfo) -> RunResult:
    """Return the result of a run that began at `start` on the clock of `time.perf_counter`."""
    told = encoded(failed) if info.runs_in == "process" else failed
    return parts, told, time.perf_counter() - start, bytes_of(parts) / max(len(parts[0]), 1)


def bytes_of(parts: Parts) -> int:
    """Return the size of the arrays of sequences, in bytes."""
    return sum(
        column.nbytes if isinstance(column, np.ndarray) else sum(array.nbytes for array in column if array is not None)
        for column in parts[3][0].values()
    )


@dataclass(slots=True)
class ReadSeqs:
    """Sequences that a worker has read, in order; those that failed are not there.

    Attributes:
        skips: Whether those after one that fails are read, too. Else it is the last that is read.
        failed: Those that failed.
        corpus_indices: Corpus index of each; `None` where the dataset has none.
        tags: Their tags.
        complete_fracs: What the sequences themselves say of the progress.
        features: Data key -> array, for each.
    """

    skips: bool = True
    failed: FailedSeqs = field(default_factory=list)
    corpus_indices: list[int | None] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    complete_fracs: list[float | None] = field(default_factory=list)
    features: list[Features] = field(default_factory=list)

    def add(self, seq: DatasetSeq, *, gives_own: bool = False) -> None:
        """Take one that was read or made; its arrays are copied unless they are its own."""
        self.tags.append(seq.seq_tag)
        self.corpus_indices.append(seq.corpus_idx)
        self.complete_fracs.append(seq.complete_frac)
        self.features.append(seq.features if gives_own else _own(seq.features))

    def fail(self, error: Exception) -> bool:
        """Take the error of the current sequence; tell whether those after it are read."""
        self.failed.append((len(self.tags), Failure.of_current(error)))
        return self.skips

    def parts(self) -> Parts:
        """Return the sequences as the parts of a block."""
        indices, fracs = self.corpus_indices, self.complete_fracs
        return (
            self.tags,
            None if set(indices) <= {None} else indices,
            None if set(fracs) <= {None} else fracs,
            make_columns(self.features),
        )


def _own(features: Features) -> Features:
    """Return arrays that later sequences of the run leave alone: user code may return the same ones each time.

    Those in the slot were made for this result.
    """
    return {key: array if is_in_place(array) else array.copy(order="K") for key, array in features.items()}


class BlockReader:
    """Reads many sequences as the parts of a block: all at once where their source can, else one by one.

    Args:
        reader: Where to read; with random access.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._source = reader.fast_source()

    def read(self, wanted: ReadRequest, told_epoch: int | None = None, *, skips: bool) -> tuple[Parts, FailedSeqs]:
        """Read what is wanted, up to a sequence that fails, or without it; return what failed as well.

        Args:
            wanted: The sequences.
            told_epoch: The number of the epoch outside, if it is another one.
            skips: See `ReadSeqs`.
        """
        source = self._source
        if source is not None:
            indices = wanted.indices
            try:
                tags = source.tags_of(indices)
                note_together(tags, wanted.epoch if told_epoch is None else told_epoch)
                return (tags, indices.tolist(), None, read_columns(source, indices)), []
            except CacheError:  # no room for them: they would not take less one by one
                raise
            except Exception:  # noqa: BLE001, S110 - they are read one by one next, to find out which of them fails
                pass
        seqs = ReadSeqs(skips)
        for _, seq in self._reader.read_each(wanted, told_epoch):
            if not isinstance(seq, FailedSeq):
                seqs.add(seq, gives_own=self._reader.gives_own)
            elif not seqs.fail(seq.error):
                break
        return seqs.parts(), seqs.failed


class EpochParts:
    """Reads an epoch of a corpus, part by part: anywhere in it if that is possible, else from its start on.

    Args:
        corpus: From now on it is read here only.
        epoch: The epoch of the corpus.
        where: What is read, for messages.
        told_epoch: The number of the epoch outside.

    Attributes:
        num_seqs: How many sequences there are, if that is known.
        end: The position after the last one, counted with those that fail; `None` as long as it is not known.
    """

    def __init__(self, corpus: Corpus, epoch: int, where: str, told_epoch: int) -> None:
        self._corpus, self._epoch, self._where, self._told_epoch = corpus, epoch, where, told_epoch
        self._whole: ReadRequest | None = None  # where any sequence can be read
        self._broken_off: Exception | None = None  # an error of the stream and of no sequence: comes after the last one
        reader = corpus.reader() if corpus.knows_order() else None
        if reader is None or reader.is_sequential:
            self._stream = corpus.stream(epoch)
            self.num_seqs = self.end = self._stream.num_seqs
        else:
            order, counted = corpus.order(epoch)
            self._whole, self._reader = ReadRequest(epoch, order, counted, 0), BlockReader(reader)
            self.num_seqs, self.end = None if corpus.skips_failed else len(order), len(order)

    def read(self, start: int, stop: int, *, skips: bool) -> tuple[Parts, FailedSeqs]:
        """Read sequences start..stop (exclusive; may exceed the epoch), up to one that fails, or without it."""
        if self.end is not None:
            stop = min(stop, self.end)
        if self._whole is not None:
            return self._reader.read(self._whole.part(start, max(start, stop)), self._told_epoch, skips=skips)
        seqs = ReadSeqs(skips)
        if start < stop:
            self._go_to(start)
        stream, goes_on = self._stream, True
        while goes_on and self._broken_off is None and stream.position < stop:
            position = stream.position
            try:
                if not stream.has_next():
                    self.end = position
                    break
            except Exception as error:  # noqa: BLE001 - raised below, once what was read before it is delivered
                self._broken_off = error
                break
            try:
                # its tag may be known only when it is read
                note_item(f"(sequence {position} of {self._where})", self._told_epoch)
                seqs.add(next(stream))
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                goes_on = seqs.fail(error)
                stream.position = position + goes_on
        if self._broken_off is not None and not (seqs.tags or seqs.failed):
            raise self._broken_off
        return seqs.parts(), seqs.failed

    def _go_to(self, position: int) -> None:
        """Make a position the next one, by reading those before it if there is no other way."""
        if position < self._stream.position:
            self._stream, self._broken_off = self._corpus.stream(self._epoch), None
        stream = self._stream
        if stream.jumps:
            stream.position = position
        while (passed := stream.position) < position and stream.has_next():
            note_item(f"(passing over sequence {passed} of {self._where})", self._told_epoch)
            with contextlib.suppress(Exception):  # not wanted any more; its error was reported once
                next(stream)
            stream.position = passed + 1


@dataclass(frozen=True)
class OrderedWork:
    """Method "seq_order": builds the dataset, returns the function run of positions -> its result.

    Attributes:
        inner: Makes the inner dataset.
        skips: See `ReadSeqs`.
    """

    inner: MadeElsewhere
    skips: bool

    def __call__(self, info: WorkerInfo) -> Callable[[RunOfSeqs], RunResult]:
        """Build the dataset in a worker: any does any ticket."""
        reader = BlockReader(self.inner(in_thread=info.runs_in == "thread").reader())

        def read_run(run: RunOfSeqs) -> RunResult:
            start = time.perf_counter()
            epoch, first, index_bytes, occurrence_bytes = run
            indices = np.frombuffer(index_bytes, np.int64)
            occurrences = None if occurrence_bytes is None else np.frombuffer(occurrence_bytes, np.int64)
            wanted = ReadRequest.of(epoch, indices, occurrences, first)
            return result_of(*reader.read(wanted, skips=self.skips), start, info)

        return read_run


@dataclass(frozen=True)
class DedicatedWork:
    """Method "dedicated": builds a shard of the dataset, returns the function epoch -> iterator over its runs.

    The iterator gives the number of sequences first, `None` if the dataset does not know it.

    Attributes:
        inner: Makes the inner dataset.
        num_shards: Shards of the outer dataset.
        shard_index: Which of them it is.
        limits: Where to cut, the same for all.
        skips: See `ReadSeqs`.
    """

    inner: MadeElsewhere
    num_shards: int
    shard_index: int
    limits: RunLimits
    skips: bool

    def __call__(self, info: WorkerInfo) -> Callable[[int], Iterator[int | RunResult | None]]:
        """Build this worker's shard."""
        num_shards = self.num_shards * info.num_workers
        shard = num_shards, self.shard_index * info.num_workers + info.worker_idx
        corpus = self.inner(shard, in_thread=info.runs_in == "thread")

        def read_epoch(epoch: int) -> Iterator[int | RunResult | None]:
            where = f"shard {shard[1]} of {shard[0]}"
            reader, limits = EpochParts(corpus, epoch, where, epoch), self.limits
            yield reader.num_seqs
            position, num_seqs = 0, limits.group
            while reader.end is None or position < reader.end:
                start, stop = time.perf_counter(), position + min(num_seqs, limits.num_seqs)
                parts, failed = reader.read(position, stop, skips=self.skips)
                if parts[0] or failed:  # with nothing but failed ones too: they are told of with it
                    yield result_of(parts, failed, start, info)
                if failed and not self.skips:
                    return
                position, num_seqs = stop, 2 * num_seqs  # as in `RunLimits.cut`

        return read_epoch
