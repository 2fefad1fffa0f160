"""One thread that copies files before they are needed, in that order, and syncs copies to the disk.

It removes nothing that is needed sooner than what it fetches: where there is no room it waits until something is
released. A file that it cannot fetch raises its error where it is needed. The thread lives while there is something to
do; `close` ends it within a second, also in the middle of a copy. (One that hangs in the system then, in an fsync or a
read of a dead network disk, is left behind; it ends by itself and holds nothing that others wait for longer than their
own limits.)
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from headrace.errors import HeadraceError

from ..fetch.fetch import FetchOptions, stat_source
from .copy import Copier, CopyStoppedError, CopyTask, NoRoomError
from .entry import EntryKey
from .plan import FuturePlan

_CLOSE_SECONDS = 0.9  # how long `close` waits for the thread: it must return within a second
# By then the system has written most of a new copy by itself (30 s, by default), and an fsync costs little. Earlier,
# one for each of many small files would block the disk for all others.
_SETTLE_SECONDS = 60.0
# Other processes release room without notice: look again after this time, then after twice as long, and so on. Each
# look reads the whole folder.
_LOOK_SECONDS, _MAX_LOOK_SECONDS = 1.0, 16.0
_MAX_FAILURES = 100  # kept for the status


class _Outcome(Enum):
    """The outcome of one try."""

    DONE = auto()
    NO_ROOM = auto()  # or its room was needed for another file
    ELSEWHERE = auto()  # another process is making the copy


@dataclass(frozen=True, slots=True)
class PrefetchStatus:
    """The progress of a prefetch.

    Attributes:
        num_left: Files that are not done, the current one included.
        num_fetched: Files that were copied.
        current: The source that is being copied, or waits for room.
        is_waiting_for_room: Whether it waits.
        failures: Source -> error text, of the last hundred; the error is raised where the file is needed.
    """

    num_left: int
    num_fetched: int
    current: str | None
    is_waiting_for_room: bool
    failures: dict[str, str]


class Prefetcher:
    """The thread and its tasks. Safe to call from several threads.

    Args:
        copier: Makes the copies.
        plan: How soon each file is needed.
        fetch_options: How sources are checked.
    """

    def __init__(self, copier: Copier, plan: FuturePlan, fetch_options: FetchOptions) -> None:
        self._copier = copier
        self._plan = plan
        self._fetch_options = fetch_options
        # Protects all below; never held while waiting for anything else. Reentrant, as the lock of a condition is:
        # the finalizer of a cache may close this in the thread that holds it.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._is_closed = False
        self._sources: deque[str] = deque()
        self._unsettled: list[tuple[float, str, EntryKey, str]] = []  # a heap: due time, key, and the source
        self._unsettled_keys: set[str] = set()  # the keys in it
        self._current: str | None = None
        self._stop = threading.Event()  # of the current copy
        self._is_blocked = False  # the first source waits for room, or all of them for processes that make the copies
        self._lacks_room = False
        self._look_at = 0.0  # when it is tried again without a change
        self._pause_seconds = _LOOK_SECONDS
        self._num_elsewhere = 0  # how many in a row were skipped because other processes are making them
        self._num_news = 0  # how often room may have been released, so that none is missed during a search for it
        self._num_fetched = 0
        self._failures: dict[str, str] = {}

    def start(self, sources: Sequence[str]) -> None:
        """Fetch these, in this order, instead of what is left of the last call. Returns at once."""
        with self._changed:
            self._sources = deque(sources)
            self._failures.clear()
            if self._current is not None and self._current not in self._sources:
                self._stop.set()
            self._is_blocked = False
            self._num_news += 1
            self._run()

    def settle(self, key: EntryKey, source: str, copied_at: float) -> None:
        """Schedule a copy to be synced to the disk some time after it was made, and recorded as such. Returns at once.

        No thread waits for that time: due copies are synced when something else happens, and those that remain when the
        process ends by the next one that uses them.
        """
        with self._changed:
            if key.text not in self._unsettled_keys and not self._is_closed:
                self._unsettled_keys.add(key.text)
                wait_seconds = min(max(0.0, copied_at + _SETTLE_SECONDS - time.time()), _SETTLE_SECONDS)
                heapq.heappush(self._unsettled, (time.monotonic() + wait_seconds, key.text, key, source))
                self._run_if_due()

    def interrupt(self) -> None:
        """Stop the current copy, because its room is needed; it is tried again after something else has changed."""
        with self._changed:
            self._stop.set()

    def note_news(self) -> None:
        """Note that there may be more room now."""
        with self._changed:
            self._num_news += 1
            self._pause_seconds = _LOOK_SECONDS
            if self._is_blocked:
                self._is_blocked = False
                self._changed.notify_all()
            self._run_if_due()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything is copied or has failed; return False if it takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sources or self._is_closed, timeout_seconds)

    def status(self) -> PrefetchStatus:
        """Return the progress."""
        with self._changed:
            return PrefetchStatus(
                len(self._sources),
                self._num_fetched,
                self._current,
                self._is_blocked and self._lacks_room,
                dict(self._failures),
            )

    def close(self) -> None:
        """Stop, within a second. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._sources.clear()
            self._unsettled.clear()
            self._unsettled_keys.clear()
            self._stop.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        self._changed.notify_all()
        if not self._is_running and not self._is_closed:
            self._is_running = True
            self._thread = threading.Thread(target=self._work, name="headrace-file-cache", daemon=True)
            self._thread.start()

    def _run_if_due(self) -> None:
        if self._unsettled and self._unsettled[0][0] <= time.monotonic():
            self._run()

    def _work(self) -> None:
        while (task := self._next_task()) is not None:
            task()

    def _next_task(self) -> Callable[[], None] | None:
        """Wait for the next task; None: there are none left."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                if self._sources and (not self._is_blocked or now >= self._look_at):
                    self._is_blocked, self._stop = False, threading.Event()
                    self._current = self._sources[0]
                    return functools.partial(self._fetch, self._current, self._stop)
                if self._unsettled and now >= self._unsettled[0][0]:
                    _, text, key, source = heapq.heappop(self._unsettled)
                    self._unsettled_keys.remove(text)
                    return functools.partial(self._settle, key, source)
                if not self._sources:
                    break
                self._changed.wait(self._look_at - now)
            self._is_running, self._current = False, None
            return None

    def _block(self) -> None:
        self._is_blocked = True
        self._look_at = time.monotonic() + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _MAX_LOOK_SECONDS)

    def _fetch(self, source: str, stop: threading.Event) -> None:
        outcome, num_news = _Outcome.DONE, self._num_news
        try:
            outcome = self._copy(source, stop)
        except (HeadraceError, OSError) as error:
            self._note_failure(source, str(error))
        except Exception as error:  # noqa: BLE001 - the end of a thread: a caller that needs the file gets the error
            self._note_failure(source, f"{type(error).__name__}: {error}")
        with self._changed:
            self._lacks_room = outcome is _Outcome.NO_ROOM
            if source not in self._sources:  # it is no longer requested
                pass
            elif self._lacks_room:
                if num_news == self._num_news:
                    self._block()
            else:
                self._sources.remove(source)
                if outcome is _Outcome.ELSEWHERE:
                    self._sources.append(source)
                    self._num_elsewhere += 1
                    if self._num_elsewhere >= len(self._sources):
                        self._block()
            if outcome is _Outcome.DONE or self._is_blocked:
                self._num_elsewhere = 0
            if outcome is _Outcome.DONE:
                self._pause_seconds = _LOOK_SECONDS
            self._changed.notify_all()

    def _copy(self, source: str, stop: threading.Event) -> _Outcome:
        """Copy a source, if it is not cached."""
        distance = self._plan.distance_of(source)
        if math.isinf(distance):  # it was needed meanwhile
            return _Outcome.DONE
        stat = stat_source(source, options=self._fetch_options)
        key = EntryKey.of(source, stat)
        task = CopyTask(source, stat, key, stop, distance)
        try:
            copy = self._copier.find(key, source) or self._copier.make_nowait(task)
        except NoRoomError as error:
            if error.shortage.is_hopeless:
                raise error.shortage.error(task.name) from None
            return _Outcome.NO_ROOM
        except CopyStoppedError:
            return _Outcome.NO_ROOM
        if copy is None:
            return _Outcome.ELSEWHERE
        copy.lock.close()
        with self._changed:
            self._num_fetched += copy.is_new
        if copy.record.is_on_disk == 0:
            self.settle(key, source, copy.record.copied_at)
        return _Outcome.DONE

    def _note_failure(self, source: str, text: str) -> None:
        with self._changed:
            self._failures[source] = text
            if len(self._failures) > _MAX_FAILURES:
                del self._failures[next(iter(self._failures))]

    def _settle(self, key: EntryKey, source: str) -> None:
        with contextlib.suppress(HeadraceError, OSError):  # then it does not survive a reboot
            self._copier.settle(key, source)
