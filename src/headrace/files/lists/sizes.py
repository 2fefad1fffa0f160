"""The sizes of the files of a list, and how many sequences and frames they hold.

Sizes are measured each time, since all ranks must see the same ones, and a cached size may be outdated. The numbers of
sequences and frames of an entry, which take long to find, are cached in the user's cache folder, together with the
sizes and versions (modification times, or what a store reports) of its files. Invariant: a cached number is used only
for files that have not changed since, by size and version.

On a network disk or a store each request takes a round trip, so many are sent at once. On a local disk it takes a few
microseconds, and threads would only slow each other down: there is one until the disk turns out to be slow.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import CacheError, ConfigError, SourceError

from ..atomic.pending import atomic_write
from ..fetch.fetch import SourceStat, stat_source
from ..fetch.reader import BlockingCalls
from ..kept import KeepLimit, kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder
from ..locations import is_url, open_regular, shown_url
from ..locks import StallTimeout, lock_exclusive_nowait
from .tree import FileTree, map_leaves, tree_key, tree_leaves

Progress = Callable[[int, int], None]

_FIRST_LOOK_SECONDS = 0.02
_BEAT_SECONDS = 0.1
_SLOW_SECONDS_PER_FILE = 1e-4  # a local disk takes 3 us, a round trip in one building 200 us
_TIMEOUT_SECONDS = 300.0  # longer than a server takes to restart
_FILES_PER_STEP = 16  # local files that a thread takes at a time
_MAX_FAILURES = 32  # other than missing files: each may have used all its tries, and the next would, too
_MAX_NAMED = 3
_MISSING = "the file does not exist"


def measure_files(
    names: Sequence[str], *, max_threads: int = 32, progress: Progress | None = None
) -> dict[str, SourceStat]:
    """Return size and version of each file.

    Args:
        names: Paths and URLs, each once.
        max_threads: How many may be asked for at a time.
        progress: Called in this thread with the numbers of files done and of all, at most ten times a second. An
            exception from it ends the work.

    Raises:
        SourceError: Files are missing, unreadable or not regular files: one error gives the number, and names some. Or
            no request was answered for five minutes.
        ConfigError: A URL is of an unknown kind, or its package is not installed.
    """
    work = _Work(names)
    calls = BlockingCalls()
    try:
        _wait(work, calls, max_threads, progress)
    finally:
        calls.close()  # a thread that hangs is abandoned
    if work.failures:
        raise _failed(work, len(names))
    return {name: work.found[name] for name in names}


class _Work:
    """Tasks and results. Shared by threads: each operation on its members is atomic."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.steps = deque(_steps(names))
        self.found: dict[str, SourceStat] = {}
        self.failures: dict[str, SourceError] = {}
        self.asking: dict[int, str] = {}  # the file that each thread, by its number, is requesting
        self.num_unusual = 0  # failures other than missing files; only to stop early, so a lost count does not matter

    @property
    def num_done(self) -> int:
        return len(self.found) + len(self.failures)

    def run(self, calls: BlockingCalls) -> None:
        """Do steps until none are left. Runs in a thread."""
        while not calls.stopped.is_set() and self.num_unusual < _MAX_FAILURES:
            try:
                start, stop = self.steps.popleft()
            except IndexError:
                return
            for name in self.names[start:stop]:
                self.asking[threading.get_ident()] = name
                try:
                    self.found[name] = stat_source(name)
                except SourceError as error:
                    self.failures[name] = error
                    self.num_unusual += not error.what.startswith(_MISSING)


def _steps(names: Sequence[str]) -> list[tuple[int, int]]:
    steps: list[tuple[int, int]] = []
    for position, name in enumerate(names):
        start, stop = steps[-1] if steps else (0, 0)
        if steps and stop - start < _FILES_PER_STEP and not is_url(name) and not is_url(names[start]):
            steps[-1] = start, position + 1
        else:
            steps.append((position, position + 1))
    return steps


def _wait(work: _Work, calls: BlockingCalls, max_threads: int, progress: Progress | None) -> None:
    num_all, num_before = len(work.names), 0
    threads: list[Future[None]] = [calls.submit(work.run, calls)]
    before = last_sign = time.monotonic()
    while True:
        beat = _FIRST_LOOK_SECONDS if len(threads) == 1 and not num_before else _BEAT_SECONDS
        done, running = concurrent.futures.wait(threads, beat, concurrent.futures.FIRST_EXCEPTION)
        for thread in done:
            thread.result()
        now, num_done = time.monotonic(), work.num_done
        if progress is not None:
            progress(num_done, num_all)
        if not running:
            return
        if num_done > num_before:
            last_sign = now
        elif now - last_sign > _TIMEOUT_SECONDS:
            raise _timed_out(work)
        if len(threads) == 1 and now - before > _SLOW_SECONDS_PER_FILE * (num_done - num_before):
            threads += [calls.submit(work.run, calls) for _ in range(min(max_threads - 1, len(work.steps)))]
        before, num_before = now, num_done


