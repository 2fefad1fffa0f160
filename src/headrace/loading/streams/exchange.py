"""Transfers the sequences of a batch from the worker that reads a stream to the worker that makes the batch.

The trainer assigns batches to workers, and sees no byte of them: the reader writes the sequences into a slot of shared
memory, and what goes through the trainer is a `Parcel` of some 100 bytes that says where they lie. The worker that
makes the batch copies them out. Where there is no room, where no such memory was handed over, and between threads, the
sequences themselves go through the trainer.
Invariants: a slot is written again only when the batch was handed over to the consumer, or when its run is over; what
was copied out of a run that is over is never looked at. A reader that is restarted has new memory, of which the
other workers are told before it begins. Nothing waits for room while the trainer waits for the reader: that would have
no end.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.engine.memory.arena import ArenaWriter
from headrace.engine.memory.memfd import PAGE_BYTES, Mapping, create_memfd, create_memfd_of
from headrace.engine.process.channel import Channel, close_all
from headrace.engine.user.ship import ship_payload, split_payload, unship
from headrace.errors import CacheError, HeadraceError

from ..work import CarriedTask

# Words that the trainer writes and the workers read: the number of the run, how many of its batches were handed over,
# how often a reader was started, and whether the trainer waits for it.
_RUN, _NUM_DONE, _LIFE, _IS_WAITED_FOR = range(4)
_NUM_SLOTS = 1024
_SLOT_BYTES = 1 << 20
_CARRIED_BYTES = 256 << 20  # in the trainer's memory, where there is no other
_WEIGHT = 0.25  # of a new parcel in the mean: sizes change from window to window
_ALIGNMENT = 64
# How often a reader without room looks for some, and how long it does so while the trainer waits for it.
_POLL_SECONDS = 0.002
_WAIT_SECONDS = 0.02


class Parcel(NamedTuple):
    """Where the sequences of a batch lie.

    Attributes:
        life: In the memory of which reader.
        run: The number of the run.
        offset: Where they begin in it, in bytes.
        num_bytes: How long they are.
        ends: Where each piece ends, from the offset on: a pickle, and its buffers.
    """

    life: int
    run: int
    offset: int
    num_bytes: int
    ends: list[int]


class Exchange:
    """The trainer's side: makes the memory, and introduces the workers to it. Not thread-safe.

    Args:
        max_bytes: Limit on the memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._pid = os.getpid()
        self._lines: dict[int, Channel] = {}  # to those who make batches
        self._arenas: dict[int, int] = {}  # of the readers of this run, by how many were started before
        self._control_fd = create_memfd_of("headrace-exchange", PAGE_BYTES)
        self._words = _words_of(self._control_fd)

    def hand_to_reader(self, worker_idx: int) -> Sequence[int]:
        """Make memory for a reader that is started now, and tell the others of it."""
        del worker_idx  # there is one
        life = int(self._words[_LIFE]) + 1
        arena_fd = self._arenas[life] = create_memfd("headrace-exchange-arena")
        self._words[_LIFE] = life
        for line in self._lines.values():
            _tell(line, life, arena_fd)
        return os.dup(self._control_fd), os.dup(arena_fd)

    def hand_to_maker(self, worker_idx: int) -> Sequence[int]:
        """Open a channel to a worker that is started now, which tells it about the readers' memory."""
        line, theirs = Channel.pair()
        before, self._lines[worker_idx] = self._lines.get(worker_idx), line
        if before is not None:
            before.close()
        for life, arena_fd in self._arenas.items():
            _tell(line, life, arena_fd)
        return os.dup(self._control_fd), theirs.detach()

    def begin_run(self) -> int:
        """Begin a run, and return its number: the contents of the memory are given up."""
        run = int(self._words[_RUN]) + 1
        self._words[_NUM_DONE] = self._words[_IS_WAITED_FOR] = 0
        self._words[_RUN] = run
        for life in list(self._arenas)[:-1]:
            os.close(self._arenas.pop(life))
        return run

    def end_run(self, run: int) -> None:
        """Give up the contents of the memory, unless another run has begun: the reader stops waiting for room.

        In a process that was forked off the trainer nothing is given up.
        """
        if self._words[_RUN] == run and os.getpid() == self._pid:
            self._words[_RUN] = run + 1

    def take_note(self, num_done: int) -> None:
        """Note how many batches of the run were handed over."""
        self._words[_NUM_DONE] = num_done

    def wait_for_reader(self, is_waiting: bool) -> None:
        """Note whether the trainer waits for the reader."""
        self._words[_IS_WAITED_FOR] = is_waiting

    def close(self) -> None:
        """Close all descriptors; harmless twice."""
        if self._control_fd < 0:
            return
        self.end_run(int(self._words[_RUN]))
        close_all((self._control_fd, *self._arenas.values()))
        self._control_fd = -1
        self._arenas.clear()
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def __del__(self) -> None:
        if getattr(self, "_control_fd", -1) >= 0:
            self.close()


