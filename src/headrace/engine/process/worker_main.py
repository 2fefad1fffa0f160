"""The life of a worker process.

take tickets from a socket, perform them, put the results into the arena.

Invariants: it performs one ticket after another, in the order in which they came; a result is told of only after it
lies in the arena; it never outlives the trainer or the warden, whatever it is doing; and it ends when its socket does.
What user code raises becomes a message (`engine/worker.py`), except what means the end of the process.

The warden ends workers when the trainer is gone, also those whose Python is stuck in C code. The thread of
`start_guard` is for the case that the warden itself is killed. It holds no lock and needs none.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import os
import select
import signal
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from headrace.errors import CacheError

from ..codec.codec import encode
from ..events import Done, Failed, Ready, SetupFailed, WorkerEvent
from ..memory import forks
from ..memory.arena import ArenaWriter
from ..memory.rings import WorkerRings
from ..memory.slot import SlotWriter, open_slot
from ..user.failure import Failure
from ..user.job import Job, Mode
from ..user.ship import unship
from ..user.worker_info import set_process_scope
from ..worker import ShippedWorker, ValueResult
from .channel import Channel
from .messages import (
    BELL,
    BeginRun,
    Cancel,
    GiveUp,
    Message,
    SentAfterRecord,
    Starved,
    Submit,
    ToWorker,
    decode_for_worker,
    encode_packet,
    encode_record,
)
from .proc_tree import kill_descendants
from .results import InlineArray, InlineResult, SlotResult, inline_array
from .status_page import StatusPage
from .worker_config import WorkerConfig, read_worker_config


def start_guard(ends: Sequence[int]) -> None:
    """End this process, its process group and its descendants when one of these processes ends.

    Args:
        ends: Descriptors that tell of the end of the trainer and of the warden, see `ProcessHandle`; they stay open.
    """
    threading.Thread(target=_watch, args=(tuple(ends), os.getpid()), name="headrace-guard", daemon=True).start()


@contextlib.contextmanager
def guarded(end: int) -> Iterator[None]:
    """Do as `start_guard` for the length of a block; no thread is left after it, so that this process may fork."""
    try:
        stop, stopper = os.pipe2(os.O_CLOEXEC)
    except OSError:  # no descriptor is left: the block is not guarded
        yield
        return
    guard = threading.Thread(target=_watch, args=((end,), os.getpid(), stop), name="headrace-guard", daemon=True)
    guard.start()
    try:
        yield
    finally:
        os.close(stopper)
        guard.join()
        os.close(stop)


def _watch(ends: tuple[int, ...], pid: int, stop: int = -1) -> None:
    poll = select.poll()
    for fd in ends:
        poll.register(fd, select.POLLIN)
    if stop >= 0:
        poll.register(stop, 0)  # for the end alone
    while not (ready := poll.poll()):
        pass
    if any(fd in ends for fd, _ in ready):
        signal.alarm(60)  # not in the second of `end_after_hangup`: descendants first
        kill_descendants(pid)
        os.killpg(pid, signal.SIGKILL)


def end_after_hangup(lifeline: int) -> None:
    """Have the kernel end this process a second after a pipe hangs up.

    The kernel then sends SIGHUP, which ends a C call that waits. `alarm` of the C library handles it, which needs no
    Python: called with the number of the signal, 1, it has SIGALRM end this process in 1 s. Until then the guard or the
    warden, whichever can, ends the descendants too: at once, the kernel would take their parent from them, by which
    alone they are found. Where a sandbox forbids any of this, the guard is all there is; user code that handles
    SIGHUP or SIGALRM for itself takes it away, too.

    Args:
        lifeline: The end of a pipe that only the trainer could write to, and never does; it stays open.
    """
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p
    libc.signal(signal.SIGHUP, ctypes.cast(libc.alarm, ctypes.c_void_p))
    with contextlib.suppress(OSError):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGHUP)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC)


# Results up to this many bytes travel inside their message: cheaper than a lease, and no slot can be hoarded with them.
MAX_INLINE_BYTES = 4 << 10
# How often to look, between tickets, whether the trainer has sent something, or is gone: 1 us, and 10 to receive.
_LOOK_SECONDS = 0.0005


# The user's functions live as long as the process: what they own (a pool of processes, say) is ended by its own exit
# handlers, and not by being dropped while those run.
_kept: list[ShippedWorker] = []


class WorkerFds(NamedTuple):
    """The descriptors that connect one worker with its trainer, in the order in which they are sent."""

    control: int
    arena: int
    rings: int
    status: int
    stack: int
    lifeline: int
    config: int


class _TrainerGone(SystemExit):
    """The trainer has closed the socket: unwinds the worker without a report."""


def run_worker(worker_idx: int, fds: WorkerFds, *, handed: tuple[int, ...] = ()) -> None:
    """Be a worker until the trainer closes the socket.

    Args:
        worker_idx: Index of the worker.
        fds: Its descriptors.
        handed: What the executor's `hand_over` gave to it.

    Raises:
        SystemExit: User code asked for it.
    """
    faulthandler.enable(fds.stack)
    faulthandler.register(signal.SIGUSR1, fds.stack, all_threads=True)
    config, buffers = read_worker_config(fds.config)
    os.close(fds.config)
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv[:] = config.argv
    with contextlib.suppress(OSError):  # the folder is gone: stay in what is left of it, as the trainer does
        os.chdir(config.cwd)
    loop = _Loop(fds, config)
    try:
        worker = loop.set_up(worker_idx, config, buffers, handed)
        del config, buffers  # the job may be large
        if worker is not None:
            loop.run(worker)
    except _TrainerGone:
        pass
    finally:
        loop.close()
    _leave()


def _leave() -> None:
    """End this process as `multiprocessing` ends its own: exit handlers run, modules are not torn down.

    Tearing them down takes longer than all the rest, and what user code left running would complain about it.
    """
    threading._shutdown()  # type: ignore[attr-defined] # joins threads, and ends pools of concurrent.futures
    atexit._run_exitfuncs()
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError, ValueError):  # closed, or None
            file.flush()
    # The warden ends what is left below; but it may be gone, and this may be quicker than the guard.
    kill_descendants(os.getpid())
    os._exit(0)


class _Loop:
    """The loop of one worker and what it has at hand."""

    def __init__(self, fds: WorkerFds, config: WorkerConfig) -> None:
        self._pid = os.getpid()
        self._channel = Channel.of_fd(fds.control)
        self._status = StatusPage(fds.status)
        os.close(fds.status)
        self._rings = WorkerRings(fds.rings)
        os.close(fds.rings)
        self._arena = ArenaWriter(
            fds.arena,
            slot_bytes=config.slot_bytes,
            num_slots=config.num_slots,
            max_bytes=config.max_bytes,
            wait_for_release=self._wait_for_release,
        )
        os.close(fds.arena)
        self._tickets: deque[tuple[int, int, bytes | None]] = deque()  # run, ticket, payload
        self._run_id = -1
        self._next_begin: BeginRun | None = None
        self._is_over = False  # the current run was cancelled, and its streams are still open
        self._slot: SlotWriter | None = None
        self._poll = select.poll()
        self._poll.register(self._channel, select.POLLIN)
        self._looked_at = 0.0
        self._given_up_at = -1  # after this many credits the trainer said that no more will come
        self._gave_up = False  # in this ticket

    def set_up(
        self,
        worker_idx: int,
        config: WorkerConfig,
        buffers: Sequence[memoryview],
        handed: tuple[int, ...],
    ) -> ShippedWorker | None:
        """Make the user's functions; return None, after telling, if that is not possible."""
        try:
            job = unship(config.job, buffers)
        except Exception as error:  # noqa: BLE001 - importing runs user code: it goes on as a Failure
            self._send(SetupFailed(worker_idx, Failure.of(error)))
            return None
        assert isinstance(job, Job)
        info = job.info_of(
            worker_idx, max(config.num_workers, worker_idx + 1), config.executor, runs_in="process", handed=handed
        )
        worker = ShippedWorker(job, info)
        _kept.append(worker)
        scope, status = worker.scope, self._status
        scope.on_item, scope.on_items, scope.on_number = status.write_item, status.write_items, status.write_number
        set_process_scope(worker.scope)
        failure = worker.set_up()
        self._send(Ready(worker_idx) if failure is None else SetupFailed(worker_idx, failure))
        return worker if failure is None else None

    def run(self, worker: ShippedWorker) -> None:
        """Perform tickets for ever; `_TrainerGone` ends it."""
        while True:
            if not self._tickets:
                self._receive(block=True)
            elif time.perf_counter() - self._looked_at > _LOOK_SECONDS:
                self._looked_at = time.perf_counter()
                if self._poll.poll(0):
                    self._receive(block=False)
            if self._is_over or self._next_begin is not None:
                self._change_run(worker)
            if self._tickets:
                self._perform(worker, *self._tickets.popleft())

    def close(self) -> None:
        """Let the trainer see the end."""
        if os.getpid() == self._pid:
            self._channel.shut_down()
            self._channel.close()

    def _perform(self, worker: ShippedWorker, run_id: int, number: int, parcel: bytes | None) -> None:
        if self._slot is None:
            self._take_credits()
            self._slot = self._arena.acquire(block=True)
            if self._is_over or self._next_begin is not None:  # the run ended meanwhile
                return
        slot = self._slot
        if slot is None:
            failure = Failure.of(self._arena.no_slot_error(), ends_stream=True)
            self._send(Failed(worker.worker_idx, number, failure, run_id))
            return
        if worker.scope.noted is not None:  # of the ticket before: the item of this one is not known yet
            self._status.forget_item()
        self._gave_up = False
        open_slot(slot)
        event = worker.perform(run_id, number, parcel)
        open_slot(None)
        if isinstance(event, Done):
            event = self._pack(worker, event, slot)
        if isinstance(event, Failed):
            event = Failed(event.worker_idx, number, self._judged(event.failure), run_id)
        if event is not None:
            self._send(event)
        if self._slot is not None:  # still ours: what was written to it will not be read
            self._slot.rewind()

    def _pack(
        self, worker: ShippedWorker, done: Done[ValueResult], slot: SlotWriter
    ) -> Done[InlineArray | InlineResult | SlotResult] | Failed:
        """Move the value of a ticket to where the trainer sees it."""
        assert done.result is not None
        start = time.perf_counter()
        value = done.result.value
        result: InlineArray | InlineResult | SlotResult | None = inline_array(value, MAX_INLINE_BYTES)
        if result is None:
            try:
                header = encode(value, slot)
            except Exception as error:  # noqa: BLE001 - pickling runs user code: it goes on as a Failure
                return Failed(done.worker_idx, done.ticket, Failure.of(error, item=worker.scope.item), done.run_id)
            num_bytes = slot.used
            if num_bytes <= MAX_INLINE_BYTES:
                result = InlineResult(header, bytearray(slot.view_used()), num_bytes)
            else:
                result = SlotResult(header, slot.slot_idx, slot.offset, num_bytes)
                self._slot = None  # the trainer's, until it gives credit for it
        skipped = tuple(map(self._judged, done.skipped)) if done.skipped else ()
        seconds = time.perf_counter() - start
        return Done(done.worker_idx, done.ticket, done.run_id, result, done.seconds, seconds, skipped)

    def _judged(self, failure: Failure) -> Failure:
        """Return a failure in the form to report: lack of memory that the consumer causes is no fault of what was read.

        So no policy skips it: which sequences it falls on depends on what the consumer keeps.
        """
        is_of_consumer = self._gave_up and isinstance(failure.exception, CacheError)
        return failure.ending_stream() if is_of_consumer else failure

    def _send(self, message: WorkerEvent | Message) -> None:
        """Send one message at once: what was done before a worker's death is then known to be done."""
        if forks.own_pid != self._pid:  # user code forked, and came back in the child: one worker is enough
            os._exit(0)
        if self._rings.write(encode_record(message)):
            if not self._rings.should_wake():
                return
            packet = BELL
        else:
            packet = encode_packet((SentAfterRecord(self._rings.num_records), message))
        try:
            self._channel.send(packet)
        except (BrokenPipeError, ConnectionResetError):
            raise _TrainerGone from None

    def _receive(self, *, block: bool) -> None:
        """Take in what the trainer has sent."""
        while (received := self._channel.receive(block=block)) is not None:
            packet, _ = received
            if not packet:
                raise _TrainerGone
            self._take_in(decode_for_worker(packet))
            block = False

    def _take_in(self, messages: Sequence[ToWorker]) -> None:
        for message in messages:
            if isinstance(message, Submit):
                self._tickets += zip(repeat(message.run_id), message.tickets, message.payloads, strict=False)
            elif isinstance(message, GiveUp):
                self._given_up_at = message.num_credits
            elif isinstance(message, BeginRun):
                self._next_begin = message
                self._tickets.clear()
            elif isinstance(message, Cancel):
                self._is_over = True
                self._tickets.clear()

    def _change_run(self, worker: ShippedWorker) -> None:
        """Act on the end of a run, and on the beginning of one, now that no user code is running."""
        if self._is_over:
            self._is_over = False
            worker.end_run()
        begin, self._next_begin = self._next_begin, None
        if begin is not None:
            worker.begin_run(Mode.STREAM if begin.is_stream else Mode.TASK, begin.payload, begin.first_item)

    def _take_credits(self) -> None:
        """Take back the slots that the trainer no longer reads."""
        for slot_idx in self._rings.take_credits():
            self._arena.release(slot_idx)

    def _wait_for_release(self) -> bool:
        """Wait until the trainer has freed a slot: called by the arena, perhaps from within user code.

        Returns:
            False if there will be none, because the consumer keeps all of them and waits for this worker itself.
        """
        num_free = self._arena.num_free
        self._take_credits()
        if self._arena.num_free > num_free:
            return True
        num_credits = self._rings.num_credits
        self._status.set_starved(True)
        self._send(Starved(num_credits))
        try:
            while self._arena.num_free <= num_free and self._given_up_at != num_credits:
                self._receive(block=True)
                self._take_credits()
        finally:
            self._status.set_starved(False)
        if self._arena.num_free > num_free:
            return True
        self._gave_up = True
        return False
