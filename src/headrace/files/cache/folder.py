"""The folder of a cache: where copies lie, how they appear and vanish, and what the folder holds.

* `entries/<key>.json`: lock of a copy and, when it is whole, its record; its modification time is the last use.
* `data/<key>/<name>`: the copy.
* `parts/<key>-<boot>/`: a copy in the making; it counts as `size` bytes from the start: nobody else takes the room.
* `plans/*.json`: which files a process will need, in order.
* `room.lock`: held while room is made; its modification time is that of the last full cleanup.

Invariants: `data/<key>` and `parts/<key>-*` change only under the exclusive lock of the entry; a record is written last
and goes first. The name of a part tells the machine's boot: two nodes over one network disk that keeps their locks
apart never write to the same file. The folder belongs to one user (mode 0700). So do those above it at the default
place, which others can foresee; elsewhere it is not defended against those whom its user lets write there.

Nothing is locked for a `survey`, so others may be changing what is seen: whoever removes something locks it first.
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
from ..locks import FileLock, LockTable, lock_exclusive_nowait
from ..places import boot_id
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
        trusted: The folder above it from which on all must be this user's own, see `make_private`; `None`: the user
            named the folder, and vouches for the place.

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
        lock = lock_exclusive_nowait(self.room_path)  # are there locks at all? "Held by another" is an answer too
        if lock is not None:
            lock.close()

    def make(self) -> None:
        """Make what is missing: also in the middle of work, after a cleaner of the system removed the folder."""
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
        """Whether a path is one in this folder, as the cache hands them out. Links are not looked at: this is cheap."""
        return path.startswith(f"{self.root}/")

    def entry_path(self, key: EntryKey) -> str:
        """Return where lock and record are."""
        return f"{self.entries}/{key.text}.json"

    def data_path(self, key: EntryKey, name: str) -> str:
        """Return where the copy is."""
        return f"{self.data}/{key.text}/{name}"

    def part_path(self, key: EntryKey) -> str:
        """Return where the copy is made; the name is short, so that what is noted beside it can have a longer one."""
        return f"{self._part_folder(key)}/{_PART_NAME}"

    def is_intact(self, record: EntryRecord, path: str) -> bool:
        """Whether a copy is as it was written, as far as size, time and the fate of the machine tell."""
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
        """Whether room is taken for a copy, by this boot of the machine."""
        return os.path.lexists(self._part_folder(key))

    def reserve(self, key: EntryKey) -> None:
        """Take room for a copy: its part exists from now on. The exclusive lock of the entry must be held."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._part_folder(key), 0o700)

    def publish(self, key: EntryKey, name: str, mtime_ns: int) -> int:
        """Make a finished part the copy; return its modification time. The exclusive lock must be held."""
        part, folder = self._part_folder(key), f"{self.data}/{key.text}"
        for other in os.listdir(part):
            if other != _PART_NAME:  # what was noted beside it
                _remove_tree(f"{part}/{other}")
        path = self.part_path(key)
        os.chmod(path, 0o400)  # nobody writes to a copy by mistake
        os.utime(path, ns=(mtime_ns, mtime_ns))
        os.rename(path, f"{part}/{name}")
        os.rename(part, folder)
        return os.lstat(self.data_path(key, name)).st_mtime_ns  # a coarse file system rounds it

    def remove(self, key: EntryKey, lock: FileLock) -> None:
        """Remove all of an entry, whose exclusive lock is given, and the lock with it.

        Raises:
            OSError: The disk refused. What is left has no record.
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
        """Return how much of a part has room on the disk, and when it was written to last."""
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
        """Return something that changes when anybody goes on with a copy."""
        return tuple((name, *self.written_bytes(name)) for name in sorted(self.part_names()))

    def used_bytes(self) -> int:
        """Return what the quota counts: copies, and those in the making with their final size. Lists two folders.

        A part that becomes a copy meanwhile is counted, and once: the parts are listed first.
        """
        parts = self.part_names()
        ours = {name.removesuffix(f"-{self.boot}") for name in parts}  # those of other boots keep their whole name
        return sum(map(size_in, [*ours, *(name for name in os.listdir(self.data) if name not in ours)]))

    def pending_bytes(self, but_for: EntryKey | None) -> int:
        """Return how much the copies in the making, but for one, will still take from the disk."""
        keys = ((name, EntryKey.parse(name)) for name in self.part_names())
        others = ((name, key) for name, key in keys if key is not None and key != but_for)
        return sum(max(0, key.size - self.written_bytes(name)[0]) for name, key in others)

    def clear(self, key: EntryKey) -> None:
        """Remove what a copy that never got its record left. The exclusive lock must be held."""
        _remove_tree(f"{self.data}/{key.text}")

    def disk_space(self) -> DiskSpace:
        """Ask the disk."""
        status = os.statvfs(self.root)
        return DiskSpace(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)

    def _part_folder(self, key: EntryKey) -> str:
        return f"{self.parts}/{self.part_name(key)}"


@functools.lru_cache(maxsize=1)
def boot_digest() -> str:
    """Return 16 hex digits that stand for this boot of this machine."""
    return xxhash.xxh3_64_hexdigest((boot_id() or socket.gethostname()).encode())


def _remove_tree(path: str) -> None:
    """Remove a file, a link or a folder, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):  # which of the two is left to the system
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


@dataclass(frozen=True, slots=True)
class EntryState:
    """What the folder holds of one key.

    Attributes:
        key: Which.
        has_copy: Whether there is a copy; its record may be missing, if its process was killed just before it wrote it.
        num_bytes: What the quota counts for it: the size for the copy, and the same for each part.
        last_use: When it was used last, or last written to, in seconds since 1970.
        is_foreign: Whether all there is are parts of another boot, or another machine.
    """

    key: EntryKey
    has_copy: bool
    num_bytes: int
    last_use: float
    is_foreign: bool


def survey(folder: CacheFolder) -> list[EntryState]:
    """Look at everything; those of one source follow each other. Lists three folders, asks for the time of each file.

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
    """Return what is known of a copy, or None if it is not whole and as it was written. Reads a small file."""
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
    """Whether anybody has a lock on an entry at this moment."""
    path = folder.entry_path(key)
    lock = lock_exclusive_nowait(path, create=False)
    if lock is not None:
        lock.close()
        return False
    return os.path.lexists(path)


def users_of(folder: CacheFolder, key: EntryKey, table: LockTable | None = None) -> str:
    """Name who has a lock on an entry, for messages; a table of the locks, if there is one, saves making one."""
    holders = (table or LockTable()).holders_of(folder.entry_path(key))
    return ", ".join(holders) or "a process that this one cannot see"


def find_users(folder: CacheFolder, key: EntryKey, table: LockTable) -> str | None:
    """Name who has a lock on an entry, `None` if nobody has; the lock is tried only if the table names nobody."""
    if table.holders_of(folder.entry_path(key)) or is_in_use(folder, key):
        return users_of(folder, key, table)
    return None


def _state(
    folder: CacheFolder, key: EntryKey, has_copy: bool, parts: Sequence[str], last_use: float | None
) -> EntryState:
    times = [folder.written_bytes(name)[1] for name in parts]
    if last_use is not None:
        times.append(last_use)
    elif has_copy:  # somebody removed its lock
        with contextlib.suppress(OSError):
            times.append(os.lstat(f"{folder.data}/{key.text}").st_mtime)
    is_foreign = not has_copy and bool(parts) and not any(name.endswith(folder.boot) for name in parts)
    return EntryState(key, has_copy, key.size * (len(parts) + has_copy), max(times, default=0.0), is_foreign)