def _timed_out(work: _Work) -> SourceError:
    unanswered = {name for name in list(work.asking.values()) if name not in work.found and name not in work.failures}
    names = [name for name in work.names if name in unanswered] or list(work.names)  # in the order of the list
    what = (
        f"no answer for {_TIMEOUT_SECONDS:g} s about the size of {_named(names)}; {work.num_done} of {len(work.names)}"
    )
    return SourceError(
        f"{what} files have answered", where=shown_url(names[0]), fix="see whether the disk or server is up"
    )


def _failed(work: _Work, num_all: int) -> SourceError:
    by_reason: dict[str, list[str]] = {}
    failures = {name: work.failures[name] for name in work.names if name in work.failures}  # in the order of the list
    for name, error in failures.items():
        by_reason.setdefault(error.what, []).append(name)
    parts = []
    for reason, names in list(by_reason.items())[:_MAX_NAMED]:
        parts.append(f"{len(names)} of {num_all} files: {reason}: {_named(names)}")
    first, error = next(iter(failures.items()))
    fix = error.fix
    if any(mark in first for mark in "*?["):
        fix = "a pattern is only expanded where it is an entry of its own, not inside a tuple, list or dict"
    return SourceError("\n  ".join(parts), where=error.where, fix=fix)


def _named(names: list[str]) -> str:
    return ", ".join(repr(shown_url(name)) for name in names[:_MAX_NAMED]) + (
        ", ..." if len(names) > _MAX_NAMED else ""
    )


_LOGGER = logging.getLogger("headrace.files")
_FORMAT_VERSION = 1
_UNKNOWN = -1
_LOCK_SECONDS = 5.0  # others hold it for some milliseconds; without it, at worst a count is lost and found again

_FOLDER = "files"  # in the user's cache folder
_LIMIT = KeepLimit(max_files=1024)
_NOT_KEPT = "the numbers of sequences of the files cannot be kept, and are counted again the next time"


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file: columns of little-endian 64-bit numbers, one row an entry of the list.

    Attributes:
        format_version: 1.
        checksum: XXH3-128 of the columns, one after the other.
        sizes: Bytes of the files of each entry.
        versions: A digest of the sizes and versions of these files.
        num_seqs: Sequences in them, -1 where unknown.
        num_frames: Frames in them, -1 where unknown.
    """

    format_version: int
    checksum: str
    sizes: bytes
    versions: bytes
    num_seqs: bytes
    num_frames: bytes


class FileTable:
    """Sizes of the entries of a file list, and how many sequences and frames they hold. Not thread-safe.

    Made by `FileTable.of`.
    """

    def __init__(self, path: Path | None, sizes: NDArray[np.int64], versions: NDArray[np.uint64]) -> None:
        self._path = path
        self._sizes, self._versions = sizes, versions
        self._num_seqs = np.full(len(sizes), _UNKNOWN)
        self._num_frames = np.full(len(sizes), _UNKNOWN)

    @classmethod
    def of(cls, trees: Sequence[FileTree], *, progress: Progress | None = None) -> FileTable:
        """Measure the files of a list, and look up their cached counts.

        One request for each file, in threads where that takes long.

        Args:
            trees: The entries of the list.
            progress: Called with the numbers of files done and of all, at most ten times a second.

        Raises:
            SourceError: Files are missing or unreadable: one error gives the number, and names some.
            ConfigError: An entry is not a tree of file names, or a URL is of an unknown kind.
        """
        leaves = [tree_leaves(tree) for tree in trees]
        names = list(dict.fromkeys(name for names in leaves for name in names))
        stats = measure_files(names, progress=progress)
        sizes = [sum(stats[name].size for name in names) for names in leaves]
        if max(sizes, default=0) >= 2**63:
            raise SourceError("the files of an entry have 2**63 bytes or more", where=leaves[int(np.argmax(sizes))][0])
        versions = [_version([stats[name] for name in names]) for names in leaves]
        table = cls(_record_path(trees), np.array(sizes, np.int64), np.array(versions, np.uint64))
        table._load_cached()
        return table

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Bytes of each entry, `int64[n]`, read-only."""
        return _read_only(self._sizes)

    @property
    def num_seqs(self) -> NDArray[np.int64]:
        """Sequences of each entry, `int64[n]`, -1 where unknown; read-only, and follows `note_counts`."""
        return _read_only(self._num_seqs)

    @property
    def num_frames(self) -> NDArray[np.int64]:
        """Frames of each entry, `int64[n]`, -1 where unknown; read-only, and follows `note_counts`."""
        return _read_only(self._num_frames)

    def note_counts(self, tree_idx: int, num_seqs: int, num_frames: int = _UNKNOWN) -> None:
        """Record how much the files of an entry hold.

        The counts must depend on the files alone, not on options of a dataset that skip sequences: other datasets over
        the same files use them.

        Args:
            tree_idx: Position in the list.
            num_seqs: -1 if unknown.
            num_frames: -1 if unknown.

        Raises:
            ConfigError: There is no such entry, or a number is below -1.
        """
        if not 0 <= tree_idx < len(self._sizes):
            raise ConfigError(f"there is no entry {tree_idx} in a list of {len(self._sizes)} files")
        if not (_UNKNOWN <= num_seqs < 2**63 and _UNKNOWN <= num_frames < 2**63):
            raise ConfigError(f"an entry cannot have {num_seqs} sequences and {num_frames} frames", fix="-1 is unknown")
        self._num_seqs[tree_idx], self._num_frames[tree_idx] = num_seqs, num_frames

    def save(self) -> None:
        """Write the counts to the cache folder, merged with those that other processes have recorded meanwhile.

        A folder that cannot be used is not an error: it is logged once. Nothing is written if nothing is new.
        """
        if self._path is None:
            return
        try:
            kept_folder(_FOLDER)
            with _locked(self._path.parent):
                kept = self._load_cached()
                record = self._record()
                if record != kept:
                    with atomic_write(self._path, follow_links=False) as file:
                        file.write(msgspec.json.encode(record))
                    remove_unused(self._path.parent, "*.json", limit=_LIMIT)
        except (OSError, SourceError, CacheError) as error:
            warn_once_of_folder(_LOGGER, str(self._path.parent), _NOT_KEPT, error)

    def _record(self) -> _Record:
        columns = (self._sizes, self._versions, self._num_seqs, self._num_frames)
        data = [column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns]
        return _Record(_FORMAT_VERSION, xxhash.xxh3_128_hexdigest(b"".join(data)), *data)

    def _load_cached(self) -> _Record | None:
        """Fill in unknown counts from the cached table, and return that."""
        record = None if self._path is None else _read_record(self._path, len(self._sizes))
        if record is not None:
            is_same = np.frombuffer(record.versions, "<u8") == self._versions
            for own, kept in ((self._num_seqs, record.num_seqs), (self._num_frames, record.num_frames)):
                learns = is_same & (own == _UNKNOWN)
                own[learns] = np.frombuffer(kept, "<i8")[learns]
        return record


