"""Makes a whole copy of a source, with a record, or none.

The steps, all under the exclusive lock of the entry: room is taken, the bytes are fetched into a part (which continues
one that a killed process left), the part becomes the copy, the record is written. A process that ends in between leaves
a part or a copy without a record, which does not count; the kernel frees its lock, and the next process continues.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import xxhash

from headrace.errors import CacheError
from headrace.show.drawing import BYTES, format_bytes
from headrace.show.watched import SharedProgress

from ..fetch.fetch import SourceChangedError, SourceStat, fetch_to
from ..fetch.retry import NO_SPACE
from ..locations import shown_url
from ..locks import FileLock, StallTimeout, lock_exclusive_nowait, lock_shared_nowait
from .entry import ON_DISK_OFFSET, EntryKey, EntryRecord, derive_mtime_ns, name_of
from .folder import CacheFolder, users_of
from .options import FileCacheOptions
from .room import CacheRoom, Need, Shortage

_STEP_BYTES = 4 << 20
# A process that only checks whether a copy is in use (`headrace cache ls`) holds its lock for a moment, which must not
# look like a copy in the making. On a loaded machine that moment may be long.
_GLANCE_SECONDS = 2.0
_FIRST_WAIT_SECONDS = 0.1  # after a full disk, before the next try; doubles
_NUM_LOOKS, _LOOK_SECONDS = 4, 0.01  # how often, and how far apart, before a locked entry counts as in use
_ROOM_PAUSE_SECONDS = 0.5  # between two searches for room, each of which looks at everything


class CopyStoppedError(Exception):
    """A copy was stopped, by `close` or because its room is needed for another; the bytes so far are kept."""


class NoRoomError(Exception):
    """There is no room for a file that is not needed yet.

    Args:
        shortage: Why.
    """

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage)
        self.shortage = shortage


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A copy to make.

    Attributes:
        source: Path or URL.
        stat: Its version.
        key: The key of source and version.
        stop: Ends the copy soon after it is set.
        distance: How many files are needed before it; -1: it is needed now, and waits for room.
        tell: Called with how many bytes are there.
    """

    source: str
    stat: SourceStat
    key: EntryKey
    stop: threading.Event
    distance: float = -1.0
    tell: Callable[[int], None] = lambda _: None

    @property
    def is_needed_now(self) -> bool:
        """Whether a caller waits for it."""
        return self.distance < 0

    @property
    def name(self) -> str:
        """The source as messages show it."""
        return shown_url(self.source)


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole copy that stays as it is while `lock` is held.

    Attributes:
        path: Path of the copy.
        record: Its record.
        lock: A shared lock.
        is_new: Whether it was made by this call.
    """

    path: str
    record: EntryRecord
    lock: FileLock
    is_new: bool


class Copier:
    """Finds copies and makes them.

    Args:
        folder: The folder of the cache.
        room: Makes room there.
        options: Options of the cache.
        on_shortage: Called when a copy that is needed now has to wait for room that unfinished copies take.
    """

    def __init__(
        self, folder: CacheFolder, room: CacheRoom, options: FileCacheOptions, on_shortage: Callable[[], None]
    ) -> None:
        self._folder = folder
        self._room = room
        self._options = options
        self._on_shortage = on_shortage
        self._shown = SharedProgress("copying", BYTES)

    def find(self, key: EntryKey, source: str) -> Copy | None:
        """Return the copy if there is a whole one. Some ten system calls; the source is not asked."""
        lock = lock_shared_nowait(self._folder.entry_path(key))
        if lock is None:
            return None
        record = self._valid_record(lock, key, source)
        if record is None:
            lock.close()
            return None
        return Copy(self._folder.data_path(key, name_of(source)), record, lock, is_new=False)

    def get(self, task: CopyTask) -> Copy:
        """Return the copy; make it, or wait for the process that does. Who watches sees how far it is.

        Raises:
            CacheError: No room, or the process that makes the copy shows no sign of life.
            SourceError: The source cannot be read, or is of another version now.
        """
        for_copy = StallTimeout(self._options.wait_seconds, task.stop)
        for_glance = StallTimeout(max(self._options.wait_seconds, _GLANCE_SECONDS), task.stop)
        with self._shown.part(task.stat.size) as tell:
            task = replace(task, tell=tell)
            while True:
                copy = self.find(task.key, task.source) or self.make_nowait(task)
                if copy is not None:
                    return copy
                progress = self._folder.written_bytes(self._folder.part_name(task.key))
                tell(progress[0])  # of the process that makes it
                patience = for_copy if self._folder.has_part(task.key) else for_glance
                patience.pause(progress, functools.partial(self._give_up, task))

    def make_nowait(self, task: CopyTask) -> Copy | None:
        """Make the copy, unless the entry is locked: then return None.

        Raises:
            NoRoomError: It is not needed now, and there is no room for it.
            CopyStoppedError: It was stopped.
            CacheError: As `get`.
            SourceError: As `get`.
        """
        lock = self._lock_to_make(task)
        if lock is None:
            return None
        found = self._valid_record(lock, task.key, task.source)
        record = found or self._make(task, lock)
        if not lock.share_nowait():
            return None
        return Copy(self._folder.data_path(task.key, name_of(task.source)), record, lock, is_new=found is None)

    def settle(self, key: EntryKey, source: str) -> None:
        """Wait until the bytes of a copy are on the disk, and record that: the copy then survives a machine failure.

        Raises:
            OSError: They cannot be written, or the copy is gone.
        """
        path = self._folder.data_path(key, name_of(source))
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.fsync(descriptor)  # without a lock: it may take long, and would block the room for others
            copy = self.find(key, source)
            if copy is not None:
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)) and copy.record.is_on_disk == 0:
                    used = os.fstat(copy.lock.descriptor)
                    os.pwrite(copy.lock.descriptor, b"1", ON_DISK_OFFSET)
                    os.utime(copy.lock.descriptor, ns=(used.st_atime_ns, used.st_mtime_ns))  # not counted as a use
                copy.lock.close()
        finally:
            os.close(descriptor)

    def _valid_record(self, lock: FileLock, key: EntryKey, source: str) -> EntryRecord | None:
        record = EntryRecord.parse(lock.read())
        if record is None or not record.describes(key, source):
            return None
        return record if self._folder.is_intact(record, self._folder.data_path(key, name_of(source))) else None

    def _lock_to_make(self, task: CopyTask) -> FileLock | None:
        attempt = 1
        while True:
            try:
                return lock_exclusive_nowait(self._folder.entry_path(task.key))
            except FileNotFoundError:
                self._folder.make()
            except OSError as error:  # the disk is so full that not even an empty file can be made
                if error.errno not in NO_SPACE or attempt == self._options.num_tries:
                    raise self._cannot_write(task, error) from error
                self._room.make(Need(None, 0, task.distance, forced_bytes=1))
                _pause(attempt, task.stop)
                attempt += 1

    def _make(self, task: CopyTask, lock: FileLock) -> EntryRecord:
        """Make the copy under its exclusive lock. On failure the lock is released, and useless files are removed."""
        try:
            return self._try_to_make(task, lock)
        except BaseException as error:
            # The bytes of a source that is still the same are worth keeping: after a preemption, or a network failure.
            # The first cleanup that needs the room, or comes a day later, removes them.
            is_useless = isinstance(error, SourceChangedError | CacheError | OSError)
            with contextlib.suppress(OSError):  # without a record, a cleanup removes it later
                if is_useless or not self._folder.has_part(task.key):
                    self._folder.remove(task.key, lock)
                else:
                    os.ftruncate(lock.descriptor, 0)
            lock.close()
            if isinstance(error, OSError):
                raise self._cannot_write(task, error) from error
            raise

    def _try_to_make(self, task: CopyTask, lock: FileLock) -> EntryRecord:
        refused_bytes = 0
        for attempt in range(1, self._options.num_tries + 1):
            try:
                self._folder.clear(task.key)
                # Not a record, so that readers see no copy; it names the process that makes one, and reserves the block
                # of the record.
                lock.write(f'{{"made_by": "process {os.getpid()} on {socket.gethostname()}"}}'.encode())
                self._take_room(task, refused_bytes)
                fetch_to(
                    task.source,
                    self._folder.part_path(task.key),
                    task.stat,
                    options=self._options.fetch_options,
                    on_bytes=_byte_counter(task),
                )
                return self._publish(task, lock)
            except OSError as error:
                if error.errno not in NO_SPACE or attempt == self._options.num_tries:
                    raise
            refused_bytes = max(1, self._missing_bytes(task.key))
            _pause(attempt, task.stop)
        raise AssertionError

    def _take_room(self, task: CopyTask, refused_bytes: int) -> None:
        factor = 1.0 if task.is_needed_now else self._options.cleanup_disk_usage_wanted_multiplier
        patience = StallTimeout(self._options.wait_seconds, task.stop, max_pause_seconds=_ROOM_PAUSE_SECONDS)
        num_looks = 1
        while True:
            free_bytes = round(self._missing_bytes(task.key) * factor)
            need = Need(task.key, free_bytes, task.distance, forced_bytes=refused_bytes)
            shortage = self._room.make(need)
            if shortage is None:
                return
            if not task.is_needed_now:
                raise NoRoomError(shortage)
            if shortage.in_making:
                self._on_shortage()
                patience.pause(self._folder.progress(), functools.partial(_no_room, shortage, task.name))
            elif num_looks == _NUM_LOOKS:
                raise shortage.error(task.name)
            else:  # a process that checks for a copy holds its lock for some microseconds
                num_looks += 1
                task.stop.wait(_LOOK_SECONDS)

    def _publish(self, task: CopyTask, lock: FileLock) -> EntryRecord:
        checksum = None
        if self._options.fetch_options.checksum is not None:
            checksum = checksum_of(self._folder.part_path(task.key), task.stop)
        name, mtime_ns = name_of(task.source), derive_mtime_ns(task.source, task.stat)
        mtime_ns = self._folder.publish(task.key, name, mtime_ns)
        record = EntryRecord.of(task.source, task.stat, boot=self._folder.boot, mtime_ns=mtime_ns, checksum=checksum)
        lock.write(record.encode())
        return record

    def _missing_bytes(self, key: EntryKey) -> int:
        return max(0, key.size - self._folder.written_bytes(self._folder.part_name(key))[0])

    def _give_up(self, task: CopyTask, why: str) -> CacheError:
        users = users_of(self._folder, task.key)
        what = f"waited for {users} to make the copy of this file: {why}"
        return CacheError(what, where=task.name, fix="see what that process does, or raise wait_seconds")

    def _cannot_write(self, task: CopyTask, error: OSError) -> CacheError:
        what = f"the copy of {format_bytes(task.key.size)} cannot be written: {error.strerror or error}"
        if error.errno in NO_SPACE:
            what += f", after {self._options.num_tries} tries; {self._room.numbers().text}"
        fix = "free some of the disk, or choose another with cache_directory"
        return CacheError(what, where=f"{task.name} to {self._folder.root}", fix=fix)


def checksum_of(path: str, stop: threading.Event | None = None) -> str:
    """Return `"xxh3:"` and the XXH3-128 of a file. Reads all of it.

    Raises:
        CopyStoppedError: `stop` was set.
        OSError: It cannot be read.
    """
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_STEP_BYTES):
            digest.update(data)
            if stop is not None:
                _check_stopped(stop)
    return f"xxh3:{digest.hexdigest()}"


def _no_room(shortage: Shortage, name: str, why: str) -> CacheError:
    error = shortage.error(name)
    error.add_note(f"waited for the copies in the making: {why}")
    return error


def _byte_counter(task: CopyTask) -> Callable[[int], None]:
    """Return what is told of the bytes of a fetch, passes on how many are there, and may stop it."""
    num_bytes = 0

    def take(num_added: int) -> None:
        nonlocal num_bytes
        num_bytes += num_added
        task.tell(num_bytes)
        _check_stopped(task.stop)

    return take


def _check_stopped(stop: threading.Event) -> None:
    if stop.is_set():
        raise CopyStoppedError


def _pause(attempt: int, stop: threading.Event) -> None:
    stop.wait(_FIRST_WAIT_SECONDS * 2.0**attempt)
    _check_stopped(stop)
