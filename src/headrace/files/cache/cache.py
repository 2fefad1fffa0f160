"""Copies of files on the local disk: `FileCache`.

Invariants: a path that `get_file` returns is a whole copy of one version of its source, and stays one until it is
released; a copy in use is locked by its process, so that it is safe for exactly as long as the process lives. All
under the exclusive lock of an entry, a copy is made so: room is taken, the bytes are fetched, the record is written. A
process that ends in between leaves what has no record, and so does not count. Options are in `options.py`, the layout
of the folder and what goes to make room in `folder.py`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.errors import CacheError, ConfigError, SourceError
from headrace.show.card import Card, Shown
from headrace.show.drawing import BYTES, format_bytes
from headrace.show.watched import SharedProgress

from ..fetch import (
    NO_SPACE,
    FetchOptions,
    FetchStoppedError,
    SourceChangedError,
    SourceStat,
    fetch_to,
    is_gone,
    stat_source,
)
from ..locations import shown_url
from ..locks import FileLock, StallTimeout, lock_shared_nowait
from .entry import CachedFile, EntryKey, EntryRecord, derive_mtime_ns, plain_source, replace_cached_files, source_digest
from .folder import CacheFolder, NoRoomError
from .options import DEFAULT_FOLDER, FileCacheOptions

_FETCH = FetchOptions()
_NUM_THREADS = 4  # that copy ahead: each waits for its disk or store most of the time
_CLOSE_SECONDS = 0.9  # how long `close` waits for them: it must return within a second
_LOOK_SECONDS = 1.0  # other processes release room without notice
_MAX_CHANGES = 3  # how often a source may change while it is copied, before that is an error


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counters of a cache in this process.

    Attributes:
        num_hits: Files that were in the cache when they were requested.
        num_copies: Files that were copied when they were requested, or whose copy was waited for.
        copied_bytes: Bytes that were copied for those.
        num_prefetched: Files that were copied ahead.
        num_removed: Copies that were removed.
        removed_bytes: Bytes of the copies that were removed.
    """

    num_hits: int = 0
    num_copies: int = 0
    copied_bytes: int = 0
    num_prefetched: int = 0
    num_removed: int = 0
    removed_bytes: int = 0


