"""The notice to leave that a machine gives its processes before it is taken away: SIGTERM.

Invariant: an agent that does nothing for a trainer ends at once; one that does is left to end by itself.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType


class LeaveNotice:
    """Whether this process was told to leave.

    Args:
        grace_seconds: How long after that it may finish what it has begun.

    Attributes:
        on_notice: Called when it is told so, if there is anything to finish; else SIGTERM ends the process, with exit
            code 0.
        deadline: When it has to be gone, on the clock of `time.monotonic`; `None`: it was not told to leave.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.on_notice: Callable[[], None] | None = None
        self.deadline: float | None = None
        self._grace_seconds = grace_seconds

    def listen(self) -> None:
        """Take SIGTERM for the notice from now on, which only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._take)

    def _take(self, _signal: int, _frame: FrameType | None) -> None:
        if self.on_notice is None:
            raise SystemExit(0)
        if self.deadline is None:
            self.on_notice()
            self.deadline = time.monotonic() + self._grace_seconds
        elif time.monotonic() >= self.deadline:  # it waits for a trainer that takes nothing
            raise SystemExit(0)
