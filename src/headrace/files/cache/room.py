"""Room for a copy, within the quota and on the disk, by evicting others.

Room is made and reserved under one lock, so that two processes never count the same free bytes twice. Nothing is
removed before it is known that enough can be; otherwise the result is a `Shortage`, with the numbers.

The order of eviction is a pure decision over a survey: first what is not a copy; then what no process plans to read,
longest unused first; then what is planned, needed last first (Belady's rule, over the plans of all processes). A copy
in use is never removed: locking it shows. By age alone only unplanned copies are removed.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace.errors import CacheError
from headrace.show.drawing import format_bytes

from ..locks import FileLock, LockTable, StallTimeout, describe_holders, lock_exclusive_nowait
from .entry import EntryKey
from .folder import CacheFolder, DiskSpace, EntryState, is_in_use, survey, users_of
from .options import FileCacheOptions
from .plan import read_distances

DAY_SECONDS = 24 * 3600.0
# A part that another machine writes to is younger; clocks differ by less. Removing one too early costs a try.
_FOREIGN_SECONDS = 3600.0
_LEFTOVER_DAYS = 1.0  # an unfinished copy of this age is not resumed


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may be removed.

    Attributes:
        state: Its state.
        distance: The least number of files that any plan needs before it; infinite if in no plan.
        is_stale: It is not a copy, or the folder has another version of its source that was used later.
    """

    state: EntryState
    distance: float
    is_stale: bool


def order_candidates(states: Iterable[EntryState], distances: Mapping[str, float], now: float) -> list[Candidate]:
    """Return the entries that may be removed, in the order of eviction.

    Args:
        states: All entries.
        distances: Source digest -> how many files are needed before it.
        now: Seconds since 1970.
    """
    states = list(states)
    newest: dict[str, float] = {}
    for state in states:
        if state.has_copy:
            newest[state.key.source] = max(newest.get(state.key.source, 0.0), state.last_use)
    candidates = []
    for state in states:
        if state.is_foreign and now - state.last_use < _FOREIGN_SECONDS:
            continue
        is_stale = not state.has_copy or state.last_use < newest[state.key.source]
        candidates.append(Candidate(state, distances.get(state.key.source, math.inf), is_stale))
    return sorted(candidates, key=_rank)


def _rank(candidate: Candidate) -> tuple[bool, float, float]:
    return not candidate.is_stale, -candidate.distance, candidate.state.last_use


def may_go_for(candidate: Candidate, distance: float) -> bool:
    """Whether a candidate may be removed for a file that is needed after `distance` others: never one needed sooner."""
    return not candidate.state.has_copy or candidate.distance > distance


def is_due(candidate: Candidate, options: FileCacheOptions, now: float, *, wants_room: bool) -> bool:
    """Whether a candidate is removed even though no copy needs its room now.

    Args:
        candidate: The entry.
        options: Have the age limits.
        now: Seconds since 1970.
        wants_room: Whether less is free on the disk than should be.
    """
    age_days = (now - candidate.state.last_use) / DAY_SECONDS
    if not candidate.state.has_copy:
        return age_days > _LEFTOVER_DAYS
    if not math.isinf(candidate.distance):
        return False
    min_age_days = options.cleanup_files_wanted_older_than_days
    return age_days > options.cleanup_files_always_older_than_days or (wants_room and age_days > min_age_days)


_CLEANUP_SECONDS = 600.0  # between two automatic full cleanups
_MAX_ROUNDS = 4  # others fill the disk, or use what was found, while we remove: then search again, at most this often
_MAX_NAMED = 8  # users in an error message


