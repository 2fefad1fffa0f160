"""Reads an iterator in a thread, up to a number of items ahead of the consumer.

Invariants: the thread *rests* (`is_at_rest`) when the buffer is full, while it is held or paused, and after the end; it
rests only between two items, so that the buffer and the position of the source agree. Items come in order, then the
error that the source raised, once. Neither side polls: the condition is signalled when the other side waits.

The lock of the condition protects `is_at_rest`, `_num_holds`, `_is_stopping` and `_reader_waits`; it is held only for
moments, never while an item is read. It is reentrant, because the garbage collector may call `stop` while it is held.
`buffer` needs no lock: one side appends, the other pops, both atomically.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from headrace.errors import StalledError

from ...core.base import State
from ...core.skeletons import SameLength

_HOLD_SECONDS = 60.0  # how long to wait, before a state is taken, for the item that is being read
_STOP_SECONDS = 5.0  # how long to wait, when the iteration ends, for the item that is being read


class NothingYetError(Exception):
    """No item came within the timeout. Not a `TimeoutError`, because a source may raise that itself."""


class ReadAhead:
    """A thread that reads an iterator, and the buffer it fills.

    Args:
        source: The iterator. It is read, and its last reference dropped, in the thread only.
        num_ahead: How many items the buffer holds.
        items: Items that come before those of the source.
        name: The name of the thread.

    Attributes:
        buffer: The items that were read and not taken yet.
        is_at_rest: Whether the thread waits: call `wake` after taking items if the buffer has become small.
    """

    def __init__(self, source: Iterator[Any], num_ahead: int, items: Iterable[Any] = (), *, name: str) -> None:
        self.buffer: deque[Any] = deque(items)
        self.is_at_rest = False
        self.has_ended = False
        self.is_exhausted = False
        self.error: BaseException | None = None
        self._num_ahead = num_ahead
        self._changed = threading.Condition()
        self._num_holds = 0
        self._paused_by: int | None = None  # a thread
        self._is_stopping = False
        self._reader_waits = False
        self._thread = threading.Thread(target=self._work, args=(source,), name=name, daemon=True)
        self._thread.start()

    def wait(self, max_seconds: float | None = None) -> bool:
        """Wait until there is an item in the buffer; return False at the end.

        Raises:
            NothingYetError: There was neither an item nor the end within the time.
            RuntimeError: The calling thread has paused this one, and the buffer is empty.
            BaseException: The source raised it. Further calls return False.
        """
        with self._changed:
            self._reader_waits = True
            self._changed.notify_all()
            has_come = self._changed.wait_for(
                lambda: self.buffer or self.has_ended or self._is_paused_here(), max_seconds
            )
            self._reader_waits = False
            if self._is_paused_here() and not self.buffer and not self.has_ended:
                raise RuntimeError(f"{self._thread.name} is paused and its buffer is empty: call resume() first")
        if not has_come:
            raise NothingYetError
        if self.buffer:
            return True
        error, self.error = self.error, None
        if error is not None:
            raise error
        return False

    def wake(self) -> None:
        """Have the thread continue if the buffer is not full."""
        with self._changed:
            self._changed.notify_all()

    def _is_paused_here(self) -> bool:
        return self.is_at_rest and self._paused_by == threading.get_ident()

    def pause(self) -> None:
        """Have the thread rest after the item that it is reading, until `resume`. Does not wait for it."""
        with self._changed:
            if self._paused_by is None:
                self._paused_by = threading.get_ident()
                self._num_holds += 1

    def resume(self) -> None:
        """End a pause."""
        with self._changed:
            if self._paused_by is not None:
                self._paused_by = None
                self._num_holds -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep the thread at rest within a `with` block; waits first for the item that it is reading.

        Raises:
            StalledError: The source takes longer than 60 s for that item.
        """
        with self._changed:
            self._num_holds += 1
            rests = self._changed.wait_for(lambda: self.is_at_rest or self.has_ended, _HOLD_SECONDS)
        try:
            if not rests:
                raise StalledError(
                    f"{self._thread.name} was still waiting for an item of its source after {_HOLD_SECONDS:.0f} s",
                    fix="if a pipe before it is paused, resume it first",
                )
            yield
        finally:
            with self._changed:
                self._num_holds -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End the thread. If its source takes longer than 5 s for the next item, it is left running, with a warning."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # the garbage collector may stop it from within
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                warnings.warn(
                    f"{self._thread.name} was still waiting for its source after {_STOP_SECONDS:.0f} s: it is left "
                    "running until the source gives an item",
                    ResourceWarning,
                    stacklevel=2,
                )

    def _work(self, source: Iterator[Any]) -> None:
        append, buffer, num_ahead = self.buffer.append, self.buffer, self._num_ahead
        try:
            while True:
                if len(buffer) >= num_ahead or self._num_holds or self._is_stopping:
                    self._rest()
                    if self._is_stopping:
                        return
                append(next(source))
                if self._reader_waits:
                    self.wake()
        except StopIteration:
            self.is_exhausted = True
        except BaseException as error:  # noqa: BLE001 - handed over to the reader, who raises it
            self.error = error
        finally:
            del source  # closes it, here: the error's traceback holds this frame
            with self._changed:
                self.has_ended = self.is_at_rest = True
                self._changed.notify_all()

    def _rest(self) -> None:
        with self._changed:
            # Before the buffer is checked: a consumer that takes an item now sees it, and wakes us.
            self.is_at_rest = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_stopping or (not self._num_holds and len(self.buffer) < self._num_ahead)
            )
            self.is_at_rest = False


