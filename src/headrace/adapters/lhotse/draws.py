"""Batches drawn from a sampler, ahead of the training and in a thread of their own.

A sampler may take milliseconds for a batch, and seconds now and then, when it fills its buckets. So one thread draws
and packs for the workers, until enough is ready, and the training waits only if the sampler is slower than the
training.

Invariants: one thread at a time uses the sampler; the first batch is drawn by the caller, so that what a sampler draws
from global generators when it begins does not depend on threads; one that draws from them later has no thread. The two
sides share two `SimpleQueue`s and nothing else, which no finalizer and no signal can find locked.
"""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, NamedTuple

from headrace.engine.user.ship import ship_payload
from headrace.errors import ConfigError, InternalError, StalledError
from headrace.rng.process import kept_globals, seed_globals

from .payload import LeftToWorkers
from .private import Keyed, NewIds
from .sampler import SamplerSide, chain_digest
from .seeds import plain_globals

_logger = logging.getLogger("headrace.adapters")
# A signal that arrives just before a wait begins is not handled before the wait is over.
_MAX_WAIT_SECONDS = 0.25
# Bytes of packed batches that wait here, beyond the least number: cuts may carry their audio.
MAX_AHEAD_BYTES = 16 << 20
# Bytes of packed batches that share a ticket: beyond this, a message costs little compared with its content.
MAX_TICKET_BYTES = 1 << 20
# Tickets for which batches wait here, where several share one. Each time that one thread wakes the other they wait for
# one another, some 0.3 ms in all: so the thread is woken when half of them are gone, and draws as many at once.
_TICKETS_AHEAD = 8
# The largest share of the drawing time that states of the sampler may take.
_SNAPSHOT_SHARE = 20
_CLOSE_SECONDS = 2.0


class Drawn(NamedTuple):
    """A batch of the sampler, or an error or the end instead of one.

    Attributes:
        number: Number of the batch in the pass; at the end, that of the next one.
        content: The batch for a worker: packed (an int as it is), or the batch itself where there is no worker; None at
            the end.
        digest: Digest of this batch and all before it.
        state: The sampler's state after this batch, if it was taken, else None.
        error: Exception of the sampler; nothing comes after it.
        is_end: Whether there is no batch.
    """

    number: int
    content: Any
    digest: int
    state: Any = None
    error: BaseException | None = None
    is_end: bool = False

    @property
    def num_bytes(self) -> int:
        """Size of the packed batch."""
        return len(self.content) if type(self.content) is bytes else 0


@dataclass(frozen=True)
class DrawKey:
    """The key of the randomness of drawing a batch.

    Attributes:
        key: Key of the pass.
        offset: Number of batch 0 of the pass among those of all ranks.
        stride: From one batch to the next among those of all ranks.
        transforms: The generators of the functions that the sampler applies to its batches.
        from_start: Whether each batch is drawn with seeded generators from the first one on.
    """

    key: int
    offset: int
    stride: int
    transforms: Keyed
    from_start: bool


