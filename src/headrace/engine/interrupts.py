"""Delays Ctrl-C for a few moments, while processes are started or ended, and until a new resource is recorded.

An interrupt may come between the system call that opens a descriptor, or starts a process, and the assignment that
notes it; then it could not be closed any more.

What a handler raises in a finalizer is lost: Python prints it and goes on. So an interrupt that waits for the end of
something that a `__del__` does has its effect when the object is gone, and the finalizer with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Let SIGINT have its effect at the end of the block. For what takes 2 s at most: nothing else can be interrupted.

    In other threads than the main one nothing is done: no signal has an effect there.
    """
    handler = signal.getsignal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(handler):
        yield
        return
    came: list[FrameType | None] = []
    try:
        signal.signal(signal.SIGINT, lambda _number, frame: came.append(frame))
    except ValueError:  # the main thread of another interpreter of this process
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            later = _Later(handler)
            if later.waits_for_finalizer(sys._getframe()):
                signal.signal(signal.SIGINT, later)
            else:
                handler(signal.SIGINT, came[-1])


class _End(weakref.ref[Any]):
    """The end of an object: C code calls C code with it, as one argument more than it has use for."""

    __slots__ = ()

    _as_parameter_ = 0


_RAISE = getattr(ctypes.CDLL(None), "raise")
_AGAIN_SECONDS = 0.05
_ends: list[_End] = []  # the last one, so that it lives until it is of use


class _Later:
    """In place of a handler, until SIGINT comes where no `__del__` is running: at the ends of objects, it comes again.

    Args:
        handler: What is called then.
    """

    def __init__(self, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        if not self.waits_for_finalizer(frame):
            signal.signal(signal.SIGINT, self._handler)
            self._handler(number, frame)

    def waits_for_finalizer(self, frame: FrameType | None) -> bool:
        """If a `__del__` is running, have SIGINT come when its object is gone; tell whether that is so."""
        while frame is not None and frame.f_code.co_name != "__del__":
            frame = frame.f_back
        if frame is None or "self" not in frame.f_locals:
            return False
        try:
            _ends[:] = [_End(frame.f_locals["self"], partial(_RAISE, int(signal.SIGINT)))]
        except TypeError:  # an object without weak references
            return False
        if sys.version_info >= (3, 14):  # there, the collector of cycles does not tell so late a reference of the end
            self._come_again_soon()
        return True

    def _come_again_soon(self) -> None:
        timer = threading.Timer(_AGAIN_SECONDS, self._come_again)
        timer.daemon = True
        with suppress(RuntimeError):  # the interpreter is ending
            timer.start()

    def _come_again(self) -> None:
        if signal.getsignal(signal.SIGINT) is self:  # not handled yet
            os.kill(os.getpid(), signal.SIGINT)
