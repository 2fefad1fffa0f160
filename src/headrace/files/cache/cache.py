"""Copies of files on the local disk: `FileCache`, and `CachedFile`, which marks a file to be read through it.

Invariants: a path that `get_file` returns is a whole copy of one version of its source, and stays one until it is
released; a copy in use is locked by its process, so that it is safe for exactly as long as the process lives. Options
are in `options.py`, the layout of the folder in `folder.py`, how a copy is made in `copy.py`, what is removed to make
room in `room.py`, and what is copied ahead in `prefetch.py`.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from headrace.show.card import Card, Shown

from ..fetch.fetch import FetchOptions
from .entry import CachedFile, plain_source, replace_cached_files
from .options import DEFAULT_FOLDER, FileCacheOptions
from .parts import CacheParts, closed_error
from .prefetch import PrefetchStatus

__all__ = ["CacheCounters", "CachedFile", "CleanupResult", "FileCache"]


@dataclass(frozen=True, slots=True)
class CleanupResult:
    """The result of a cleanup.

    Attributes:
        freed: Bytes of the files that were removed.
        num_files: Number of files that were removed.
        abort_reason: Why it removed nothing; None if it removed something.
    """

    freed: int
    num_files: int
    abort_reason: str | None


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counters of a cache in this process.

    Attributes:
        num_hits: Files that were in the cache when they were requested.
        num_copies: Files that were copied when they were requested, or whose copy was waited for.
        copied_bytes: Bytes that were copied for those.
        num_prefetched: Files that were copied ahead.
        num_removed: Copies that were removed.
        removed_bytes: Bytes of the copies that were removed.
    """

    num_hits: int
    num_copies: int
    copied_bytes: int
    num_prefetched: int
    num_removed: int
    removed_bytes: int


