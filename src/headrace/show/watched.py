"""Progress of what a program waits for (an index, a plan, copies): for a person at a terminal or a notebook.

Nothing is shown to a log, by a job in the background, by a worker process, by a rank of a machine other than its first,
or with `HEADRACE_PROGRESS=0`.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

PATIENCE_SECONDS = 2.0  # what takes less is over before anybody looks at a bar


@contextmanager
def watched_progress(label: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a progress callback (number done, total), or None if progress is not watched.

    Args:
        label: Name of the work.
        unit: Unit of the counts.
    """
    if not is_watched():
        yield None
        return
    from rich.console import Console  # only who shows something needs it

    from .reporters import report_progress

    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with report_progress(console, label, unit=unit, quiet=False, after=PATIENCE_SECONDS) as tell:
        yield tell


def watched_range(count: int, label: str, unit: str) -> Iterator[int]:
    """Yield 0, 1, ..., `count` - 1, and show how many are done; see `watched_progress`."""
    with watched_progress(label, unit) as tell:
        for number in range(count):
            if tell is not None:
                tell(number, count)
            yield number


class SharedProgress:
    """One bar for what several threads do at once: their amounts are added up.

    Args:
        label: Name of the work.
        unit: Unit of the amounts.
    """

    def __init__(self, label: str, unit: str) -> None:
        self._label, self._unit = label, unit
        self._mutex = threading.Lock()  # protects all below, and the drawing; no finalizer takes it
        self._open = ExitStack()
        self._tell: Callable[[int, int], None] | None = None
        self._num_threads = self._num_done = self._total = 0

    @contextmanager
    def part(self, total: int) -> Iterator[Callable[[int], None]]:
        """Yield a function that takes how much is done of a part of so much. The last thread ends the bar."""
        with self._mutex:
            if not self._num_threads:
                self._num_done = self._total = 0
                self._tell = self._open.enter_context(watched_progress(self._label, self._unit))
            self._num_threads += 1
            self._total += total
        num_told = 0

        def tell(num_done: int) -> None:
            nonlocal num_told
            if self._tell is not None:
                with self._mutex:
                    self._num_done += num_done - num_told
                    num_told = num_done
                    self._tell(self._num_done, self._total)

        try:
            yield tell
        finally:
            with self._mutex:
                self._num_threads -= 1
                if not self._num_threads:
                    self._open.close()


def is_watched() -> bool:
    """Tell whether a person may be looking at what this process writes to standard error."""
    processes = sys.modules.get("multiprocessing")
    if os.environ.get("HEADRACE_PROGRESS") == "0" or (processes and processes.parent_process() is not None):
        return False
    if os.environ.get("LOCAL_RANK", "0") != "0":  # several bars would be drawn over each other
        return False
    ipython = sys.modules.get("IPython")
    if ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell":
        return True
    try:
        fd = sys.stderr.fileno()
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()  # our workers are in groups of their own
    except (AttributeError, OSError, ValueError):  # no standard error, or one that is no file
        return False
