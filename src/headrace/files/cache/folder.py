"""The folder of a cache: its layout, how copies appear and vanish, and what it holds.

* `entries/<key>.json`: lock of a copy and, when it is whole, its record; its modification time is the last use.
* `data/<key>/<name>`: the copy.
* `parts/<key>-<boot>/`: a copy in the making; it counts as `size` bytes from the start, so that its room is reserved.
* `plans/*.json`: which files a process will need, in order.
* `room.lock`: held while room is made; its modification time is that of the last full cleanup.

Invariants: `data/<key>` and `parts/<key>-*` change only under the exclusive lock of the entry; a record is written last
and goes first. The name of a part tells the machine's boot: two nodes over one network disk that keeps their locks
apart never write to the same file. The folder belongs to one user (mode 0700). So do those above it at the default
location, which others can predict; elsewhere it is not defended against users who may write there.

A `survey` takes no locks, so its result may be out of date: lock an entry before removing it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import stat
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from headrace.errors import CacheError

from ..kept import make_named, make_private
from ..locations import boot_id
from ..locks import FileLock, LockTable, lock_exclusive_nowait
from .entry import EntryKey, EntryRecord, name_of, parse_source_text, size_in

_PART_NAME = "part"
_ALLOCATED_BYTES = 512  # the unit of st_blocks, whatever the file system


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Bytes on the disk of the cache: `free` for this user, and `total`."""

    free: int
    total: int


