"""The state of a file cache in one process: the copies it holds, its plan, its prefetch, and how it gets a file.

It does not survive a fork: locks, threads and mutexes are the parent's. A child makes its own.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import CacheError, ConfigError, SourceError, takes_note

from ..fetch.fetch import SourceChangedError, stat_source
from ..fetch.retry import status_of
from ..locations import shown_url
from .copy import Copier, Copy, CopyStoppedError, CopyTask
from .entry import EntryKey, derive_source_digest, name_of
from .folder import CacheFolder, copies_of
from .options import FileCacheOptions
from .plan import FuturePlan
from .prefetch import Prefetcher
from .room import CacheRoom

_MAX_CHANGES = 3  # how often a source may change while it is copied, before that is an error
_GONE = frozenset({404, 410})


@dataclass(slots=True)
class _Held:
    """A copy in use: how many times, and the lock that protects it."""

    copy: Copy
    count: int


class CacheParts:
    """The parts of one cache in one process.

    Args:
        options: All of them.

    Raises:
        CacheError: The folder cannot be used.
    """

    def __init__(self, options: FileCacheOptions) -> None:
        self._options = options
        self.pid = os.getpid()
        self.folder = CacheFolder(options.folder, trusted=options.trusted_folder)
        self.room = CacheRoom(self.folder, options)
        self.plan = FuturePlan(self.folder.plans)
        self.copier = Copier(self.folder, self.room, options, on_shortage=lambda: self.prefetcher.interrupt())
        self.prefetcher = Prefetcher(self.copier, self.plan, options.fetch_options)
        # Protects the plan against two writers, and the next attribute: the files planned by `prefetch`, not by
        # `set_plan`.
        self._order_mutex = threading.Lock()
        self._only_prefetched: frozenset[str] = frozenset()
        self.stop = threading.Event()  # set when the cache is closed
        # Protects the attributes below; held for a few system calls. No finalizer takes it while its thread holds it:
        # that of the cache runs when nothing can call it any more.
        self.mutex = threading.Lock()
        self.held: dict[str, _Held] = {}
        self.num_hits = self.num_copies = self.copied_bytes = 0

    def get(self, source: str) -> str:
        """See `FileCache.get_file`; `source` is one from `plain_source`."""
        if self.folder.contains(source):
            fix = "give get_file the source, once"
            raise ConfigError("this is a path in the cache itself", where=source, fix=fix)
        num_changes = 0
        while True:
            try:
                path = self._get(source)
                break
            except CopyStoppedError:
                raise closed_error() from None
            except SourceChangedError:
                num_changes += 1
                if num_changes == _MAX_CHANGES:
                    raise
        self.plan.note_used(source)  # not before it is held: else it would be neither planned nor in use for a moment
        return path

    def prefetch(self, sources: Sequence[str]) -> None:
        """See `FileCache.prefetch`."""
        self.folder.make()
        with self._order_mutex:
            planned = [source for source in self.plan.remaining() if source not in self._only_prefetched]
            known = set(planned)
            extra = [source for source in dict.fromkeys(sources) if source not in known]
            self.plan.replace([*planned, *extra])
            self._only_prefetched = frozenset(extra)
            self.prefetcher.start(sources)

    def set_plan(self, sources: Sequence[str]) -> None:
        """See `FileCache.set_plan`."""
        self.folder.make()
        with self._order_mutex:
            self.plan.replace(sources)
            self._only_prefetched = frozenset()

    def _get(self, source: str) -> str:
        try:
            stat = stat_source(source, options=self._options.fetch_options)
        except SourceError as error:
            return self._get_unchecked(source, error)
        key = EntryKey.of(source, stat)
        path = self.folder.data_path(key, name_of(source))
        if self._hold_again(path):
            return path
        found = self.copier.find(key, source)
        copy = found or self.copier.get(CopyTask(source, stat, key, self.stop))
        if copy.record.is_on_disk == 0:
            self.prefetcher.settle(key, source, copy.record.copied_at)
        return self._hold(copy, was_there=found is not None)

    def _get_unchecked(self, source: str, error: SourceError) -> str:
        """Return the newest copy of a source that cannot be checked; raise if it is gone, or there is no copy."""
        copies = copies_of(self.folder, derive_source_digest(source))
        if not copies:
            raise error
        key, _ = max(copies, key=lambda found: found[1].copied_at)
        path = self.folder.data_path(key, name_of(source))
        if _is_gone(error):
            takes_note(error, f"the cache has a copy, which is not used because its source is gone: {path}")
            raise error
        copy = self.copier.find(key, source)
        if copy is None:
            raise error
        warnings.warn(
            f"the file cache uses its copy of {shown_url(source)}, because the source cannot be checked for changes: "
            f"{error.what}",
            RuntimeWarning,
            stacklevel=5,  # the caller of `FileCache.get_file`
        )
        return self._hold(copy, was_there=True)

    def _hold_again(self, path: str) -> bool:
        """Count one more user of a copy that this process has; False if it has none, or it is damaged."""
        with self.mutex:
            held = self.held.get(path)
            if held is None:
                return False
            if held.copy.lock.is_current and self.folder.is_intact(held.copy.record, path):
                held.count += 1
                self.num_hits += 1
                return True
            # The copy was removed or changed from outside. Our own lock would keep it from being made again.
            held.copy.lock.close()
            return False

    def _hold(self, copy: Copy, *, was_there: bool) -> str:
        """Hold a copy from now on; return its path."""
        with self.mutex:
            if self.stop.is_set():
                copy.lock.close()
                raise closed_error()
            copy.lock.touch()
            self.num_hits += was_there
            self.num_copies += not was_there
            self.copied_bytes += copy.record.size if copy.is_new else 0
            held = self.held.get(copy.path)
            if held is None:
                self.held[copy.path] = _Held(copy, 1)
                return copy.path
            held.count += 1
            stale, held.copy = held.copy, copy  # of a damaged copy, or of another thread that was quicker
            stale.lock.close()
            return copy.path

    def release(self, path: str) -> None:
        """Release one use; the last one unlocks the copy."""
        with self.mutex:
            held = self.held.get(path)
            if held is None:
                return
            held.count -= 1
            if held.count:
                return
            del self.held[path]
            if held.copy.lock.is_current:
                held.copy.lock.touch()
            held.copy.lock.close()
        self.prefetcher.note_news()

    def close(self) -> None:
        """Stop the prefetch and release all copies. A second call, or one in a forked child, does nothing."""
        if self.pid != os.getpid():
            return
        self.stop.set()
        self.prefetcher.close()
        self.plan.close()
        with self.mutex:
            for held in self.held.values():
                held.copy.lock.close()
            self.held.clear()


def _is_gone(error: SourceError) -> bool:
    cause = error.__cause__
    return isinstance(cause, FileNotFoundError) or (cause is not None and status_of(cause) in _GONE)


def closed_error() -> CacheError:
    """Return the error for the use of a cache that is closed."""
    return CacheError("the file cache is closed", fix="make a new one, or close it later")
