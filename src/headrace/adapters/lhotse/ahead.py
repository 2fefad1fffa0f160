"""Batches drawn from a sampler ahead of the training, as far as the documented loader draws them.

`num_workers * prefetch_factor` batches are drawn when a pass begins, and one more for each batch that the training asks
for. A sampler may take milliseconds for a batch, and seconds now and then, when it fills its buckets. So one thread
draws and packs for the workers, and the training waits only if the sampler is slower than the training.

Invariants: one thread at a time uses the sampler; the first batch is drawn by the caller. The two sides share two
`SimpleQueue`s, which no finalizer and no signal can find locked.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections import deque
from queue import Empty, SimpleQueue

from headrace.errors import InternalError, StalledError

from .draws import Drawing, DrawnBatch

# A signal that arrives just before a wait begins is not handled before the wait is over.
_MAX_WAIT_SECONDS = 0.25
_CLOSE_SECONDS = 2.0


class Inline:
    """Draws in the requesting thread.

    Args:
        drawing: The pass.
        first: The batch that was drawn already.
        num_ahead: How many batches are drawn ahead of the training.

    Attributes:
        end: The end of the pass, once it was taken.
    """

    def __init__(self, drawing: Drawing, first: DrawnBatch, num_ahead: int) -> None:
        self._drawing, self._num_ahead = drawing, num_ahead
        self._drawn = deque([first])
        self._last = first
        self.end: DrawnBatch | None = None
        self.advance(first.number - 1)

    def advance(self, number: int) -> None:
        """Draw what may be drawn now that the training asks for this batch."""
        while self._last.number < number + self._num_ahead and not self._last.is_end:
            self._draw()

    def take(self) -> DrawnBatch:
        """Return the next batch; at the end, that."""
        if self.end is not None:
            return self.end
        if not self._drawn:
            self._draw()
        found = self._drawn.popleft()
        if found.is_end:
            self.end = found
        return found

    def _draw(self) -> None:
        self._last = self._drawing.draw()
        self._drawn.append(self._last)

    def close(self, seconds: float = 0.0) -> bool:
        """Do nothing."""
        del seconds
        return True


class Ahead:
    """Draws ahead in a thread, which ends with the pass or at `close`.

    Args:
        drawing: The pass.
        first: The batch that was drawn already.
        num_ahead: How many batches are drawn ahead of the training.
        stall_seconds: For how long the training waits for one batch; 0: for ever.
        name: Name of the sampler, for messages.

    Attributes:
        end: The end of the pass, once it was taken.
    """

    def __init__(self, drawing: Drawing, first: DrawnBatch, num_ahead: int, stall_seconds: float, name: str) -> None:
        self._num_ahead, self._stall_seconds, self._name = num_ahead, stall_seconds, name
        self._batches: SimpleQueue[DrawnBatch] = SimpleQueue()
        self._batches.put(first)
        self._limits: SimpleQueue[int | None] = SimpleQueue()  # None: it is over
        self._next_number = first.number
        self._limit = first.number + 1
        self.end: DrawnBatch | None = None
        self._thread: threading.Thread | None = None
        if not first.is_end:
            self.advance(first.number - 1)
            self._thread = threading.Thread(
                target=_draw_ahead,
                args=(drawing, self._batches, self._limits, first.number + 1),
                name="headrace-sampler",
                daemon=True,
            )
            self._thread.start()

    def advance(self, number: int) -> None:
        """Let the thread draw what may be drawn now that the training asks for this batch."""
        self._allow(number + self._num_ahead + 1)

    def _allow(self, limit: int) -> None:
        if limit > self._limit:
            self._limits.put(limit)
            self._limit = limit  # last: an interrupt may come in between, and twice is harmless

    def take(self) -> DrawnBatch:
        """Return the next batch, after waiting for it; at the end, that.

        Raises:
            StalledError: The sampler gave none for too long.
        """
        if self.end is not None:
            return self.end
        self._allow(self._next_number + 1)  # the engine skips tickets before the training asks for them
        found = self._wait()
        if found.number != self._next_number:
            raise InternalError(
                f"batch {self._next_number} of the sampler was lost to an interrupt", fix="begin the pass again"
            )
        self._next_number = found.number + 1
        if found.is_end:
            self.end = found
        return found

    def _wait(self) -> DrawnBatch:
        start = time.monotonic()
        while True:
            try:
                return self._batches.get(timeout=_MAX_WAIT_SECONDS)
            except Empty:
                seconds = time.monotonic() - start
            if 0 < self._stall_seconds <= seconds:
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
        self._limits.put(None)
        thread = self._thread
        if thread is None or thread is threading.current_thread() or sys.is_finalizing():
            return True  # at the end of the interpreter threads stand still: waiting for one would never end
        deadline = time.monotonic() + seconds
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(min(_MAX_WAIT_SECONDS, max(0.0, deadline - time.monotonic())))
        return not thread.is_alive()

    def __del__(self) -> None:
        self._limits.put(None)


def _draw_ahead(
    drawing: Drawing, batches: SimpleQueue[DrawnBatch], limits: SimpleQueue[int | None], number: int
) -> None:
    """Draw until the end of the pass, or until stopped; refers to neither loader nor `Ahead`, so both can be dropped.

    Args:
        drawing: The pass.
        batches: Gets what is drawn.
        limits: Up to which batch it may draw; None: it is over.
        number: The next batch.
    """
    limit = number
    while True:
        while number >= limit or not limits.empty():
            given = limits.get()
            if given is None:
                return
            limit = given
        drawn = drawing.draw()
        batches.put(drawn)
        if drawn.is_end:
            return
        number += 1
