"""Progress of a long command on stderr: a bar on a terminal, a plain line now and then elsewhere, or nothing."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from headrace.show.drawing import format_bytes

from .drawing import format_count, format_seconds


class Reporter:
    """Shows the progress of a command: open it as a context, then `update` it. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def update(self, num_seqs: int, num_bytes: int) -> None:
        """Report how much is done: sequences and bytes since the start."""


class _TimedReporter(Reporter):
    """Shows the progress, not more often than can be read.

    Args:
        console: The console to print to.
        label: Name of the work.
        total: Number of sequences, if known.
        unit: Unit of the counts, if not sequences.
    """

    _PAUSE_SECONDS: ClassVar[float]

    def __init__(self, console: Console, label: str, total: int | None, unit: str = "seq") -> None:
        self._console, self._label, self._total, self._unit = console, label, total, unit
        self._start = self._next = 0.0

    def __enter__(self) -> Self:
        self._start = time.monotonic()
        return self

    def update(self, num_seqs: int, num_bytes: int) -> None:
        """Show the progress, unless it was shown a moment ago."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._PAUSE_SECONDS
            self._show(num_seqs, describe_state(num_seqs, num_bytes, self._total, now - self._start, self._unit))

    @abstractmethod
    def _show(self, num_seqs: int, state: str) -> None: ...


class BarReporter(_TimedReporter):
    """A bar on a terminal, gone when the work is done."""

    _PAUSE_SECONDS = 0.1  # smooth for the eye, and costs nothing measurable

    def __enter__(self) -> Self:
        columns = TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.fields[state]}")
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task(self._label, total=self._total, state="")
        self._bar.start()
        return super().__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._bar.stop()

    def _show(self, num_seqs: int, state: str) -> None:
        self._bar.update(self._task, completed=num_seqs, state=state)


class LineReporter(_TimedReporter):
    """A plain line every ten seconds, for logs."""

    _PAUSE_SECONDS = 10.0  # enough to see in a log that the run is alive

    def __enter__(self) -> Self:
        super().__enter__()
        self._next = self._start + self._PAUSE_SECONDS
        return self

    def _show(self, num_seqs: int, state: str) -> None:
        del num_seqs  # contained in the state
        self._console.print(f"{self._label}: {state}")


def open_reporter(console: Console, label: str, total: int | None, *, quiet: bool, unit: str = "seq") -> Reporter:
    """Return the reporter that suits the stream."""
    if quiet:
        return Reporter()
    return (BarReporter if console.is_terminal or console.is_jupyter else LineReporter)(console, label, total, unit)


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
    reporters: list[Reporter] = []
    begin = time.monotonic() + after
    with ExitStack() as stack:

        def tell(num_done: int, total: int) -> None:
            if time.monotonic() < begin:
                return
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