class FileCache(Shown):
    """Copies files to a local disk on request or ahead of time, and removes those that were not used for longest.

    All processes that use one folder make one copy of a file together. A copy in use is locked (flock) by its process
    and is never removed; when the process ends, in whatever way, its locks end with it. Copies stay on the disk after
    they are released, for the next one. The folder is for one user, made with mode 0700. Its disk must have locks,
    else the constructor refuses it; on a network disk whose locks do not reach other nodes, give each node a folder of
    its own.

    A copy is valid as long as the source has the size and version (modification time, ETag, ...) that it was made
    from; the source is checked at each `get_file`. (For a store without versions only the size is compared.) A source
    that changed gets a new copy; readers of the old one keep it. If the source cannot be checked (the network is down),
    a whole copy is returned with a `RuntimeWarning`; a source that is known to be gone is an error.

    Safe to call from several threads. Pickling it, or forking the process, gives a cache with the same options that
    holds no files.

    Args:
        cache_directory: The folder; `$NAME` and `~` are replaced.
        cleanup_files_always_older_than_days: See `FileCacheOptions` for this and all that follow.
        cleanup_files_wanted_older_than_days: Days.
        cleanup_disk_usage_wanted_free_ratio: Of the disk.
        cleanup_disk_usage_wanted_multiplier: Of the size of a new file.
        num_tries: Number of tries if the disk gets full during a copy.
        max_bytes: The quota, such as `"500 GB"`.
        wait_seconds: Limit of a wait for another process without a sign of life.
        fetch: How often a fetch is tried.

    Raises:
        ConfigError: An option is wrong.
        CacheError: The folder cannot be used.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import headrace as hr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "slow-disk.bin").write_bytes(b"frames")
        ...     with hr.FileCache(cache_directory=f"{folder}/cache") as cache:
        ...         copy = cache.get_file(f"{folder}/slow-disk.bin")
        ...         print(copy != f"{folder}/slow-disk.bin", Path(copy).read_bytes())
        6
        True b'frames'
    """

    def __init__(
        self,
        *,
        cache_directory: str | os.PathLike[str] = DEFAULT_FOLDER,
        cleanup_files_always_older_than_days: float = 31.0,
        cleanup_files_wanted_older_than_days: float = 1.0,
        cleanup_disk_usage_wanted_free_ratio: float = 0.2,
        cleanup_disk_usage_wanted_multiplier: float = 2.0,
        num_tries: int = 3,
        max_bytes: int | str | None = None,
        wait_seconds: float = 600.0,
        fetch: FetchOptions | Mapping[str, Any] = _FETCH,
    ) -> None:
        self.options = FileCacheOptions(**{name: value for name, value in locals().items() if name != "self"})
        self._begin()

    def _begin(self) -> None:
        """Begin to hold nothing, in this process."""
        self._pid = os.getpid()
        self._folder = CacheFolder(self.options)
        self._shown = SharedProgress("copying", BYTES)
        self._stop = threading.Event()  # set when the cache is closed
        # Protects all below; held for a few system calls, never while anything is fetched or waited for.
        self._changed = threading.Condition()
        self._held: dict[str, list[FileLock]] = {}  # by path: one for each use
        self._counts: Counter[str] = Counter()  # as in `CacheCounters`
        self._planned: Counter[str] = Counter()  # digest of a source -> how often it is still needed
        self._ahead: deque[str] = deque()  # sources to copy ahead
        self._awaited: set[str] = set()  # digests of what was copied ahead, and not requested yet
        self._current: list[str] = []  # what is copied ahead now
        self._failures: dict[str, str] = {}
        self._threads: list[threading.Thread] = []

    @classmethod
    def get_instance(cls, config: Mapping[str, Any] | None = None) -> FileCache:
        """Return a new cache with the options of a config, overridden by those of the environment.

        Args:
            config: May have a dict of options under `file_cache_opts`. `HEADRACE_FILE_CACHE_OPTS` (JSON) overrides it.

        Raises:
            ConfigError: An option is wrong.
            CacheError: The folder cannot be used.
        """
        return cls(**FileCacheOptions.gather(config).to_arguments())

    @property
    def cache_directory(self) -> str:
        """The folder, absolute, links resolved."""
        return self._folder.root

    def _card(self) -> Card:
        counted = self.counters
        facts = [
            ("folder", self.cache_directory),
            ("copies", f"{counted.num_copies:,} copies made ({counted.copied_bytes:,} bytes)"),
            ("hits", f"{counted.num_hits:,} found"),
        ]
        return Card(type(self).__name__, facts)

    @property
    def counters(self) -> CacheCounters:
        """Counters so far; still available after `close`."""
        removed = {"num_removed": self._folder.num_removed, "removed_bytes": self._folder.removed_bytes}
        with self._changed:
            return CacheCounters(**self._counts, **removed)

    @property
    def prefetch_failures(self) -> dict[str, str]:
        """What the last `prefetch` could not fetch: source -> error text. `get_file` of it raises the error."""
        with self._changed:
            return dict(self._failures)

    def get_file(self, src: str | os.PathLike[str]) -> str:
        """Return the path of a copy, made now if there is none; it stays until it is released.

        If another process makes the copy, this waits for it. A copy that exists costs one check of the source and some
        ten system calls.

        Args:
            src: Absolute path or URL.

        Raises:
            ConfigError: The path is relative, or one in the cache itself.
            SourceError: The source is missing, cannot be read, or changes while it is read.
            CacheError: There is no room, or another process that makes the copy gives no sign of life.
        """
        self._check_open()
        source = plain_source(src)
        if source.startswith(f"{self._folder.root}/"):
            raise ConfigError("this is a path in the cache itself", where=source, fix="pass get_file the source, once")
        for num_changes in range(1, _MAX_CHANGES + 1):
            try:
                path = self._get(source)
                break
            except FetchStoppedError:
                raise _closed_error() from None
            except SourceChangedError:
                if num_changes == _MAX_CHANGES:
                    raise
        with self._changed:
            self._planned.subtract([source_digest(source)])
            self._awaited.discard(source_digest(source))
        return path

    def release_files(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        """Release one use of a copy, or of several; once for each `get_file`.

        They stay on the disk, and may be removed when room is needed. A path that is not held is ignored.

        Args:
            paths: What `get_file` returned.
        """
        self._check_open()
        with self._changed:
            for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
                if locks := self._held.get(os.fspath(path)):
                    locks.pop().close()
            self._changed.notify_all()

    def handle_cached_files_in_config(self, config: Any) -> tuple[Any, list[str]]:
        """Get every `CachedFile` in a nested structure.

        Args:
            config: Dicts, lists and tuples in each other; it is not changed.

        Returns:
            The structure with paths instead (parts without any are the same objects), and these paths, one for each
            `CachedFile`, to be released.

        Raises:
            SourceError: As in `get_file`; nothing is held then.
            CacheError: As in `get_file`; nothing is held then.
        """
        paths: list[str] = []

        def get(file: CachedFile) -> str:
            paths.append(self.get_file(file.filename))
            return paths[-1]

        try:
            return replace_cached_files(config, get), paths
        except BaseException:
            self.release_files(paths)
            raise

    def set_plan(self, sources: Iterable[str | os.PathLike[str]]) -> None:
        """Set which files will be needed from now on, in order.

        Their copies count as used now, the one needed soonest last; so all processes that use the folder remove others
        first. The prefetch of this cache does not remove them at all. Each `get_file` takes its file off the plan.

        Args:
            sources: Paths and URLs; one may occur several times. Replaces the previous plan.
        """
        self._check_open()
        digests = [source_digest(plain_source(source)) for source in sources]
        with self._changed:
            self._planned = Counter(digests)
        if not digests:
            return
        self._folder.make()
        places, now = dict(zip(reversed(digests), range(len(digests)), strict=True)), time.time_ns()
        for name in os.listdir(self._folder.entries):
            place = places.get(name.partition("-")[0])
            if place is not None:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(f"{self._folder.entries}/{name}", ns=(now, now + place * 1000))

    def prefetch(self, sources: Iterable[str | os.PathLike[str]]) -> None:
        """Copy files in the background, some at a time, in this order; return at once.

        Nothing is removed for them that this cache has planned or copied ahead; without room this waits.

        Args:
            sources: Paths and URLs. Replaces what is left of an earlier call.
        """
        self._check_open()
        plain = list(dict.fromkeys(plain_source(source) for source in sources))
        with self._changed:
            self._ahead, self._awaited = deque(plain), set(map(source_digest, plain))
            self._failures = {}
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for _ in range(min(len(plain), _NUM_THREADS - len(self._threads))):
                thread = threading.Thread(target=self._copy_ahead, name="headrace-file-cache", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def wait_prefetched(self, timeout_seconds: float | None = None) -> bool:
        """Wait until each file of the last `prefetch` is copied or has failed; return False if it takes longer.

        Without a limit this may wait for ever, if there is no room. A file that another process copies counts as done.
        """
        self._check_open()
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._ahead or self._current) or self._stop.is_set(), timeout_seconds
            )

    def cleanup(self, *, need_at_least_free_space_size: int = 0) -> None:
        """Remove what was not used for long, and more until enough is free on the disk. Looks at the whole folder.

        Args:
            need_at_least_free_space_size: Bytes that must be free afterwards.

        Raises:
            CacheError: This much cannot be freed.
        """
        self._check_open()
        self._folder.make()
        self._folder.clean()
        self._folder.make_room(None, need_at_least_free_space_size)

    def close(self) -> None:
        """Release all files, and end the prefetch within a second. A second call does nothing.

        A local file that is copied ahead just now is copied to its end in the background.
        """
        if self._pid != os.getpid():
            return
        with self._changed:
            self._stop.set()
            self._ahead.clear()
            for lock in itertools.chain(*self._held.values()):
                lock.close()
            self._held.clear()
            self._changed.notify_all()
            threads = self._threads
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as options: a copy holds nothing."""
        return functools.partial(type(self), **self.options.to_arguments()), ()

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise _closed_error()
        if self._pid != os.getpid():  # forked: locks and threads are the parent's
            self._begin()

    def _get(self, source: str) -> str:
        try:
            stat = stat_source(source, options=self.options.fetch_options)
        except SourceError as error:
            return self._get_unchecked(source, error)
        key = EntryKey.of(source, stat)
        lock = self._find(key)
        if lock is not None:
            return self._hold(key, source, lock, "num_hits")
        patience = StallTimeout(self.options.wait_seconds)
        with self._shown.part(stat.size) as tell:
            while (lock := self._find(key) or self._make(source, stat, key, tell)) is None:
                progress = self._folder.progress(key)
                tell(progress[0])  # of the process that makes it
                if not patience.pause(progress):
                    limit = f"without a sign of life for {self.options.wait_seconds:g} s"
                    what = f"waited for {self._folder.users_of(key)} to make the copy of this file, {limit}"
                    fix = "check that process, or raise wait_seconds"
                    raise CacheError(what, where=shown_url(source), fix=fix)
        return self._hold(key, source, lock, "num_copies")

    def _get_unchecked(self, source: str, error: SourceError) -> str:
        """Return the newest copy of a source that cannot be checked; raise if it is gone, or there is no copy."""
        digest = source_digest(source)
        for state in () if is_gone(error) else reversed(self._folder.survey()):
            lock = self._find(state.key) if state.key.source == digest else None
            if lock is not None:
                what = f"the file cache uses its copy of {shown_url(source)}, because the source cannot be checked for "
                what += f"changes: {error.what}"
                warnings.warn(what, RuntimeWarning, stacklevel=4)  # of the caller of `get_file`
                return self._hold(state.key, source, lock, "num_hits")
        raise error

    def _find(self, key: EntryKey) -> FileLock | None:
        """Return a shared lock on a whole copy, None if there is none. Some ten system calls; no source is asked."""
        lock = lock_shared_nowait(self._folder.entry_path(key))
        if lock is not None and self._folder.record_of(key, lock.descriptor) is None:
            lock.close()
            return None
        return lock

    def _make(
        self, source: str, stat: SourceStat, key: EntryKey, tell: Callable[[int], None] | None = None
    ) -> FileLock | None:
        """Make a copy, unless the entry is locked: then return None. Where the disk gets full, try it again.

        Args:
            source: Path or URL.
            stat: Its version.
            key: The key of both.
            tell: Called with how many bytes are there; None: it is copied ahead.
        """
        for num_tries in itertools.count(1):
            lock, folder = None, self._folder
            try:
                if (lock := folder.lock_nowait(key)) is None:
                    return None
                if folder.record_of(key, lock.descriptor) is None:
                    self._fill(source, stat, key, lock, tell)
                return lock if lock.share_nowait() else None
            except BaseException as error:
                if lock is not None:
                    with contextlib.suppress(OSError):  # what has no record goes with the next cleanup
                        folder.clear(key, lock)
                        os.unlink(lock.path)
                    lock.close()
                if not isinstance(error, OSError):
                    raise
                if error.errno not in NO_SPACE or num_tries == self.options.num_tries:
                    what = f"the copy of {format_bytes(stat.size)} cannot be written: {error.strerror or error}"
                    fix = "free some of the disk, or set cache_directory"
                    where = f"{shown_url(source)} to {folder.root}"
                    raise CacheError(f"{what}; {folder.describe()}", where=where, fix=fix) from error
            folder.make_room(None, 0, forced_bytes=max(1, stat.size))
            if self._stop.wait(0.1 * 2.0**num_tries):
                raise FetchStoppedError
        raise AssertionError

    def _fill(
        self, source: str, stat: SourceStat, key: EntryKey, lock: FileLock, tell: Callable[[int], None] | None
    ) -> None:
        folder, path, fetch = self._folder, self._folder.data_path(key, source), self.options.fetch_options
        folder.clear(key, lock)
        self._take_room(key, is_ahead=tell is None)
        fetch_to(source, path, stat, options=fetch, stop=self._stop, tell=tell or (lambda _: None))
        os.chmod(path, 0o400)
        mtime_ns = derive_mtime_ns(source, stat)
        os.utime(path, ns=(mtime_ns, mtime_ns))
        mtime_ns = os.stat(path).st_mtime_ns  # some disks keep less of it
        os.pwrite(lock.descriptor, EntryRecord.of(source, stat, mtime_ns=mtime_ns).encode(), 0)
        with self._changed:
            self._counts.update({"num_prefetched": 1} if tell is None else {"copied_bytes": stat.size})

    def _take_room(self, key: EntryKey, *, is_ahead: bool) -> None:
        patience = StallTimeout(self.options.wait_seconds)
        while True:
            try:
                if is_ahead:
                    free_bytes = round(key.size * self.options.cleanup_disk_usage_wanted_multiplier)
                    return self._folder.make_room(key, free_bytes, may_remove=self._may_go_for_later)
                return self._folder.make_room(key, key.size)
            except NoRoomError as error:
                if is_ahead or not error.is_passing or not patience.pause(self._folder.used_bytes()):
                    raise

    def _may_go_for_later(self, key: EntryKey) -> bool:
        with self._changed:
            return self._planned[key.source] <= 0 and key.source not in self._awaited

    def _hold(self, key: EntryKey, source: str, lock: FileLock, counter: str) -> str:
        """Hold a copy from now on; return its path."""
        path = self._folder.data_path(key, source)
        with self._changed:
            if self._stop.is_set():
                lock.close()
                raise _closed_error()
            with contextlib.suppress(OSError):
                os.utime(lock.descriptor)
            self._counts[counter] += 1
            self._held.setdefault(path, []).append(lock)
            return path

    def _copy_ahead(self) -> None:
        """Copy ahead until nothing is left: the work of a background thread."""
        while True:
            with self._changed:
                if not self._ahead or self._stop.is_set():
                    self._threads.remove(threading.current_thread())
                    return
                source = self._ahead.popleft()
                self._current.append(source)
            failure, has_room = None, True
            try:
                stat = stat_source(source, options=self.options.fetch_options)
                key = EntryKey.of(source, stat)
                lock = self._find(key) or self._make(source, stat, key)
                if lock is not None:
                    lock.close()
            except NoRoomError:
                has_room = False
            except FetchStoppedError:
                pass
            except Exception as error:  # noqa: BLE001 - the end of a thread: a caller that needs the file gets the error
                failure = f"{type(error).__name__}: {error}"
            with self._changed:
                self._current.remove(source)
                if failure is not None:
                    self._failures[source] = failure
                if not has_room and source_digest(source) in self._awaited and source not in self._ahead:
                    self._ahead.appendleft(source)
                self._changed.notify_all()
                if not (has_room or self._stop.is_set()):
                    self._changed.wait(_LOOK_SECONDS)


def _closed_error() -> CacheError:
    return CacheError("the file cache is closed", fix="make a new one, or close it later")
