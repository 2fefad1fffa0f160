"""What a `PostprocessingDataset` reads: any sequence of an inner dataset with an order, or a stream from its start on.

With W workers a function over a stream runs W times, and what they yield is taken in turn. A function of one
sequence is given what this process has read: a dataset that does not know its order is read once. Workers stay over
epochs; one that dies is replaced: what it reads for itself can be read again from the start.

Invariant: a stream that has failed, or was interrupted, raises when it is asked for more; it never ends instead. A
reader that can make any sequence goes on after the one that failed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from headrace.batching import NumbersDict
from headrace.engine import Engine, EngineOptions, Job, WorkerInfo, note_item
from headrace.errors import takes_note
from headrace.order import occurrences

from ...corpus import Corpus
from ...reading.loaded import OrderCursor
from ...reading.reader import Features, GivenOrder, Reader, ReadRequest, SeqStream
from ...seq import DatasetSeq
from ..ahead import shard_blocks
from ..blockwise import FailedSeqs, Parts, ReadBlock, SeqBlock, encoded, pass_failed
from ..runs import ReadSeqs, RunResult, result_of
from .calls import MapSeq, MapStream, StickySeqs, wrong_count

_MAX_SEQS = 64  # in a block: more gain little, and each waits for all


def gives_all_in_order(corpus: Corpus) -> bool:
    """Tell whether a corpus says the order of an epoch, and gives all sequences of it."""
    return corpus.knows_order() and not corpus.skips_failed


def without_workers(corpus: Corpus) -> Corpus:
    """Return what the workers of a corpus read, where its stream is the same without them; else the corpus itself."""
    while gives_all_in_order(corpus):
        workers = corpus.workers
        if workers is None or not workers.is_same_without or workers.corpus in (None, corpus):
            break
        corpus = workers.corpus
    return corpus


def _own_seq(seq: DatasetSeq, seq_idx: int, texts: Features, frac: float | None, *, are_own: bool) -> DatasetSeq:
    """Return a sequence with its texts, whose arrays may be written to: some datasets keep what they give."""
    features = seq.features if are_own else {key: np.array(array) for key, array in seq.features.items()}
    return DatasetSeq.made_of(seq_idx, {**features, **texts}, seq.seq_tag, frac, seq.corpus_idx)


class MapReader(Reader):
    """Reads any sequence of the inner dataset, and calls the function.

    Args:
        inner: The inner corpus.
        map_seq: The function.
        by_tag: Whether tags are what generators are keyed by.
        kept: Data keys whose lengths the function leaves as they are; `None`: it may change them.
    """

    is_sequential = False

    def __init__(self, inner: Corpus, map_seq: MapSeq, *, by_tag: bool, kept: list[str] | None = None) -> None:
        self._corpus, self._inner = inner, inner.reader()
        self._map_seq, self._by_tag, self._kept = map_seq, by_tag, kept
        self._sizes: dict[int | None, int] = {}  # of the epoch that somebody wanted to know it of

    def start(self, wanted: ReadRequest, *, is_all: bool = False) -> None:
        """Set the sequences to read next; with `is_all` they are all of an epoch, in whatever order was given."""
        draws = self._map_seq.draws
        if wanted.tags is not None:  # what is drawn is keyed by corpus indices, where they are known
            order, counted = self._corpus.order(wanted.epoch, GivenOrder(wanted.tags), counts=draws)
            wanted = replace(wanted, order=order, occurrences=counted)
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        self._inner.start(wanted)
        self._occurrences, self._is_all = wanted.occurrences, is_all or wanted.is_whole
        if draws and self._occurrences is None and (self._is_all or wanted.epoch is None):
            self._occurrences = occurrences(wanted.order)

    def tags(self) -> list[str] | None:
        """Ask the reader of the inner dataset: the function leaves tags as they are."""
        return self._inner.tags()

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence, and call the function."""
        wanted, inner = self._wanted, self._inner
        position = number + (wanted.first or 0)
        try:
            seq = _own_seq(inner.read(number), position, inner.texts(number), None, are_own=inner.gives_own)
        except Exception as error:
            takes_note(error, f"while sequence {position} of the inner dataset {self._corpus.name!r} was read")
            raise
        seq.corpus_idx = corpus_idx = self._cursor[number]
        told = corpus_idx if wanted.first is None else position
        occurrence = 0 if self._occurrences is None else int(self._occurrences[number])
        key = (f"map_seq of {seq.seq_tag}", 0) if self._by_tag else ("map_seq", corpus_idx)
        get_frac = None if wanted.first is None else lambda: self._frac(position)
        made = self._map_seq(seq, wanted.epoch or 0, told, (*key, occurrence), get_frac)
        if made.complete_frac is None and self._is_all:
            made.complete_frac = self._frac(position)
        return made

    def _frac(self, position: int) -> float:
        """Return how much of the epoch is done after a position."""
        num_seqs, epoch = self._cursor.stop, self._wanted.epoch
        if not self._is_all:
            if epoch not in self._sizes:
                self._sizes = {epoch: len(self._corpus.order(epoch)[0])}
            num_seqs = self._sizes[epoch]
        return min(1.0, (position + 1) / max(num_seqs, 1))

    def known_frames(self, number: int) -> NumbersDict | None:
        """Ask the reader of the inner dataset, if it was said that lengths stay."""
        if self._kept is None:
            return None
        lengths = self._inner.num_frames(number)
        return NumbersDict({key: lengths[key] for key in self._kept})


