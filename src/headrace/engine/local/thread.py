"""Workers are threads of this process: for user code that releases the interpreter's lock, or cannot be carried away.

Invariants: the life of a worker is one thread with a queue of commands of its own; threads share nothing but the queue
of reports and the number of the current run. A thread cannot be ended from outside: one that is stuck in user code is
left behind (it is a daemon, and ends when that call returns), and what it reports later is dropped.
"""

from __future__ import annotations

import copy
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..events import Beat, Event, Exited, Ready, SetupFailed
from ..executor import Executor
from ..user.job import Job, Mode
from ..user.worker_info import CurrentItem, WorkerInfo, worker_scope
from ..worker import Worker

_logger = logging.getLogger("headrace.engine")
_CLOSE_SECONDS = 1.0  # for all threads together; user code that takes longer is left behind


@dataclass(frozen=True, slots=True)
class _Begin:
    run_id: int
    mode: Mode
    payload: Any
    first_item: int = 0


@dataclass(frozen=True, slots=True)
class _Ticket:
    run_id: int
    ticket: int
    payload: Any


@dataclass(frozen=True, slots=True)
class _EndRun:
    pass


class _Shared:
    """What all threads of an executor see. `run_id` is written by the consumer only; a stale read does no harm."""

    def __init__(self) -> None:
        self.reports: queue.SimpleQueue[tuple[_Life, Event]] = queue.SimpleQueue()
        self.run_id: int | None = None


class _Life:
    """One thread being one worker."""

    def __init__(self, job: Job, info: WorkerInfo, shared: _Shared) -> None:
        self.commands: queue.SimpleQueue[_Begin | _Ticket | _EndRun | None] = queue.SimpleQueue()
        self.is_over = False  # written by the consumer: the rest is not needed
        self._worker = Worker(job, info)
        self._num_items_seen = 0
        self.info = info
        self._worker_idx = info.worker_idx
        self._shared = shared
        name = f"headrace-worker-{info.worker_idx}"
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _report(self, event: Event) -> None:
        if not self.is_over:
            self._shared.reports.put((self, event))

    @property
    def item(self) -> CurrentItem | None:
        """The last item that it noted."""
        return self._worker.scope.item

    def _run(self) -> None:
        try:
            with worker_scope(self._worker.scope):
                self._serve()
        except BaseException as error:  # noqa: BLE001 - the end of this worker: reported, as a process's end would be
            cause = f"ended by {type(error).__name__}: {error}"
            self._report(Exited(self._worker_idx, cause, self.item))

    def _serve(self) -> None:
        failure = self._worker.set_up()
        if failure is not None:
            self._report(SetupFailed(self._worker_idx, failure))
            return
        self._report(Ready(self._worker_idx))
        while not self.is_over and self._obey():
            pass
        self._worker.end_run()

    def _obey(self) -> bool:
        """Do the next command; tell whether there may be more. Nothing of it is kept while waiting for another."""
        match self.commands.get():
            case _Begin(_, mode, payload, first_item):
                self._worker.begin_run(mode, payload, first_item)
            case _Ticket(run_id, ticket, payload):
                if not self.is_over and run_id == self._shared.run_id:
                    event = self._worker.perform(run_id, ticket, payload)
                    if event is not None:
                        self._report(event)
            case _EndRun():
                self._worker.end_run()
            case None:
                return False
        return True

    def made_progress(self) -> bool:
        """Tell whether the worker noted a item since the last call."""
        seen, self._num_items_seen = self._num_items_seen, self._worker.scope.num_items
        return self._num_items_seen != seen


class ThreadExecutor(Executor):
    """Starts one thread for each worker."""

    name = "thread"
    runs_in = "thread"
    is_resizable = True

    def __init__(self) -> None:
        self._job: Job | None = None
        self._num_workers = 0  # at the start
        self._lives: dict[int, _Life] = {}  # by number
        self._ending: list[_Life] = []  # of workers that were removed
        self._shared = _Shared()
        self._begin: _Begin | None = None

    def start(self, job: Job, num_workers: int) -> None:
        """Start the threads."""
        self._job, self._begin, self._num_workers = job, None, num_workers
        self._shared = _Shared()
        for worker_idx in range(num_workers):
            self._lives[worker_idx] = self._start_life(job.info_of(worker_idx, num_workers, self.name))

    def _start_life(self, info: WorkerInfo) -> _Life:
        assert self._job is not None
        life = _Life(self._job, info, self._shared)
        life.thread.start()
        return life

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Tell all threads; what they do for an earlier run is dropped when it is done."""
        self._begin = _Begin(run_id, mode, payload)
        self._shared.run_id = run_id
        for life in self._lives.values():
            life.commands.put(self._begin)

    def pack(self, payload: Any) -> Any:
        """Copy a payload: the user's iterator may go on with the same object."""
        return copy.deepcopy(payload)

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: Any) -> None:
        """Put a ticket into the worker's queue."""
        self._lives[worker_idx].commands.put(_Ticket(run_id, ticket, payload))

    def cancel(self, run_id: int) -> None:
        """Have the threads pass over what is left of a run."""
        if run_id != self._shared.run_id:
            return
        self._shared.run_id = self._begin = None
        for life in self._lives.values():
            life.commands.put(_EndRun())

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Wait for the first report, and take all that are there; after the timeout, look who has got on."""
        events: list[Event] = []
        try:
            life, event = self._shared.reports.get(timeout=timeout_seconds)
            while True:
                if not life.is_over:
                    events.append(event)
                life, event = self._shared.reports.get_nowait()
        except queue.Empty:
            pass
        if not events:
            events += [Beat(worker_idx) for worker_idx, life in self._lives.items() if life.made_progress()]
        return events

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Start another thread; the old one, if it lives, is left behind."""
        old = self._lives[worker_idx]
        old.is_over = True
        old.commands.put(None)
        life = self._lives[worker_idx] = self._start_life(old.info)
        if self._begin is not None:
            life.commands.put(replace(self._begin, first_item=first_item))

    def add_worker(self, worker_idx: int) -> None:
        """Start one more thread."""
        assert self._job is not None
        info = self._job.info_of(worker_idx, max(self._num_workers, worker_idx + 1), self.name)
        life = self._lives[worker_idx] = self._start_life(info)
        if self._begin is not None:
            life.commands.put(self._begin)

    def remove_worker(self, worker_idx: int) -> None:
        """Tell a thread to end."""
        life = self._lives.pop(worker_idx)
        life.is_over = True
        life.commands.put(None)
        self._ending = [*(one for one in self._ending if one.thread.is_alive()), life]

    def item_of(self, worker_idx: int) -> CurrentItem | None:
        """Return the last sequence that a worker noted."""
        return self._lives[worker_idx].item

    def stack_of(self, worker_idx: int) -> str | None:
        """Return the stack of the thread."""
        frame = sys._current_frames().get(self._lives[worker_idx].thread.ident or 0)
        return None if frame is None else "".join(traceback.format_stack(frame))

    def close(self) -> None:
        """Tell the threads to end and wait a little; one that is stuck in user code is left behind, with a warning."""
        lives = [*self._lives.values(), *self._ending]
        self._lives, self._ending = {}, []
        self._shared.run_id = self._begin = self._job = None
        for life in lives:
            life.is_over = True
            life.commands.put(None)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for life in lives:
            if life.thread is not threading.current_thread():
                life.thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [life.thread.name for life in lives if life.thread.is_alive()]
        if stuck:
            _logger.warning("threads are left running, because user code in them does not return: %s", ", ".join(stuck))
