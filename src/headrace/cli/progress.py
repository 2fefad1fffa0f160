"""Progress of a long command on stderr: a bar on a terminal, a plain line now and then elsewhere, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from .drawing import format_bytes, format_count, format_seconds

_BAR_SECONDS = 0.1  # between two updates of the bar: smooth for the eye, and costs nothing measurable
_LINE_SECONDS = 10.0  # between two plain lines: enough to see in a log that the run is alive


class Reporter:
    """What a command tells while it works: open it as a context, then `update` it. This one tells nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def update(self, num_seqs: int, num_bytes: int) -> None:
        """Tell how much is done: sequences and bytes since the start."""


class BarReporter(Reporter):
    """A bar on a terminal, gone when the work is done.

    Args:
        console: Where to draw.
        label: What is being done.
        total: Number of sequences, if known.
        unit: What is counted, if not sequences.
    """

    def __init__(self, console: Console, label: str, total: int | None, unit: str = "seq") -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[state]}"),
            console=console,
            transient=True,
        )
        self._label, self._total, self._unit = label, total, unit
        self._task: TaskID | None = None
        self._start = self._next = 0.0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._task = self._bar.add_task(self._label, total=self._total, state="")
        self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def update(self, num_seqs: int, num_bytes: int) -> None:
        """Move the bar, at most ten times a second."""
        now = time.monotonic()
        if now < self._next or self._task is None:
            return
        self._next = now + _BAR_SECONDS
        state = describe_state(num_seqs, num_bytes, self._total, now - self._start, self._unit)
        self._bar.update(self._task, completed=num_seqs, state=state)


class LineReporter(Reporter):
    """A plain line every ten seconds, for logs.

    Args:
        console: Where to write.
        label: What is being done.
        total: Number of sequences, if known.
        unit: What is counted, if not sequences.
    """

    def __init__(self, console: Console, label: str, total: int | None, unit: str = "seq") -> None:
        self._console, self._label, self._total, self._unit = console, label, total, unit
        self._start = self._next = 0.0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        self._next = self._start + _LINE_SECONDS
        return self

    def update(self, num_seqs: int, num_bytes: int) -> None:
        """Write a line if the last one is old enough."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LINE_SECONDS
        state = describe_state(num_seqs, num_bytes, self._total, now - self._start, self._unit)
        self._console.print(f"{self._label}: {state}")


def open_reporter(console: Console, label: str, total: int | None, *, quiet: bool, unit: str = "seq") -> Reporter:
    """Return the reporter that suits the stream."""
    if quiet:
        return Reporter()
    return (BarReporter if console.is_terminal else LineReporter)(console, label, total, unit)


@contextmanager
def telling(console: Console, label: str, *, unit: str, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (how many are done, of how many), for work that knows its total when it begins."""
    reporters: list[Reporter] = []
    with ExitStack() as stack:

        def tell(num_done: int, total: int) -> None:
            if not reporters:
                reporters.append(stack.enter_context(open_reporter(console, label, total, quiet=quiet, unit=unit)))
            reporters[0].update(num_done, 0)

        yield tell


def describe_state(num_seqs: int, num_bytes: int, total: int | None, seconds: float, unit: str = "seq") -> str:
    """Return how much is done, how fast, and how long the rest will take.

    >>> describe_state(500, 2_000_000, 1500, 2.0)
    '500/1,500  250 seq/s  1.0 MB/s  4.0 s left'
    """
    seconds = max(seconds, 1e-9)
    parts = [format_count(num_seqs) if total is None else f"{format_count(num_seqs)}/{format_count(total)}"]
    parts.append(f"{format_count(num_seqs / seconds)} {unit}/s")
    if num_bytes:
        parts.append(f"{format_bytes(num_bytes / seconds)}/s")
    if total is not None and num_seqs:
        parts.append(f"{format_seconds(max(total - num_seqs, 0) * seconds / num_seqs)} left")
    return "  ".join(parts)
