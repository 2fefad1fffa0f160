"""Lets Ctrl-C wait for a few moments: while processes are started or ended, between a resource and who remembers it.

An interrupt may come between the system call that opens a descriptor, or starts a process, and the assignment that
notes it; then nobody could close it any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
            handler(signal.SIGINT, came[-1])
