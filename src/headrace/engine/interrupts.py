"""Delays Ctrl-C for a few moments, while processes are started or ended, and until a new resource is recorded.

An interrupt may come between the system call that opens a descriptor, or starts a process, and the assignment that
notes it; then it could not be closed any more.

Python discards what a handler raises in a finalizer. So an interrupt that has waited in a `__del__` is sent again, a
moment later.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_AGAIN_SECONDS = 0.05  # what is left of a finalizer takes less


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
            if _is_in_finalizer():
                _send_again()
            else:
                handler(signal.SIGINT, came[-1])


def _is_in_finalizer() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def _send_again() -> None:
    timer = threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.daemon = True
    with suppress(RuntimeError):  # the interpreter is ending
        timer.start()
