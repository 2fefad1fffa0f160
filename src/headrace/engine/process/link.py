"""The trainer's side of one life of a worker process.

It has the worker's socket, its rings, its arena, its status page and its stack. Invariants: nothing here blocks, but
`read_stack` for a fraction of a second; a restarted worker gets a new life with a new arena, because children of the
old one may still write to the old; a slot is told to be free once, after the last view of it is gone or when its result
was discarded. What the worker says comes by its ring, or by its socket where that is full; `take_events` puts both
together in their order, provided that `gather` came before `hear`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import deque
from collections.abc import Callable, Sequence

from headrace.errors import InternalError

from ..events import Done, Event
from ..memory.lease import ArenaReader
from ..memory.memfd import create_memfd
from ..memory.rings import TrainerRings, create_rings
from ..user.worker_info import CurrentItem
from .channel import Channel, close_all
from .messages import (
    BELL,
    GiveUp,
    SentAfterRecord,
    Starved,
    ToTrainer,
    ToWorker,
    decode_for_trainer,
    decode_records,
    encode_packet,
)
from .proc_tree import ProcessHandle, state_of
from .results import InlineArray, InlineResult, SlotResult
from .status_page import StatusPage, create_status_page

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
        max_leases: See `ArenaReader`.
        copy_bytes: See `ArenaReader`.
        start: Called with the descriptors of the worker's side, but for the last one of `WorkerFds`: it copies them.
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
        self.has_exited = False
        self.is_open = True  # its socket
        self.waits_for_room = False  # whether the executor listens for room in the socket
        self.process: ProcessHandle | None = None  # known soon after the start
        self.backlog: bytes | None = None  # a packet that the socket was too full for
        self.starved_since: float | None = None  # it waits for a slot, as far as is known; on the clock of waiting
        self._outbox: list[ToWorker] = []
        self._records: list[tuple[int, bytes]] = []  # came by the ring: how many, and their bytes
        self._num_records = 0  # of the ring, that were handed over
        self._behind: deque[tuple[int, list[ToTrainer]]] = deque()  # came by the socket; after how many of the ring
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
            with theirs:
                self.reader = ArenaReader(fds[0], max_leases=max_leases, copy_bytes=copy_bytes)
                self.rings = TrainerRings(fds[1])
                self._status = StatusPage(fds[2])
                start((theirs.fileno(), *fds))  # in the order of WorkerFds
        except BaseException:
            self.disown()
            raise
        finally:
            close_all(fds)
        self._num_items = 0

    # --- messages ---

    def put(self, message: ToWorker) -> None:
        """Send a message with the next `send` or `flush`: each packet may wake the worker, which costs 50 us."""
        self._outbox.append(message)

    def send(self, message: ToWorker) -> None:
        """Send a message, and all that gathered."""
        self._outbox.append(message)
        self.flush()

    def flush(self) -> None:
        """Send all messages that gathered, as far as the socket takes them, and tell of slots that became free."""
        if not self.is_open:
            return
        reader = self.reader
        if reader.freed or reader.seen_by_children:
            self.give_credits()
        if self.backlog is not None and self._try_send(self.backlog):
            self.backlog = None
        if self._outbox and self.backlog is None:
            packet = encode_packet(self._outbox)
            self._outbox = []
            if not self._try_send(packet):
                self.backlog = packet

    def give_credits(self) -> None:
        """Tell the worker of slots that became free."""
        freed = self.reader.drain()
        if freed:
            self.rings.give_credits(freed)
            if self.starved_since is not None:
                self._wake()

    def note_starved(self, starved: Starved, now: float) -> None:
        """Take note that the worker waits for a slot; `now` is on the clock of waiting."""
        self.starved_since, self._starved_at = now, starved.num_credits
        if self.rings.num_credits != starved.num_credits:  # it did not see the last ones
            self._wake()

    def fail_starved_worker(self, now: float) -> None:
        """Tell a worker that waits for a slot, and for which the consumer waits, that none will come."""
        if self.starved_since is None or now - self.starved_since <= _HOARD_SECONDS:
            return
        if self._try_send(encode_packet((GiveUp(self._starved_at),))):
            self.starved_since = None

    def gather(self) -> bool:
        """Take in what lies in the ring; tell whether there is anything. Comes before `hear`."""
        found = self.rings.read()
        if found[0]:
            self._records.append(found)
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

    def take_events(self, run_id: int | None, now: float) -> list[Event]:
        """Return what was gathered and heard, in the order in which the worker said it.

        Args:
            run_id: The current run, if there is one: results of others are discarded.
            now: On the clock of waiting.
        """
        messages: list[ToTrainer] = []
        records, self._records = self._records, []
        for num_records, data in records:
            messages += decode_records(num_records, data)
        if self._behind:
            messages = self._in_order(messages)
        else:
            self._num_records += len(messages)
        events: list[Event] = []
        slots: list[SlotResult] = []
        late: list[InlineArray | InlineResult | SlotResult] = []  # of runs that are over
        for message in messages:
            if type(message) is Done:
                result = message.result
                if type(result) is SlotResult:
                    slots.append(result)
                if message.run_id == run_id:
                    events.append(message)
                elif result is not None:
                    late.append(result)
            elif isinstance(message, Starved):
                self.note_starved(message, now)
            elif isinstance(message, SentAfterRecord):
                raise InternalError(
                    f"worker {self.worker_idx} sent a message that is not expected now", where=repr(message)
                )
            else:
                events.append(message)
        if slots:
            for slot, lease in zip(slots, self.reader.hold([slot.slot_idx for slot in slots]), strict=True):
                slot.owner, slot.lease = self, lease
            for result in late:
                result.discard()
        return events

    def _in_order(self, records: list[ToTrainer]) -> list[ToTrainer]:
        """Put what came by the socket between the records that it came between."""
        messages: list[ToTrainer] = []
        behind = self._behind
        for record in (*records, None):
            while behind and behind[0][0] <= self._num_records:
                messages += behind.popleft()[1]
            if record is not None:
                messages.append(record)
                self._num_records += 1
        return messages

    # --- the process ---

    @property
    def pid(self) -> int | None:
        """The number of the process, where it is known."""
        return None if self.process is None else self.process.pid

    @property
    def made_progress(self) -> bool:
        """Whether it noted a new item since the last call."""
        seen, self._num_items = self._num_items, self._status.counter
        return self._num_items != seen

    @property
    def item(self) -> CurrentItem | None:
        """The last item that it noted."""
        return self._status.read_item()

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
            return f"process {self.process.pid} has ended, and the process that started it has not reported that yet"
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
        self.starved_since = None
        self._try_send(BELL)

    def _try_send(self, packet: bytes) -> bool:
        try:
            return self.channel.send(packet)
        except OSError:  # the worker is gone: its exit is told elsewhere, and its tickets with it
            return True
