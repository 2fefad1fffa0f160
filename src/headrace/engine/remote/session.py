"""One worker as its agent sees it: started, told what to do, and heard, as long as the trainer is there.

The worker is one of the executor of worker processes (`../process/executor.py`), with all that belongs to it: shared
memory, causes of deaths, an end whatever happens. Invariants: no user code runs in this process, and nothing is
unpickled here, so whatever it does, the agent answers; results are sent from the worker's shared memory, and not before
there is credit for them, in the order in which they came, and stay there until the trainer has said that it has them.
When the connection breaks, the worker goes on while the agent connects again, and all that the trainer has not heard is
said again; where that does not succeed, it ends its worker. An agent that is told to leave (SIGTERM) lets its worker
finish the ticket that it has begun, sends what is done, and says that it leaves; the trainer has the other tickets done
elsewhere.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pickle import PickleBuffer
from typing import Any, Protocol

import msgspec

from headrace.errors import CacheError, ConfigError

from ..codec.codec import find_code
from ..events import Beat, Done, Event, Exited, Failed
from ..process.executor import ProcessExecutor
from ..process.messages import Begin, Cancel, Submit
from ..process.results import InlineArray, InlineResult
from ..process.worker_config import Shipment
from ..user.failure import Failure
from ..user.ship import Parcel
from .dial import Connected, HungUp, Trainer, TrainerGone, come_back, connection_ends, write
from .dialogue import Dialogue
from .notice import LeaveNotice
from .seal import HEAD_BYTES, PIECE_BYTES, Head
from .wire import (
    Alive,
    AskStack,
    Freed,
    GiveUpWaiting,
    HangUp,
    HasEnded,
    RemoteResult,
    Restarted,
    RestartWorker,
    Stack,
    ToAgent,
    WaitsForMemory,
    Welcome,
    WireError,
    charge,
    decode_for_agent,
)

_READ_BYTES = 256 << 10
# Values that are sent in one frame at most: the trainer takes each as soon as it is there.
_MAX_VALUES = 64
# Of one system call.
_MAX_BUFFERS = 128
_SLOT_BYTES = 1 << 20
# The trainer has so long to take note of an agent that leaves; one that is away for longer sends nothing meanwhile.
_HANG_UP_SECONDS = 2.0
_IN_MESSAGE = (InlineArray, InlineResult)
# How often to look whether the notice has come.
_NOTICE_SECONDS = 0.5


class AgentWorker(Protocol):
    """The worker of an agent: a process of its own, see `ProcessExecutor`, or what answers in its place.

    Of the results in its events, those that are neither in the message nor absent have a `header`, `num_bytes` and
    `take_bytes`, as a `SlotResult` has.
    """

    def start_shipped(self, shipment: Shipment, worker_idxs: range, num_workers: int) -> None:
        """Start it."""

    def wake_for(self, fd: int) -> None:
        """Have `wait` return when there is something to read from this descriptor, too."""

    def wait(self, timeout_seconds: float | None) -> Sequence[Event]:
        """Wait until something has happened, and return all that has."""

    def begin_shipped(self, begin: Begin) -> None:
        """Tell it of a run."""

    def submit_burst(
        self, worker_idx: int, run_id: int, tickets: Sequence[int], payloads: Sequence[bytes | None]
    ) -> None:
        """Give it tickets."""

    def cancel(self, run_id: int) -> None:
        """Tell it that a run is over."""

    def restart(self, worker_idx: int, first_item: int) -> None:
        """Replace it by a new one."""

    def stack_of(self, worker_idx: int) -> str | None:
        """Return its stack."""

    def close(self) -> None:
        """End it."""


OpenWorker = Callable[[Welcome], AgentWorker]
"""What an agent was told -> its worker, not started yet."""


def open_process(welcome: Welcome) -> ProcessExecutor:
    """Return a worker process of this machine, not started yet, which looks for modules where its trainer does, too."""
    sys.path += [entry for entry in welcome.sys_path if entry not in sys.path and os.path.exists(entry)]
    return ProcessExecutor(
        max_bytes=welcome.max_bytes,
        slot_bytes=min(_SLOT_BYTES, welcome.max_bytes),
        threads_per_worker=welcome.num_threads,
    )


class Session:
    """One worker, as long as its trainer needs it.

    Args:
        trainer: To come back to when the connection breaks.
        connected: The connection.
        welcome: What to do.
        buffers: The large arrays of that.
        notice: Whether to leave.
        open_worker: Makes its worker.

    Raises:
        ConfigError: This machine has no such workers.
    """

    def __init__(
        self,
        trainer: Trainer,
        connected: Connected,
        welcome: Welcome,
        buffers: Sequence[memoryview],
        notice: LeaveNotice,
        open_worker: OpenWorker = open_process,
    ) -> None:
        self._trainer, self._dialogue, self._return_seconds = (
            trainer,
            Dialogue(welcome.dialogue),
            welcome.return_seconds,
        )
        self._checks_values = welcome.checks_values
        self._take_connection(connected)
        self._notice = notice
        self._num_submitted = self._num_answered = 0  # tickets, but for those that were given up before
        self._leaves_after = 0  # this many answers, once it was told to leave
        self._worker_idx = welcome.worker_idx
        self._max_bytes = welcome.max_bytes
        self._credit_bytes = welcome.credit_bytes
        self._alive_seconds = welcome.alive_seconds
        self._sent_bytes = self._freed_bytes = 0  # of results, see `charge`
        self._said_waiting_at = -1  # the freed bytes after which the trainer was told that more are waited for
        self._held: deque[Event] = deque()  # not sent yet
        self._sent_at = 0.0
        self._executor = open_worker(welcome)
        parcel = Parcel(welcome.job, [PickleBuffer(buffer) for buffer in buffers], set(welcome.modules))
        shipment = Shipment(
            parcel, welcome.formats, welcome.argv, welcome.cwd, tuple(welcome.preload), welcome.executor
        )
        worker_idxs = range(welcome.worker_idx, welcome.worker_idx + 1)
        try:
            self._executor.start_shipped(shipment, worker_idxs, welcome.num_workers)
            self._executor.wake_for(self._sock.fileno())
        except ConfigError as error:
            self._say(HasEnded(f"could not be started: {error}", None, ""))
            raise
        except BaseException:
            self._executor.close()
            raise

    def run(self) -> None:
        """Pass on what the worker and the trainer say, until the connection ends for good.

        Raises:
            TrainerGone: The trainer has ended, or does not need the worker any more.
            WireError: The trainer does not keep to what was agreed on.
        """
        is_new = True
        while True:
            try:
                if is_new:
                    self._say(Alive(False))
                else:
                    self._come_back()
                self._pass_on_for_ever()
            except HungUp:
                raise
            except (TrainerGone, WireError):
                if not self._return_seconds:
                    raise
                is_new = False
            else:
                return

    def _come_back(self) -> None:
        """Connect again, and say again what the trainer has not heard.

        Raises:
            HungUp: It does not succeed.
        """
        self._sock.close()
        try:
            connected = come_back(self._trainer, self._dialogue, self._return_seconds)
        except TrainerGone:
            raise HungUp from None
        self._take_connection(connected)
        self._executor.wake_for(self._sock.fileno())
        self._dialogue.note_heard(connected.num_heard)
        unheard = self._dialogue.unheard  # not a copy, which would keep values that were heard meanwhile
        for start in range(0, len(unheard), _MAX_VALUES):
            self._write(list(itertools.islice(unheard, start, start + _MAX_VALUES)))

    def _take_connection(self, connected: Connected) -> None:
        self._sock, self._seal_in, self._seal_out = connected.sock, connected.incoming, connected.outgoing
        self._seal_out.checks_values = self._checks_values
        self._head: Head | None = None  # of a frame whose messages are not there yet
        self._incoming = bytearray()

    def _pass_on_for_ever(self) -> None:
        """Pass on what the worker and the trainer say; return when this agent was told to leave, and may."""
        while True:
            left = self._sent_at + self._alive_seconds - time.monotonic()
            events = self._executor.wait(min(max(left, 0.0), _NOTICE_SECONDS))
            self._held += [event for event in events if type(event) is not Beat]
            self._num_answered += sum(type(event) in (Done, Failed) for event in events)
            self._pass_on()
            if self._notice.deadline is not None and self._may_leave(self._notice.deadline):
                self._say(HasEnded("was told to leave (SIGTERM)", None, "", True))
                self._wait_for_hang_up(time.monotonic() + _HANG_UP_SECONDS)
                return
            has_progress = any(type(event) is Beat for event in events)
            if has_progress or time.monotonic() - self._sent_at >= self._alive_seconds:
                self._say(Alive(has_progress))
            self._hear()

    def note_begun(self) -> None:
        """Take note of which ticket is being worked on: called in the handler of the signal."""
        self._leaves_after = min(self._num_answered + 1, self._num_submitted)

    def _may_leave(self, deadline: float) -> bool:
        """Tell whether what was begun before the notice has been finished and sent, or the grace is over."""
        is_done = self._num_answered >= self._leaves_after and not self._held
        return is_done or time.monotonic() >= deadline

    def _wait_for_hang_up(self, deadline: float) -> None:
        """Read on until the trainer has taken note: a connection that is closed with something unread is reset."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0 and poll.poll(1000 * left):
            try:
                if not self._sock.recv(_READ_BYTES, socket.MSG_DONTWAIT):
                    return
            except BlockingIOError:
                continue
            except (OSError, WireError):
                return

    def close(self) -> None:
        """End the worker."""
        self._held.clear()
        self._dialogue.unheard.clear()
        self._executor.close()
        self._sock.close()

    # --- to the trainer ---

    def _pass_on(self) -> None:
        """Send what is held, as far as there is credit."""
        while self._held:
            said: list[tuple[Any, memoryview | None]] = []
            num_values, is_short = 0, False
            while self._held and num_values < _MAX_VALUES:
                value: memoryview | None = None
                event = self._held[0]
                if type(event) is Done and event.result is not None and type(event.result) not in _IN_MESSAGE:
                    cost = charge(event.result.num_bytes)
                    if self._sent_bytes + cost > self._credit_bytes + self._freed_bytes:
                        is_short = True
                        break
                    self._sent_bytes += cost
                    result = event.result
                    event = msgspec.structs.replace(event, result=RemoteResult(result.header, result.num_bytes))
                    value = result.take_bytes()
                    num_values += 1
                elif type(event) is Exited:
                    is_orderly = self._notice.deadline is not None  # what told this process told the worker, too
                    event = HasEnded(event.cause, event.item, event.advice, is_orderly)  # type: ignore[assignment]
                said.append((event, value))
                self._held.popleft()
            if is_short and self._said_waiting_at != self._freed_bytes:
                self._said_waiting_at = self._freed_bytes
                said.append((WaitsForMemory(self._freed_bytes), None))
            if said:
                self._send(said)
            if is_short:
                return

    def _say(self, message: Any) -> None:
        """Send a message that has no value."""
        self._send(((message, None),))

    def _send(self, said: Sequence[tuple[Any, memoryview | None]]) -> None:
        """Send a frame of messages, each with its value if it has one, and keep them until they are heard."""
        for message, value in said:
            self._dialogue.say(message, value)
        self._write(said)

    def _write(self, said: Sequence[tuple[Any, memoryview | None]]) -> None:
        messages = [message for message, _ in said]
        values = [(value, find_code(message.result.header)) for message, value in said if value is not None]
        parts = [memoryview(self._seal_out.frame(messages, values, self._dialogue.num_heard))]
        num_bytes = 0
        for part in self._seal_out.parts(values):
            parts.append(part)
            num_bytes += part.nbytes if self._checks_values else 0  # else all in as few calls as the system needs
            if num_bytes >= PIECE_BYTES or len(parts) >= _MAX_BUFFERS:
                write(self._sock, parts)  # which takes them
                num_bytes = 0
        write(self._sock, parts)
        self._sent_at = time.monotonic()

    # --- from the trainer ---

    def _hear(self) -> None:
        """Do what the trainer has said."""
        while True:
            try:
                with connection_ends():
                    data = self._sock.recv(_READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                raise TrainerGone
            self._incoming += data
            while (packet := self._next_packet()) is not None:
                for message in decode_for_agent(packet):
                    self._dialogue.hear(message)
                    self._obey(message)
            if len(data) < _READ_BYTES:
                return

    def _next_packet(self) -> bytes | None:
        """Return the messages of the next frame, if they are there."""
        if self._head is None:
            if len(self._incoming) < HEAD_BYTES:
                return None
            self._head = self._seal_in.open_head(bytes(self._incoming[:HEAD_BYTES]))
            del self._incoming[:HEAD_BYTES]
        if len(self._incoming) < self._head.num_bytes:
            return None
        packet = bytes(self._incoming[: self._head.num_bytes])
        del self._incoming[: self._head.num_bytes]
        self._seal_in.check_packet(self._head, packet)
        self._dialogue.note_heard(self._head.num_heard)
        self._head = None
        return packet

    def _obey(self, message: ToAgent) -> None:
        executor = self._executor
        match message:
            case Submit(run_id, tickets, payloads):
                self._num_submitted += len(tickets)
                executor.submit_burst(self._worker_idx, run_id, tickets, payloads)
            case Freed(num_bytes):
                self._freed_bytes = num_bytes
                self._pass_on()
            case Begin():
                self._keep_run(message.run_id)
                executor.begin_shipped(message)
            case Cancel(run_id):
                executor.cancel(run_id)
                self._keep_run(-1)
            case RestartWorker(first_item):
                self._keep(lambda _: False)  # of the worker that is replaced
                self._num_submitted = self._num_answered
                executor.restart(self._worker_idx, first_item)
                self._say(Restarted())
            case AskStack():
                self._say(Stack(executor.stack_of(self._worker_idx)))
            case GiveUpWaiting(num_bytes, kept_bytes):
                if num_bytes == self._freed_bytes:
                    self._fail_waiting(kept_bytes)
            case HangUp():
                raise HungUp

    def _keep(self, is_wanted: Callable[[Event], bool]) -> None:
        """Give up all else that is held: it is not waited for."""
        self._said_waiting_at = -1
        held, self._held = self._held, deque()
        for event in held:
            if is_wanted(event):
                self._held.append(event)
            elif isinstance(event, Done) and event.result is not None:
                event.result.discard()

    def _keep_run(self, run_id: int) -> None:
        """Keep what is of a run. The end of a worker is of no run, and kept."""
        self._num_submitted = self._num_answered
        self._keep(lambda event: getattr(event, "run_id", run_id) == run_id)

    def _fail_waiting(self, kept_bytes: int) -> None:
        """Answer the next result, which waits for memory, by an error."""
        done = self._held[0] if self._held else None
        if not isinstance(done, Done) or done.result is None:
            return
        error = CacheError(
            f"an item needs {done.result.num_bytes} bytes of memory, but results that are still held elsewhere take "
            f"{kept_bytes} of the max_bytes={self._max_bytes} of this worker",
            fix="drop results sooner or copy what is kept of them, or raise max_bytes",
        )
        done.result.discard()
        self._said_waiting_at = -1  # the next result may have to wait as well, and nothing was freed
        failure = Failure.of(error, ends_stream=True)
        self._held[0] = Failed(done.worker_idx, done.ticket, failure, done.run_id)
        self._pass_on()
