"""Waiting for others, with a limit: nobody waits for ever, and who gives up says for whom.

The limit counts from the last sign of life. There is nothing in the system to wait on with a limit (a lock has none, a
file of another process tells nothing), so this asks again and again, at first often, then every 50 ms or so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.errors import CacheError

_FIRST_SECONDS = 0.001
_MAX_PAUSE_SECONDS = 0.05


class Patience:
    """One wait, of one thread.

    Args:
        limit_seconds: How long without a sign of life.
        stop: Ends the wait early, if given.
        max_pause_seconds: The longest pause between two questions.
    """

    def __init__(
        self,
        limit_seconds: float,
        stop: threading.Event | None = None,
        *,
        max_pause_seconds: float = _MAX_PAUSE_SECONDS,
    ) -> None:
        self._limit_seconds = limit_seconds
        self._max_pause_seconds = max_pause_seconds
        self._stop = stop or threading.Event()
        self._pause_seconds = _FIRST_SECONDS
        self._progress: object = None
        self._since = time.monotonic()

    def pause(self, progress: object, give_up: Callable[[str], CacheError]) -> None:
        """Wait a moment.

        Args:
            progress: Anything that is not equal to what it was if there was a sign of life.
            give_up: Makes the error, given how long the wait was.

        Raises:
            CacheError: The limit is reached, or the wait was stopped.
        """
        now = time.monotonic()
        if progress != self._progress:
            self._progress, self._since = progress, now
        elif now - self._since >= self._limit_seconds:
            raise give_up(f"{self._limit_seconds:g} s without a sign of life")
        if self._stop.wait(self._pause_seconds):
            raise give_up("the cache was closed")
        self._pause_seconds = min(2 * self._pause_seconds, self._max_pause_seconds)
