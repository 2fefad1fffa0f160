"""The face of this room: workers that do a job, and the runs over them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.errors import ConfigError, HeadraceError, check_count

from .executor import Executor, make_executor
from .memory.lease import MemoryWatcher
from .options import EngineOptions, Skipping
from .quarantine import Quarantine
from .report import EngineReport, WorkerReport
from .run import Run
from .supervisor import Supervisor
from .user.job import Job, Mode
from .workers import Workers

_DEFAULTS = EngineOptions()


class Engine:
    """Does a job in workers and hands over the results in order. Not thread-safe: one thread consumes.

    Workers are started by the first run (or `start`), stay over runs, and end with `close`, a `with` block, `del`, or
    the interpreter. One run at a time: a new run ends the one before.

    Args:
        job: What the workers do.
        num_workers: 0: the consumer's own thread does the work, when it waits for it, whatever `executor` says.
        executor: `"process"`, `"thread"`, `"inline"`, or one that was made with options of its own.
        options: Budgets and limits.
        clock: Seconds; only differences count.

    Raises:
        ConfigError: For a negative number of workers, or an executor that there is not.

    Examples:
        >>> from headrace.engine import Engine, Job
        >>> def setup(info):
        ...     return lambda number: number * 10
        >>> with Engine(Job(setup), num_workers=2) as engine:
        ...     [delivered.value for delivered in engine.run(range(3))]
        [0, 10, 20]
    """

    def __init__(
        self,
        job: Job,
        *,
        num_workers: int,
        executor: str | Executor = "process",
        options: EngineOptions | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if num_workers < 0:
            raise ConfigError(f"num_workers is {num_workers}", fix="give 0 (no workers) or more")
        if num_workers == 0:
            executor = "inline"
        carrier = make_executor(executor) if isinstance(executor, str) else executor
        self._options = _DEFAULTS if options is None else options
        self._workers = Workers(job, max(num_workers, 1), carrier)
        self._clock = clock
        self._quarantine = _open_quarantine(self._options)
        self._run: weakref.ref[Run] | None = None  # weak: an iterator that is dropped gives up its run
        self.report = EngineReport(workers=[WorkerReport() for _ in range(self._workers.num_workers)])

    def prepare(self) -> None:
        """Begin slow parts of starting the workers in the background: imports that take long, see `Job.preload`.

        Harmless if the workers run, or are never started. An engine that this was called for is to be closed.
        """
        self._workers.prepare()

    def start(self) -> None:
        """Start the workers now, so that the first run need not wait for them."""
        self._workers.start()

    @property
    def num_workers(self) -> int:
        """The number of workers, as it was set."""
        return self._workers.num_workers

    def resize(self, num_workers: int) -> None:
        """Have more workers, or fewer, from now on, also in the middle of a run; what comes out of it is the same.

        New ones begin at once. Those that are let go, the last ones, do what they have, and end then; what they have
        made stays valid. Between two runs, and before the first, it holds from the next one on.

        Args:
            num_workers: At least 1.

        Raises:
            ConfigError: The consumer does the work itself; the executor cannot do it; or the run is one of streams, or
                one `in_turns`: what it gives depends on the number.
            HeadraceError: After `close`.
        """
        workers = self._workers
        if workers.is_closed:
            raise HeadraceError("this engine is closed", fix="make a new one")
        if workers.executor.runs_in == "caller":
            raise ConfigError(
                f"resize({num_workers}): the consumer's own thread does the work here, and there are no workers",
                fix="give num_workers=1 or more, and an executor that has workers",
            )
        check_count("resize: num_workers", num_workers, minimum=1)
        run = None if self._run is None else self._run()
        if run is not None and run.is_current:
            run.resize(num_workers)
        else:
            workers.resize(num_workers)
        self.report.expect(num_workers - 1)

    def run(self, payloads: Iterable[Any], *, in_turns: bool = False, max_open: Callable[[], int] | None = None) -> Run:
        """Map payloads to results, in the order of the payloads: task mode.

        Payloads are pulled in the caller's thread as workers need them; the first ones at once. What the iterator of
        payloads raises comes after the results of all payloads before it.

        Args:
            payloads: What to work on; may be endless.
            in_turns: Whether payload t goes to worker t mod W, whichever has less to do: for work that a worker goes on
                with from one payload to the next. A worker that is restarted gets its unanswered payloads again,
                and none from before.
            max_open: Returns how many tickets may be under way or waiting for the consumer now, at least 1, where
                their payloads hold something that there is not much of.
        """
        return self._begin(Mode.TASK, None, iter(payloads), in_turns=in_turns, max_open=max_open)

    def run_stream(self, payload: Any = None) -> Run:
        """Take turns with one iterator in each worker: stream mode.

        The workers' iterators are read in turn, worker 0 first; one that has ended is passed over. A worker that is
        restarted makes its iterator again, which has to give the same items again.

        Args:
            payload: What each worker's function makes its iterator of.
        """
        return self._begin(Mode.STREAM, payload, None)

    def interrupt(self) -> None:
        """Have the run under way raise a `HeadraceError` within 0.25 s: the one method that any thread may call."""
        self._workers.give_up_current()

    def _begin(
        self,
        mode: Mode,
        payload: Any,
        payloads: Iterator[Any] | None,
        *,
        in_turns: bool = False,
        max_open: Callable[[], int] | None = None,
    ) -> Run:
        self.end_run()
        run_id = self._workers.begin_run(mode, payload)
        run = Run(
            self._workers,
            run_id,
            Supervisor(
                self._workers.num_workers,
                mode,
                self._options,
                in_turns=in_turns,
                max_open=max_open,
                max_look_ahead=self._workers.executor.max_look_ahead,
                ready_workers=self._workers.ready,
            ),
            payloads,
            ahead=self._workers.executor.adaptive_ahead() if self._options.tickets_per_worker is None else None,
            report=self.report,
            quarantine=self._quarantine,
            clock=self._clock,
        )
        self._run = weakref.ref(run)
        if self._workers.executor.max_look_ahead != 1:
            run.prefetch()
        return run

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:
        """Set the watcher that is told of the shared memory of results, in place of the one before; None: none."""
        self._workers.executor.watch_memory(watcher)

    def close(self) -> None:
        """End the workers within 2 s; harmless when closed. An iterator of this engine raises from now on."""
        self.end_run()
        self._workers.close()

    def end_run(self) -> None:
        """Cancel the run under way, though its iterator may live on; the workers stay."""
        run = None if self._run is None else self._run()
        self._run = None
        if run is not None:
            run.give_up()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_quarantine(options: EngineOptions) -> Quarantine | None:
    policy = options.on_error
    if not isinstance(policy, Skipping) or policy.quarantine is None:
        return None
    return Quarantine(Path(policy.quarantine))
