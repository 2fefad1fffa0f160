"""The trainer's side of the workers of a `DistributeFilesDataset`: one engine over all epochs, one run a sub-epoch.

Invariants: nothing runs between `stop` and `start`; the memory file of a plan lives until the next plan; after any
error there is no run, so the next read starts a new one, and an error is never taken for an end.

A ticket is a range of many sequences: with one each, a sequence of 2 KB costs the reader's process 60 us or more
instead of 3 (measured side by side on a busy machine).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.engine import (
    Delivered,
    Engine,
    EngineOptions,
    EngineReport,
    Executor,
    Failure,
    Job,
    Run,
    Skipping,
    make_executor,
    may_be_elsewhere,
    where_runs,
)
from headrace.engine.group_size import GroupSize
from headrace.errors import WorkerDiedError

from ..checks import check_count
from ..wrap.ahead import RunsAhead
from ..wrap.blockwise import pass_failed
from ..wrap.runs import seqs_in_run
from .shared import Shared
from .shelf import CacheOptions
from .sub_dataset import SubEpochPlan
from .worker import Answer, AskDataset, CountSeqs, ReadPart, ReadRange, SharedPlan, SubEpochWork

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
        self._be_new()
        self._size = GroupSize(max_bytes=_MAX_RANGE_BYTES, max_items=self._largest_range())

    def _be_new(self) -> None:
        self._pid = os.getpid()
        self._work = SubEpochWork(self._options.cache, skips=self._options.skips)
        self._engine: Engine | None = None
        self._run: Run | None = None
        self._shared: Shared | None = None
        self._tickets: RangeTickets | None = None
        self._ahead: RunsAhead | None = None
        self._next = 0  # position of the first sequence that is not here
        self._death: tuple[int, WorkerDiedError] | None = None  # of a sequence that is not reached yet, by position

    @property
    def report(self) -> EngineReport | None:
        """Statistics of the engine; `None` before workers were started."""
        return None if self._engine is None else self._engine.report

    @property
    def has_plan(self) -> bool:
        """Whether `start` has a plan to read; no longer in a forked process."""
        return self._shared is not None and self._pid == os.getpid()

    @property
    def look_ahead(self) -> int:
        """How many sequences all workers together may read ahead."""
        return max(self._options.num_workers, 1) * max(self._seqs_ahead(), self._largest_range())

    def begin(self, plan: SubEpochPlan) -> None:
        """Set the plan of the next runs.

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
        """Drop the plan: running work is cancelled, and running fetches are given up."""
        self.stop()
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.retire()

    def start(self, position: int) -> None:
        """Let the workers begin at a position of the planned sub-epoch; current work is cancelled."""
        self.stop()
        self._begin(position)

    def _begin(self, position: int) -> None:
        assert self._shared is not None
        engine = self._open_engine()
        max_bytes = _DEFAULT_AHEAD_BYTES if self._options.buffer_size is None else None
        self._next = position
        self._ahead = RunsAhead(self._size, self._seqs_ahead(), lambda: engine.num_workers, max_bytes)
        self._tickets = RangeTickets(self._shared, position, self._ahead)
        if self._death is not None:
            self._tickets.end = self._death[0]
        self._run = engine.run(self._tickets, max_open=self._tickets.max_open)

    def next_part(self) -> tuple[ReadPart, BaseException | None] | None:
        """Return the next part, and the error of the sequence after it; `None` at the end.

        After the last part, or an error, there is no run any more. A death that is fatal is an error of the sequence at
        which the worker was, as far as that is known, else of the first of its range.

        Raises:
            BaseException: What happened in a worker, and is of no sequence.
        """
        while True:
            run, tickets, ahead = self._run, self._tickets, self._ahead
            assert run is not None
            assert tickets is not None
            assert ahead is not None
            self._run = None  # until it is known that there is more
            try:
                delivered = next(run, None)
                break
            except WorkerDiedError as error:
                position = ahead.number_of(error)
                if position is None or not self._next < position < (tickets.end or position + 1):
                    raise
                self._death = position, error
                self._begin(self._next)
        if delivered is None:
            death, self._death = self._death, None
            return None if death is None else (ReadPart(), death[1])
        part: ReadPart = delivered.value
        part.parts, error_behind, _ = pass_failed(run, delivered, part.parts, part.failed)
        if part.failure is not None or error_behind is not None or part.is_last:
            run.close()
            _raise_failure(part.failure, delivered)
            return part, error_behind
        if self._death is None:
            tickets.end = part.num_seqs
        start, num_seqs = ahead.take(delivered.ticket)
        self._next = start + num_seqs
        ahead.note(num_seqs, part.seconds, part.seq_bytes)
        run.prefetch()
        self._run = run
        return part, None

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
        """Cancel running work; the workers stay, with their open datasets."""
        if self._pid != os.getpid():
            self._be_new()  # forked: workers, threads and what they have open are those of the other process
        run, self._run, self._tickets, self._death = self._run, None, None, None
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
            engine_options = dataclasses.replace(
                self._options.engine, tickets_per_worker=min(self._seqs_ahead(), _MAX_TICKETS)
            )
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

    def _seqs_ahead(self) -> int:
        return self._options.buffer_size or _DEFAULT_AHEAD


def _raise_failure(failure: bytes | None, delivered: Delivered) -> None:
    if failure is not None:
        raise Failure.from_bytes(failure).raisable(delivered.ticket, delivered.worker_idx)


class RangeTickets(Iterator[ReadRange]):
    """The ranges of one pass over a sub-epoch, from a position on, while its end is unknown or not reached.

    The first one is short, a single sequence while nothing is known of them, and each is at most twice as long as the
    one before: the reader need not wait long for the first, however slow they are. How long they are is said by the
    engine's `GroupSize`.

    Args:
        plan: The sub-epoch to read.
        position: Where they begin.
        ahead: Tracks the ranges in flight.

    Attributes:
        end: Position after the last one, once it is known.
    """

    def __init__(self, plan: SharedPlan, position: int, ahead: RunsAhead) -> None:
        self._plan = plan
        self._position = position
        self._size = max(ahead.choose() // _SHORTER, 1)
        self._ahead = ahead
        self.end: int | None = None

    def max_open(self) -> int:
        """Return how many ranges may be in flight now, see `Engine.run`.

        Few until the first one is here: all that lie beyond the end of a short sub-epoch, which is not known before,
        would be sent for nothing.
        """
        ahead = self._ahead
        return ahead.max_open() if ahead.has_arrived else min(ahead.max_open(), ahead.min_open())

    def __next__(self) -> ReadRange:
        """Return the next range."""
        start, size = self._position, min(self._size, self._ahead.choose())
        if self.end is not None and start >= self.end:
            raise StopIteration
        self._size = 2 * size
        self._position = start + size if self.end is None else min(start + size, self.end)
        self._ahead.send(start, self._position - start)
        return ReadRange(self._plan, start, self._position)
