"""The notice to leave that a machine gives its processes before it is taken away: SIGTERM.

Invariant: an agent that does nothing for a trainer ends at once; one that does is left to end by itself.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

# After its time, an agent that waits for nothing has so long to say so.
_LAST_SECONDS = 1.0


class LeaveNotice:
    """Whether this process was told to leave.

    Args:
        grace_seconds: How long after that it may finish what it has begun.

    Attributes:
        on_notice: Called when it is told so, if there is anything to finish; else SIGTERM ends the process, with exit
            code 0.
        deadline: When it has to be gone, on the clock of `time.monotonic`; `None`: it was not told to leave. It ends
            then, wherever it waits.
    """

    def __init__(self, grace_seconds: float) -> None:
        self.on_notice: Callable[[], None] | None = None
        self.deadline: float | None = None
        self._grace_seconds = grace_seconds

    def listen(self) -> None:
        """Take SIGTERM for the notice from now on, which only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._take)
            signal.signal(signal.SIGALRM, self._end)

    def _take(self, _signal: int, _frame: FrameType | None) -> None:
        if self.on_notice is None:
            raise SystemExit(0)
        if self.deadline is None:
            self.on_notice()
            self.deadline = time.monotonic() + self._grace_seconds
            # It may wait for a trainer that takes nothing, or answers nothing.
            signal.setitimer(signal.ITIMER_REAL, self._grace_seconds + _LAST_SECONDS)

    def _end(self, _signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(0)
