"""Caches that are closed at the end of a test, and leave no threads."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.files.cache.cache import FileCache


@pytest.fixture
def make_cache(tmp_path: Path) -> Iterator[Callable[..., FileCache]]:
    """Return a function that makes a cache with options, in a folder of the test's."""
    caches: list[FileCache] = []

    def make(**options) -> FileCache:
        caches.append(FileCache(**{"cache_directory": tmp_path / "cache", **options}))
        return caches[-1]

    yield make
    for cache in caches:
        cache.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("headrace-file-cache")]
