"""What a cache folder holds, seen in passing: for cleaning up and for people.

Nothing is locked for it, so others may be changing what is seen: whoever removes something locks it first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from .cache_entry import EntryKey, EntryRecord, name_of, parse_source_text
from .cache_folder import CacheFolder
from .cache_lock import LockTable, lock_exclusive_nowait


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
