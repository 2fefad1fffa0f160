"""The trainer's side of one life of a worker process, and what the worker says as events for the supervisor.

It has the worker's socket, its rings, its arena, its status page and its stack. Invariants: nothing here blocks, but
`read_stack` for a fraction of a second; a restarted worker gets a new life with a new arena, because children of the
old one may still write to the old; a slot is told to be free once, after the last view of it is gone or when its result
was discarded. What the worker says comes by its ring, or by its socket where that is full; `messages` puts both
together in their order, provided that `gather` came before `hear`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.errors import InternalError

from ..codec.codec import decode
from ..events import Event, Failed, Finished, Produced, Ready, Result, SetupFailed
from ..failure import Failure
from ..memory.lease import ArenaReader, Lease
from ..memory.memfd import create_memfd
from ..memory.rings import TrainerRings, create_rings
from ..user.worker_info import Place
from .channel import Channel, close_all
from .messages import (
    BELL,
    Done,
    GiveUp,
    IsReady,
    NotDone,
    NotSetUp,
    SentAfterRecord,
    Starved,
    StreamEnded,
    Submit,
    ToTrainer,
    ToWorker,
    decode_for_trainer,
    encode_packet,
)
from .proc_tree import ProcessHandle, state_of
from .status_page import StatusPage, create_status_page

# Messages to a worker go together, because each packet may wake it, which costs 50 us and more; but not more bytes.
_MAX_OUTBOX_BYTES = 32 << 10
# A worker that waits for a slot is told to give up when the consumer has waited for it so long without freeing one: a
# thread of the consumer may have been about to.
_HOARD_SECONDS = 5.0
# How long a worker may take to write its stack, and how long a silence ends it.
_STACK_SECONDS = 0.5
_STACK_SILENCE_SECONDS = 0.03


class WorkerConnection:
    """One life of one worker.

    Args:
        life: Its number.
        worker_idx: Whose life it is.
        max_leases: With more leases than this, results of less than `copy_bytes` are copied instead of leased, so
            that a consumer that keeps many small results does not run out of slots.
        copy_bytes: See `max_leases`.
        start: Called with the descriptors of the worker's side, but for the last one of `Links`: it copies them.
    """

    def __init__(
        self,
        life: int,
        worker_idx: int,
        *,
        max_leases: int,
        copy_bytes: int,
        start: Callable[[Sequence[int]], None],
    ) -> None:
        self.life = life
        self.worker_idx = worker_idx
        self.max_leases = max_leases
        self.copy_bytes = copy_bytes
        self.has_exited = False
        self.is_open = True  # its socket
        self.waits_for_room = False  # whether the executor listens for room in the socket
        self.process: ProcessHandle | None = None  # known soon after the start
        self._outbox: list[ToWorker] = []
        self._outbox_bytes = 0
        self._packet: bytes | None = None  # did not fit into the socket yet
        self._records: list[bytes] = []  # came by the ring
        self._num_records = 0  # of the ring, that were handed over
        self._behind: deque[tuple[int, list[ToTrainer]]] = deque()  # came by the socket; after how many of the ring
        self._starved_since: float | None = None  # on the clock of waiting
        self._starved_at = 0  # credits that the starved worker has seen
        self._stack_fd = self._lifeline_fd = -1
        fds: list[int] = []
        try:
            fds += (create_memfd("headrace-arena"), create_rings(), create_status_page())
            self._stack_fd, stack_of_worker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            fds.append(stack_of_worker)
            lifeline_of_worker, self._lifeline_fd = os.pipe2(os.O_CLOEXEC)
            fds.append(lifeline_of_worker)
            self.channel, theirs = Channel.pair()
            self.reader = ArenaReader(fds[0])
            self._rings = TrainerRings(fds[1])
            self._status = StatusPage(fds[2])
            with theirs:
                start((theirs.fileno(), *fds))  # in the order of Links
        except BaseException:
            self.disown()
            raise
        finally:
            close_all(fds)
        self._num_places = 0

    # --- messages ---

    def put(self, message: ToWorker) -> None:
        """Send a message, now or soon: at the latest with `flush`."""
        self._outbox.append(message)
        if isinstance(message, Submit):
            self._outbox_bytes += len(message.payload)
            if self._outbox_bytes > _MAX_OUTBOX_BYTES:
                self.flush()

    def flush(self) -> None:
        """Send all messages that gathered, as far as the socket takes them, and tell of slots that became free."""
        if not self.is_open:
            return
        self.give_credits()
        if self._packet is not None and self._try_send(self._packet):
            self._packet = None
        if self._packet is None and self._outbox:
            packet = encode_packet(self._outbox)
            self._outbox, self._outbox_bytes = [], 0
            if not self._try_send(packet):
                self._packet = packet

    def give_credits(self) -> None:
        """Tell the worker of slots that became free. A microsecond if there are none."""
        freed = self.reader.drain() if self.reader.has_freed else []
        if freed:
            self._rings.give_credits(freed)
            if self._starved_since is not None:
                self._wake()

    @property
    def has_backlog(self) -> bool:
        """Whether the socket was too full for the last flush."""
        return self._packet is not None

    @property
    def is_starved(self) -> bool:
        """Whether it waits for a slot, as far as is known."""
        return self._starved_since is not None

    def note_starved(self, starved: Starved, now: float) -> None:
        """Take note that the worker waits for a slot; `now` is on the clock of waiting."""
        self._starved_since, self._starved_at = now, starved.num_credits
        if self._rings.num_credits != starved.num_credits:  # it did not see the last ones
            self._wake()

    def fail_starved_worker(self, now: float) -> None:
        """Tell a worker that waits for a slot, and for which the consumer waits, that none will come."""
        if self._starved_since is None or now - self._starved_since <= _HOARD_SECONDS:
            return
        if self._try_send(encode_packet((GiveUp(self._starved_at),))):
            self._starved_since = None

    def gather(self) -> bool:
        """Take in what lies in the ring; tell whether there is anything. Comes before `hear`."""
        self._records += self._rings.read()
        return bool(self._records)

    def hear(self) -> bool:
        """Take in what the socket has; tell whether it is still open."""
        while self.is_open and (received := self.channel.receive(block=False)) is not None:
            packet, _ = received
            if not packet:
                return False
            if packet != BELL:
                behind, *messages = decode_for_trainer(packet)
                assert isinstance(behind, SentAfterRecord)
                self._behind.append((behind.num_records, messages))
        return True

    def messages(self) -> list[ToTrainer]:
        """Return what was gathered and heard, in the order in which the worker said it."""
        found: list[ToTrainer] = []
        records, self._records = self._records, []
        for record in records:
            while self._behind and self._behind[0][0] <= self._num_records:
                found += self._behind.popleft()[1]
            found += decode_for_trainer(record)
            self._num_records += 1
        while self._behind and self._behind[0][0] <= self._num_records:
            found += self._behind.popleft()[1]
        return found

    def say_asleep(self) -> None:
        """Have the worker ring by its socket when it says something. Gather once more after this, before sleeping."""
        self._rings.say_asleep()

    def say_awake(self) -> None:
        """Have the worker not ring any more."""
        self._rings.say_awake()

    def result_of(self, done: Done) -> Result:
        """Return the value of a finished ticket, still encoded."""
        return _InlineResult(done) if done.slot_idx < 0 else _SlotResult(self, done, self.reader.hold(done.slot_idx))

    def discard(self, done: Done) -> None:
        """Free the slot of a result that nobody wants."""
        self.result_of(done).discard()

    # --- the process ---

    @property
    def pid(self) -> int | None:
        """The number of the process, where it is known."""
        return None if self.process is None else self.process.pid

    @property
    def made_progress(self) -> bool:
        """Whether it noted a new place since the last call."""
        seen, self._num_places = self._num_places, self._status.counter
        return self._num_places != seen

    @property
    def place(self) -> Place | None:
        """The last place that it noted."""
        return self._status.read_place()

    def kill_unless_ended(self, seconds: float) -> None:
        """End the process and its descendants if it lives on for so long: where there is no warden that would."""
        if self.process is not None and not self.process.wait_for_end(seconds):
            self.process.kill_tree()

    def read_stack(self) -> str | None:
        """Ask for the Python stack of all threads of the worker, and say what else is known of what it does."""
        if self.process is None or self.has_exited:
            return None
        self.take_stack()  # of an earlier answer that came too late
        if not self.process.send(signal.SIGUSR1):
            return f"process {self.process.pid} has ended, and its warden has not said so yet"
        stack, wait = "", _STACK_SECONDS
        poll = select.poll()
        poll.register(self._stack_fd, select.POLLIN)
        while poll.poll(1000 * wait) and (more := self.take_stack()):
            stack, wait = stack + more, _STACK_SILENCE_SECONDS
        notes = [f"process {self.process.pid}, state {state_of(self.process.pid) or 'X (it has just ended)'}"]
        if self._status.is_starved:
            notes.append("it waits for a free slot: all its shared memory is held by results that are kept elsewhere")
        return "\n".join([*notes, stack.rstrip()]).rstrip()

    def take_stack(self) -> str:
        """Return what its fault handler has written since the last call."""
        data = b""
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._stack_fd, 1 << 16):
                data += piece
        return data.decode(errors="replace")

    def close_channel(self) -> None:
        """Hang up: an idle worker ends. What was sent and not received is lost."""
        if self.is_open:
            self.is_open = False
            self.channel.shut_down()
            self.channel.close()

    def close(self) -> None:
        """Close all descriptors. Results that were reported stay valid: each keeps the arena for itself."""
        self.close_channel()
        self.disown()
        self.reader.watch(None)

    def disown(self) -> None:
        """Close all descriptors without a word, in a process that was forked off the trainer too."""
        self.is_open = False
        if hasattr(self, "channel"):
            self.channel.close()
        close_all([fd for fd in (self._stack_fd, self._lifeline_fd) if fd >= 0])
        self._stack_fd = self._lifeline_fd = -1
        if self.process is not None:
            self.process.close()
            self.process = None

    def _wake(self) -> None:
        self._starved_since = None
        self._try_send(BELL)

    def _try_send(self, packet: bytes) -> bool:
        try:
            return self.channel.send(packet)
        except OSError:  # the worker is gone: its exit is told elsewhere, and its tickets with it
            return True


@dataclass(slots=True, eq=False)
class _SlotResult(Result):
    """A value in a slot, which is free when this is dropped, by whomever, or the last view of the value."""

    _life: WorkerConnection
    _done: Done
    _lease: Lease | None

    def take(self) -> Any:
        """Decode the value: its arrays are views of the slot, and hold it."""
        life, done = self._life, self._done
        lease, self._lease = self._lease, None
        assert lease is not None, "a result is taken once"
        life.give_credits()  # now, so that the worker writes to warm memory
        reader = life.reader
        buffer = reader.view(lease, done.slot_idx, done.offset, done.num_bytes)
        del lease
        if reader.num_leased > life.max_leases and done.num_bytes < life.copy_bytes:
            buffer = buffer.copy()
        return decode(done.header, buffer)

    def discard(self) -> None:
        """Free the slot."""
        self._lease = None


@dataclass(slots=True, eq=False)
class _InlineResult(Result):
    """A small value that came within its message, after its header."""

    _done: Done

    def take(self) -> Any:
        """Decode the value; its arrays have memory of their own."""
        done = self._done
        buffer = np.empty(done.num_bytes, np.uint8)
        buffer[:] = np.frombuffer(done.header, np.uint8, done.num_bytes, done.offset)
        return decode(done.header[: done.offset], buffer)

    def discard(self) -> None:
        """Nothing is held."""


def events_of(life: WorkerConnection, run_id: int | None, now: float) -> list[Event]:
    """Return what was gathered and heard from a worker.

    Args:
        life: Of the worker; what it wants to be known of itself, such as a want of slots, is noted there.
        run_id: The current run, if there is one: results of others are discarded.
        now: On the clock of waiting.
    """
    events: list[Event] = []
    for message in life.messages():
        if isinstance(message, Done):
            if message.run_id == run_id:
                events.append(_produced(life, message))
            else:
                life.discard(message)
        elif isinstance(message, Starved):
            life.note_starved(message, now)
        else:
            events.append(_event_of(life.worker_idx, message))
    return events


def _event_of(worker_idx: int, message: ToTrainer) -> Event:
    match message:
        case NotDone():
            return Failed(worker_idx, message.ticket, Failure.from_bytes(message.failure), message.run_id)
        case StreamEnded():
            return Finished(worker_idx, message.num_items, message.run_id)
        case IsReady():
            return Ready(worker_idx)
        case NotSetUp():
            return SetupFailed(worker_idx, Failure.from_bytes(message.failure))
        case SentAfterRecord() | Done() | Starved():
            raise InternalError(f"worker {worker_idx} said something in the wrong place", where=repr(message)[:200])


def _produced(life: WorkerConnection, done: Done) -> Produced:
    skipped = tuple(map(Failure.from_bytes, done.skipped)) if done.skipped else ()
    result = life.result_of(done)
    return Produced(life.worker_idx, done.ticket, done.run_id, result, done.seconds, done.transport_seconds, skipped)
