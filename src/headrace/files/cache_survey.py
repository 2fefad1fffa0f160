"""What a cache folder holds, seen in passing: for cleaning up and for people.

Nothing is locked for it, so others may be changing what is seen: whoever removes something locks it first.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

from .cache_entry import EntryKey, EntryRecord, name_of, parse_source_text
from .cache_folder import CacheFolder
from .cache_lock import describe_holders, lock_exclusive_nowait


@dataclass(frozen=True, slots=True)
class EntryState:
    """What the folder holds of one key.

    Attributes:
        key: Which.
        record: What is known of the copy; None if there is no whole one.
        num_bytes: What the quota counts for it: the size for the copy, and the same for each part.
        last_use: When it was used last, or last written to, in seconds since 1970.
        is_foreign: Whether all there is are parts of another boot, or another machine.
    """

    key: EntryKey
    record: EntryRecord | None
    num_bytes: int
    last_use: float
    is_foreign: bool

    @property
    def copied_at(self) -> float:
        """When the copy was made, in seconds since 1970; 0.0 if there is none."""
        return 0.0 if self.record is None else self.record.copied_at

    @property
    def source(self) -> str | None:
        """The path or URL, if there is a record."""
        return None if self.record is None else parse_source_text(self.record.source)


def survey(folder: CacheFolder) -> list[EntryState]:
    """Look at everything; those of one source follow each other. Lists three folders and reads a file for each key."""
    parts: dict[str, list[str]] = {}
    for name in folder.part_names():
        key = EntryKey.parse(name)
        if key is not None:
            parts.setdefault(key.text, []).append(name)
    data = set(os.listdir(folder.data))
    keys = {key.text: key for key in map(EntryKey.parse, [*os.listdir(folder.entries), *data, *parts]) if key}
    return [_look_at(folder, keys[text], text in data, parts.get(text, [])) for text in sorted(keys)]


def copies_of(folder: CacheFolder, source_digest: str) -> list[EntryState]:
    """Return the whole copies of a source, of any version. Lists a folder."""
    keys = [EntryKey.parse(name) for name in os.listdir(folder.entries) if name.startswith(source_digest)]
    states = [_look_at(folder, key, True, ()) for key in keys if key is not None]
    return [state for state in states if state.record is not None]


def is_in_use(folder: CacheFolder, key: EntryKey) -> bool:
    """Whether anybody has a lock on an entry at this moment."""
    path = folder.entry_path(key)
    lock = lock_exclusive_nowait(path, create=False)
    if lock is not None:
        lock.close()
        return False
    return os.path.lexists(path)


def users_of(folder: CacheFolder, key: EntryKey) -> str:
    """Name who has a lock on an entry, for messages."""
    return ", ".join(describe_holders(folder.entry_path(key))) or "a process that this one cannot see"


def read_record(path: str) -> tuple[EntryRecord | None, float]:
    """Return the record in an entry file, if there is one, and when the entry was used last (0.0: no such file)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None, 0.0
    try:
        status = os.fstat(descriptor)
        return EntryRecord.parse(os.pread(descriptor, status.st_size, 0)), status.st_mtime
    finally:
        os.close(descriptor)


def _look_at(folder: CacheFolder, key: EntryKey, has_data: bool, parts: Iterable[str]) -> EntryState:
    record, last_use = read_record(folder.entry_path(key))
    if record is not None:
        source = parse_source_text(record.source)
        path = folder.data_path(key, name_of(source))
        if not (record.describes(key, source) and folder.is_intact(record, path)):
            record = None
    parts = list(parts)
    for name in parts:
        last_use = max(last_use, folder.written_bytes(name)[1])
    with contextlib.suppress(OSError):
        if last_use == 0.0 and has_data:
            last_use = os.lstat(f"{folder.data}/{key.text}").st_mtime
    is_foreign = not has_data and bool(parts) and not any(name.endswith(folder.boot) for name in parts)
    return EntryState(key, record, key.size * (len(parts) + has_data), last_use, is_foreign)
