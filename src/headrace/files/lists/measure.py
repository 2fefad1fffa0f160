"""Gets the sizes and versions of many files, in threads.

On a network disk or a store each request takes a round trip, so many are sent at once. On a local disk it takes a few
microseconds, and threads would only slow each other down: there is one until the disk turns out to be slow.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from headrace.errors import SourceError

from ..fetch.fetch import SourceStat, stat_source
from ..fetch.reader import BlockingCalls
from ..locations import is_url, shown_url

Progress = Callable[[int, int], None]

_FIRST_LOOK_SECONDS = 0.02
_BEAT_SECONDS = 0.1
_SLOW_SECONDS_PER_FILE = 1e-4  # a local disk takes 3 us, a round trip in one building 200 us
_TIMEOUT_SECONDS = 300.0  # longer than a server takes to restart
_FILES_PER_STEP = 16  # local files that a thread takes at a time
_MAX_FAILURES = 32  # other than missing files: each may have used all its tries, and the next would, too
_MAX_NAMED = 3
_MISSING = "the file does not exist"


def measure_files(
    names: Sequence[str], *, max_threads: int = 32, progress: Progress | None = None
) -> dict[str, SourceStat]:
    """Return size and version of each file.

    Args:
        names: Paths and URLs, each once.
        max_threads: How many may be asked for at a time.
        progress: Called in this thread with the numbers of files done and of all, at most ten times a second. An
            exception from it ends the work.

    Raises:
        SourceError: Files are missing, unreadable or not regular files: one error gives the number, and names some. Or
            no request was answered for five minutes.
        ConfigError: A URL is of an unknown kind, or its package is not installed.
    """
    work = _Work(names)
    calls = BlockingCalls()
    try:
        _wait(work, calls, max_threads, progress)
    finally:
        calls.close()  # a thread that hangs is abandoned
    if work.failures:
        raise _failed(work, len(names))
    return {name: work.found[name] for name in names}


class _Work:
    """Tasks and results. Shared by threads: each operation on its members is atomic."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.steps = deque(_steps(names))
        self.found: dict[str, SourceStat] = {}
        self.failures: dict[str, SourceError] = {}
        self.asking: dict[int, str] = {}  # the file that each thread, by its number, is requesting
        self.num_unusual = 0  # failures other than missing files; only to stop early, so a lost count does not matter

    @property
    def num_done(self) -> int:
        return len(self.found) + len(self.failures)

    def run(self, calls: BlockingCalls) -> None:
        """Do steps until none are left. Runs in a thread."""
        while not calls.stopped.is_set() and self.num_unusual < _MAX_FAILURES:
            try:
                start, stop = self.steps.popleft()
            except IndexError:
                return
            for name in self.names[start:stop]:
                self.asking[threading.get_ident()] = name
                try:
                    self.found[name] = stat_source(name)
                except SourceError as error:
                    self.failures[name] = error
                    self.num_unusual += not error.what.startswith(_MISSING)


def _steps(names: Sequence[str]) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    for position, name in enumerate(names):
        start, stop = steps[-1] if steps else (0, 0)
        if steps and stop - start < _FILES_PER_STEP and not is_url(name) and not is_url(names[start]):
            steps[-1] = start, position + 1
        else:
            steps.append((position, position + 1))
    return steps


def _wait(work: _Work, calls: BlockingCalls, max_threads: int, progress: Progress | None) -> None:
    num_all, num_before = len(work.names), 0
    threads: list[Future[None]] = [calls.submit(work.run, calls)]
    before = last_sign = time.monotonic()
    while True:
        beat = _FIRST_LOOK_SECONDS if len(threads) == 1 and not num_before else _BEAT_SECONDS
        done, running = concurrent.futures.wait(threads, beat, concurrent.futures.FIRST_EXCEPTION)
        for thread in done:
            thread.result()
        now, num_done = time.monotonic(), work.num_done
        if progress is not None:
            progress(num_done, num_all)
        if not running:
            return
        if num_done > num_before:
            last_sign = now
        elif now - last_sign > _TIMEOUT_SECONDS:
            raise _timed_out(work)
        if len(threads) == 1 and now - before > _SLOW_SECONDS_PER_FILE * (num_done - num_before):
            threads += [calls.submit(work.run, calls) for _ in range(min(max_threads - 1, len(work.steps)))]
        before, num_before = now, num_done


def _timed_out(work: _Work) -> SourceError:
    unanswered = {name for name in list(work.asking.values()) if name not in work.found and name not in work.failures}
    names = [name for name in work.names if name in unanswered] or list(work.names)  # in the order of the list
    what = (
        f"no answer for {_TIMEOUT_SECONDS:g} s about the size of {_named(names)}; {work.num_done} of {len(work.names)}"
    )
    return SourceError(
        f"{what} files are measured", where=shown_url(names[0]), fix="see whether the disk or server is up"
    )


def _failed(work: _Work, num_all: int) -> SourceError:
    by_reason: dict[str, list[str]] = {}
    failures = {name: work.failures[name] for name in work.names if name in work.failures}  # in the order of the list
    for name, error in failures.items():
        by_reason.setdefault(error.what, []).append(name)
    parts = []
    for reason, names in list(by_reason.items())[:_MAX_NAMED]:
        parts.append(f"{len(names)} of {num_all} files: {reason}: {_named(names)}")
    first, error = next(iter(failures.items()))
    fix = error.fix
    if any(mark in first for mark in "*?["):
        fix = "a pattern is only expanded where it is an entry of its own, not inside a tuple, list or dict"
    return SourceError("\n  ".join(parts), where=error.where, fix=fix)


def _named(names: list[str]) -> str:
    return ", ".join(repr(shown_url(name)) for name in names[:_MAX_NAMED]) + (
        ", ..." if len(names) > _MAX_NAMED else ""
    )
