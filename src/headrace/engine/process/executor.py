"""Workers are processes: results come through shared memory, and no worker outlives the trainer.

Invariants: every method but `close` returns without waiting for a worker, unless the warden was killed; what a dead
worker had sent is reported before its exit; descriptors are closed on exec and in forked children; a process that was
forked off the trainer sees a closed executor. Read `warden_server.py` for who starts and ends the processes,
`worker_main.py` for what they do, and `link.py` for the trainer's side of one of them.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.errors import ConfigError

from ..events import Beat, Event, Exited, events_of_others
from ..executor import Executor
from ..interrupts import interrupts_wait
from ..memory.lease import MemoryWatcher
from ..memory.weak_objects import WeakObjects
from ..user.job import Job, Mode
from ..user.ship import ship_job, ship_payload
from ..user.worker_info import CurrentItem
from .channel import close_all, needs_descriptors
from .exit_cause import ExitCauses
from .link import WorkerConnection
from .listener import Listener
from .messages import BeginRun, Cancel, HasExited, NotSpawned, Spawned, Submit
from .proc_tree import ProcessHandle
from .start import StartMethod, check_system
from .warden_client import WardenClient
from .worker_config import WorkerConfig, write_worker_config
from .worker_main import WorkerFds

# While a worker waits for a slot: how often to look whether the consumer's other threads have dropped a view.
_STARVED_SECONDS = 0.005
# How often to look for signs of life while other events keep coming.
_BEAT_SECONDS = 1.0
# A worker that has hung up has so long to run its exit handlers.
_EXIT_SECONDS = 1.0
# A worker whose warden is gone has so long to end itself.
_GUARD_SECONDS = 0.25
# More slots than are ever needed; one that is not used costs nothing but a few hundred bytes.
_NUM_SLOTS = 4096
# Numbers of the lives of workers, and of accidents: executors share a warden, so no two lives of this process may have
# the same.
_lives = itertools.count(1)

_executors: WeakObjects[ProcessExecutor] = WeakObjects()  # that have, or had, processes


class ProcessExecutor(Executor):
    """Starts one process for each worker.

    Args:
        start_method: None or `"exec"`: a clean start of our own; `"spawn"`, `"forkserver"`: the same promises.
        slot_bytes: How much of a slot is mapped at first; slots grow.
        max_bytes: Limit on the shared memory of each worker, in bytes.
        threads_per_worker: How many threads numerical libraries use in a worker.
        hand_over: Called here with the number of a worker whenever it is started, or restarted. Returns descriptors
            that this process of it gets as `WorkerInfo.handed`: a channel that no other process can open or see. They
            are closed here once they are on their way.

    Raises:
        ConfigError: A wrong option.
    """

    name = "process"
    runs_in = "process"
    is_resizable = True

    def __init__(
        self,
        *,
        start_method: str | None = None,
        slot_bytes: int = 1 << 20,
        max_bytes: int = 2 << 30,
        threads_per_worker: int = 1,
        hand_over: Callable[[int], Sequence[int]] | None = None,
    ) -> None:
        self._method = StartMethod.parse(start_method)
        if not 1 <= slot_bytes <= max_bytes or max_bytes > 1 << 48:
            raise ConfigError(
                f"slot_bytes={slot_bytes} and max_bytes={max_bytes} do not go together",
                fix="give at least 1 byte a slot, and not more than max_bytes, which is at most 2**48",
            )
        if threads_per_worker < 1:
            raise ConfigError(f"threads_per_worker is {threads_per_worker}", fix="give 1 or more")
        self._slot_bytes, self._max_bytes, self._num_threads = slot_bytes, max_bytes, threads_per_worker
        self._hand_over = hand_over
        self._watcher: MemoryWatcher | None = None
        self._warden: WardenClient | None = None
        self._prepared: WardenClient | None = None  # keeps a warden for `start`
        self._lives: dict[int, WorkerConnection] = {}  # by number of the worker
        self._listener = Listener(self._lives)
        self._config_fd = -1
        self._modules: set[str] = set()
        self._preload: tuple[str, ...] = ()
        self._begin: BeginRun | None = None
        self._events: list[Event] = []
        self._looked_at = 0.0
        self._seconds_waited = 0.0  # in `wait`, in all: the clock of waiting
        self._causes = ExitCauses()

    # --- lifetime ---

    def another(self) -> ProcessExecutor:
        """Return one of the same options, but without `hand_over`."""
        return ProcessExecutor(
            start_method=self._method.value,
            slot_bytes=self._slot_bytes,
            max_bytes=self._max_bytes,
            threads_per_worker=self._num_threads,
        )

    def prepare(self, job: Job) -> None:
        """Have a warden import what `start` would have it import, if workers will come from one that may.

        `start` takes workers from it, unless they would start in another way by then: see `join_warden`.
        """
        if self._prepared is not None or self._warden is not None:
            return
        if not job.preload or self._method.is_fresh(self._num_threads):
            return
        _executors.add(self)
        with interrupts_wait(), contextlib.suppress(ConfigError, OSError):
            check_system()
            self._prepared = WardenClient(self._method, self._num_threads, preload=job.preload)
            self._prepared.prepare()

    def start(self, job: Job, num_workers: int) -> None:
        """Start the processes.

        Raises:
            ConfigError: The job cannot be sent, or this system cannot have worker processes.
        """
        check_system()
        parcel = ship_job(job)
        self._modules, self._preload = parcel.modules, job.preload or parcel.slow_modules
        config = WorkerConfig(
            num_workers=num_workers,
            argv=list(sys.argv),
            cwd=_working_folder(),
            slot_bytes=self._slot_bytes,
            num_slots=_NUM_SLOTS,
            max_bytes=self._max_bytes,
            job=parcel.data,
            buffer_bytes=[buffer.raw().nbytes for buffer in parcel.buffers],
            executor=self.name,
        )
        _executors.add(self)
        try:
            with interrupts_wait(), needs_descriptors(f"{num_workers} workers are started"):
                self._begin = None
                self._config_fd = write_worker_config(config, parcel.buffers)
                self._causes.begin()
                self._listener.open()
                self._start_warden()
                self._abandon_prepared()
                for worker_idx in range(num_workers):
                    self._lives[worker_idx] = self._start_life(worker_idx)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes."""
        with interrupts_wait():
            self._close()

    def _close(self) -> None:
        try:
            self._abandon_prepared()
            self._end_workers()
        finally:
            while self._lives:
                self._lives.popitem()[1].close()
            self._forget()

    def _abandon_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.abandon()

    def _end_workers(self) -> None:
        warden, self._warden = self._warden, None
        try:
            if warden is not None:
                self._note_processes(warden)
            for life in self._lives.values():
                life.close_channel()
        finally:
            if warden is not None:
                warden.close()
            self._kill_the_rest()

    def _note_processes(self, warden: WardenClient) -> None:
        """Take note of the processes that were started meanwhile, of which we have to know if the warden is gone."""
        with contextlib.suppress(ConfigError):  # no descriptor is left: they end as long as the warden is there
            while (heard := warden.receive()) is not None and heard[0]:
                for message in heard[0]:
                    if isinstance(message, Spawned):
                        self._note_process(message, heard[1])

    def _note_process(self, spawned: Spawned, end: int | None) -> None:
        assert end is not None
        life = next((life for life in self._lives.values() if life.life == spawned.life), None)
        if life is None:  # replaced before it began
            os.close(end)
        else:
            life.process = ProcessHandle(spawned.pid, end)

    def _kill_the_rest(self) -> None:
        """End workers that live on, soon: their warden is gone, or stopped, and they hold the interpreter's lock."""
        deadline = time.monotonic() + _GUARD_SECONDS
        for life in self._lives.values():
            life.kill_unless_ended(max(0.0, deadline - time.monotonic()))

    def __del__(self) -> None:
        if getattr(self, "_config_fd", -1) >= 0 or getattr(self, "_prepared", None) is not None:
            self.close()

    def disown(self) -> None:
        """In a process that was forked off the trainer: close all descriptors, and leave the workers alone."""
        for life in self._lives.values():
            life.disown()
        for warden in (self._prepared, self._warden):
            if warden is not None:
                warden.disown()
        self._lives.clear()
        self._prepared = self._warden = None
        self._forget()

    def _forget(self) -> None:
        self._listener.close()
        if self._config_fd >= 0:
            os.close(self._config_fd)
        self._config_fd, self._begin = -1, None
        self._events.clear()

    def _start_warden(self) -> WardenClient:
        if self._warden is None:
            self._warden = WardenClient(self._method, self._num_threads, self._modules, self._preload)
            self._listener.add_warden(self._warden)
        return self._warden

    def _start_life(self, worker_idx: int) -> WorkerConnection:
        warden = self._start_warden()
        number = next(_lives)
        handed = () if self._hand_over is None else tuple(self._hand_over(worker_idx))
        try:
            life = WorkerConnection(
                number,
                worker_idx,
                max_leases=_NUM_SLOTS // 2,
                copy_bytes=self._max_bytes // _NUM_SLOTS,
                start=lambda fds: warden.spawn(number, worker_idx, WorkerFds._make((*fds, self._config_fd)), handed),
            )
        finally:
            close_all(handed)
        life.reader.watch(self._watcher, self._max_bytes)
        self._listener.add(life)
        return life

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Start a new process to replace one that ended, or that is ended now."""
        old = self._lives[worker_idx]
        self._events = events_of_others(self._events, worker_idx)
        self._hang_up(old)
        if not old.has_exited and self._warden is not None:
            self._warden.kill(old.life)
        with interrupts_wait(), needs_descriptors(f"worker {worker_idx} is restarted"):
            old.close()
            new = self._lives[worker_idx] = self._start_life(worker_idx)
        if self._begin is not None:
            self._begin = msgspec.structs.replace(self._begin, first_item=0)
            new.put(msgspec.structs.replace(self._begin, first_item=first_item))

    def add_worker(self, worker_idx: int) -> None:
        """Start one more process."""
        with interrupts_wait(), needs_descriptors(f"worker {worker_idx} is started"):
            life = self._lives[worker_idx] = self._start_life(worker_idx)
        if self._begin is not None:
            life.put(msgspec.structs.replace(self._begin, first_item=0))

    def remove_worker(self, worker_idx: int) -> None:
        """Hang up, of which a worker ends; it is ended soon if it does not. Its memory lives as long as its results."""
        self._events = events_of_others(self._events, worker_idx)
        with interrupts_wait():
            life = self._lives.pop(worker_idx)
            self._hang_up(life)
            if not life.has_exited and self._warden is not None:
                self._warden.kill(life.life, _EXIT_SECONDS)
            life.close()

    # --- work ---

    def begin_run(self, run_id: int, mode: Mode, payload: Any = None) -> None:
        """Tell all workers of a run."""
        self._begin = begin = BeginRun.of(run_id, mode, payload)
        for life in self._lives.values():
            life.put(begin)

    pack = staticmethod(ship_payload)  # once: what is submitted again is at hand

    def submit(self, worker_idx: int, run_id: int, ticket: int, payload: bytes | None) -> None:
        """Send a ticket to a worker."""
        self.submit_burst(worker_idx, run_id, (ticket,), (payload,))

    def submit_burst(
        self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[bytes | None]
    ) -> None:
        """Send tickets to a worker in one message."""
        self._lives[worker_idx].send(Submit(run_id, tickets, payloads))

    def cancel(self, run_id: int) -> None:
        """Tell all workers that a run is over."""
        if self._begin is not None and self._begin.run_id == run_id:
            self._begin = None
            for life in self._lives.values():
                life.send(Cancel(run_id))

    def wait(self, timeout_seconds: float) -> Sequence[Event]:
        """Wait for messages of workers and of the warden."""
        start = time.monotonic()
        deadline = start + timeout_seconds
        while True:
            is_starved = self._listener.flush(self.awaited_worker_idx, self._seconds_waited)
            left = max(0.0, deadline - time.monotonic())
            if is_starved:
                left = min(left, _STARVED_SECONDS)
            self._listen(0.0 if self._events else left)
            if self._events or time.monotonic() >= deadline:
                break
        now = time.monotonic()
        self._seconds_waited += now - start
        self._look_for_life(now)
        events, self._events = self._events, []
        return events

    def watch_memory(self, watcher: MemoryWatcher | None) -> None:
        """Tell a watcher of the arenas."""
        self._watcher = watcher
        for life in self._lives.values():
            life.reader.watch(watcher, self._max_bytes)

    def item_of(self, worker_idx: int) -> CurrentItem | None:
        """Return the last sequence that a worker noted."""
        return self._lives[worker_idx].item

    def stack_of(self, worker_idx: int) -> str | None:
        """Ask a worker for its stack."""
        return self._lives[worker_idx].read_stack()

    # --- what comes back ---

    def _listen(self, timeout_seconds: float) -> None:
        """Take in what workers and the warden have said, after waiting for it if need be."""
        for life in self._listener.listen(timeout_seconds):
            if life is not None:
                self._hear(life)
            elif self._warden is not None:
                self._hear_warden(self._warden)
        for life in self._lives.values():
            self._drain(life)

    def _hear(self, life: WorkerConnection) -> None:
        """Take in what a worker has said by its socket."""
        if not life.hear():
            self._drain(life)
            self._hang_up(life)
            if self._warden is not None and not life.has_exited:
                self._warden.kill(life.life, _EXIT_SECONDS)

    def _drain(self, life: WorkerConnection) -> None:
        """Turn all messages of a worker that are here into events."""
        run_id = None if self._begin is None else self._begin.run_id
        self._events += life.take_events(run_id, self._seconds_waited)

    def _hear_warden(self, warden: WardenClient) -> None:
        while (heard := warden.receive()) is not None:
            messages, end = heard
            if not messages:
                self._lose_warden(warden)
                return
            for message in messages:
                life = next((life for life in self._lives.values() if life.life == message.life), None)
                match message:
                    case Spawned():
                        self._note_process(message, end)
                    case HasExited() if life is not None:
                        self._note_exit(life, message.exit_code)
                    case NotSpawned():
                        # a worker that was removed meanwhile is no loss; a message without a number concerns all
                        unborn = [one for one in self._lives.values() if one.process is None]
                        for lost in [life] if life else unborn if message.life < 0 else []:
                            self._report_exit(lost, f"could not be started: {message.reason}")

    def _note_exit(self, life: WorkerConnection, exit_code: int) -> None:
        self._take_in_the_rest(life)
        self._report_exit(life, *self._causes.of_worker(exit_code, life.take_stack()))

    def _take_in_the_rest(self, life: WorkerConnection) -> None:
        """Take in what a dead worker had said."""
        life.gather()
        life.hear()
        self._drain(life)

    def _report_exit(self, life: WorkerConnection, cause: str, advice: str = "", accident: int | None = None) -> None:
        if not life.has_exited:
            life.has_exited = True
            self._hang_up(life)
            self._events.append(Exited(life.worker_idx, cause, life.item, advice, accident))

    def _lose_warden(self, warden: WardenClient) -> None:
        """The warden is gone, and with it, or soon, all workers: their guards see to their children."""
        self._listener.drop_warden(warden)
        self._warden = None
        # The guards see to it, in milliseconds, and are left alone: if this process is killed as well now, nothing
        # would finish what it had begun. One that waits for the interpreter's lock has to be helped.
        self._kill_the_rest()
        cause, advice = self._causes.of_warden(warden.pid, warden.close())
        accident = next(_lives)  # one for all
        for life in self._lives.values():
            if not life.has_exited:
                self._take_in_the_rest(life)
                self._report_exit(life, cause, advice, accident)

    def _hang_up(self, life: WorkerConnection) -> None:
        """Listen to a worker no more."""
        if life.is_open:
            self._listener.drop(life)
            life.close_channel()

    def _look_for_life(self, now: float) -> None:
        if not self._events or now - self._looked_at > _BEAT_SECONDS:
            self._looked_at = now
            # One that waits for a slot is not stuck: it is told to give up before long.
            self._events += [
                Beat(life.worker_idx)
                for life in self._lives.values()
                if (life.made_progress or life.starved_since is not None) and not life.has_exited
            ]


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@atexit.register
def _close_all() -> None:
    for executor in _executors.living():
        executor.close()


def _disown_all() -> None:
    for executor in _executors.living():
        executor.disown()


os.register_at_fork(after_in_child=_disown_all)