@dataclass(frozen=True, slots=True)
class Need:
    """The room that is needed.

    Attributes:
        key: The entry that gets the room; None: no entry, only free disk space.
        free_bytes: What must be free on the disk before the copy.
        distance: How many files are needed before it: nothing needed sooner is removed for it. -1: it is needed now.
        forced_bytes: Remove at least this much, whatever free space the disk reports: it has refused a write.
    """

    key: EntryKey | None
    free_bytes: int
    distance: float = -1.0
    forced_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RoomNumbers:
    """How full the cache is.

    Attributes:
        used_bytes: Bytes of the copies in the folder, unfinished ones included.
        quota: `max_bytes`.
        disk: Free and total bytes of the disk.
        pending_bytes: What unfinished copies will still take.
    """

    used_bytes: int
    quota: int | None
    disk: DiskSpace
    pending_bytes: int

    @property
    def text(self) -> str:
        """All numbers, for messages."""
        quota = "no quota" if self.quota is None else f"a quota of {format_bytes(self.quota)}"
        text = (
            f"the copies have {format_bytes(self.used_bytes)} of {quota}; "
            f"the disk has {format_bytes(self.disk.free)} free of {format_bytes(self.disk.total)}"
        )
        if self.pending_bytes:
            text += f", of which copies in the making will take {format_bytes(self.pending_bytes)}"
        return text


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why there is no room, with all the numbers.

    Attributes:
        need: The room that was needed.
        missing_bytes: How much more would have to be removed.
        numbers: How full the cache is.
        in_use: Copies in use: bytes, and processes.
        in_making: Unfinished copies of other processes, as in `in_use`: when they are done, they may be removed.
        sooner_bytes: Copies that are needed sooner.
        stuck_bytes: Copies that are not in use and yet could not be removed.
    """

    need: Need
    missing_bytes: int
    numbers: RoomNumbers
    in_use: tuple[tuple[int, str], ...]
    in_making: tuple[tuple[int, str], ...]
    sooner_bytes: int
    stuck_bytes: int

    @property
    def is_hopeless(self) -> bool:
        """Whether the file is larger than the quota."""
        quota = self.numbers.quota
        return quota is not None and self.need.key is not None and self.need.key.size > quota

    def error(self, where: str) -> CacheError:
        """Return it as an error."""
        size = self.need.free_bytes if self.need.key is None else self.need.key.size
        parts = [
            f"the file cache cannot free enough: {format_bytes(size)} needed, "
            f"{format_bytes(self.missing_bytes)} missing",
            self.numbers.text,
        ]
        for name, held in (("in use", self.in_use), ("in the making", self.in_making)):
            if held:
                users = list(dict.fromkeys(user for _, user in held))
                more = f" and {len(users) - _MAX_NAMED} more" if len(users) > _MAX_NAMED else ""
                total = format_bytes(sum(num_bytes for num_bytes, _ in held))
                parts.append(f"{total} in {len(held)} files are {name} by {'; '.join(users[:_MAX_NAMED])}{more}")
        if self.sooner_bytes:
            parts.append(f"{format_bytes(self.sooner_bytes)} are needed sooner")
        if self.stuck_bytes:
            parts.append(f"{format_bytes(self.stuck_bytes)} could not be removed")
        if self.need.forced_bytes:
            parts.append("the disk refused a write: a quota of the user, or no inodes, can be the reason too")
        return CacheError("; ".join(parts), where=where, fix=self._fix(size))

    def _fix(self, size: int) -> str:
        quota, used = self.numbers.quota, self.numbers.used_bytes
        if self.is_hopeless:
            return f"raise max_bytes to at least {size}"  # to the byte: a rounded value may be too little
        release = "release files that are not read any more (release_files)" if self.in_use else ""
        if quota is not None and used + size > quota:
            other = "raise max_bytes"
        else:
            other = "free some of the disk, or choose another with cache_directory"
        return f"{release}, or {other}" if release else other


@dataclass(slots=True)
class _Found:
    """The result of a search: what may be removed and its bytes, what others hold, and what is needed sooner."""

    removable: list[EntryState] = field(default_factory=list)
    num_bytes: int = 0
    held: list[EntryState] = field(default_factory=list)
    sooner_bytes: int = 0


class CacheRoom:
    """Makes room in one folder.

    Args:
        folder: The folder of the cache.
        options: Quota, ages and free space.

    Attributes:
        num_removed: Number of copies removed so far.
        removed_bytes: Their bytes.
    """

    def __init__(self, folder: CacheFolder, options: FileCacheOptions) -> None:
        self._folder = folder
        self._options = options
        self.num_removed = 0
        self.removed_bytes = 0

    def make(self, need: Need) -> Shortage | None:
        """Make room and reserve it for `need.key`, whose exclusive lock the caller holds; return why if it failed.

        Lists two folders. The whole folder is surveyed only if something must be removed, or the last full cleanup was
        ten minutes ago.
        """
        with self._locked() as lock:
            shortage = self._make(need)
            if shortage is None:
                if need.key is not None:
                    self._folder.reserve(need.key)
                if time.time() - os.fstat(lock.descriptor).st_mtime > _CLEANUP_SECONDS:
                    self._clean(lock, need.free_bytes)
            return shortage

    def clean(self, need_bytes: int) -> tuple[int, int, Shortage | None]:
        """Remove what is due, then make room on the disk; return the copies and bytes removed, and what is short."""
        with self._locked() as lock:
            before = self.num_removed, self.removed_bytes
            self._clean(lock, need_bytes)
            shortage = self._make(Need(None, need_bytes))
            return self.num_removed - before[0], self.removed_bytes - before[1], shortage

    def remove(self, state: EntryState) -> bool:
        """Remove an entry, if it is not in use and the disk allows it; tell whether it was removed."""
        lock = lock_exclusive_nowait(self._folder.entry_path(state.key))
        if lock is None:
            return False
        try:
            self._folder.remove(state.key, lock)
        except OSError:  # it stays, which the next look at the sizes shows
            return False
        finally:
            lock.close()
        self.num_removed += state.has_copy
        self.removed_bytes += state.num_bytes
        return True

    def numbers(self, but_for: EntryKey | None = None) -> RoomNumbers:
        """Return how full it is; `but_for` is an unfinished copy that does not count as pending."""
        pending = self._folder.pending_bytes(but_for)
        return RoomNumbers(self._folder.used_bytes(), self._options.quota, self._folder.disk_space(), pending)

    def _clean(self, lock: FileLock, need_bytes: int) -> None:
        """Remove what is due by its age."""
        now = time.time()
        for candidate in order_candidates(survey(self._folder), read_distances(self._folder.plans), now):
            disk = self._folder.disk_space()
            target_bytes = max(
                self._options.cleanup_disk_usage_wanted_multiplier * need_bytes,
                self._options.cleanup_disk_usage_wanted_free_ratio * disk.total,
            )
            if is_due(candidate, self._options, now, wants_room=disk.free < target_bytes):
                self.remove(candidate.state)
        lock.touch()

    def _make(self, need: Need) -> Shortage | None:
        goal = self.removed_bytes + need.forced_bytes
        for num_rounds in range(_MAX_ROUNDS + 1):
            must = self._missing_bytes(need)
            missing = max(must, goal - self.removed_bytes)
            if missing <= 0:
                return None
            found = self._search(need, missing)
            if found.num_bytes < must:
                return self._shortage(need, missing - found.num_bytes, found)
            if must > 0 and num_rounds == _MAX_ROUNDS:
                return self._shortage(need, missing, found, stuck_bytes=found.num_bytes)
            for state in found.removable:
                self.remove(state)
            if must <= 0:  # the disk refused a write, but reports free space: there is nothing to do but try again
                return None
        raise AssertionError

    def _missing_bytes(self, need: Need) -> int:
        """Return how many bytes must be removed; 0 or less: none."""
        numbers = self.numbers(need.key)
        disk_missing = need.free_bytes + numbers.pending_bytes - numbers.disk.free
        if numbers.quota is None:
            return disk_missing
        own = 0 if need.key is None or self._folder.has_part(need.key) else need.key.size
        return max(disk_missing, numbers.used_bytes + own - numbers.quota)

    def _search(self, need: Need, missing: int) -> _Found:
        """Search for entries to remove until they are enough; nothing is removed yet."""
        found = _Found()
        for candidate in order_candidates(survey(self._folder), read_distances(self._folder.plans), time.time()):
            if found.num_bytes >= missing:
                break
            state = candidate.state
            if state.key == need.key or not state.num_bytes:
                continue
            if not may_go_for(candidate, need.distance):
                found.sooner_bytes += state.num_bytes
            elif is_in_use(self._folder, state.key):
                found.held.append(state)
            else:
                found.removable.append(state)
                found.num_bytes += state.num_bytes
        return found

    def _shortage(self, need: Need, missing: int, found: _Found, *, stuck_bytes: int = 0) -> Shortage:
        table = LockTable()
        users = [(state, (state.num_bytes, users_of(self._folder, state.key, table))) for state in found.held]
        return Shortage(
            need=need,
            missing_bytes=missing,
            numbers=self.numbers(need.key),
            in_use=tuple(user for state, user in users if state.has_copy),
            in_making=tuple(user for state, user in users if not state.has_copy),
            sooner_bytes=found.sooner_bytes,
            stuck_bytes=stuck_bytes,
        )

    @contextmanager
    def _locked(self) -> Iterator[FileLock]:
        """Hold the lock of the folder; others hold it for as long as it takes to remove files."""
        patience = StallTimeout(self._options.wait_seconds)
        self._folder.make()  # a cleaner of the system may remove folders that were empty for days
        while (lock := lock_exclusive_nowait(self._folder.room_path)) is None:
            holders = ", ".join(describe_holders(self._folder.room_path)) or "another process"
            patience.pause(holders, functools.partial(self._give_up, holders))
        try:
            yield lock
        finally:
            lock.close()

    def _give_up(self, holders: str, why: str) -> CacheError:
        what = f"waited for {holders} to make room in the cache: {why}"
        return CacheError(what, where=self._folder.room_path, fix="see what that process does")