class Load:
    """The trainer's view of the sequences in the shared memory of one run.

    Args:
        exchange: The shared memory that holds them; None: the trainer's own memory.
        num_makers: How many workers make batches of them.
    """

    def __init__(self, exchange: Exchange | None, num_makers: int) -> None:
        self._exchange, self._num_makers = exchange, num_makers
        self._run = 0 if exchange is None else exchange.begin_run()
        self._mean_bytes = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Tell the reader, within a `with` block, that the trainer waits for it."""
        if self._exchange is None:
            yield
            return
        self._exchange.wait_for_reader(True)
        try:
            yield
        finally:
            self._exchange.wait_for_reader(False)

    def take_up(self, parcel: Any) -> None:
        """Note the size of a batch that was read."""
        num_bytes = 0  # a task is in the trainer's memory anyway
        if isinstance(parcel, Parcel | bytes):
            num_bytes = parcel.num_bytes if isinstance(parcel, Parcel) else len(parcel)
        self._mean_bytes += (num_bytes - self._mean_bytes) * (_WEIGHT if self._mean_bytes else 1)

    def max_tickets(self) -> int:
        """Return how many batches may be in flight: half of the memory is for those that are read ahead of them."""
        max_bytes = _CARRIED_BYTES if self._exchange is None else self._exchange.max_bytes
        return max(int(max_bytes / 2 / max(self._mean_bytes, 1)), self._num_makers)

    def lay_down(self, num_done: int) -> None:
        """Note how many batches were handed over."""
        if self._exchange is not None:
            self._exchange.take_note(num_done)

    def give_up(self) -> None:
        """Note that the run is over."""
        if self._exchange is not None:
            self._exchange.end_run(self._run)

    __del__ = give_up


class Sender:
    """The reader's side.

    Args:
        handed: What `Exchange.hand_to_reader` returned.
        max_bytes: Limit on the memory.
    """

    def __init__(self, handed: Sequence[int], max_bytes: int) -> None:
        control_fd, arena_fd = handed
        self._words = _words_of(control_fd)
        self._life = int(self._words[_LIFE])
        self._arena = ArenaWriter(
            arena_fd,
            slot_bytes=min(_SLOT_BYTES, max_bytes),
            num_slots=_NUM_SLOTS,
            max_bytes=max_bytes,
            wait_for_release=self._wait,
        )
        os.close(control_fd)
        os.close(arena_fd)
        self._sent: deque[tuple[int, int]] = deque()  # number of the batch in the run, slot
        self._run = self._number = 0

    def begin(self) -> None:
        """Begin a run: what was sent before is given up."""
        while self._sent:
            self._arena.release(self._sent.popleft()[1])
        self._run, self._number = int(self._words[_RUN]), 0

    def __call__(self, task: CarriedTask) -> Parcel | bytes:
        """Return a parcel with the sequences of the next batch of the run, or as bytes what it is made of.

        Raises:
            ConfigError: They cannot be carried to another process.
        """
        number, self._number = self._number, self._number + 1
        self._release_done()
        if self._is_current and number < self._words[_NUM_DONE]:
            return b""  # an earlier reader sent it, and the engine passes it over
        data, buffers = split_payload(task)
        pieces = [np.frombuffer(data, np.uint8), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]
        ends = np.cumsum([-(-len(piece) // _ALIGNMENT) * _ALIGNMENT for piece in pieces]).tolist()
        slot = self._arena.acquire()
        if slot is None:
            return ship_payload(task)
        try:
            _, memory = slot.reserve(ends[-1])
        except CacheError:  # no room
            self._arena.release(slot.slot_idx)
            return ship_payload(task)
        stops = []
        for start, piece in zip((0, *ends), pieces, strict=False):
            stops.append(start + len(piece))
            memory[start : stops[-1]] = piece
        self._sent.append((number, slot.slot_idx))
        return Parcel(self._life, self._run, slot.offset, slot.used, stops)

    @property
    def _is_current(self) -> bool:
        return bool(self._words[_RUN] == self._run)

    def _release_done(self) -> bool:
        """Take back the slots of batches that were handed over; tell whether there were any."""
        num_done = int(self._words[_NUM_DONE]) if self._is_current else 0
        is_any = bool(self._sent) and self._sent[0][0] < num_done
        while self._sent and self._sent[0][0] < num_done:
            self._arena.release(self._sent.popleft()[1])
        return is_any

    def _wait(self) -> bool:
        """Wait until there is more room; False if the trainer waits meanwhile, or the run is over."""
        waited = 0.0
        while self._is_current and waited < _WAIT_SECONDS:
            if self._release_done():
                return True
            time.sleep(_POLL_SECONDS)
            waited = waited + _POLL_SECONDS if self._words[_IS_WAITED_FOR] else 0.0
        return False


class Receiver:
    """The side of a worker that makes batches.

    Args:
        handed: What `Exchange.hand_to_maker` returned.
    """

    def __init__(self, handed: Sequence[int]) -> None:
        control_fd, line_fd = handed
        self._words = _words_of(control_fd)
        os.close(control_fd)
        self._line = Channel.of_fd(line_fd)
        self._arenas: dict[int, int] = {}  # life of a reader -> descriptor
        self._run = 0

    def unpack(self, parcel: Parcel) -> CarriedTask:
        """Return the task, whose arrays are the caller's.

        Raises:
            HeadraceError: The run has ended, so the batch is not needed any more.
        """
        if parcel.run != self._run:
            self._run = parcel.run
            for life in [life for life in self._arenas if life < parcel.life]:
                os.close(self._arenas.pop(life))
        memory = np.empty(parcel.num_bytes, np.uint8)
        num_read, fd = 0, self._arena_of(parcel.life)
        while num_read < parcel.num_bytes:
            num_more = os.preadv(fd, [memory[num_read:].data], parcel.offset + num_read)
            if num_more == 0:
                raise HeadraceError("the shared memory of a stream's reader is shorter than its message says")
            num_read += num_more
        if self._words[_RUN] != parcel.run:  # it may have been written to meanwhile
            raise HeadraceError("a batch belongs to a run that is over")
        stops = parcel.ends
        starts = [0, *(-(-stop // _ALIGNMENT) * _ALIGNMENT for stop in stops[:-1])]
        data, *buffers = (memory[start:stop].data for start, stop in zip(starts, stops, strict=True))
        task: CarriedTask = unship(bytes(data), buffers)
        return task

    def _arena_of(self, life: int) -> int:
        while life not in self._arenas:
            received = self._line.receive()
            if received is None:
                continue  # a signal
            packet, fds = received
            if not packet:
                raise HeadraceError("the training process has closed the connection that names a stream's reader")
            self._arenas[int(packet)] = fds[0]
        return self._arenas[life]


def _tell(line: Channel, life: int, arena_fd: int) -> None:
    try:
        is_sent = line.send(b"%d" % life, [arena_fd])
    except OSError:  # it has ended, which is told elsewhere
        is_sent = False
    if not is_sent:
        line.close()


def _words_of(control_fd: int) -> NDArray[np.int64]:
    return Mapping(control_fd, 0, PAGE_BYTES).as_array()[:64].view(np.int64)
