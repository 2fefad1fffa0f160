"""Workers here and on other machines together: those here come first.

Invariants: a worker below `num_local` is a process of this machine, any other is remote; each has one number in both
executors; the processes here are waited for, and wake up for what comes by the network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headrace.errors import check_count

from ..events import Event
from ..executor import Executor
from ..memory.lease import MemoryWatcher
from ..process.executor import ProcessExecutor
from ..process.worker_config import Shipment
from ..user.job import Job, Mode
from ..user.ship import ship_payload
from .executor import RemoteExecutor


class MixedExecutor(Executor):
    """Carries tickets to worker processes of this machine, and to workers on other machines.

    Args:
        remote: The executor of the others; used by nothing else.
        num_local: How many workers, the first ones, are processes here; at least 1. All others are remote.
        local: The executor of these processes; used by nothing else. `None`: one with default options.

    Raises:
        ConfigError: A wrong number.
    """

    name = "mixed"
    runs_in = "process"
    may_be_elsewhere = True
    is_resizable = True

    def __init__(self, remote: RemoteExecutor, *, num_local: int, local: ProcessExecutor | None = None) -> None:
        self._remote = remote
        self._local = ProcessExecutor() if local is None else local
        self._num_local = check_count("num_local", num_local, minimum=1)
        self.on_death = remote.on_death

    def another(self) -> MixedExecutor:
        """Return one of the same options."""
        return MixedExecutor(self._remote.another(), num_local=self._num_local, local=self._local.another())

    def prepare(self, job: Job) -> None:
        """Begin with what the processes here import."""
        self._local.prepare(job)

    def start(self, job: Job, num_workers: int) -> None:
        """Start the processes, and have the others started."""
        num_local = min(num_workers, self._num_local)
        try:
            shipment = Shipment.of(job, self._local.name)
            self._local.start_shipped(shipment, range(num_local), num_workers, job)
            self._remote.data_hosts = self.data_hosts
            self._remote.start_some(job, range(num_local, num_workers), num_workers)
            self._local.wake_for(self._remote.fileno())
        except BaseException:
            self.close()
            raise

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Tell all workers of a run."""
        for executor in (self._local, self._remote):
            executor.begin_run(run_id, mode, payload)

    pack = staticmethod(ship_payload)

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: bytes | None) -> None:
        """Send a ticket to a worker."""
        self._of(worker_idx).submit(worker_idx, run_id, ticket, payload)

    def submit_burst(
        self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[bytes | None]
    ) -> None:
        """Send tickets to a worker in one message."""
        self._of(worker_idx).submit_burst(worker_idx, run_id, tickets, payloads)

    def cancel(self, run_id: int) -> None:
        """Tell all workers that a run is over."""
        for executor in (self._local, self._remote):
            executor.cancel(run_id)

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Wait for processes here; a message from elsewhere ends that."""
        local, remote = self._local, self._remote
        local.awaited_worker_idx = remote.awaited_worker_idx = self.awaited_worker_idx
        deadline = time.monotonic() + timeout_seconds
        seconds = 0.0
        while True:
            events = remote.look(seconds)
            start = time.monotonic()
            left = 0.0 if events else max(deadline - start, 0.0)
            events = [*events, *local.wait(min(left, remote.patience_seconds))]
            now = time.monotonic()
            seconds = now - start
            if events or now >= deadline:
                return events if events else remote.look(seconds)

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Replace a worker by one of its kind."""
        self._of(worker_idx).restart(worker_idx, first_item)

    def add_worker(self, worker_idx: int) -> None:
        """Start one more worker: here, if there are fewer than are to be here."""
        self._of(worker_idx).add_worker(worker_idx)

    def remove_worker(self, worker_idx: int) -> None:
        """End a worker."""
        self._of(worker_idx).remove_worker(worker_idx)

    def is_remote(self, worker_idx: int) -> bool:
        """Tell whether the results of a worker come by the network."""
        return worker_idx >= self._num_local

    def stack_of(self, worker_idx: int) -> str | None:
        """Ask a worker for its stack."""
        return self._of(worker_idx).stack_of(worker_idx)

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:
        """Tell a watcher of the memory of all results."""
        for executor in (self._local, self._remote):
            executor.watch_memory(watcher)

    def close(self) -> None:
        """End all workers."""
        try:
            self._remote.close()
        finally:
            self._local.close()

    def _of(self, worker_idx: int) -> Executor:
        return self._local if worker_idx < self._num_local else self._remote
