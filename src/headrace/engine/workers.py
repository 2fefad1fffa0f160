"""The life of an engine's workers: started when first needed, ended whatever happens, restarted after an interrupt.

Invariants: at most one run is current; `executor` is used by the current run and by this file only, in one thread,
and never in a process forked from the one that made it. If a call into the executor is interrupted or fails, the
workers are ended, because it is unknown what the executor had done by then.
"""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any

from headrace.errors import ConfigError, HeadraceError

from .executor import Executor
from .memory.weak_objects import WeakObjects
from .user.job import Job, Mode

_open_workers: WeakObjects[Workers] = WeakObjects()


class Workers:
    """Owns the executor of an engine, and starts and ends its workers.

    Args:
        job: What the workers do.
        num_workers: At least 1.
        executor: Not started yet.

    Attributes:
        num_workers: How many there should be.
        ready: Numbers of those that have said that they are set up.
        current_run_id: The run that may use the executor, if there is one: no other may. Written here alone.

    Raises:
        ConfigError: The executor already has the workers of another engine, which was not closed.
    """

    def __init__(self, job: Job, num_workers: int, executor: Executor) -> None:
        other = None if executor.used_by is None else executor.used_by()
        if other is not None and other.executor is executor and not other.is_closed:
            raise ConfigError(
                f"this {type(executor).__name__} already has the workers of another engine",
                fix="make one for each loader or dataset, or close the other one first",
            )
        executor.used_by = weakref.ref(self)
        self.executor = executor
        self.num_workers = num_workers
        self._job = job
        self._pid = os.getpid()
        self._present: set[int] = set()  # their numbers
        self.ready: set[int] = set()
        self.current_run_id: int | None = None
        self._last_run_id = 0
        self._is_prepared = False
        self._is_started = False
        self._is_stopping = False
        self._is_closed = False
        _open_workers.add(self)

    def prepare(self) -> None:
        """Begin slow parts of starting before the workers are started; nothing, if they were, or may not be."""
        if not (self._is_started or self._is_closed) and os.getpid() == self._pid:
            self._is_prepared = True  # before the call, as in `start`
            self.executor.prepare(self._job)

    def start(self) -> None:
        """Start the workers, if they do not run.

        Raises:
            HeadraceError: After `close`, and in a forked process.
        """
        if self._is_closed:
            raise HeadraceError("this engine is closed", fix="make a new one")
        self._check_owner()
        if self._is_stopping:
            self.stop()
        if self._is_started:
            return
        self._is_started = True  # before the call: what it leaves half done is ended by `stop`
        self._present = set(range(self.num_workers))
        self.ready.clear()
        try:
            self.executor.start(self._job, self.num_workers)
        except BaseException:
            self.stop()
            raise

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise HeadraceError("this engine belongs to the process that forked this one", fix="make a new one")

    def resize(self, num_workers: int) -> None:
        """Set the number of workers from the next run on.

        Raises:
            ConfigError: The executor cannot have others than it was started with.
            HeadraceError: This process was forked from the one that made the engine.
        """
        self._check_owner()
        if self._is_started and not self.executor.is_resizable and num_workers != self.num_workers:
            raise ConfigError(
                f"workers of {type(self.executor).__name__} cannot come and go",
                fix="close the loader and make another one with the new number: its state goes on",
            )
        self.num_workers = num_workers

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Start a worker again, see `Executor.restart`."""
        self.ready.discard(worker_idx)
        self.executor.restart(worker_idx, first_item)

    def add(self, worker_idx: int) -> None:
        """Start one more worker, which takes part in the current run."""
        self._present.add(worker_idx)
        self.executor.add_worker(worker_idx)

    def remove(self, worker_idx: int) -> None:
        """End a worker that is not needed any more."""
        self._present.discard(worker_idx)
        self.ready.discard(worker_idx)
        self.executor.remove_worker(worker_idx)

    def _match(self) -> None:
        """Between two runs, restore the wanted number of workers, whichever came and went in the last run."""
        for worker_idx in sorted(self._present - set(range(self.num_workers)), reverse=True):
            self.remove(worker_idx)
        for worker_idx in sorted(set(range(self.num_workers)) - self._present):
            self.add(worker_idx)

    def begin_run(self, mode: Mode, payload: Any) -> int:
        """Make a new run the current one, whatever was before; return its number."""
        self.start()
        self._last_run_id += 1
        self.current_run_id = self._last_run_id  # before the call: the run before is not to touch the executor any more
        try:
            if len(self._present) != self.num_workers or max(self._present) >= self.num_workers:
                self._match()
            self.executor.begin_run(self.current_run_id, mode, payload)
        except BaseException:
            self.stop()
            raise
        return self.current_run_id

    def end_run(self, run_id: int) -> None:
        """Cancel a run, unless another one has begun meanwhile, or this is a forked process."""
        if run_id != self.current_run_id or os.getpid() != self._pid:
            return
        self.current_run_id = None
        try:
            self.executor.cancel(run_id)
        except BaseException:
            self.stop()
            raise

    def give_up_current(self) -> None:
        """Have no run be the current one; does not use the executor, so it may be called from anywhere.

        The executor goes on with that run until the next one begins or the workers are ended.
        """
        self.current_run_id = None

    def stop(self) -> None:
        """End the workers; the next run restarts them."""
        self.current_run_id = None
        if not (self._is_started or self._is_prepared) or os.getpid() != self._pid:
            return
        self._is_stopping = True  # until the call is over: if it is interrupted, the next one makes up for it
        self.executor.close()
        self._is_prepared = self._is_started = self._is_stopping = False

    def stop_later(self) -> None:
        """Have the next run restart the workers; does not use the executor, so it may be called from anywhere."""
        self._is_stopping = True

    def close(self) -> None:
        """End the workers for good."""
        self._is_closed = True
        self.stop()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def __del__(self) -> None:
        if getattr(self, "_is_started", False) or getattr(self, "_is_prepared", False):
            self.close()


@atexit.register
def _close_all() -> None:
    for workers in _open_workers.living():
        workers.close()
