"""The inline executor: the consumer's own thread does each ticket when it waits for it. The reference for the others.

`SystemExit` and `KeyboardInterrupt` of user code reach the consumer at once, as in a plain loop: no worker could die of
them. Each of the `num_workers` workers has its own functions and its own stream all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from headrace.errors import InternalError

from ..events import Event, Ready, SetupFailed
from ..executor import Executor
from ..memory.slot import close_slot, open_slot
from ..user.job import Job, Mode
from ..user.worker_info import worker_scope
from ..worker import Worker


class InlineExecutor(Executor):
    """Does a ticket inside `wait`, in the order in which they were submitted."""

    name = "inline"
    runs_in = "caller"
    max_look_ahead = 1

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._is_ready: list[bool] = []
        self._queue: deque[tuple[int, int, Any]] = deque()
        self._run_id: int | None = None

    def start(self, job: Job, num_workers: int) -> None:
        """Prepare the workers; each is set up at its first ticket."""
        self._workers = [
            Worker(job, job.info_of(idx, num_workers, self.name, runs_in=self.runs_in)) for idx in range(num_workers)
        ]
        self._is_ready = [False] * num_workers
        self._queue.clear()

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Forget the run before, and begin a new one."""
        self._end_run()
        self._run_id = run_id
        for worker in self._workers:
            worker.begin_run(mode, payload)

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: Any) -> None:
        """Put a ticket of the current run at the end of the queue."""
        self.submit_burst(worker_idx, run_id, (ticket,), (payload,))

    def submit_burst(self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[Any]) -> None:
        """Put tickets of the current run at the end of the queue."""
        if run_id == self._run_id:
            self._queue.extend(zip(repeat(worker_idx), tickets, payloads))

    def cancel(self, run_id: int) -> None:
        """Empty the queue and close the streams."""
        if run_id == self._run_id:
            self._end_run()

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Do the next ticket, however long it takes."""
        del timeout_seconds  # nothing else happens while user code runs
        if self._run_id is None or not self._queue:
            raise InternalError("the inline executor was waited for with nothing to do")
        run_id, (worker_idx, ticket, payload) = self._run_id, self._queue.popleft()
        worker = self._workers[worker_idx]
        events: list[Event] = []
        slot = close_slot()  # of a worker process in which this engine is: what is made here may outlive its ticket
        try:
            with worker_scope(worker.scope):
                if not self._is_ready[worker_idx]:
                    failure = worker.set_up()
                    if failure is not None:
                        return [SetupFailed(worker_idx, failure)]
                    self._is_ready[worker_idx] = True
                    events.append(Ready(worker_idx))
                event = worker.perform(run_id, ticket, payload)
        finally:
            if slot is not None:
                open_slot(slot)
        if event is not None:
            events.append(event)
        return events

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Refuse: these workers neither die nor stall, so this is never called."""
        raise InternalError(f"inline worker {worker_idx} cannot be restarted at item {first_item}")

    def stack_of(self, worker_idx: int) -> str | None:
        """Return nothing: when the consumer could ask, no user code is running."""
        del worker_idx
        return None

    def close(self) -> None:
        """Close the streams and drop the functions."""
        self._end_run()
        self._workers = []

    def _end_run(self) -> None:
        self._run_id = None
        self._queue.clear()
        for worker in self._workers:
            with worker_scope(worker.scope):
                worker.end_run()
