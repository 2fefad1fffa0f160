"""The folder of a cache: its layout, what it holds, and how room is made in it.

* `entries/<key>.json`: lock of a copy and, when it is whole, its record; its modification time is the last use.
* `data/<key>/<name>`: the copy, with `.part` behind its name while it is made; its room is reserved from the start.
* `room.lock`: held while room is made; its modification time is that of the last cleanup.

Invariants: `data/<key>` changes only under the exclusive lock of the entry; a record is written last and goes first.
So a process that is killed leaves no record of what is not whole, and its lock is free: the next process that looks for
room removes what it left. The folder belongs to one user (mode 0700). So do those above it at the default location,
which others can predict; elsewhere it is not defended against users who may write there.

A copy that nobody uses goes by its last use. Reading takes no part in that, only `get_file`, and a plan of what will be
read, which marks the copies that it names.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.errors import CacheError
from headrace.show.drawing import format_bytes

from ..kept import check_own, make_named, make_private
from ..locks import FileLock, describe_holders, lock_exclusive, lock_exclusive_nowait
from .entry import EntryKey, EntryRecord, name_of
from .options import DEFAULT_FOLDER, FileCacheOptions, expand_folder

DAY_SECONDS = 24 * 3600.0
_CLEANUP_SECONDS = 600.0  # between two automatic cleanups
_MAX_NAMED = 8  # users in an error message


class NoRoomError(CacheError):
    """What others use leaves no room for a copy now.

    Attributes:
        is_passing: Whether some of it is copies in the making, which may be removed when they are done.
    """

    is_passing = False


@dataclass(frozen=True, slots=True)
class EntryState:
    """What the folder holds for one key.

    Attributes:
        key: The key.
        num_bytes: Bytes that the quota counts for it: the size of the copy, whole or not; 0 for a mere lock.
        is_whole: Whether it has a record.
        last_use: When the copy was requested last, in seconds since 1970.
    """

    key: EntryKey
    num_bytes: int
    is_whole: bool
    last_use: float

    def is_due(self, options: FileCacheOptions, now: float, *, wants_room: bool) -> bool:
        """Whether it is removed if nobody uses it, even though no copy needs its room now.

        Args:
            options: Have the age limits.
            now: Seconds since 1970.
            wants_room: Whether less is free on the disk than should be.
        """
        days = (now - self.last_use) / DAY_SECONDS
        is_old = wants_room and days > options.cleanup_files_wanted_older_than_days
        return not self.is_whole or is_old or days > options.cleanup_files_always_older_than_days


class CacheFolder:
    """The folder; made if it is missing, with mode 0700.

    Args:
        options: The options of the cache.

    Attributes:
        root: Its path, links resolved.
        num_removed: Number of copies removed so far.
        removed_bytes: Their bytes.

    Raises:
        CacheError: It cannot be made or written to, belongs to another user, or its disk offers no locks.
    """

    def __init__(self, options: FileCacheOptions) -> None:
        self._options = options
        self.root = os.path.realpath(options.folder)
        self.entries, self.data, self._room = (f"{self.root}/{name}" for name in ("entries", "data", "room.lock"))
        self.num_removed = self.removed_bytes = 0
        self.make()
        lock = lock_exclusive_nowait(self._room)  # does the disk support locks? "Held by another" is an answer too
        if lock is not None:
            lock.close()

    def make(self) -> None:
        """Make missing folders, also later on: a system cleaner may have removed them."""
        if self._options.cache_directory == DEFAULT_FOLDER:
            make_private(self._options.folder, trusted=expand_folder("$TMPDIR"))
        else:
            make_named(self.root)
        for path in (self.entries, self.data):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            if os.path.islink(path):
                raise CacheError("a part of the cache is a link", where=path, fix="remove it")
            check_own(path)

    def entry_path(self, key: EntryKey) -> str:
        """Return the path of the lock of a copy."""
        return f"{self.entries}/{key.text}.json"

    def data_path(self, key: EntryKey, source: str) -> str:
        """Return the path of a copy."""
        return f"{self.data}/{key.text}/{name_of(source)}"

    def lock_nowait(self, key: EntryKey) -> FileLock | None:
        """Take the exclusive lock of an entry, which is made if it is missing."""
        try:
            return lock_exclusive_nowait(self.entry_path(key))
        except FileNotFoundError:
            self.make()
            return lock_exclusive_nowait(self.entry_path(key))

    def record_of(self, key: EntryKey, descriptor: int) -> EntryRecord | None:
        """Return the record in an open entry, or None if there is no whole copy, or it was changed."""
        record = EntryRecord.parse(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
        if record is None:
            return None
        try:
            status = os.lstat(self.data_path(key, record.source))
        except OSError:
            return None
        is_same = (status.st_size, status.st_mtime_ns) == (record.size, record.mtime_ns)
        return record if stat.S_ISREG(status.st_mode) and is_same else None

    def read_record(self, key: EntryKey) -> EntryRecord | None:
        """Return the record of a copy, without its lock; None as in `record_of`."""
        with contextlib.suppress(OSError), open(self.entry_path(key), "rb") as file:
            return self.record_of(key, file.fileno())
        return None

    def progress(self, key: EntryKey) -> tuple[int, float]:
        """Return how many bytes are there of a copy in the making, and when it was last written to."""
        num_bytes, latest = 0, 0.0
        with contextlib.suppress(OSError), os.scandir(f"{self.data}/{key.text}") as found:
            for file in found:
                status = file.stat(follow_symlinks=False)
                num_bytes, latest = num_bytes + status.st_blocks * 512, max(latest, status.st_mtime)
        return num_bytes, latest

    def survey(self) -> list[EntryState]:
        """Return the state of all entries, in the order in which they are removed. Takes no locks.

        Lists two folders and stats each entry. Lock an entry before removing it: the state may be out of date.
        """
        there, states = set(os.listdir(self.data)), []
        with os.scandir(self.entries) as found:
            for entry in found:
                text = entry.name.removesuffix(".json")
                key, is_there = EntryKey.parse(text), text in there
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if key is not None:
                        num_bytes, is_whole = key.size * is_there, is_there and status.st_size > 0
                        states.append(EntryState(key, num_bytes, is_whole, status.st_mtime))
                there.discard(text)
        lost = (EntryKey.parse(text) for text in there)  # their locks were removed
        states += [EntryState(key, key.size, is_whole=False, last_use=0.0) for key in lost if key is not None]
        return sorted(states, key=lambda state: (state.is_whole, state.last_use))

    def used_bytes(self) -> int:
        """Return the bytes that the quota counts: copies, and unfinished ones with their final size. Lists a folder."""
        keys = map(EntryKey.parse, os.listdir(self.data))
        return sum(key.size for key in keys if key is not None)

    def disk_space(self) -> tuple[int, int]:
        """Return the bytes of the disk that are free for this user, and the total."""
        status = os.statvfs(self.root)
        return status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize

    def describe(self) -> str:
        """Return how full the cache and its disk are, for messages."""
        quota = self._options.quota
        free, total = map(format_bytes, self.disk_space())
        limit = "no quota" if quota is None else f"a quota of {format_bytes(quota)}"
        return f"the copies have {format_bytes(self.used_bytes())} of {limit}; the disk has {free} free of {total}"

    def remove(self, state: EntryState, lock: FileLock) -> None:
        """Remove an entry under its exclusive lock, the record first, and count it."""
        self.clear(state.key, lock)
        os.unlink(self.entry_path(state.key))
        self.num_removed += state.is_whole
        self.removed_bytes += state.num_bytes

    def clear(self, key: EntryKey, lock: FileLock) -> None:
        """Remove a copy or what there is of it, under its exclusive lock; the record goes first."""
        os.ftruncate(lock.descriptor, 0)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(f"{self.data}/{key.text}")

    def try_remove(self, state: EntryState) -> bool:
        """Remove an entry unless somebody uses it; tell whether it was removed."""
        lock = self.lock_nowait(state.key)
        if lock is None:
            return False
        with contextlib.closing(lock):
            self.remove(state, lock)
        return True

    def clean(self) -> None:
        """Remove what is old, and what processes that ended have left."""
        now = time.time()
        for state in self.survey():
            free, total = self.disk_space()
            wants_room = free < self._options.cleanup_disk_usage_wanted_free_ratio * total
            if state.is_due(self._options, now, wants_room=wants_room):
                self.try_remove(state)

    def make_room(
        self,
        key: EntryKey | None,
        free_bytes: int,
        *,
        forced_bytes: int = 0,
        may_remove: Callable[[EntryKey], bool] = lambda _: True,
    ) -> None:
        """Remove copies that nobody uses, those used longest ago first, until there is room; then reserve it.

        Lists a folder; surveys all only if something must be removed, or the last cleanup was ten minutes ago.

        Args:
            key: What gets the room, by the lock of the caller. None: nothing.
            free_bytes: What must be free on the disk.
            forced_bytes: Remove this much in any case: the disk has refused a write, whatever it reports.
            may_remove: Whether a copy may go.

        Raises:
            NoRoomError: What others use leaves no room; nothing is removed.
            CacheError: There can never be room, or another process makes room and gives no sign of life.
        """
        size, quota = 0 if key is None else key.size, self._options.quota
        if quota is not None and size > quota:
            what = f"{format_bytes(size)} needed; {self.describe()}"
            raise CacheError(what, where=self.root, fix=f"raise max_bytes to at least {size}")
        self.make()
        room = lock_exclusive(self._room, limit_seconds=self._options.wait_seconds, purpose="make room in the cache")
        with contextlib.closing(room):
            if time.time() - os.fstat(room.descriptor).st_mtime > _CLEANUP_SECONDS:
                self.clean()
                os.utime(room.descriptor)
            missing = free_bytes - self.disk_space()[0]
            if quota is not None:
                missing = max(missing, self.used_bytes() + size - quota)
            if missing > 0 or forced_bytes:
                self._free(max(missing, 0), max(missing, forced_bytes), size or free_bytes, may_remove)
            if key is not None:
                os.mkdir(f"{self.data}/{key.text}", 0o700)

    def _free(self, must: int, wanted: int, size: int, may_remove: Callable[[EntryKey], bool]) -> None:
        locks: list[tuple[EntryState, FileLock]] = []
        held, found = [], 0
        try:
            for state in self.survey():
                if found >= wanted:
                    break
                if state.num_bytes and (not state.is_whole or may_remove(state.key)):
                    lock = self.lock_nowait(state.key)
                    if lock is None:
                        held.append(state)
                    else:
                        locks.append((state, lock))
                        found += state.num_bytes
            if found < must:
                raise self._no_room(size, must - found, held)
            for state, lock in locks:
                self.remove(state, lock)
        finally:
            for _, lock in locks:
                lock.close()

    def _no_room(self, size: int, missing: int, held: Sequence[EntryState]) -> NoRoomError:
        parts = [f"{format_bytes(size)} needed, {format_bytes(missing)} missing", self.describe()]
        if held:
            users = list(dict.fromkeys(self.users_of(state.key) for state in held))
            more = f" and {len(users) - _MAX_NAMED} more" if len(users) > _MAX_NAMED else ""
            total = format_bytes(sum(state.num_bytes for state in held))
            parts.append(f"{total} in {len(held)} files are in use by {'; '.join(users[:_MAX_NAMED])}{more}")
        fix = "release files that are not read any more (release_files), or raise max_bytes, or free some of the disk"
        error = NoRoomError(f"the file cache cannot free enough: {'; '.join(parts)}", where=self.root, fix=fix)
        error.is_passing = any(not state.is_whole for state in held)
        return error

    def users_of(self, key: EntryKey) -> str:
        """Name the processes that lock an entry, for messages."""
        return ", ".join(describe_holders(self.entry_path(key))) or "a process that this one cannot see"

    def find_users(self, key: EntryKey) -> str | None:
        """Name the processes that lock an entry, None if none does."""
        lock = lock_exclusive_nowait(self.entry_path(key), create=False)
        if lock is None:
            return self.users_of(key) if os.path.lexists(self.entry_path(key)) else None
        lock.close()
        return None
