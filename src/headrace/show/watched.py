"""Progress of what a program waits for, such as the building of an index: for a person at a terminal or a notebook.

Nothing is shown to a log, by a job in the background, by a worker process, or with `HEADRACE_PROGRESS=0`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE_SECONDS = 2.0  # what takes less is over before anybody looks at a bar


@contextmanager
def watched_progress(label: str, unit: str) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of (how many are done, of how many), or None if nobody watches.

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


def is_watched() -> bool:
    """Tell whether a person may be looking at what this process writes to standard error."""
    processes = sys.modules.get("multiprocessing")
    if os.environ.get("HEADRACE_PROGRESS") == "0" or (processes and processes.parent_process() is not None):
        return False
    ipython = sys.modules.get("IPython")
    if ipython is not None and type(ipython.get_ipython()).__name__ == "ZMQInteractiveShell":
        return True
    try:
        fd = sys.stderr.fileno()
        return os.isatty(fd) and os.tcgetpgrp(fd) == os.getpgrp()  # our workers are in groups of their own
    except (AttributeError, OSError, ValueError):  # no standard error, or one that is no file
        return False
