"""Batches drawn from a sampler, ahead of the training and in a thread of their own.

A sampler may take milliseconds for a batch, and seconds now and then, when it fills its buckets. So one thread draws
and packs for the workers, until enough is ready, and the training waits only if the sampler is slower than the
training.

Invariants: one thread at a time uses the sampler; the first batch is drawn by the caller, so that what a sampler draws
from global generators when it begins does not depend on threads; one that draws from them later has no thread. The two
sides share a list, a flag and two `SimpleQueue`s, which no finalizer and no signal can find locked: each does with one
of them, at a time, what Python does in one step.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate, islice
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import NamedTuple

from headrace.errors import InternalError, StalledError

from .draws import Drawing, Drawn

# A signal that arrives just before a wait begins is not handled before the wait is over.
_MAX_WAIT_SECONDS = 0.25
# Bytes of packed batches that wait here, beyond the least number: cuts may carry their audio.
MAX_AHEAD_BYTES = 16 << 20
# Bytes of packed batches that share a ticket: beyond this, a message costs little compared with its content.
MAX_TICKET_BYTES = 1 << 20
# Tickets for which batches wait here, where several share one. Each time that one thread wakes the other they wait for
# one another, some 0.3 ms in all: so the thread is woken when half of them are gone, and draws as many at once.
_TICKETS_AHEAD = 8
_CLOSE_SECONDS = 2.0

_num_bytes = attrgetter("num_bytes")


class Inline:
    """Draws on request, in the requesting thread.

    Args:
        drawing: The pass.
        first: The batch that was drawn already.

    Attributes:
        end: The end of the pass, once it was taken.
    """

    def __init__(self, drawing: Drawing, first: Drawn) -> None:
        self._drawing = drawing
        self._first: Drawn | None = first
        self.end: Drawn | None = None

    def take(self, max_num: int) -> list[Drawn]:
        """Draw up to `max_num` batches; at the end, that."""
        found: list[Drawn] = []
        num_bytes = 0
        while len(found) < max_num and num_bytes < MAX_TICKET_BYTES and self.end is None:
            drawn, self._first = self._first or self._drawing.draw(), None
            found.append(drawn)
            num_bytes += drawn.num_bytes
            if drawn.is_end:
                self.end = drawn
        return found or [drawn for drawn in [self.end] if drawn is not None]

    def close(self, seconds: float = 0.0) -> bool:
        """Do nothing."""
        del seconds
        return True


class Ahead:
    """Draws ahead in a thread, which ends with the pass or at `close`.

    Args:
        drawing: The pass.
        first: The batch that was drawn already.
        depth: How many batches may be drawn ahead.
        stall_seconds: For how long the training waits for one batch; 0: for ever.
        name: Name of the sampler, for messages.

    Attributes:
        end: The end of the pass, once it was taken.
    """

    def __init__(self, drawing: Drawing, first: Drawn, depth: int, stall_seconds: float, name: str) -> None:
        self._depth, self._stall_seconds, self._name = depth, stall_seconds, name
        self._shelf = _Shelf(first)
        self._taken: SimpleQueue[_Taken | None] = SimpleQueue()  # None: it is over
        self._num_unreported = self._bytes_unreported = 0  # taken, but not yet reported to the thread
        self._next_number = first.number
        self.end: Drawn | None = None
        self._thread: threading.Thread | None = None
        if not first.is_end:
            run = _Thread(drawing.draws, self._shelf, self._taken, _Taken(-1, -first.num_bytes, depth))
            self._thread = threading.Thread(target=run, name="headrace-sampler", daemon=True)
            self._thread.start()

    def take(self, max_num: int) -> list[Drawn]:
        """Return up to `max_num` batches that are ready, after waiting for the first; at the end, that.

        Raises:
            StalledError: The sampler gave none for too long.
        """
        if self.end is not None:
            return [self.end]
        batches = self._shelf.batches
        if not batches:
            self._wait()
        found = batches[:max_num]
        sizes = list(accumulate(map(_num_bytes, found)))
        del found[bisect_left(sizes, MAX_TICKET_BYTES) + 1 :]
        del batches[: len(found)]
        if found[0].number != self._next_number:
            raise InternalError(
                f"batch {self._next_number} of the sampler was lost to an interrupt", fix="begin the pass again"
            )
        self._next_number = found[-1].number + 1
        if found[-1].is_end:
            self.end = found[-1]
        self._tell(len(found), sizes[len(found) - 1], max(self._depth, _TICKETS_AHEAD * max_num if max_num > 1 else 0))
        return found

    def _tell(self, num: int, num_bytes: int, depth: int) -> None:
        """Report to the thread what was taken, once waking it is worthwhile: half of the waiting batches are taken."""
        self._num_unreported, self._bytes_unreported = self._num_unreported + num, self._bytes_unreported + num_bytes
        if len(self._shelf.batches) <= depth // 2:
            self._taken.put(_Taken(self._num_unreported, self._bytes_unreported, depth))
            # Last: an interrupt may come in between, and twice is harmless.
            self._num_unreported = self._bytes_unreported = 0

    def _wait(self) -> None:
        shelf, start = self._shelf, time.monotonic()
        while True:
            shelf.is_awaited = True
            if shelf.batches:
                return
            try:
                shelf.bell.get(timeout=_MAX_WAIT_SECONDS)
                continue
            except Empty:
                seconds = time.monotonic() - start
            if 0 < self._stall_seconds <= seconds and not shelf.batches:
                raise StalledError(
                    f"the sampler has given no batch for {seconds:.0f} s of waiting for it",
                    where=f"{self._name}, in\n{self._stack().rstrip()}",
                    fix="EngineOptions(stall_seconds=...) sets how long is too long; 0: wait for ever",
                )

    def _stack(self) -> str:
        thread = self._thread
        frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
        return "(it has ended)" if frame is None else "".join(traceback.format_stack(frame))

    def close(self, seconds: float = _CLOSE_SECONDS) -> bool:
        """Stop the thread after the batch that it is drawing; return whether it has ended within some seconds.

        It cannot be interrupted inside the sampler. One that hangs there ends with the process.
        """
        self._taken.put(None)
        thread = self._thread
        if thread is None or thread is threading.current_thread() or sys.is_finalizing():
            return True  # at the end of the interpreter threads stand still: waiting for one would never end
        deadline = time.monotonic() + seconds
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(min(_MAX_WAIT_SECONDS, max(0.0, deadline - time.monotonic())))
        return not thread.is_alive()

    def __del__(self) -> None:
        self._taken.put(None)


class _Taken(NamedTuple):
    """Message to the thread: how much was taken, and how many batches may wait from now on."""

    num: int
    num_bytes: int
    depth: int


class _Shelf:
    """Where batches wait, in their order.

    Attributes:
        batches: The thread puts them at the end, and the training takes them from the start.
        is_awaited: Whether the training wants to be woken by the next one.
        bell: Wakes it. It may ring when nobody waits any more.
    """

    __slots__ = ("batches", "bell", "is_awaited")

    def __init__(self, first: Drawn) -> None:
        self.batches = [first]
        self.is_awaited = False
        self.bell: SimpleQueue[None] = SimpleQueue()


class _Thread:
    """The target of the thread; it refers to neither the loader nor the `Ahead`, so that both can be dropped."""

    def __init__(
        self,
        draws: Callable[[], Iterator[Drawn]],
        shelf: _Shelf,
        taken: SimpleQueue[_Taken | None],
        before: _Taken,
    ) -> None:
        self._draws, self._shelf, self._taken = draws, shelf, taken
        self._depth, self._num, self._bytes = before.depth, -before.num, -before.num_bytes

    def __call__(self) -> None:
        """Draw until the end of the pass, or until stopped."""
        draws, shelf, nothing_taken = self._draws(), self._shelf, self._taken.empty
        put, drawn = shelf.batches.append, None
        while self._settle():
            for drawn in islice(draws, self._depth - self._num):
                put(drawn)
                if shelf.is_awaited:
                    shelf.is_awaited = False
                    shelf.bell.put(None)
                self._num, self._bytes = self._num + 1, self._bytes + drawn.num_bytes
                if self._bytes > MAX_AHEAD_BYTES or not nothing_taken():
                    break
            if drawn is not None and drawn.is_end:
                return

    def _settle(self) -> bool:
        """Account for what was taken, and wait while there is enough; return False when it is over."""
        while True:
            is_enough = self._num >= self._depth or (self._num > 1 and self._bytes > MAX_AHEAD_BYTES)
            if not is_enough and self._taken.empty():
                return True
            taken = self._taken.get()
            if taken is None:
                return False
            self._num, self._bytes, self._depth = self._num - taken.num, self._bytes - taken.num_bytes, taken.depth
