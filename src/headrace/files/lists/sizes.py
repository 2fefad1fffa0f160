"""The sizes of the files of a list, and how many sequences and frames they hold.

Sizes are measured each time, since all ranks must see the same ones, and a cached size may be outdated. The numbers of
sequences and frames of an entry, which take long to find, are cached in the user's cache folder, together with a digest
of the sizes and versions (modification times, or what a store reports) of its files. Invariant: a cached number is used
only for files that have not changed since, by size and version.

On a network disk or a store each request takes a round trip, so many are sent at once. On a local disk, threads take as
long as one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import CacheError, SourceError

from ..atomic import atomic_write
from ..fetch import SourceStat, stat_source
from ..kept import kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder
from ..locations import is_url, open_regular, shown_url
from .tree import FileTree, map_leaves, tree_key, tree_leaves

Progress = Callable[[int, int], None]

_LOGGER = logging.getLogger("headrace.files")
_PROGRESS_SECONDS = 0.1
_FILES_PER_STEP = 16  # that a thread takes at a time, of a long list
_MAX_FAILURES = 32  # other than missing files: each may have used all its tries, and the next would, too
_MAX_NAMED = 3
_MISSING = "the file does not exist"

_UNKNOWN = -1
_FOLDER = "files"  # in the user's cache folder
_MAX_KEPT_FILES = 1024
_NOT_KEPT = "the numbers of sequences of the files cannot be kept, and are counted again the next time"
_DIGEST_BYTES = 16
_ROW = np.dtype([("version", "<u8"), ("num_seqs", "<i8"), ("num_frames", "<i8")])  # of a cached table, one an entry


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
        SourceError: Files are missing, unreadable or not regular files: one error gives the number, and names some.
        ConfigError: A URL is of an unknown kind, or its package is not installed.
    """
    found: dict[str, SourceStat] = {}
    failures: dict[str, SourceError] = {}
    num_unusual, told = 0, 0.0

    def measure(some: Sequence[str]) -> None:
        nonlocal num_unusual
        for name in some:
            if num_unusual < _MAX_FAILURES:
                try:
                    found[name] = stat_source(name)
                except SourceError as error:
                    failures[name] = error
                    num_unusual += not error.what.startswith(_MISSING)

    def tell() -> None:
        nonlocal told
        num_done = len(found) + len(failures)
        if progress is not None and (num_done == len(names) or time.monotonic() - told > _PROGRESS_SECONDS):
            told = time.monotonic()
            progress(num_done, len(names))

    pool = ThreadPoolExecutor(max_threads, thread_name_prefix="headrace-sizes")
    step = max(1, min(_FILES_PER_STEP, len(names) // (4 * max_threads)))
    try:
        for _ in pool.map(measure, (names[at : at + step] for at in range(0, len(names), step))):
            tell()
    finally:
        pool.shutdown(cancel_futures=True)
    if failures:
        raise _failed({name: failures[name] for name in names if name in failures}, len(names))
    return {name: found[name] for name in names}


def _failed(failures: dict[str, SourceError], num_all: int) -> SourceError:
    first, error = next(iter(failures.items()))
    named = ", ".join(repr(shown_url(name)) for name in list(failures)[:_MAX_NAMED])
    more = ", ..." if len(failures) > _MAX_NAMED else ""
    fix = error.fix
    if any(mark in first for mark in "*?["):
        fix = "a pattern is only expanded where it is an entry of its own, not inside a tuple, list or dict"
    what = f"{len(failures)} of {num_all} files cannot be used (the first: {error.what}): {named}{more}"
    return SourceError(what, where=error.where, fix=fix)


class FileTable:
    """Sizes of the entries of a file list, and how many sequences and frames they hold. Not thread-safe.

    Made by `FileTable.of`.

    Attributes:
        sizes: Bytes of each entry, `int64[n]`, read-only.
        num_seqs: Sequences of each entry, `int64[n]`, -1 where unknown; read-only, and follows `note_counts`.
        num_frames: Frames of each entry, as `num_seqs`.
    """

    def __init__(self, path: Path | None, sizes: NDArray[np.int64], versions: NDArray[np.uint64]) -> None:
        self._path = path
        self._rows = np.full(len(sizes), _UNKNOWN).astype(_ROW)
        self._rows["version"] = versions
        self.sizes, self.num_seqs, self.num_frames = (
            np.broadcast_to(column, len(sizes)) for column in (sizes, self._rows["num_seqs"], self._rows["num_frames"])
        )

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
        stats = measure_files(list(dict.fromkeys(name for names in leaves for name in names)), progress=progress)
        sizes = [sum(stats[name].size for name in names) for names in leaves]
        if max(sizes, default=0) >= 2**63:
            raise SourceError("the files of an entry have 2**63 bytes or more", where=leaves[int(np.argmax(sizes))][0])
        versions = [_version([stats[name] for name in names]) for names in leaves]
        table = cls(_record_path(trees), np.array(sizes, np.int64), np.array(versions, np.uint64))
        table._learn_cached()
        return table

    def note_counts(self, tree_idx: int, num_seqs: int, num_frames: int = _UNKNOWN) -> None:
        """Record how much the files of an entry hold.

        The counts must depend on the files alone, not on options of a dataset that skip sequences: other datasets over
        the same files use them.

        Args:
            tree_idx: Position in the list.
            num_seqs: -1 if unknown.
            num_frames: -1 if unknown.
        """
        self._rows["num_seqs"][tree_idx], self._rows["num_frames"][tree_idx] = num_seqs, num_frames

    def save(self) -> None:
        """Write the counts to the cache folder, merged with those that other processes have recorded meanwhile.

        Where processes save at the same moment, counts may be lost, and are found again.
        A folder that cannot be used is not an error: it is logged once. Nothing is written if nothing is new.
        """
        if self._path is None:
            return
        try:
            kept_folder(_FOLDER)
            kept, data = self._learn_cached(), self._rows.tobytes()
            if data != kept:
                with atomic_write(self._path, follow_links=False) as file:
                    file.write(xxhash.xxh3_128_digest(data) + data)
                remove_unused(self._path.parent, "*", max_files=_MAX_KEPT_FILES)
        except (OSError, SourceError, CacheError) as error:
            warn_once_of_folder(_LOGGER, str(self._path.parent), _NOT_KEPT, error)

    def _learn_cached(self) -> bytes | None:
        """Fill in unknown counts from the cached table, and return its bytes; None if there is none to be read."""
        try:
            if self._path is None:
                return None
            with open_regular(self._path) as file:
                data = file.read()
        except (OSError, SourceError):
            return None
        digest, data = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if len(data) != self._rows.nbytes or digest != xxhash.xxh3_128_digest(data):
            _LOGGER.debug("the table of files %s is damaged", self._path)
            return None
        note_use(self._path)
        kept = np.frombuffer(data, _ROW)
        for column in ("num_seqs", "num_frames"):
            learns = (kept["version"] == self._rows["version"]) & (self._rows[column] == _UNKNOWN)
            self._rows[column][learns] = kept[column][learns]
        return data


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
    digest = xxhash.xxh3_128()
    for tree in trees:
        digest.update(f"{tree_key(map_leaves(tree, _full_name))}\n".encode())
    return Path(os.path.abspath(folder)) / f"{digest.hexdigest()}.counts"


def _full_name(name: str) -> str:
    return name if is_url(name) else os.path.abspath(name)
