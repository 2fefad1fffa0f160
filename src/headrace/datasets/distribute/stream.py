"""The trainer's side of the workers of a `DistributeFilesDataset`: one engine over all epochs, one run a sub-epoch.

Invariants: nothing runs between `stop` and `blocks`; the memory file of a plan lives until the next plan; after any
error the next read starts a new run, and an error is never taken for an end.

A ticket is a range of many sequences: with one each, a sequence of 2 KB costs the reader's process 60 us or more
instead of 3 (measured side by side on a busy machine).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator
from operator import methodcaller
from typing import Any

from headrace.engine import (
    Delivered,
    Engine,
    EngineOptions,
    EngineReport,
    Executor,
    Failure,
    Job,
    Skipping,
    make_executor,
    may_be_elsewhere,
    where_runs,
)
from headrace.engine.group_size import GroupSize

from ..checks import check_count
from ..wrap.ahead import NumberedTicket, RunsAhead, blocks_ahead
from ..wrap.blockwise import ReadBlock
from ..wrap.runs import RunResult, seqs_in_run
from .shared import Shared
from .shelf import CacheOptions
from .sub_dataset import SubEpochLayout, SubEpochPlan
from .worker import SubEpochWork, Ticket

_MAX_RANGE_BYTES = 4 << 20  # one kept sequence holds the memory of its whole ticket
_DEFAULT_RANGE = 256  # sequences in a ticket, where no `buffer_size` is given
_DEFAULT_AHEAD = 4 * _DEFAULT_RANGE
_DEFAULT_AHEAD_BYTES = 4 * _MAX_RANGE_BYTES
_MAX_TICKETS = 1024  # before a worker; how many sequences they have is counted
_SHORTER = 16  # times the first range of a pass than the others may be: ready in some 0.6 ms


@dataclasses.dataclass(frozen=True, slots=True)
class StreamOptions:
    """How sequences come from workers.

    Attributes:
        num_workers: 0: this process does the work.
        executor: "process", "thread" or "inline", or an `Executor`.
        buffer_size: How many sequences a worker may be ahead; `None`: as many as make some tickets of a few MB.
        engine: What to do about errors, deaths and stalls.
        cache: Where cached files come from.

    Raises:
        ConfigError: An option is wrong.
    """

    num_workers: int
    executor: str | Executor
    buffer_size: int | None
    engine: EngineOptions
    cache: CacheOptions

    def __post_init__(self) -> None:
        """Check each option."""
        if isinstance(self.executor, str):
            make_executor(self.executor)
        check_count("num_workers", self.num_workers)
        if self.buffer_size is not None:
            check_count("buffer_size", self.buffer_size, minimum=1)

    @property
    def skips(self) -> bool:
        """Whether sequences that fail are left out, so that their number is not known before the end."""
        return isinstance(self.engine.on_error, Skipping)

    @property
    def is_inline(self) -> bool:
        """Whether the work is done in the reader's own thread."""
        return self.num_workers == 0 or where_runs(self.executor) == "caller"


