"""What the workers of a `PostprocessingDataset` do over a stream.

Two ways. A stream function runs in each of W workers, over every W-th sequence of the inner dataset, which each reads
for itself: that can be done again from the start, so a worker that dies is replaced. A function of one sequence, over a
dataset that does not know its order, gets its sequences from the trainer, which reads them once.
Invariant: a worker says so when it has ended, and what ended without saying so is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from headrace.engine import Failure, WorkerInfo, note_item, skip_item

from ...base import Dataset
from ...configs import init_dataset
from ...seq import DatasetSeq
from ..blockwise import Parts
from ..runs import ReadSeqs
from .inner import known_frac, read_seqs
from .map_seq import FedSeq, MapSeq
from .map_stream import MapStream


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
    """Runs a function of one sequence in a worker; returns the function (epoch, sequences) -> parts of a block.

    Attributes:
        map_seq: The function.
    """

    map_seq: MapSeq

    def __call__(self, info: WorkerInfo) -> Callable[[tuple[int, list[FedSeq]]], Parts]:
        """Get ready: there is nothing to be done."""
        del info

        def run(payload: tuple[int, list[FedSeq]]) -> Parts:
            epoch, fed = payload
            made = ReadSeqs()
            for item in fed:
                note_item(item[0].seq_tag, epoch)
                try:
                    made.add(self.map_seq.of_stream(item, epoch))
                except Exception as error:  # noqa: BLE001 - the engine's policy decides what becomes of one of many
                    skip_item(error)
            return made.parts()

        return run