class FileCache(Shown):
    """Copies files to a local disk on request or ahead of time, and evicts those that are needed last.

    All processes that use one folder make one copy of a file together. A copy in use is locked (flock) by its process
    and is never removed; when the process ends, in whatever way, its locks end with it. Copies stay on the disk after
    they are released, for the next one. The folder is for one user, made with mode 0700. Its disk must have locks,
    else the constructor refuses it; on a network disk whose locks do not reach other nodes, give each node a folder of
    its own.

    A copy is valid as long as the source has the size and version (modification time, ETag, ...) that it was made
    from; the source is checked at each `get_file`. (For a store without versions only the size is compared.) A source
    that changed gets a new copy; readers of the old one keep it. If the source cannot be checked (the network is down),
    a whole copy is returned with a `RuntimeWarning`; a source that is known to be gone is an error. After a reboot of
    the machine, only copies that its disk had confirmed are trusted.

    Safe to call from several threads. Pickling it, or forking the process, gives a cache with the same options that
    holds no files.

    Args:
        cache_directory: The folder; `$NAME` and `~` are replaced.
        cleanup_files_always_older_than_days: See `FileCacheOptions` for this and all that follow.
        cleanup_files_wanted_older_than_days: Days.
        cleanup_disk_usage_wanted_free_ratio: Of the disk.
        cleanup_disk_usage_wanted_multiplier: Of the size of a new file.
        num_tries: Number of tries if the disk gets full during a copy.
        max_bytes: The quota, such as `"500 GB"`.
        wait_seconds: Limit of a wait for another process without a sign of life.
        fetch: How files are fetched: tries, streams, checksum.

    Raises:
        ConfigError: An option is wrong.
        CacheError: The folder cannot be used.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import headrace as hr
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "slow-disk.bin").write_bytes(b"frames")
        ...     with hr.FileCache(cache_directory=f"{folder}/cache") as cache:
        ...         copy = cache.get_file(f"{folder}/slow-disk.bin")
        ...         print(copy != f"{folder}/slow-disk.bin", Path(copy).read_bytes())
        6
        True b'frames'
    """

    def __init__(
        self,
        *,
        cache_directory: str | os.PathLike[str] = DEFAULT_FOLDER,
        cleanup_files_always_older_than_days: float = 31.0,
        cleanup_files_wanted_older_than_days: float = 1.0,
        cleanup_disk_usage_wanted_free_ratio: float = 0.2,
        cleanup_disk_usage_wanted_multiplier: float = 2.0,
        num_tries: int = 3,
        max_bytes: int | str | None = None,
        wait_seconds: float = 600.0,
        fetch: FetchOptions | Mapping[str, Any] | None = None,
    ) -> None:
        self.options = FileCacheOptions(
            cache_directory=cache_directory,
            cleanup_files_always_older_than_days=cleanup_files_always_older_than_days,
            cleanup_files_wanted_older_than_days=cleanup_files_wanted_older_than_days,
            cleanup_disk_usage_wanted_free_ratio=cleanup_disk_usage_wanted_free_ratio,
            cleanup_disk_usage_wanted_multiplier=cleanup_disk_usage_wanted_multiplier,
            num_tries=num_tries,
            max_bytes=max_bytes,
            wait_seconds=wait_seconds,
            fetch=FetchOptions() if fetch is None else fetch,
        )
        self._is_closed = False
        self._own_parts = self._make_parts()

    @classmethod
    def get_instance(cls, config: Mapping[str, Any] | None = None) -> FileCache:
        """Return a new cache with the options of a config, overridden by those of the environment.

        Args:
            config: May have a dict of options under `file_cache_opts`. `HEADRACE_FILE_CACHE_OPTS` (JSON) overrides it.

        Raises:
            ConfigError: An option is wrong.
            CacheError: The folder cannot be used.
        """
        return cls(**FileCacheOptions.gather(config).to_arguments())

    @property
    def cache_directory(self) -> str:
        """The folder, absolute, links resolved."""
        return self._own_parts.folder.root

    def _card(self) -> Card:
        counted = self.counters
        facts = [
            ("folder", self.cache_directory),
            ("copies", f"{counted.num_copies:,} copies made ({counted.copied_bytes:,} bytes)"),
            ("hits", f"{counted.num_hits:,} found"),
        ]
        return Card(type(self).__name__, facts)

    @property
    def counters(self) -> CacheCounters:
        """Counters so far; still available after `close`."""
        parts = self._own_parts
        with parts.mutex:
            return CacheCounters(
                parts.num_hits,
                parts.num_copies,
                parts.copied_bytes,
                parts.prefetcher.status().num_fetched,
                parts.room.num_removed,
                parts.room.removed_bytes,
            )

    @property
    def prefetch_status(self) -> PrefetchStatus:
        """Progress of the prefetch, and what it could not fetch."""
        return self._parts().prefetcher.status()

    def get_file(self, src: str | os.PathLike[str]) -> str:
        """Return the path of a copy, made now if there is none; it stays until it is released.

        If another process makes the copy, this waits for it. A copy that exists costs one check of the source and some
        ten system calls.

        Args:
            src: Absolute path or URL.

        Raises:
            ConfigError: The path is relative, or one in the cache itself.
            SourceError: The source is missing, cannot be read, or changes while it is read.
            CacheError: There is no room, or another process that makes the copy gives no sign of life.
        """
        return self._parts().get(plain_source(src))

    def release_files(self, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        """Release one use of a copy, or of several; once for each `get_file`.

        They stay on the disk, and may be removed when room is needed. A path that is not held is ignored.

        Args:
            paths: What `get_file` returned.
        """
        parts = self._parts()
        for path in [paths] if isinstance(paths, (str, os.PathLike)) else paths:
            parts.release(os.fspath(path))

    def handle_cached_files_in_config(self, config: Any) -> tuple[Any, list[str]]:
        """Get every `CachedFile` in a nested structure.

        Args:
            config: Dicts, lists and tuples in each other; it is not changed.

        Returns:
            The structure with paths instead (parts without any are the same objects), and these paths, one for each
            `CachedFile`, to be released.

        Raises:
            SourceError: As in `get_file`; nothing is held then.
            CacheError: As in `get_file`; nothing is held then.
        """
        paths: list[str] = []

        def get(file: CachedFile) -> str:
            paths.append(self.get_file(file.filename))
            return paths[-1]

        try:
            return replace_cached_files(config, get), paths
        except BaseException:
            self.release_files(paths)
            raise

    def set_plan(self, sources: Iterable[str | os.PathLike[str]]) -> None:
        """Set the order in which files will be needed from now on: the one needed soonest is removed last.

        It applies to all processes that use the folder, until this cache is closed or its process ends. Each `get_file`
        takes the first occurrence of its file off the plan. O(number of files).

        Args:
            sources: Paths and URLs; one may occur several times. Replaces the previous plan; files that a prefetch has
                not fetched yet and the plan does not name are not fetched.
        """
        self._parts().set_plan([plain_source(source) for source in sources])

    def prefetch(self, sources: Iterable[str | os.PathLike[str]]) -> None:
        """Copy files in the background, in this order; return at once.

        One thread does it. It removes nothing that is needed sooner than what it copies, in the plan of any process;
        without room it waits. Files that the plan does not name are planned after those that it does.

        Args:
            sources: Paths and URLs. Replaces what is left of an earlier call.
        """
        self._parts().prefetch([plain_source(source) for source in sources])

    def wait_prefetched(self, timeout_seconds: float | None = None) -> bool:
        """Wait until each file of the last `prefetch` is copied or has failed; return False if it takes longer.

        Without a limit this may wait for ever, if there is no room or another process that makes a copy hangs.
        """
        return self._parts().prefetcher.wait(timeout_seconds)

    def cleanup(self, *, need_at_least_free_space_size: int = 0) -> CleanupResult:
        """Remove what was not used for long, and more until enough is free on the disk. Looks at the whole folder.

        Args:
            need_at_least_free_space_size: Bytes that must be free afterwards.

        Raises:
            CacheError: This much cannot be freed.
        """
        parts = self._parts()
        num_files, freed, shortage = parts.room.clean(need_at_least_free_space_size)
        if shortage is not None:
            raise shortage.error(parts.folder.root)
        reason = None if num_files or freed else "nothing is old enough, and enough is free"
        return CleanupResult(freed, num_files, reason)

    def close(self) -> None:
        """Release all files, and end the prefetch within a second. A second call does nothing."""
        self._is_closed = True
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as options: a copy holds nothing."""
        return functools.partial(type(self), **self.options.to_arguments()), ()

    def _make_parts(self) -> CacheParts:
        parts = CacheParts(self.options)
        self._finalizer = weakref.finalize(self, parts.close)
        return parts

    def _parts(self) -> CacheParts:
        if self._is_closed:
            raise closed_error()
        if self._own_parts.pid != os.getpid():  # forked
            self._own_parts = self._make_parts()
        return self._own_parts