class SubEpochStream:
    """Starts workers when first needed, and delivers what they read, in order. Not thread-safe.

    Args:
        options: See `StreamOptions`.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._num_plans = 0
        self._num_ahead = options.buffer_size or _DEFAULT_AHEAD
        self._max_range = _DEFAULT_RANGE if options.buffer_size is None else seqs_in_run(options.buffer_size)
        self._size = GroupSize(max_bytes=_MAX_RANGE_BYTES, max_items=self._max_range)
        self._be_new()

    def _be_new(self) -> None:
        self._pid = os.getpid()
        self._work = SubEpochWork(self._options.cache, self._options.skips)
        self._engine: Engine | None = None
        self._plan: Shared | None = None

    @property
    def report(self) -> EngineReport | None:
        """Statistics of the engine; `None` before workers were started."""
        return None if self._engine is None else self._engine.report

    @property
    def look_ahead(self) -> int:
        """How many sequences all workers together may read ahead."""
        return max(self._options.num_workers, 1) * max(self._num_ahead, self._max_range)

    def begin(self, make_plan: Callable[[], SubEpochPlan]) -> None:
        """Set the plan of the next runs, unless there is one.

        Raises:
            ConfigError: Something in it cannot be carried to a worker; no process was started.
        """
        self.stop()
        if self._plan is None:
            plan = make_plan()
            self._num_plans += 1
            shared, what = Shared(self._num_plans, plan), f"the dataset of sub-epoch {plan.specs[0].epoch}"
            if not self._options.is_inline:
                if may_be_elsewhere(self._options.executor):
                    shared.put_into_tickets(what)
                elif where_runs(self._options.executor) == "process":
                    shared.put_into_memory_file(what)
            self._plan = shared

    def forget_plan(self) -> None:
        """Drop the plan: running work is cancelled, and running fetches are given up."""
        self.stop()
        plan, self._plan = self._plan, None
        if plan is not None:
            plan.retire()

    def blocks(self, position: int, learn: Callable[[int | None, SubEpochLayout | None], None]) -> Iterator[ReadBlock]:
        """Return the blocks of the planned sub-epoch from a position on; current work is cancelled.

        Args:
            position: Where to begin.
            learn: Called with the number of sequences of the sub-epoch, if its dataset knows it, and with what they are
                like, if the plan did not say it, before each block.
        """
        self.stop()
        engine, plan = self._open_engine(), self._plan
        assert plan is not None
        max_bytes = _DEFAULT_AHEAD_BYTES if self._options.buffer_size is None else None

        def begin() -> RunsAhead:
            return RunsAhead(self._size, self._num_ahead, lambda: engine.num_workers, max_bytes)

        def hear(delivered: Delivered) -> tuple[RunResult, int | None]:
            result, end, num_seqs, layout = _answer(delivered)
            learn(num_seqs, layout)
            return result, end

        return blocks_ahead(engine, lambda first, ahead: ranges(plan, first, ahead), position, begin, hear=hear)

    def ask(self, method: str) -> Any:
        """Return what a method of the dataset of the planned sub-epoch returns, in a worker. Ends the current run."""
        (answer,) = self.do([methodcaller("ask", self._plan, method)])
        return answer

    def do(self, tickets: Iterable[Ticket]) -> Iterator[Any]:
        """Yield the answers to some tickets, in order. Ends the current run.

        Raises:
            BaseException: What happened in a worker, whatever the policy on errors is.
        """
        self.stop()
        run = self._open_engine().run(tickets)
        try:
            yield from map(_answer, run)
        finally:
            run.close()

    def stop(self) -> None:
        """Cancel running work; the workers stay, with their open datasets."""
        if self._pid != os.getpid():
            self._be_new()  # forked: workers, threads and what they have open are those of the other process
        if self._engine is not None:
            self._engine.end_run()

    def close(self) -> None:
        """End the workers; they come back when needed."""
        self.forget_plan()
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self._work.close()

    def _open_engine(self) -> Engine:
        if self._engine is None:
            tickets_per_worker = min(self._num_ahead, _MAX_TICKETS)
            self._engine = Engine(
                Job(self._work),
                num_workers=self._options.num_workers,
                executor=self._options.executor,
                options=dataclasses.replace(self._options.engine, tickets_per_worker=tickets_per_worker),
            )
        return self._engine


def _answer(delivered: Delivered) -> Any:
    """Return what a worker answered, or raise what it could not answer for."""
    if isinstance(delivered.value, bytes):
        raise Failure.from_bytes(delivered.value).raisable(delivered.ticket, delivered.worker_idx)
    return delivered.value


def ranges(plan: Shared, first: int, ahead: RunsAhead) -> Iterator[NumberedTicket]:
    """Yield the ranges of one pass over a sub-epoch, from a position on, while its end is unknown or not reached.

    The first one is short, a single sequence while nothing is known of them, and each is at most twice as long as the
    one before: the reader need not wait long for the first, however slow they are.
    """
    num_seqs = max(ahead.choose() // _SHORTER, 1)
    while ahead.end is None or first < ahead.end:
        num_seqs = min(num_seqs, ahead.choose())
        stop = first + num_seqs if ahead.end is None else min(first + num_seqs, ahead.end)
        yield first, stop - first, methodcaller("read", plan, first, stop)
        first, num_seqs = stop, 2 * num_seqs