class ReadAheadPipe(SameLength[Any]):
    """Base of pipes that read ahead in a thread, which can be paused, held and shut down.

    The thread lives as long as the iteration. A state holds the items that were read and not yielded yet.
    """

    _not_shipped: ClassVar[tuple[str, ...]] = ("_ahead", "_pending")
    _ahead: ReadAhead | None = None
    _pending: tuple[Any, ...] = ()  # the items that a restored iteration yields first
    _has_ended = False

    def reset(self) -> None:
        self._pending, self._has_ended = (), False

    @contextlib.contextmanager
    def _reading_ahead(self, source: Iterator[Any], num_ahead: int) -> Iterator[ReadAhead]:
        """Read a source ahead, within a `with` block of `__iter__`. The caller must not keep the source."""
        ahead = ReadAhead(source, num_ahead, self._pending, name=f"headrace {type(self).__name__}")
        del source
        self._ahead, self._pending = ahead, ()
        try:
            yield ahead
        finally:
            if self._ahead is ahead:
                self._ahead = None
            ahead.stop()

    def _give_ahead(self, source: Iterator[Any], num_ahead: int) -> Iterator[Any]:
        """Yield what is read ahead. The thread is woken when the buffer is half empty, not for each item."""
        with self._reading_ahead(source, num_ahead) as ahead:
            del source
            few, buffer = num_ahead // 2, ahead.buffer
            take = buffer.popleft
            while buffer or ahead.wait():
                item = take()
                if ahead.is_at_rest and len(buffer) <= few:
                    ahead.wake()
                yield item

    def pause(self) -> None:
        """Pause the thread after the item that it is reading. Items in the buffer can still be taken."""
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Resume the thread."""
        if self._ahead is not None:
            self._ahead.resume()

    def shutdown(self) -> None:
        """End the thread: the iteration ends after the items in the buffer."""
        if self._ahead is not None:
            self._ahead.stop()

    def hold(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._ahead is None else self._ahead.held()

    def state(self) -> State | None:
        ahead = self._ahead
        if ahead is None:  # not begun yet
            return {"items": list(self._pending), "has_ended": self._has_ended}
        if ahead.has_ended and not ahead.is_exhausted:
            return None  # the source has failed or was shut down, so it has no position
        return {"items": list(ahead.buffer), "has_ended": ahead.is_exhausted}

    def restore(self, state: State) -> None:
        self._pending, self._has_ended = tuple(state["items"]), state["has_ended"]
