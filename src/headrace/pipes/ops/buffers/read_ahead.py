"""Reads an iterator in a thread, up to a number of items ahead of who wants them.

Invariants: the thread *rests* (`is_at_rest`) when enough was read, while somebody holds it, and after the end; it rests
between two items only, so that what stands in the buffer and where the source is agree. Items come in order, then the
error that the source raised, once. Nobody polls: the condition is signalled when the other side waits.

The lock of the condition protects `is_at_rest`, `_num_holds`, `_is_stopping` and `_reader_waits`; it is held for
moments, never while an item is read. It is reentrant: the garbage collector may call `stop` from within. `buffer` needs
no lock: one side appends, the other pops, both atomic.
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

_HOLD_SECONDS = 60.0  # how long an item may take that somebody waits for to look at the state
_STOP_SECONDS = 5.0  # how long to wait for an item that is being read when it is no longer needed


class NothingYetError(Exception):
    """There is no item in time. Not a `TimeoutError`: a source may raise that itself."""


class ReadAhead:
    """A thread that reads, and the buffer it fills.

    Args:
        source: What is read, in the thread only; it is dropped there, too.
        num_ahead: How many items it may be ahead.
        items: Items that come before those of the source.
        name: Of the thread.

    Attributes:
        buffer: What was read and not taken yet.
        is_at_rest: Whether the thread waits: after taking an item, `wake` it if the buffer has become small.
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
        """Wait until there is an item in the buffer; False at the end.

        Raises:
            NothingYetError: It has come neither to an item nor to the end.
            RuntimeError: This thread has paused the other, which has nothing more to give.
            BaseException: What the source raised, once; then it is the end.
        """
        with self._changed:
            self._reader_waits = True
            self._changed.notify_all()
            has_come = self._changed.wait_for(
                lambda: self.buffer or self.has_ended or self._is_paused_here(), max_seconds
            )
            self._reader_waits = False
            if self._is_paused_here() and not self.buffer and not self.has_ended:
                raise RuntimeError(f"{self._thread.name} is paused, and all it has read was given: call resume() first")
        if not has_come:
            raise NothingYetError
        if self.buffer:
            return True
        error, self.error = self.error, None
        if error is not None:
            raise error
        return False

    def wake(self) -> None:
        """Let the thread go on if there is room in the buffer."""
        with self._changed:
            self._changed.notify_all()

    def _is_paused_here(self) -> bool:
        return self.is_at_rest and self._paused_by == threading.get_ident()

    def pause(self) -> None:
        """Let the thread rest after the item that it is reading, until `resume`. Does not wait for it."""
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
        """Let the thread rest within a `with` block, which begins after the item that it is reading.

        Raises:
            StalledError: That item does not come.
        """
        with self._changed:
            self._num_holds += 1
            rests = self._changed.wait_for(lambda: self.is_at_rest or self.has_ended, _HOLD_SECONDS)
        try:
            if not rests:
                raise StalledError(
                    f"{self._thread.name} still waits for an item of its source after {_HOLD_SECONDS:.0f} s",
                    fix="if a pipe before it is paused, resume it first",
                )
            yield
        finally:
            with self._changed:
                self._num_holds -= 1
                self._changed.notify_all()

    def stop(self) -> None:
        """End the thread. It is left behind, with a warning, if its source does not give the next item in time."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # the garbage collector may stop it from within
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                warnings.warn(
                    f"{self._thread.name} still waits for its source after {_STOP_SECONDS:.0f} s and is left behind",
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
            self.is_at_rest = True  # before the buffer is looked at: who takes an item now will see it and wake us
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._is_stopping or (not self._num_holds and len(self.buffer) < self._num_ahead)
            )
            self.is_at_rest = False


class ReadAheadPipe(SameLength[Any]):
    """What pipes that read ahead in a thread have in common: they can be paused, held and shut down.

    The thread lives as long as the iteration. A state has the items that were read and not given yet.
    """

    _not_shipped: ClassVar[tuple[str, ...]] = ("_ahead", "_pending")
    _ahead: ReadAhead | None = None
    _pending: tuple[Any, ...] = ()  # what a restored iteration gives first
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
        """Give what is read ahead. The thread is woken when half of it was taken, not for each item."""
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
        """Let the thread rest; what was read can still be taken. It ends the item that it is reading."""
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Let the thread go on."""
        if self._ahead is not None:
            self._ahead.resume()

    def shutdown(self) -> None:
        """End the thread: the iteration ends after what was read."""
        if self._ahead is not None:
            self._ahead.stop()

    def hold(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext() if self._ahead is None else self._ahead.held()

    def state(self) -> State | None:
        ahead = self._ahead
        if ahead is None:  # not begun yet
            return {"items": list(self._pending), "has_ended": self._has_ended}
        if ahead.has_ended and not ahead.is_exhausted:
            return None  # the source has failed, or was shut down: where it was is gone
        return {"items": list(ahead.buffer), "has_ended": ahead.is_exhausted}

    def restore(self, state: State) -> None:
        self._pending, self._has_ended = tuple(state["items"]), state["has_ended"]
