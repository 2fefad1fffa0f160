"""Copies on the local disk of whatever is read by a URL where a path is expected."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from ..locations import local_path
from .options import ENVIRONMENT_KEY

if TYPE_CHECKING:
    from .cache import FileCache

_NUM_THREADS = 8  # each waits for its store most of the time


def local_copies(names: Sequence[str]) -> list[str]:
    """Return a local path for each path or URL; what a URL names is copied by the file cache, several at a time.

    The copies are held until this process ends, as what reads them may be pickled, shared or opened again. The options
    of the cache are those of the environment, see `FileCache.get_instance`.

    Raises:
        ConfigError: A URL is of an unknown kind, or its package is not installed.
        SourceError: What a URL names is missing, or its store refuses.
        CacheError: There is no room for a copy.
    """
    found = [local_path(name) for name in names]
    wanted = [name for name, path in zip(names, found, strict=True) if path is None]
    if not wanted:
        return [path for path in found if path is not None]
    with ThreadPoolExecutor(min(_NUM_THREADS, len(wanted))) as pool:
        copies = iter(list(pool.map(_cache_with(os.environ.get(ENVIRONMENT_KEY)).get_file, wanted)))
    return [next(copies) if path is None else path for path in found]


def local_copy(path: str | os.PathLike[str]) -> str:
    """Return the absolute path of one file; for a URL that of its copy, see `local_copies`."""
    return os.path.abspath(local_copies([os.fspath(path)])[0])


@cache
def _cache_with(options: str | None) -> FileCache:  # noqa: ARG001 - other options, another cache
    from .cache import FileCache  # here, as most corpora are local, and workers import all that is above

    return FileCache.get_instance()


def release_copies() -> None:
    """Release what this process holds: copies may be removed when room is needed, so nothing may read them any more."""
    _cache_with.cache_clear()