class CacheFolder:
    """The folder and its layout.

    Args:
        root: The folder; made if it is missing, with mode 0700.
        trusted: The folder above it below which all must be this user's own, see `make_private`; `None`: the user named
            the folder, and vouches for it.

    Raises:
        CacheError: It cannot be made or written to, belongs to another user, or its disk offers no locks.
    """

    def __init__(self, root: str, *, trusted: str | None = None) -> None:
        self._given, self._trusted = root, trusted
        self.root = os.path.realpath(root)
        self.boot = boot_digest()
        self.room_path = f"{self.root}/room.lock"
        self.entries, self.data, self.parts, self.plans = (
            f"{self.root}/{name}" for name in ("entries", "data", "parts", "plans")
        )
        self.make()
        lock = lock_exclusive_nowait(self.room_path)  # does the disk support locks? "Held by another" is an answer too
        if lock is not None:
            lock.close()

    def make(self) -> None:
        """Make missing folders, also later on: a system cleaner may have removed them."""
        try:
            if self._trusted is None:
                make_named(self.root)
            else:
                make_private(self._given, trusted=self._trusted)
            owners = {os.geteuid(), os.stat(self.root).st_uid}
            for path in (self.entries, self.data, self.parts, self.plans):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
                status = os.lstat(path)
                if not stat.S_ISDIR(status.st_mode):
                    raise CacheError("this is a link or a file, not a folder of the cache", where=path, fix="remove it")
                if status.st_uid not in owners:
                    what = f"this part of the cache belongs to user {status.st_uid}, and this is user {os.geteuid()}"
                    raise CacheError(what, where=path, fix="remove it")
        except OSError as error:
            what = f"the cache folder cannot be made: {error.strerror}"
            fix = "choose a folder that you may write to: cache_directory=..."
            raise CacheError(what, where=str(error.filename or self.root), fix=fix) from error

    def contains(self, path: str) -> bool:
        """Whether a path is in this folder, in the form that the cache returns. Links are not resolved."""
        return path.startswith(f"{self.root}/")

    def entry_path(self, key: EntryKey) -> str:
        """Return the path of lock and record."""
        return f"{self.entries}/{key.text}.json"

    def data_path(self, key: EntryKey, name: str) -> str:
        """Return the path of the copy."""
        return f"{self.data}/{key.text}/{name}"

    def part_path(self, key: EntryKey) -> str:
        """Return the path of the unfinished copy; it is short, so that the side file can have a longer name."""
        return f"{self._part_folder(key)}/{_PART_NAME}"

    def is_intact(self, record: EntryRecord, path: str) -> bool:
        """Whether a copy is as it was written, judged by size, time and whether the machine was rebooted."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        return (
            stat.S_ISREG(status.st_mode)
            and (status.st_size, status.st_mtime_ns) == (record.size, record.mtime_ns)
            and (record.is_on_disk == 1 or record.boot == self.boot)
        )

    def has_part(self, key: EntryKey) -> bool:
        """Whether room is reserved for a copy, by this boot of the machine."""
        return os.path.lexists(self._part_folder(key))

    def reserve(self, key: EntryKey) -> None:
        """Reserve room for a copy: its part exists from now on. The exclusive lock of the entry must be held."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._part_folder(key), 0o700)

    def publish(self, key: EntryKey, name: str, mtime_ns: int) -> int:
        """Make a finished part the copy; return its modification time. The exclusive lock must be held."""
        part, folder = self._part_folder(key), f"{self.data}/{key.text}"
        for other in os.listdir(part):
            if other != _PART_NAME:  # the side file
                _remove_tree(f"{part}/{other}")
        path = self.part_path(key)
        os.chmod(path, 0o400)  # against writing to a copy by mistake
        os.utime(path, ns=(mtime_ns, mtime_ns))
        os.rename(path, f"{part}/{name}")
        os.rename(part, folder)
        return os.lstat(self.data_path(key, name)).st_mtime_ns  # a coarse file system rounds it

    def remove(self, key: EntryKey, lock: FileLock) -> None:
        """Remove all of an entry, whose exclusive lock is given, and the lock with it.

        Raises:
            OSError: The disk refused. Any remains have no record.
        """
        os.ftruncate(lock.descriptor, 0)
        _remove_tree(f"{self.data}/{key.text}")
        for name in self.part_names():
            if name.startswith(f"{key.text}-"):
                _remove_tree(f"{self.parts}/{name}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(lock.path)
        lock.close()

    def part_names(self) -> list[str]:
        """Return the names of the parts: all but the last 17 characters of one are the text of its key."""
        return os.listdir(self.parts)

    def written_bytes(self, part_name: str) -> tuple[int, float]:
        """Return the allocated bytes of a part, and when it was last written to."""
        allocated, latest = 0, 0.0
        with contextlib.suppress(OSError), os.scandir(f"{self.parts}/{part_name}") as found:
            for file in found:
                status = file.stat(follow_symlinks=False)
                allocated += status.st_blocks * _ALLOCATED_BYTES
                latest = max(latest, status.st_mtime)
        return allocated, latest

    def part_name(self, key: EntryKey) -> str:
        """Return the name of the part that this boot of the machine makes."""
        return f"{key.text}-{self.boot}"

    def progress(self) -> tuple[object, ...]:
        """Return a value that changes when any process continues a copy."""
        return tuple((name, *self.written_bytes(name)) for name in sorted(self.part_names()))

    def used_bytes(self) -> int:
        """Return the bytes that the quota counts: copies, and unfinished ones with their final size. Lists two folders.

        A part that becomes a copy meanwhile is counted, and once: the parts are listed first.
        """
        parts = self.part_names()
        ours = {name.removesuffix(f"-{self.boot}") for name in parts}  # those of other boots keep their whole name
        return sum(map(size_in, [*ours, *(name for name in os.listdir(self.data) if name not in ours)]))

    def pending_bytes(self, but_for: EntryKey | None) -> int:
        """Return how much the unfinished copies, except for one, will still take from the disk."""
        keys = ((name, EntryKey.parse(name)) for name in self.part_names())
        others = ((name, key) for name, key in keys if key is not None and key != but_for)
        return sum(max(0, key.size - self.written_bytes(name)[0]) for name, key in others)

    def clear(self, key: EntryKey) -> None:
        """Remove the remains of a copy that never got its record. The exclusive lock must be held."""
        _remove_tree(f"{self.data}/{key.text}")

    def disk_space(self) -> DiskSpace:
        """Return the free and total bytes of the disk."""
        status = os.statvfs(self.root)
        return DiskSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)

    def _part_folder(self, key: EntryKey) -> str:
        return f"{self.parts}/{self.part_name(key)}"


@functools.lru_cache(maxsize=1)
def boot_digest() -> str:
    """Return 16 hex digits that identify this boot of this machine."""
    return xxhash.xxh3_64_hexdigest((boot_id() or socket.gethostname()).encode())


