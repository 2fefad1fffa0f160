"""What the workers of a `PostprocessingDataset` do over a stream, and how what they make becomes one stream again.

Two ways. A stream function runs in each of W workers, over every W-th sequence of the inner dataset, which each reads
for itself: that can be done again from the start, so a worker that dies is replaced. A function of one sequence, over a
dataset that does not know its order, gets its sequences from the trainer, which reads them once.
Invariant: a worker says so when it has ended, and what ended without saying so is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.engine import Delivered, Failure, WorkerInfo, note_place, skip_item
from headrace.errors import InternalError

from ...base import Dataset
from ...configs import init_dataset
from ...seq import DatasetSeq
from ..blockwise import Parts, SeqBlock, make_columns
from .call import DrawKey, MapSeq, MapStream, read_seqs

_MAX_SEQS = 64  # in a block: more gain little, and each waits for all
Fed = list[tuple[DatasetSeq, DrawKey, float | None]]
"""What the trainer has read: each sequence, what its generator is keyed by, and how much of the epoch is done then."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some sequences of one worker.

    Attributes:
        parts: Of a `SeqBlock`.
        is_last: Whether this worker has no more.
        failure: An encoded `Failure`, if it could not go on. It is no error of a ticket: a policy that skips these must
            not skip the rest of a stream.
    """

    parts: Parts
    is_last: bool
    failure: bytes | None = None


def parts_of(seqs: list[DatasetSeq]) -> Parts:
    """Return sequences as the parts of a block; arrays are copied, as a function may return the same ones each time."""
    indices, fracs = [seq.corpus_idx for seq in seqs], [seq.complete_frac for seq in seqs]
    return (
        [seq.seq_tag for seq in seqs],
        None if set(indices) <= {None} else indices,
        None if set(fracs) <= {None} else fracs,
        make_columns([seq.features for seq in seqs]),
    )


def seqs_in_block(buffer_size: int) -> int:
    """Return how many sequences form a block, so that several fit into what a worker may be ahead."""
    return min(max(buffer_size // 4, 1), _MAX_SEQS)


def worker_seed(epoch_seed: int, num_workers: int, worker_idx: int) -> int:
    """Return the seed of a stream function in one of several workers, as RETURNN has it."""
    return (epoch_seed * 683859 * num_workers + 30411 * worker_idx) % (2**32 - 1)


@dataclass(frozen=True)
class StreamWork:
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
            seqs: list[DatasetSeq] = []
            failure = None
            try:
                for seq in stream:
                    seqs.append(_own(seq))
                    if len(seqs) == self.block_seqs:
                        break
            except Exception as error:  # noqa: BLE001 - a process boundary: it goes on as a Failure
                failure = Failure.of(error).to_bytes()
            is_last = len(seqs) < self.block_seqs
            yield Block(parts_of(seqs), is_last, failure)
            if is_last:
                return


def _noted(seqs: Iterator[DatasetSeq], epoch: int) -> Iterator[DatasetSeq]:
    for seq in seqs:
        note_place(seq.seq_tag, epoch)
        yield seq


def _own(seq: DatasetSeq) -> DatasetSeq:
    seq.features = {key: array.copy(order="K") for key, array in seq.features.items()}
    return seq


def known_frac(dataset: Dataset, seq: DatasetSeq) -> float | None:
    """Return how much of the epoch of a dataset is done after a sequence, `None` if that can only be guessed."""
    if seq.complete_frac is not None:
        return seq.complete_frac
    return dataset.get_complete_frac(seq.seq_idx, allow_only_lr_suitable=True)


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
        opened = {worker: _opened(round_of[worker]) for worker in going}
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


def _opened(block: Block) -> SeqBlock:
    return SeqBlock(*block.parts)


@dataclass(frozen=True)
class MapWork:
    """Runs a function of one sequence in a worker; returns the function (epoch, sequences) -> parts of a block.

    Attributes:
        map_seq: The function.
    """

    map_seq: MapSeq

    def __call__(self, info: WorkerInfo) -> Callable[[tuple[int, Fed]], Parts]:
        """Get ready: there is nothing to be done."""
        del info

        def run(payload: tuple[int, Fed]) -> Parts:
            epoch, fed = payload
            made: list[DatasetSeq] = []
            for seq, key, frac in fed:
                note_place(seq.seq_tag, epoch)
                get_frac = None if frac is None else (lambda frac=frac: frac)
                try:
                    result = self.map_seq(seq, epoch=epoch, seq_idx=seq.seq_idx, key=key, frac=get_frac)
                except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                    skip_item(error)
                else:
                    if result.complete_frac is None:
                        result.complete_frac = frac
                    made.append(_own(result))
            return parts_of(made)

        return run


def feed(seqs: Iterable[tuple[DatasetSeq, DrawKey, float | None]], epoch: int, num_seqs: int) -> Iterator[Any]:
    """Yield payloads for `MapWork`; what reading raises comes after those that were read before it."""
    fed: Fed = []
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


def unpack_blocks(blocks: Iterable[Delivered]) -> Iterator[DatasetSeq]:
    """Yield the sequences that `MapWork` has made."""
    for delivered in blocks:
        block = SeqBlock(*delivered.value)
        for offset in range(len(block)):
            yield block.seq(offset, 0, None)