def read_seqs(seqs: SeqStream, name: str, first: int = 0, step: int = 1) -> Iterator[DatasetSeq]:
    """Yield every `step`-th sequence of an epoch from a position on, with its texts and the progress.

    Their arrays may be written to; the progress is `None` if it is not known. Where the stream can jump, the others are
    not read.

    Args:
        seqs: The sequences; nothing of them was read.
        name: The name of the inner dataset, for messages.
        first: See above.
        step: Likewise.

    Raises:
        ConfigError: Somebody else has started an epoch of it.
    """
    tag = None
    if seqs.jumps:
        seqs.position = first
    while True:
        position = seqs.position
        try:
            seq = next(seqs, None)
        except Exception as error:
            after = "" if tag is None else f", after sequence {tag!r}"
            takes_note(error, f"while sequence {position} of the inner dataset {name!r} was read{after}")
            raise
        if seq is None:
            return
        if position % step == first:
            tag, frac = seq.seq_tag, seq.complete_frac
            frac = seqs.frac() if frac is None else frac
            yield _own_seq(seq, position, seqs.texts(), frac, are_own=seqs.gives_own)
            if seqs.jumps:
                seqs.position = position + step


class FunctionStream:
    """The sequences that a function makes of an epoch of the inner dataset, from the start to the end.

    Args:
        inner: The inner corpus.
        function: Of one sequence, or over the stream.
        num_workers: Number of workers that call it.
        buf_size: How many sequences each may be ahead.
        engine_options: See `EngineOptions`; if they are given, an engine calls it also without workers.
    """

    def __init__(
        self,
        inner: Corpus,
        function: MapSeq | MapStream,
        num_workers: int,
        buf_size: int,
        engine_options: EngineOptions | None,
    ) -> None:
        self._inner, self._function, self._num_workers = inner, function, num_workers
        self._wants_engine = num_workers > 0 or engine_options is not None
        self._block_seqs = min(max(buf_size // 4, 1), _MAX_SEQS)  # several fit into what a worker may be ahead
        ahead = max(buf_size // self._block_seqs, 1)
        self._engine_options = replace(engine_options or EngineOptions(), tickets_per_worker=ahead)
        self._engine: Engine | None = None
        self._end: Callable[[], Any] | None = None

    @property
    def is_open(self) -> bool:
        """Whether an epoch was started, and not ended."""
        return self._end is not None

    def start(self, inner_seqs: SeqStream, epoch: int, seed: int, num_seqs: int | None) -> None:
        """Begin with an epoch.

        Args:
            inner_seqs: The sequences of the inner corpus.
            epoch: The epoch number.
            seed: Seed of a function over the stream.
            num_seqs: How many sequences such a function must make; `None` if any number may come.
        """
        seqs, self._end = self._begin(inner_seqs, epoch, seed)
        self._seqs, self._expected, self._frac = StickySeqs(seqs), num_seqs, 0.0

    def _begin(self, seqs: SeqStream, epoch: int, seed: int) -> tuple[Iterator[DatasetSeq], Callable[[], Any]]:
        """Return the sequences of an epoch, and what ends the work on them."""
        inner, function = self._inner, self._function
        if isinstance(function, MapSeq):
            if not self._wants_engine:
                made = (function.of_stream(seq, epoch) for seq in read_seqs(seqs, inner.name))
                return made, made.close
            run = self._open_engine(_map_work, function).run(
                _in_groups(read_seqs(seqs, inner.name), epoch, self._block_seqs)
            )
            blocks = (ReadBlock(*pass_failed(run, delivered, *delivered.value)[:2]) for delivered in run)
            return _unpacked(blocks), run.close
        if not self._num_workers:
            stream = function(read_seqs(seqs, inner.name), epoch, seed % 2**32)
            return stream, stream.close
        work = _stream_work, without_workers(inner), function, self._block_seqs
        run = self._open_engine(*work).run_stream((epoch, seed))
        return _unpacked(shard_blocks(run, self._num_workers)), run.close

    def _open_engine(self, work: Callable[..., Any], *args: Any) -> Engine:
        if self._engine is None:
            job = Job(partial(work, *args))
            self._engine = Engine(job, num_workers=self._num_workers, options=self._engine_options)
        return self._engine

    def read(self, seq_idx: int) -> DatasetSeq | None:
        """Return the sequence at a position, `None` if it lies after the end. Positions rise from call to call."""
        seq = next(islice(self._seqs, max(seq_idx - self._seqs.num_seqs, 0), None), None)
        self.check_end()
        if seq is not None:
            seq.seq_idx, frac = seq_idx, seq.complete_frac
            if frac is None and self._expected:
                frac = (seq_idx + 1) / self._expected
            if frac is not None:  # of several workers, which take turns
                self._frac = seq.complete_frac = max(self._frac, frac)
        return seq

    def check_end(self) -> None:
        """Make one sequence more than there should be, and raise if there is one, also at each later read."""
        seqs, expected = self._seqs, self._expected
        if seqs.num_seqs == expected and next(seqs, None) is not None:
            seqs.failure = wrong_count(f"more than {expected} came out of {expected}")
        if seqs.failure is not None:
            raise seqs.failure

    def stop(self, *, free_resources: bool = False) -> None:
        """End the epoch: nothing more is read; with `free_resources` also the workers."""
        end, self._end = self._end, None
        try:
            if end is not None:
                end()
        finally:
            if free_resources and self._engine is not None:
                self._engine.close()
                self._engine = None


def _unpacked(blocks: Iterable[ReadBlock]) -> Iterator[DatasetSeq]:
    """Yield the sequences that workers have made.

    Raises:
        BaseException: What was raised in a worker, after what came before it.
    """
    for read in blocks:
        block = SeqBlock(*read.parts)
        yield from (block.seq(offset, 0, None) for offset in range(len(block)))
        if read.error is not None:
            raise read.error


def _in_groups(seqs: Iterator[DatasetSeq], epoch: int, num_seqs: int) -> Iterator[tuple[int, list[DatasetSeq]]]:
    """Yield payloads for `_map_work`; what reading raises comes after those that were read before it."""
    sticky = StickySeqs(seqs)
    while True:
        group: list[DatasetSeq] = []
        with contextlib.suppress(Exception):  # it comes again
            for seq in islice(sticky, num_seqs):
                group.append(seq)  # noqa: PERF402 - those before an error stay
        if group:
            yield epoch, group
        elif sticky.failure is None:
            return
        else:
            raise sticky.failure


def _map_work(map_seq: MapSeq, info: WorkerInfo) -> Callable[[tuple[int, list[DatasetSeq]]], tuple[Parts, FailedSeqs]]:
    """Run a function of one sequence in a worker; return the function (epoch, sequences) -> parts, failed ones."""

    def run(payload: tuple[int, list[DatasetSeq]]) -> tuple[Parts, FailedSeqs]:
        epoch, seqs = payload
        made = ReadSeqs()
        for seq in seqs:
            note_item(seq.seq_tag, epoch)
            try:
                made.add(map_seq.of_stream(seq, epoch))
            except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                made.fail(error)
        return made.parts(), encoded(made.failed) if info.runs_in == "process" else made.failed

    return run


def _stream_work(
    inner: Corpus, map_stream: MapStream, block_seqs: int, info: WorkerInfo
) -> Callable[[tuple[int, int]], Iterator[RunResult]]:
    """Run a stream function in a worker; return the function (epoch, its seed) -> iterator over results."""

    def run(payload: tuple[int, int]) -> Iterator[RunResult]:
        epoch, epoch_seed = payload
        worker, num_workers = info.worker_idx, info.num_workers
        seed = (epoch_seed * 683859 * num_workers + 30411 * worker) % (2**32 - 1)  # RETURNN's
        seqs = read_seqs(inner.stream(epoch), inner.name, worker, num_workers)
        stream = map_stream(_noted(seqs, epoch), epoch, seed)
        more = True
        while more:
            start, made = time.perf_counter(), ReadSeqs()
            try:
                for seq in islice(stream, block_seqs):
                    made.add(seq)
                more = len(made.tags) == block_seqs
            except Exception as error:  # noqa: BLE001 - it comes after the sequences before it
                made.fail(error)
                more = False
            yield result_of(made.parts(), made.failed, start, info)

    return run


def _noted(seqs: Iterator[DatasetSeq], epoch: int) -> Iterator[DatasetSeq]:
    for seq in seqs:
        note_item(seq.seq_tag, epoch)
        yield seq
