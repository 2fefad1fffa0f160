"""The sizes of the files of a list, and how many sequences and frames they hold.

Sizes are measured each time, since all ranks must see the same ones, and a cached size may be outdated. The numbers of
sequences and frames of an entry, which take long to find, are cached in the user's cache folder, together with the
sizes and versions (modification times, or what a store reports) of its files. Invariant: a cached number is used only
for files that have not changed since, by size and version.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.errors import CacheError, ConfigError, SourceError

from ..atomic.pending import atomic_write
from ..fetch.fetch import SourceStat
from ..kept import KeepLimit, kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder
from ..locations import is_url, open_regular
from ..locks import StallTimeout, lock_exclusive_nowait
from .measure import Progress, measure_files
from .tree import FileTree, map_leaves, tree_key, tree_leaves

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
    def of(
        cls,
        trees: Sequence[FileTree],
        *,
        folder: str | os.PathLike[str] | None = None,
        max_threads: int = 32,
        progress: Progress | None = None,
    ) -> FileTable:
        """Measure the files of a list, and look up their cached counts.

        One request for each file, in threads where that takes long.

        Args:
            trees: The entries of the list.
            folder: The folder of cached tables; None: `files` in the user's cache folder (`$HEADRACE_CACHE`).
            max_threads: Most requests at a time.
            progress: Called with the numbers of files done and of all, at most ten times a second.

        Raises:
            SourceError: Files are missing or unreadable: one error gives the number, and names some.
            ConfigError: An entry is not a tree of file names, or a URL is of an unknown kind.
        """
        leaves = [tree_leaves(tree) for tree in trees]
        names = list(dict.fromkeys(name for names in leaves for name in names))
        stats = measure_files(names, max_threads=max_threads, progress=progress)
        sizes = [sum(stats[name].size for name in names) for names in leaves]
        if max(sizes, default=0) >= 2**63:
            raise SourceError("the files of an entry have 2**63 bytes or more", where=leaves[int(np.argmax(sizes))][0])
        versions = [_version([stats[name] for name in names]) for names in leaves]
        table = cls(_record_path(trees, folder), np.array(sizes, np.int64), np.array(versions, np.uint64))
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
            if self._path.parent == kept_path(_FOLDER):
                kept_folder(_FOLDER)
            self._path.parent.mkdir(parents=True, exist_ok=True)
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


def _record_path(trees: Sequence[FileTree], folder: str | os.PathLike[str] | None) -> Path | None:
    """Return the path of the cached table of a list, named by a digest of the full names in the order of the list."""
    if folder is None:
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