def _remove_tree(path: str) -> None:
    """Remove a file, a link or a folder, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):  # which of the two depends on the system
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


@dataclass(frozen=True, slots=True)
class EntryState:
    """What the folder holds for one key.

    Attributes:
        key: The key.
        has_copy: Whether there is a copy; its record may be missing, if its process was killed just before it wrote it.
        num_bytes: Bytes that the quota counts for it: the size for the copy, and the same for each part.
        last_use: When it was used last, or last written to, in seconds since 1970.
        is_foreign: Whether it has only parts of another boot, or another machine.
    """

    key: EntryKey
    has_copy: bool
    num_bytes: int
    last_use: float
    is_foreign: bool


def survey(folder: CacheFolder) -> list[EntryState]:
    """Return the state of all entries, grouped by source. Lists three folders and stats each file.

    A part that becomes a copy meanwhile is seen: the parts are listed first.
    """
    parts: dict[str, list[str]] = {}
    for name in folder.part_names():
        key = EntryKey.parse(name)
        if key is not None:
            parts.setdefault(key.text, []).append(name)
    copies = set(os.listdir(folder.data))
    last_uses: dict[str, float] = {}
    with os.scandir(folder.entries) as found:
        for entry in found:
            with contextlib.suppress(OSError):
                last_uses[entry.name.removesuffix(".json")] = entry.stat(follow_symlinks=False).st_mtime
    states = []
    for text in sorted({*parts, *copies, *last_uses}):
        key = EntryKey.parse(text)
        if key is None:
            continue
        if text in copies and text in last_uses and text not in parts:  # nearly all
            states.append(EntryState(key, True, key.size, last_uses[text], False))
        else:
            states.append(_state(folder, key, text in copies, parts.get(text, ()), last_uses.get(text)))
    return states


def record_of(folder: CacheFolder, state: EntryState) -> EntryRecord | None:
    """Return the record of a copy, or None if it is not whole or was changed. Reads a small file."""
    if not state.has_copy:
        return None
    try:
        descriptor = os.open(folder.entry_path(state.key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        record = EntryRecord.parse(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    finally:
        os.close(descriptor)
    if record is None:
        return None
    source = parse_source_text(record.source)
    path = folder.data_path(state.key, name_of(source))
    return record if record.describes(state.key, source) and folder.is_intact(record, path) else None


def copies_of(folder: CacheFolder, source_digest: str) -> list[tuple[EntryKey, EntryRecord]]:
    """Return the whole copies of a source, of any version. Lists a folder."""
    keys = [EntryKey.parse(name) for name in os.listdir(folder.data) if name.startswith(source_digest)]
    found = ((key, record_of(folder, _state(folder, key, True, (), 0.0))) for key in keys if key is not None)
    return [(key, record) for key, record in found if record is not None]


def is_in_use(folder: CacheFolder, key: EntryKey) -> bool:
    """Whether an entry is locked at this moment."""
    path = folder.entry_path(key)
    lock = lock_exclusive_nowait(path, create=False)
    if lock is not None:
        lock.close()
        return False
    return os.path.lexists(path)


def users_of(folder: CacheFolder, key: EntryKey, table: LockTable | None = None) -> str:
    """Name the processes that lock an entry, for messages; `table` saves reading the locks of the system again."""
    holders = (table or LockTable()).holders_of(folder.entry_path(key))
    return ", ".join(holders) or "a process that this one cannot see"


def find_users(folder: CacheFolder, key: EntryKey, table: LockTable) -> str | None:
    """Name the processes that lock an entry, `None` if none does; the lock is tried only if the table has no holder."""
    if table.holders_of(folder.entry_path(key)) or is_in_use(folder, key):
        return users_of(folder, key, table)
    return None


def _state(
    folder: CacheFolder, key: EntryKey, has_copy: bool, parts: Sequence[str], last_use: float | None
) -> EntryState:
    times = [folder.written_bytes(name)[1] for name in parts]
    if last_use is not None:
        times.append(last_use)
    elif has_copy:  # its lock was removed
        with contextlib.suppress(OSError):
            times.append(os.lstat(f"{folder.data}/{key.text}").st_mtime)
    is_foreign = not has_copy and bool(parts) and not any(name.endswith(folder.boot) for name in parts)
    return EntryState(key, has_copy, key.size * (len(parts) + has_copy), max(times, default=0.0), is_foreign)