class Drawing:
    """One pass over a sampler: draws one batch after another.

    A sampler that applies functions to its batches, or that needs numbers of global generators, or ids for new cuts, to
    begin, is drawn from with generators that are seeded for each batch. These belong to the whole process, so such a
    sampler is used by the requesting thread only, and does not run ahead.

    Args:
        side: The sampler.
        iterator: Iterator of the pass.
        packs: Whether batches are packed for a worker.
        digest: Digest of the batches drawn before.
        number: Number of the next batch.
        key: Key of the randomness; None: generators are not seeded.
        ids: The generator of ids of new cuts when the pass began.
        reading: A block in which the sampler is drawn from, such as `left_to_workers()`; it is entered many times.

    Attributes:
        is_keyed: Whether generators are seeded for each batch; settled by the first one.
    """

    def __init__(
        self,
        side: SamplerSide,
        iterator: Iterator[Any],
        *,
        packs: bool,
        digest: int = 0,
        number: int = 0,
        key: DrawKey | None = None,
        ids: NewIds | None = None,
        reading: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._reading = nullcontext() if reading is None else reading
        self._side, self._iterator, self._packs, self._key = side, iterator, packs, key
        self._ids = NewIds() if ids is None else ids
        self.digest, self.number = digest, number
        self.is_keyed = key is not None and key.from_start
        self._is_settled = key is None or key.from_start
        self._seconds = 0.0  # of drawing, since the last state
        self._state_seconds = 0.0

    def skip(self) -> bool:
        """Draw a batch and forget it; return False at the end."""
        try:
            batch = self._next()
        except StopIteration:
            return False
        self.digest, self.number = chain_digest(self.digest, batch), self.number + 1
        return True

    def draw(self) -> Drawn:
        """Draw a batch; an exception of the sampler is returned."""
        keeps_state = self._side.keeps_state
        start = time.perf_counter() if keeps_state else 0.0
        number = self.number
        try:
            batch = self._next()
            digest = chain_digest(self.digest, batch)
            content = _pack(batch) if self._packs else batch
        except StopIteration:
            return Drawn(number, None, self.digest, is_end=True)
        except BaseException as error:  # noqa: BLE001 - the boundary of a thread: the training raises it
            return Drawn(number, None, self.digest, error=error, is_end=True)
        self.digest, self.number = digest, number + 1
        if not keeps_state:
            return Drawn(number, content, digest)
        self._seconds += time.perf_counter() - start
        try:
            return Drawn(number, content, digest, self._snapshot())
        except Exception as error:  # noqa: BLE001 - the boundary of a thread: the training raises it
            return Drawn(number, None, digest, error=error, is_end=True)

    def _next(self) -> Any:
        with self._reading:
            return self._next_batch()

    def _next_batch(self) -> Any:
        if not self._is_settled:
            before = plain_globals()
            batch = next(self._iterator)
            self.is_keyed, self._is_settled = self._ids.are_used or plain_globals() != before, True
            return batch
        key = self._key
        if not self.is_keyed or key is None:
            return next(self._iterator)
        number = key.offset + self.number * key.stride
        with kept_globals(), key.transforms.kept(), NewIds():
            seed_globals(key.key, "lhotse: draw", number=number)
            key.transforms.seed(key.key, number)
            return next(self._iterator)

    def _snapshot(self) -> Any:
        """Take the sampler's state, if it is time for that."""
        if not self._side.is_elastic and self._seconds < _SNAPSHOT_SHARE * self._state_seconds:
            return None
        start = time.perf_counter()
        state = self._side.snapshot()
        self._seconds, self._state_seconds = 0.0, time.perf_counter() - start
        return state


def left_to_workers() -> AbstractContextManager[Any]:
    """Return a block in which this thread draws cuts of Shar without their data, which workers read."""
    reader = _shar_reader() if "lhotse.shar.readers.lazy" in sys.modules else None
    if reader is None:
        return nullcontext()
    reader.install()
    return LeftToWorkers()


@functools.cache
def _shar_reader() -> ModuleType | None:
    try:
        from . import shar
    except ImportError as error:
        _logger.info(
            "data of Shar are read by the sampler, not by the workers: this version of lhotse is not known (%s)", error
        )
        return None
    return shar


def _pack(batch: Any) -> Any:
    """Pickle a batch, unless it is a single index; one that cannot be carried becomes an error in the worker."""
    if type(batch) is int:
        return batch
    try:
        return ship_payload(batch)
    except ConfigError as error:
        return ship_payload(_Refused(error))


class _Refused:
    """Raises when it is unpickled."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, (self._error,)


def _refuse(error: ConfigError) -> None:
    raise error


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
        self._drawn: SimpleQueue[Drawn] = SimpleQueue()
        self._taken: SimpleQueue[_Taken | None] = SimpleQueue()  # None: it is over
        self._num_unreported = self._bytes_unreported = 0  # taken, but not yet reported to the thread
        self._next_number = first.number
        self._drawn.put(first)
        self.end: Drawn | None = None
        self._thread: threading.Thread | None = None
        if not first.is_end:
            run = _Thread(drawing.draw, self._drawn, self._taken, _Taken(-1, -first.num_bytes, depth))
            self._thread = threading.Thread(target=run, name="headrace-sampler", daemon=True)
            self._thread.start()

    def take(self, max_num: int) -> list[Drawn]:
        """Return up to `max_num` batches that are ready, after waiting for the first; at the end, that.

        Raises:
            StalledError: The sampler gave none for too long.
        """
        if self.end is not None:
            return [self.end]
        found = [self._wait()]
        num_bytes = found[0].num_bytes
        while len(found) < max_num and num_bytes < MAX_TICKET_BYTES and not found[-1].is_end:
            try:
                found.append(self._drawn.get_nowait())
            except Empty:
                break
            num_bytes += found[-1].num_bytes
        if found[0].number != self._next_number:
            raise InternalError(
                f"batch {self._next_number} of the sampler was lost to an interrupt", fix="begin the pass again"
            )
        self._next_number = found[-1].number + 1
        if found[-1].is_end:
            self.end = found[-1]
        self._tell(len(found), num_bytes, max(self._depth, _TICKETS_AHEAD * max_num if max_num > 1 else 0))
        return found

    def _tell(self, num: int, num_bytes: int, depth: int) -> None:
        """Report to the thread what was taken, once waking it is worthwhile: half of the waiting batches are taken."""
        self._num_unreported, self._bytes_unreported = self._num_unreported + num, self._bytes_unreported + num_bytes
        if self._drawn.qsize() <= depth // 2:
            self._taken.put(_Taken(self._num_unreported, self._bytes_unreported, depth))
            self._num_unreported = self._bytes_unreported = (
                0  # last: an interrupt may come in between, and twice is harmless
            )

    def _wait(self) -> Drawn:
        start = time.monotonic()
        while True:
            try:
                return self._drawn.get(timeout=_MAX_WAIT_SECONDS)
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
        self._taken.put(None)
        thread = self._thread
        if thread is None or thread is threading.current_thread() or sys.is_finalizing():
            return True  # at the end of the interpreter threads stand still: nobody may wait for one
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


class _Thread:
    """The target of the thread; it refers to neither the loader nor the `Ahead`, so that both can be dropped."""

    def __init__(
        self,
        draw: Callable[[], Drawn],
        drawn: SimpleQueue[Drawn],
        taken: SimpleQueue[_Taken | None],
        before: _Taken,
    ) -> None:
        self._draw, self._drawn, self._taken = draw, drawn, taken
        self._depth, self._num, self._bytes = before.depth, -before.num, -before.num_bytes

    def __call__(self) -> None:
        """Draw until the end of the pass, or until stopped."""
        while self._settle():
            drawn = self._draw()
            self._num, self._bytes = self._num + 1, self._bytes + drawn.num_bytes
            self._drawn.put(drawn)
            if drawn.is_end:
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
