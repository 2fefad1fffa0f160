"""The trainer's side of method "seq_order": sends the runs of a request to the workers, and takes their results.

Invariants: blocks come in the order of the request, each sequence once, but for those that were skipped; an error
concerns the sequence after its block, and all before it are delivered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.engine import Delivered, Engine, Run
from headrace.engine.group_size import GroupSize
from headrace.errors import WorkerDiedError

from ..reading.reader import ReadRequest
from .ahead import RunsAhead
from .blockwise import Parts
from .failed_seqs import pass_failed
from .runs import RunLimits, RunOfSeqs, RunResult


@dataclass(frozen=True, slots=True, eq=False)
class ReadBlock:
    """Some sequences of a request, as they came.

    Attributes:
        number: Number of the first one.
        asked: The corpus indices of those that should be there, `int64[n]`.
        parts: Those that are.
        error: The error of the sequence after them: then there are no further blocks.
    """

    number: int
    asked: NDArray[np.int64]
    parts: Parts
    error: BaseException | None = None


class OrderedRuns(Iterator[ReadBlock]):
    """Iterates over the blocks that workers read of one request.

    A death that is fatal is an error of the sequence at which the worker was, as far as that is known, else of the
    first of its run: what lies before it and is not here yet is requested again.

    Args:
        engine: The workers, which do `OrderedWork`.
        wanted: What to read.
        first: Where to begin, a multiple of the limits' group.
        limits: Limits of a run.
        size: What is known of the sequences.
        num_ahead: Sequences that a worker may be ahead.
    """

    def __init__(
        self,
        engine: Engine,
        wanted: ReadRequest,
        first: int,
        limits: RunLimits,
        size: GroupSize,
        num_ahead: int,
    ) -> None:
        self._engine, self._wanted, self._limits, self._size = engine, wanted, limits, size
        self._num_ahead = num_ahead
        self._stop = len(wanted.order)
        self._death: WorkerDiedError | None = None  # of the sequence at `_stop`
        self._begin(first)

    def _begin(self, first: int) -> None:
        self._next = first
        engine = self._engine
        self._ahead = RunsAhead(self._size, self._num_ahead, lambda: engine.num_workers)
        self._run: Run | None = self._engine.run(self._runs(first), max_open=self._ahead.max_open)

    def _runs(self, first: int) -> Iterator[RunOfSeqs]:
        wanted, ahead = self._wanted, self._ahead
        if self._stop < len(wanted.order):
            wanted = wanted.part(0, self._stop)
        runs = self._limits.runs_of(wanted, first, self._engine.num_workers, ahead.choose)
        for number, indices, run in runs:
            ahead.send(number, len(indices))
            yield run

    @property
    def is_open(self) -> bool:
        """Whether there may be further blocks."""
        return self._run is not None

    def __next__(self) -> ReadBlock:
        """Return the next block.

        Raises:
            StopIteration: There is none, or these runs were closed.
            BaseException: What happened in a worker or to it, and is of no sequence.
        """
        while self._run is not None:
            try:
                delivered = next(self._run, None)
            except WorkerDiedError as error:
                if not self._end_before(error):
                    self._run = None
                    raise
                continue
            except BaseException:
                self._run = None
                raise
            if delivered is not None:
                return self._take(delivered)
            self._run, death = None, self._death
            if death is not None:
                return ReadBlock(self._stop, np.zeros(0, np.int64), ([], None, None, ({}, {})), death)
        raise StopIteration

    def _take(self, delivered: Delivered) -> ReadBlock:
        result: RunResult = delivered.value
        number, num_seqs = self._ahead.take(delivered.ticket)
        assert self._run is not None
        parts, error, num_read = pass_failed(self._run, delivered, result[0], result[1])
        if error is None:
            self._ahead.note(num_seqs, result[2], result[3])
            self._run.prefetch()
        else:
            self.close()
            num_seqs = num_read
        self._next = number + num_seqs
        return ReadBlock(number, self._wanted.order.block(number, self._next), parts, error)

    def _end_before(self, error: WorkerDiedError) -> bool:
        """Read up to the sequence at which a worker ended, if there is anything before it that is not here yet."""
        number = self._ahead.number_of(error)
        if number is None:
            return False
        number -= number % self._limits.group
        if not self._next < number < self._stop:
            return False
        self._stop, self._death = number, error
        self._begin(self._next)
        return True

    def close(self) -> None:
        """Cancel running work; the workers stay."""
        run, self._run = self._run, None
        if run is not None:
            run.close()