def _version(stats: list[SourceStat]) -> int:
    facts = "\0".join(f"{stat.size} {stat.version}" for stat in stats)
    return xxhash.xxh3_64_intdigest(facts.encode("utf-8", "surrogateescape"))


def _record_path(trees: Sequence[FileTree]) -> Path | None:
    """Return the path of the cached table of a list, named by a digest of the full names in the order of the list."""
    try:
        folder = kept_path(_FOLDER)
    except CacheError as error:
        warn_once_of_folder(_LOGGER, "", _NOT_KEPT, error)
        return None
    digest = xxhash.xxh3_128(f"{_FORMAT_VERSION}\n".encode())
    for tree in trees:
        digest.update(f"{tree_key(map_leaves(tree, _full_name))}\n".encode())
    return Path(os.path.abspath(folder)) / f"{digest.hexdigest()}.json"


def _full_name(name: str) -> str:
    return name if is_url(name) else os.path.abspath(name)


def _read_record(path: Path, num_rows: int) -> _Record | None:
    """Return a cached table; None if there is none that can be read: then all is counted again."""
    try:
        with open_regular(path) as file:
            record = msgspec.json.decode(file.read(), type=_Record)
    except FileNotFoundError:
        return None
    except (OSError, SourceError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        _LOGGER.debug("the table of files %s cannot be read: %s", path, error)
        return None
    columns = (record.sizes, record.versions, record.num_seqs, record.num_frames)
    is_whole = all(len(column) == 8 * num_rows for column in columns)
    if not is_whole or record.checksum != xxhash.xxh3_128_hexdigest(b"".join(columns)):
        _LOGGER.debug("the table of files %s is damaged", path)
        return None
    note_use(path)
    return record


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of tables, if possible: without it, counts of another process may be lost."""
    path = str(folder / ".lock")
    lock = None
    try:
        patience = StallTimeout(_LOCK_SECONDS)
        while (lock := lock_exclusive_nowait(path)) is None:
            patience.pause(None, lambda waited: CacheError(f"another process holds the lock: {waited}", where=path))
    except CacheError as error:
        _LOGGER.debug("a table of files is written without a lock: %s", error)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _read_only(column: NDArray[np.int64]) -> NDArray[np.int64]:
    view = column.view()
    view.flags.writeable = False
    return view
