"""Progress of long work on stderr: how much is done, how fast, and when the rest will be. Gone when it is done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console

from .bars import Bar, open_bar
from .drawing import BYTES, format_bytes, format_count, format_seconds

_LOG_SECONDS = 10.0  # enough to see in a log that the run is alive


class Reporter:
    """Shows the progress of some work, not more often than can be read: open it as a context, then `update` it.

    Args:
        console: The console to print to; None: show nothing.
        label: Name of the work.
        total: How much there is to do, if known.
        unit: Unit of the counts.
        after: Seconds before which nothing is shown.
    """

    def __init__(
        self, console: Console | None, label: str, total: int | None, unit: str = "seq", after: float = 0.0
    ) -> None:
        self._console, self._label, self._unit, self._after = console, label, unit, after
        self.total = total
        self._bar: Bar | None = None
        self._start, self._due = 0.0, math.inf

    def __enter__(self) -> Self:
        if self._console is not None:
            self._start = time.monotonic()
            self._due = self._start + self._after
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._due = math.inf
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def update(self, num_done: int, num_bytes: int = 0) -> None:
        """Show how much is done since the start, and of how many bytes, unless something was shown a moment ago."""
        now = time.monotonic()
        if now < self._due:
            return
        if self._bar is None:
            assert self._console is not None
            self._bar = open_bar(self._console, stays=False, log_seconds=_LOG_SECONDS)
            self._due = now + self._bar.first_seconds
            if now < self._due:
                return
        self._due = now + self._bar.pause_seconds
        state = describe_state(num_done, num_bytes, self.total, now - self._start, self._unit)
        self._bar.draw(f"{self._label}: {state}", num_done, self.total)


def open_reporter(console: Console, label: str, total: int | None, *, quiet: bool) -> Reporter:
    """Return a reporter, which shows nothing if it is to be quiet."""
    return Reporter(None if quiet else console, label, total, "seq")


@contextmanager
def report_progress(
    console: Console, label: str, *, unit: str, quiet: bool, after: float = 0.0
) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (how many are done, of how many), for work that knows its total when it begins.

    Args:
        console: The console to print to.
        label: Name of the work.
        unit: Unit of the counts.
        quiet: Whether to show nothing.
        after: Seconds before which nothing is shown.
    """
    with Reporter(None if quiet else console, label, None, unit, after) as reporter:

        def tell(num_done: int, total: int) -> None:
            reporter.total = total
            reporter.update(num_done)

        yield tell


def describe_state(num_done: int, num_bytes: int, total: int | None, seconds: float, unit: str = "seq") -> str:
    """Return how much is done, how fast, and how long the rest will take.

    >>> describe_state(500, 2_000_000, 1500, 2.0)
    '500/1,500  250 seq/s  1.0 MB/s  4.0 s left'
    >>> describe_state(500_000, 0, 2_000_000, 2.0, BYTES)
    '500.0 kB/2.0 MB  250.0 kB/s  6.0 s left'
    """
    seconds = max(seconds, 1e-9)
    shown, of_unit = (format_bytes, "") if unit == BYTES else (format_count, f" {unit}")
    parts = [shown(num_done) if total is None else f"{shown(num_done)}/{shown(total)}"]
    parts.append(f"{shown(num_done / seconds)}{of_unit}/s")
    if num_bytes:
        parts.append(f"{format_bytes(num_bytes / seconds)}/s")
    if total is not None and num_done:
        parts.append(f"{format_seconds(max(total - num_done, 0) * seconds / num_done)} left")
    return "  ".join(parts)
