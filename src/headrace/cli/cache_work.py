"""What `headrace cache` finds and does, as plain data. Knows nothing of terminals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import CacheError, SourceError
from headrace.files.cache_copy import checksum_of
from headrace.files.cache_entry import EntryKey, EntryRecord, name_of, parse_source_text
from headrace.files.cache_eviction import DAY_SECONDS, Candidate, is_due, order_candidates
from headrace.files.cache_folder import CacheFolder
from headrace.files.cache_lock import LockTable, lock_shared_nowait
from headrace.files.cache_options import FileCacheOptions, bytes_text
from headrace.files.cache_plan import read_distances
from headrace.files.cache_room import CacheRoom
from headrace.files.cache_survey import EntryState, find_users, is_in_use, record_of, survey
from headrace.files.fetch import stat_source
from headrace.files.urls import shown_url


@dataclass(frozen=True)
class Wish:
    """What `clean` is asked for; what is old goes in any case.

    Attributes:
        everything: All that nobody uses.
        older_than_days: What was not used for so long.
        max_bytes: Until the copies have no more.
        free_bytes: Until so much is free on the disk.
    """

    everything: bool
    older_than_days: float
    max_bytes: float
    free_bytes: int

    def asks_for(self, candidate: Candidate, now: float) -> bool:
        """Whether a file should go whatever the numbers say."""
        return self.everything or now - candidate.state.last_use > self.older_than_days * DAY_SECONDS

    def check(self, folder: CacheFolder) -> None:
        """See whether the numbers were reached.

        Raises:
            CacheError: They were not: too much is in use.
        """
        used, free = folder.used_bytes(), folder.disk_space().free
        if used > self.max_bytes:
            what = f"the copies have {bytes_text(used)}, and {bytes_text(self.max_bytes)} was asked for"
        elif free < self.free_bytes:
            what = f"the disk has {bytes_text(free)} free, and {bytes_text(self.free_bytes)} was asked for"
        else:
            return
        fix = "headrace cache ls shows who uses the rest"
        raise CacheError(f"{what}: nothing more can be removed", where=folder.root, fix=fix)


@dataclass
class Cleaned:
    """What a cleanup removed, or would remove.

    Attributes:
        removed: Sources, as they may be printed; the key where there is no record.
        bytes_removed: Of those.
        num_in_use: Files that should go and stay, because they are in use.
        bytes_in_use: Of those.
    """

    removed: list[str] = field(default_factory=list)
    bytes_removed: int = 0
    num_in_use: int = 0
    bytes_in_use: int = 0


@dataclass(frozen=True)
class Verdict:
    """What was found of one file.

    Attributes:
        state: Which.
        source: Where it is from, as it may be printed.
        text: What was found, with the files as the subject.
        is_damaged: Whether it should go.
        is_worth_a_line: Whether people want to know which file it is.
    """

    state: EntryState
    source: str
    text: str
    is_damaged: bool = False
    is_worth_a_line: bool = False


def describe_entries(folder: CacheFolder) -> list[dict[str, Any]]:
    """Return what there is of each file, as plain JSON data, last used first."""
    table = LockTable()
    described = [_describe(folder, state, table) for state in survey(folder) if _is_there(state)]
    return sorted(described, key=lambda entry: -float(entry["last_use"]))


def clean_folder(folder: CacheFolder, options: FileCacheOptions, wish: Wish, *, dry_run: bool) -> Cleaned:
    """Remove what is old and what is wished, in the order in which room is made; what is in use stays."""
    room, now, cleaned = CacheRoom(folder, options), time.time(), Cleaned()
    used, disk = folder.used_bytes(), folder.disk_space()
    free, wanted_free = disk.free, options.cleanup_disk_usage_wanted_free_ratio * disk.total
    for candidate in order_candidates(survey(folder), read_distances(folder.plans), now):
        state = candidate.state
        is_short = used > wish.max_bytes or free < wish.free_bytes
        is_old = is_due(candidate, options, now, wants_room=free < wanted_free)
        if not (is_short or is_old or wish.asks_for(candidate, now)):
            continue
        source = _shown(state, record_of(folder, state))
        is_gone = not is_in_use(folder, state.key) and (dry_run or room.remove(state))
        if not _is_there(state):
            continue  # a mere lock
        if is_gone:
            cleaned.removed.append(source)
            cleaned.bytes_removed += state.num_bytes
            used, free = used - state.num_bytes, free + state.num_bytes
        else:
            cleaned.num_in_use += 1
            cleaned.bytes_in_use += state.num_bytes
    return cleaned


def verify_entries(folder: CacheFolder, *, ask_source: bool, tell: Callable[[str], None]) -> Iterator[Verdict]:
    """Check each copy; those with a checksum are read whole.

    Args:
        folder: Where.
        ask_source: Whether to ask each source what it is now.
        tell: Called with what is about to be done.
    """
    states = [state for state in survey(folder) if _is_there(state)]
    for number, state in enumerate(states):
        record = record_of(folder, state)
        shown = _shown(state, record)
        tell(f"{number}/{len(states)} {shown}")
        if record is None:
            if is_in_use(folder, state.key):
                yield Verdict(state, shown, "are being made")
            else:
                yield Verdict(state, shown, "are no whole copies", is_damaged=True, is_worth_a_line=True)
            continue
        verdict = _verify(folder, state, record)
        yield _ask_source(verdict, record) if ask_source and not verdict.is_damaged else verdict


def _verify(folder: CacheFolder, state: EntryState, record: EntryRecord) -> Verdict:
    shown, source = _shown(state, record), parse_source_text(record.source)
    lock = lock_shared_nowait(folder.entry_path(state.key))  # so that it is not removed while it is read
    if lock is None:
        return Verdict(state, shown, "were removed meanwhile")
    try:
        if record.checksum is None:
            return Verdict(state, shown, "have the size and time that were recorded; no checksum was")
        if checksum_of(folder.data_path(state.key, name_of(source))) == record.checksum:
            return Verdict(state, shown, "have the checksum that was recorded")
        text = "do not have the checksum that was recorded"
    except OSError as error:
        text = f"cannot be read: {error.strerror}"
    finally:
        lock.close()
    return Verdict(state, shown, text, is_damaged=True, is_worth_a_line=True)


def _ask_source(verdict: Verdict, record: EntryRecord) -> Verdict:
    source = parse_source_text(record.source)
    try:
        if EntryKey.of(source, stat_source(source)) == verdict.state.key:
            return verdict
        text = "their source has changed since"
    except SourceError as error:
        text = f"their source cannot be asked: {error.what}"
    return Verdict(verdict.state, verdict.source, f"{verdict.text}; {text}", is_worth_a_line=True)


def _is_there(state: EntryState) -> bool:
    """Whether there is more than a lock."""
    return state.has_copy or state.num_bytes > 0


def _describe(folder: CacheFolder, state: EntryState, table: LockTable) -> dict[str, Any]:
    record = record_of(folder, state)
    described: dict[str, Any] = {
        "key": state.key.text,
        "source": None,
        "bytes": state.num_bytes,
        "last_use": state.last_use,
        "is_whole": record is not None,
        "used_by": find_users(folder, state.key, table),
    }
    if record is not None:
        described.update(
            source=_shown(state, record),
            path=_printable(folder.data_path(state.key, name_of(parse_source_text(record.source)))),
            version=record.version,
            checksum=record.checksum,
            copied_at=record.copied_at,
            is_on_disk=bool(record.is_on_disk),
        )
    return described


def _shown(state: EntryState, record: EntryRecord | None) -> str:
    """Return the source of a copy as it may be printed: no secrets of a URL, no bytes that are no text."""
    return _printable(state.key.text if record is None else shown_url(parse_source_text(record.source)))


def _printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
