"""The trainer's side of the workers of a `DistributeFilesDataset`: one engine over all epochs, one run a sub-epoch.

Invariants: nothing runs between `stop` and `start`; the memory file of a plan lives until the next plan; after any
error there is no run, so whoever goes on reading starts a new one, and never takes an error for an end.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from headrace.engine import Delivered, Engine, EngineReport, Failure, Job, Run, may_be_elsewhere, where_runs

from ..wrap.runs import seqs_in_run
from .options import StreamOptions
from .shared import Shared
from .sub_epoch import ReadPart, SubEpochPlan
from .tickets import Answer, AskDataset, CountSeqs, RangeTickets
from .worker import SubEpochWork

_MAX_RANGE_BYTES = 4 << 20  # one kept sequence holds the memory of its whole ticket
_DEFAULT_RANGE = 256  # sequences in a ticket, where no `buffer_size` is given
_DEFAULT_TICKETS = 4  # ahead: so many very large sequences are the most that wait
_UNMEASURED_RANGE = 8  # while it is not known how large sequences are
_NUM_MEASURED = 256  # sequences after which it is known well enough


class SubEpochStream:
    """Starts workers when first needed, and hands over what they read, in order. Not thread-safe.

    Args:
        options: See `StreamOptions`.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._num_plans = 0
        self._be_new()
        self._num_measured = self._bytes_measured = 0

    def _be_new(self) -> None:
        self._pid = os.getpid()
        self._work = SubEpochWork(self._options.cache)
        self._engine: Engine | None = None
        self._run: Run | None = None
        self._shared: Shared | None = None
        self._tickets: RangeTickets | None = None

    @property
    def report(self) -> EngineReport | None:
        """Where the time went; `None` before workers were started."""
        return None if self._engine is None else self._engine.report

    @property
    def is_running(self) -> bool:
        """Whether a run is under way."""
        return self._run is not None

    @property
    def has_plan(self) -> bool:
        """Whether `start` knows what to read; not any more in a process that was forked off."""
        return self._shared is not None and self._pid == os.getpid()

    @property
    def look_ahead(self) -> int:
        """How many sequences all workers together may be ahead."""
        return max(self._options.num_workers, 1) * self._tickets_ahead() * self._largest_range()

    def begin(self, plan: SubEpochPlan) -> None:
        """Take a plan for the next runs.

        Raises:
            ConfigError: Something in it cannot be carried to a worker; no process was started.
        """
        self.forget_plan()
        self._num_plans += 1
        what = f"the dataset of sub-epoch {plan.specs[0].epoch}"
        shared = Shared(self._num_plans, plan, what)
        if not self._options.is_inline:
            if may_be_elsewhere(self._options.executor):
                shared.put_into_tickets()
            elif where_runs(self._options.executor) == "process":
                shared.put_into_memory_file()
        self._shared = shared

    def forget_plan(self) -> None:
        """Have nothing to read; what was under way is cancelled, and what is being fetched for it given up."""
        self.stop()
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.retire()

    def start(self, position: int) -> None:
        """Let the workers begin at a position of the planned sub-epoch; current work is cancelled."""
        self.stop()
        assert self._shared is not None
        self._tickets = RangeTickets(self._shared, position, self._range_size())
        self._run = self._open_engine().run(self._tickets)

    def next_part(self) -> ReadPart | None:
        """Return the next part; `None` at the end. After the last part, or an error, there is no run any more.

        Raises:
            BaseException: What happened in a worker.
        """
        run, tickets = self._run, self._tickets
        assert run is not None
        assert tickets is not None
        self._run = None  # until it is known that there is more
        delivered = next(run, None)
        if delivered is None:
            return None
        part: ReadPart = delivered.value
        if part.failure is not None or part.is_last:
            run.close()
            _raise_failure(part.failure, delivered)
            return part
        tickets.end = part.num_seqs
        if self._num_measured < _NUM_MEASURED:
            self._num_measured += len(part.parts[0])
            self._bytes_measured += _num_bytes(part)
            tickets.max_size = self._range_size()
        self._run = run
        return part

    def ask(self, method: str) -> Any:
        """Return what a method of the dataset of the planned sub-epoch returns, in a worker. Ends the current run."""
        assert self._shared is not None
        (answer,) = self.do([AskDataset(self._shared, method)])
        return answer

    def do(self, tickets: Iterable[AskDataset | CountSeqs]) -> Iterator[Any]:
        """Yield the answers to some tickets, in order. Ends the current run.

        Raises:
            BaseException: What happened in a worker, whatever the policy on errors is.
        """
        self.stop()
        run = self._open_engine().run(tickets)
        try:
            for delivered in run:
                answer: Answer = delivered.value
                _raise_failure(answer.failure, delivered)
                yield answer.value
        finally:
            run.close()

    def stop(self) -> None:
        """Cancel what is under way; the workers stay, with what they have open."""
        if self._pid != os.getpid():
            self._be_new()  # forked: workers, threads and what they have open are those of the other process
        run, self._run, self._tickets = self._run, None, None
        if run is not None:
            run.close()

    def close(self) -> None:
        """End the workers; they come back when needed."""
        self.forget_plan()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self._work.close()

    def _open_engine(self) -> Engine:
        if self._engine is None:
            engine_options = dataclasses.replace(self._options.engine, tickets_per_worker=self._tickets_ahead())
            self._engine = Engine(
                Job(self._work),
                num_workers=self._options.num_workers,
                executor=self._options.executor,
                options=engine_options,
            )
        return self._engine

    def _largest_range(self) -> int:
        size = self._options.buffer_size
        return _DEFAULT_RANGE if size is None else seqs_in_run(size)

    def _tickets_ahead(self) -> int:
        size = self._options.buffer_size
        return _DEFAULT_TICKETS if size is None else max(size // self._largest_range(), 1)

    def _range_size(self) -> int:
        """Return how many sequences may go into one ticket."""
        if not self._num_measured:
            return min(self._largest_range(), _UNMEASURED_RANGE)
        mean_bytes = max(self._bytes_measured / self._num_measured, 1.0)
        return max(min(self._largest_range(), int(_MAX_RANGE_BYTES / mean_bytes)), 1)


def _raise_failure(failure: bytes | None, delivered: Delivered) -> None:
    if failure is not None:
        raise Failure.from_bytes(failure).raisable(delivered.ticket, delivered.worker_idx)


def _num_bytes(part: ReadPart) -> int:
    values, _ = part.parts[3]
    return sum(
        column.nbytes if isinstance(column, np.ndarray) else sum(array.nbytes for array in column if array is not None)
        for column in values.values()
    )
