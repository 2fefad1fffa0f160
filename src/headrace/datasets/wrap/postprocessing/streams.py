"""Calls a function over the inner dataset from its start to its end, here or in workers, and merges the results.

With W workers a function over a stream runs W times, and what they yield is taken in turn. A function of one sequence
is given what this process has read: a dataset that does not know its order is read once. Workers stay over epochs.

A worker that dies is replaced: what it reads for itself can be read again from the start. Invariant: a worker says so
when it has ended, and what ended without saying so is an error.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.engine import Delivered, Engine, EngineOptions, Failure, Job, Run, WorkerInfo, note_item
from headrace.errors import HeadraceError, InternalError, SourceError

from ...base import Dataset
from ...configs import init_dataset
from ...seq import DatasetSeq
from ..blockwise import FailedSeqs, Parts, SeqBlock, encoded, pass_failed
from ..runs import ReadSeqs
from .inner import known_frac, read_seqs, without_workers
from .map_seq import DrawKey, FedSeq, MapSeq
from .map_stream import MapStream, wrong_count
from .options import FunctionOptions
from .readers import StreamedSeqs


@dataclass(frozen=True, slots=True)
class Block:
    """Some sequences of one worker.

    Attributes:
        parts: Parts of a `SeqBlock`.
        is_last: Whether this worker has no more.
        failure: An encoded `Failure`, if it could not go on. It is no error of a ticket: a policy that skips these must
            not skip the rest of a stream.
    """

    parts: Parts
    is_last: bool
    failure: bytes | None = None


def worker_seed(epoch_seed: int, num_workers: int, worker_idx: int) -> int:
    """Return the seed of a stream function in one of several workers, as RETURNN has it."""
    return (epoch_seed * 683859 * num_workers + 30411 * worker_idx) % (2**32 - 1)


@dataclass(frozen=True)
class SeqStreamWork:
    """Runs a stream function in a worker; returns the function (epoch, its seed) -> iterator over blocks.

    Attributes:
        dataset: The inner dataset, carried to each worker as a copy.
        map_stream: The stream function.
        block_seqs: Sequences in a block.
    """

    dataset: Dataset
    map_stream: MapStream
    block_seqs: int

    def __call__(self, info: WorkerInfo) -> Callable[[tuple[int, int]], Iterator[Block]]:
        """Open the inner dataset."""
        dataset = init_dataset(self.dataset)

        def run(payload: tuple[int, int]) -> Iterator[Block]:
            epoch, epoch_seed = payload
            dataset.init_seq_order(epoch=epoch)
            stream = self.map_stream(
                _noted(read_seqs(dataset, info.worker_idx, info.num_workers), epoch),
                epoch=epoch,
                rng=np.random.RandomState(worker_seed(epoch_seed, info.num_workers, info.worker_idx)),
                get_frac=lambda seq: known_frac(dataset, seq),
            )
            yield from self._blocks(stream)

        return run

    def _blocks(self, stream: Iterator[DatasetSeq]) -> Iterator[Block]:
        while True:
            seqs = ReadSeqs()
            failure = None
            try:
                for seq in stream:
                    seqs.add(seq)
                    if len(seqs.tags) == self.block_seqs:
                        break
            except Exception as error:  # noqa: BLE001 - a process boundary: it goes on as a Failure
                failure = Failure.of(error).to_bytes()
            is_last = len(seqs.tags) < self.block_seqs
            yield Block(seqs.parts(), is_last, failure)
            if is_last:
                return


def _noted(seqs: Iterator[DatasetSeq], epoch: int) -> Iterator[DatasetSeq]:
    for seq in seqs:
        note_item(seq.seq_tag, epoch)
        yield seq


@dataclass(frozen=True)
class MapWork:
    """Runs a function of one sequence in a worker; returns the function (epoch, sequences) -> parts, failed ones.

    Attributes:
        map_seq: The function.
    """

    map_seq: MapSeq

    def __call__(self, info: WorkerInfo) -> Callable[[tuple[int, list[FedSeq]]], tuple[Parts, FailedSeqs]]:
        """Get ready: there is nothing to be done."""

        def run(payload: tuple[int, list[FedSeq]]) -> tuple[Parts, FailedSeqs]:
            epoch, fed = payload
            made = ReadSeqs()
            for item in fed:
                note_item(item[0].seq_tag, epoch)
                try:
                    made.add(self.map_seq.of_stream(item, epoch))
                except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                    made.fail(error)
            return made.parts(), encoded(made.failed) if info.runs_in == "process" else made.failed

        return run


_MAX_SEQS = 64  # in a block: more gain little, and each waits for all


class FunctionStream(ABC):
    """Makes the stream of an epoch, for which the inner dataset was started.

    Args:
        inner: The inner dataset.
        options: Who calls the function.
    """

    def __init__(self, inner: Dataset, options: FunctionOptions) -> None:
        self._inner = inner
        self._options = options
        self._block_seqs = min(max(options.buf_size // 4, 1), _MAX_SEQS)  # several fit into what a worker may be ahead
        self._engine: Engine | None = None

    def open(self, epoch: int, seed: int, num_seqs: int | None, where: str) -> StreamedSeqs:
        """Begin with an epoch.

        Args:
            epoch: The epoch number.
            seed: Seed of a function over the stream.
            num_seqs: How many sequences must come; `None` if any number may.
            where: Whose sequences they are, for messages.
        """
        seqs, close = self._begin(epoch, seed)
        return StreamedSeqs(seqs, close, num_seqs=num_seqs, wrong_count=self._wrong_count, where=where)

    def close(self) -> None:
        """End the workers."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _open_engine(self, setup: Callable[[WorkerInfo], Any]) -> Engine:
        if self._engine is None:
            ahead = max(self._options.buf_size // self._block_seqs, 1)
            options = dataclasses.replace(self._options.engine_options or EngineOptions(), tickets_per_worker=ahead)
            self._engine = Engine(Job(setup), num_workers=self._options.num_workers, options=options)
        return self._engine

    @abstractmethod
    def _begin(self, epoch: int, seed: int) -> tuple[Iterator[DatasetSeq], Callable[[], None]]:
        """Return the sequences of an epoch, and what ends the work on them."""

    @abstractmethod
    def _wrong_count(self, came: str) -> HeadraceError:
        """Return the error if another number of sequences comes than was said."""


class EachOfStream(FunctionStream):
    """A function of one sequence, over a dataset that does not know its order.

    Args:
        inner: The inner dataset.
        options: Who calls the function.
        map_seq: The function.
    """

    def __init__(self, inner: Dataset, options: FunctionOptions, map_seq: MapSeq) -> None:
        super().__init__(inner, options)
        self._map_seq = map_seq

    def _begin(self, epoch: int, seed: int) -> tuple[Iterator[DatasetSeq], Callable[[], None]]:  # noqa: ARG002
        if not self._options.wants_engine:
            seqs = (self._map_seq.of_stream(item, epoch) for item in self._read())
            return seqs, seqs.close
        run = self._open_engine(MapWork(self._map_seq)).run(_feed(self._read(), epoch, self._block_seqs))
        return _unpack(run), run.close

    def _read(self) -> Iterator[FedSeq]:
        """Yield each sequence with its position as a key: tags may repeat there, and are not counted."""
        for position, seq in enumerate(read_seqs(self._inner)):
            yield seq, DrawKey(f"map_seq of {seq.seq_tag}", position), known_frac(self._inner, seq)

    def _wrong_count(self, came: str) -> HeadraceError:
        return SourceError(
            f"the inner dataset has another number of sequences than it said: {came}",
            where=f"inner dataset {self._inner.name!r}, epoch {int(self._inner.epoch)}",
        )


class WholeStream(FunctionStream):
    """A function over a stream.

    Args:
        inner: The inner dataset.
        options: Who calls the function.
        map_stream: The function.
    """

    def __init__(self, inner: Dataset, options: FunctionOptions, map_stream: MapStream) -> None:
        super().__init__(inner, options)
        self._map_stream = map_stream

    def _begin(self, epoch: int, seed: int) -> tuple[Iterator[DatasetSeq], Callable[[], None]]:
        num_workers = self._options.num_workers
        if num_workers:
            setup = SeqStreamWork(without_workers(self._inner), self._map_stream, self._block_seqs)
            run = self._open_engine(setup).run_stream((epoch, seed))
            return merge_streams(run, num_workers), run.close
        seqs = self._map_stream(
            read_seqs(self._inner),
            epoch=epoch,
            rng=np.random.RandomState(seed % 2**32),
            get_frac=lambda seq: known_frac(self._inner, seq),
        )
        return seqs, seqs.close

    def _wrong_count(self, came: str) -> HeadraceError:
        return wrong_count(came)


def _feed(seqs: Iterable[FedSeq], epoch: int, num_seqs: int) -> Iterator[tuple[int, list[FedSeq]]]:
    """Yield payloads for `MapWork`; what reading raises comes after those that were read before it."""
    fed: list[FedSeq] = []
    try:
        for item in seqs:
            fed.append(item)
            if len(fed) == num_seqs:
                yield epoch, fed
                fed = []
    except GeneratorExit:
        raise
    except Exception:
        if fed:
            yield epoch, fed
        raise
    if fed:
        yield epoch, fed


def _unpack(run: Run) -> Iterator[DatasetSeq]:
    """Yield the sequences that `MapWork` has made.

    Raises:
        BaseException: What the function raised for one that is not skipped, after what came before it.
    """
    for delivered in run:
        parts, error, _ = pass_failed(run, delivered, *delivered.value)
        block = SeqBlock(*parts)
        for offset in range(len(block)):
            yield block.seq(offset, 0, None)
        if error is not None:
            run.close()
            raise error


def merge_streams(blocks: Iterable[Delivered], num_workers: int) -> Iterator[DatasetSeq]:
    """Yield the sequences of all workers in turn, worker 0 first; a worker that has no more is passed over.

    What they say of the progress is made to never fall.

    Raises:
        BaseException: What a function or a dataset raised in a worker, after what came before it.
    """
    going, round_of, frac = list(range(num_workers)), dict[int, Block](), 0.0
    for delivered in blocks:
        round_of[delivered.ticket % num_workers] = delivered.value
        if len(round_of) < len(going):
            continue
        opened = {worker: SeqBlock(*round_of[worker].parts) for worker in going}
        for offset in range(max(map(len, opened.values()))):
            for worker in going:
                block = round_of[worker]
                if offset < len(opened[worker]):
                    seq = opened[worker].seq(offset, 0, None)
                    if seq.complete_frac is not None:
                        frac = seq.complete_frac = max(frac, seq.complete_frac)
                    yield seq
                elif block.failure is not None and offset == len(opened[worker]):
                    raise _raisable(block.failure, delivered, worker)
        for worker in going:
            failure = round_of[worker].failure
            if failure is not None:
                raise _raisable(failure, delivered, worker)
        going = [worker for worker in going if not round_of[worker].is_last]
        round_of = {}
        if not going:
            return
    raise InternalError(f"the streams of workers {going} have ended without saying so")


def _raisable(failure: bytes, delivered: Delivered, worker: int) -> BaseException:
    return Failure.from_bytes(failure).raisable(delivered.ticket, worker)
