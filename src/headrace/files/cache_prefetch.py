"""One thread that copies what will be needed, in the order in which it will be, and gets copies onto the disk.

It removes nothing that is needed sooner than what it fetches: where there is no room it waits until something is
released. What it cannot fetch it leaves to whoever needs it, who then gets the error. The thread lives while there is
something to do; `close` ends it within a second, also in the middle of a copy. (One that hangs in the system then, in
an fsync or a read of a dead network disk, is left behind; it ends by itself and holds nothing that others wait for
longer than their own limits.)
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import HeadraceError

from .cache_copy import Copier, CopyStoppedError, CopyTask, NoRoomError
from .cache_entry import EntryKey
from .cache_plan import FuturePlan
from .fetch import FetchOptions, stat_source

_CLOSE_SECONDS = 0.9  # how long `close` waits for the thread: it must return within a second
_LOOK_SECONDS = 1.0  # other processes release room without telling us: look again after so long
_MAX_FAILURES = 100  # kept for people


@dataclass(frozen=True, slots=True)
class PrefetchStatus:
    """How far a prefetch is.

    Attributes:
        num_left: Files that are not done, the current one included.
        num_fetched: Files that were copied.
        current: The source that is being copied, or waits for room.
        is_waiting_for_room: Whether it waits.
        failures: Source -> what was wrong, of the last hundred: whoever needs such a file gets the error.
    """

    num_left: int
    num_fetched: int
    current: str | None
    is_waiting_for_room: bool
    failures: dict[str, str]


class Prefetcher:
    """The thread and what it has to do. Safe to call from several threads.

    Args:
        copier: Makes the copies.
        plan: Says how soon a file is needed.
        fetch_options: How sources are asked.
    """

    def __init__(self, copier: Copier, plan: FuturePlan, fetch_options: FetchOptions) -> None:
        self._copier = copier
        self._plan = plan
        self._fetch_options = fetch_options
        self._changed = threading.Condition()  # protects all below; never held while anything else is waited for
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._is_closed = False
        self._sources: deque[str] = deque()
        self._unsettled: deque[tuple[EntryKey, str]] = deque()
        self._current: str | None = None
        self._stop = threading.Event()  # of the current copy
        self._is_blocked = False  # the first source waits for room
        self._num_fetched = 0
        self._failures: dict[str, str] = {}

    def start(self, sources: Sequence[str]) -> None:
        """Fetch these, in this order, instead of what was left to fetch. Returns at once."""
        with self._changed:
            self._sources = deque(sources)
            self._failures.clear()
            if self._current is not None and self._current not in self._sources:
                self._stop.set()
            self._run()

    def settle(self, key: EntryKey, source: str) -> None:
        """See to it that a new copy reaches the disk, and note that. Returns at once."""
        with self._changed:
            self._unsettled.append((key, source))
            self._run()

    def interrupt(self) -> None:
        """Stop the current copy, because its room is needed; it is tried again after something else has changed."""
        with self._changed:
            self._stop.set()

    def note_news(self) -> None:
        """Note that there may be room now."""
        if self._is_blocked:  # asked without the lock: at worst it looks a second later
            with self._changed:
                self._is_blocked = False
                self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Wait until everything was tried; return False if it was not in that time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._sources or self._is_closed, timeout_seconds)

    def status(self) -> PrefetchStatus:
        """Return how far it is."""
        with self._changed:
            return PrefetchStatus(
                len(self._sources), self._num_fetched, self._current, self._is_blocked, dict(self._failures)
            )

    def close(self) -> None:
        """Stop, within a second. A second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._sources.clear()
            self._unsettled.clear()
            self._stop.set()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        self._is_blocked = False
        self._changed.notify_all()
        if not self._is_running and not self._is_closed:
            self._is_running = True
            self._thread = threading.Thread(target=self._work, name="headrace-file-cache", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while True:
            unsettled = None
            with self._changed:
                if self._is_closed or not (self._sources or self._unsettled):
                    self._is_running = False
                    return
                self._current = self._sources[0] if self._sources else None
                if self._current is None or self._is_blocked:  # after a while most bytes are on the disk by themselves
                    if not self._unsettled:
                        self._changed.wait_for(lambda: not self._is_blocked or self._is_closed, _LOOK_SECONDS)
                        self._is_blocked = False
                        continue
                    unsettled = self._unsettled.popleft()
                source, stop = self._current, threading.Event()
                self._stop = stop
            if unsettled is not None:
                self._settle(*unsettled)
            elif source is not None:
                self._fetch(source, stop)

    def _fetch(self, source: str, stop: threading.Event) -> None:
        is_done = True
        try:
            is_done = self._copy(source, stop)
        except (HeadraceError, OSError) as error:
            self._note_failure(source, str(error))
        except Exception as error:  # noqa: BLE001 - the end of a thread: whoever needs the file meets it again
            self._note_failure(source, f"{type(error).__name__}: {error}")
        with self._changed:
            if not is_done:
                self._is_blocked = True
            elif source in self._sources:  # else it is not wanted any more
                self._sources.remove(source)
            self._changed.notify_all()

    def _copy(self, source: str, stop: threading.Event) -> bool:
        """Copy a source if it is not there; return False if it must be tried again later."""
        distance = self._plan.distance_of(source)
        if math.isinf(distance):  # it was needed meanwhile
            return True
        stat = stat_source(source, options=self._fetch_options)
        key = EntryKey.of(source, stat)
        task = CopyTask(source, stat, key, stop, distance)
        try:
            copy = self._copier.find(key, source) or self._copier.make_nowait(task)
        except (NoRoomError, CopyStoppedError):
            return False
        if copy is not None:  # else somebody else is making it
            copy.lock.close()
            if copy.is_new:
                with self._changed:
                    self._num_fetched += 1
                    self._unsettled.append((key, source))
        return True

    def _note_failure(self, source: str, text: str) -> None:
        with self._changed:
            self._failures[source] = text
            if len(self._failures) > _MAX_FAILURES:
                del self._failures[next(iter(self._failures))]

    def _settle(self, key: EntryKey, source: str) -> None:
        with contextlib.suppress(HeadraceError, OSError):  # then it is not noted, and does not survive a reboot
            self._copier.settle(key, source)
