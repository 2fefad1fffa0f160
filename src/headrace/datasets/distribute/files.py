"""The cached files of sub-epochs: fetched before a dataset is built, held while it lives, released after it."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.errors import CacheError, ConfigError, HeadraceError
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import CachedFile, replace_cached_files
from headrace.files.cache.options import FileCacheOptions

from ..base import Dataset
from ..parts import open_part
from .sub_dataset import SubDataset, cached_files_of, read_in_place

CacheOptions = dict[str, Any] | None

_logger = logging.getLogger("headrace.datasets")
# How often a wait for files says that it is alive, so that it is not taken for a stall (fetching has limits of its
# own), and sees whether anybody waits for them: workers in threads have a second to end.
_BEAT_SECONDS = 0.25
_CLOSE_SECONDS = 1.0  # after the cache is closed, which ends what is being fetched
_MAX_LEFT = 8  # older ones are left to end by themselves


def check_cache_options(given: Any) -> CacheOptions:
    """Return the option `file_cache` in the form that is sent to workers.

    Raises:
        ConfigError: It is no dict of options of `FileCache`, or one of them is wrong.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"file_cache must be a dict of options of FileCache: {given!r}")
    FileCacheOptions.of(given, "file_cache")
    return dict(given)


class SubEpochFiles:
    """The file cache of sub-epochs; it is opened when the first cached file is needed.

    One thread announces and fetches; another may fetch ahead and release.

    Args:
        options: Options of `FileCache`; `None`: those of the environment.
    """

    def __init__(self, options: CacheOptions) -> None:
        self._options = options
        self._lock = threading.Lock()  # protects the two below; held while the cache is opened, which reads no file
        self._cache: FileCache | None = None
        self._is_closed = False
        self._left: deque[threading.Thread] = deque(
            maxlen=_MAX_LEFT
        )  # fetch a file to its end that is not waited for any more

    def announce(self, datasets: Sequence[SubDataset]) -> None:
        """Tell the cache which files will be needed, in this order; if it cannot record that, only time is lost."""
        sources = [source for dataset in datasets for source in cached_files_of(dataset)]
        if sources or self._cache is not None:
            with _tolerated("the plan of files cannot be published"):
                self._open().set_plan(sources)

    def fetch(self, dataset: SubDataset, beat: Callable[[], None] | None = None) -> tuple[SubDataset, list[str]]:
        """Return a config with local paths instead of cached files, and these paths, which are held from now on.

        Args:
            dataset: The config; a dataset stays as it is.
            beat: Called some times a second while files are fetched; what it raises ends that.

        Raises:
            SourceError: A source is missing, or cannot be read.
            CacheError: There is no room.
        """
        sources = cached_files_of(dataset)
        if not sources:
            return dataset, []
        cache = self._open()
        if beat is None:
            return cache.handle_cached_files_in_config(dataset)
        with _tolerated("files are fetched one at a time"):
            cache.prefetch(sources[::-1])  # two at a time: one from each end
        return _while_beating(dataset, beat, cache, self._left)

    def fetch_ahead(self, dataset: SubDataset, goes_on: Callable[[], bool]) -> None:
        """Copy the files of a config to the disk, where there is room, without holding them.

        Args:
            dataset: The config.
            goes_on: Asked now and then whether anybody still wants this.

        Raises:
            CacheError: They did not come. Nothing is tried as hard as by `fetch`.
        """
        sources = cached_files_of(dataset)
        if not sources:
            return
        cache = self._open()
        cache.prefetch(sources)
        while not cache.wait_prefetched(_BEAT_SECONDS / 2):
            if not goes_on():
                raise CacheError("these files are not needed any more")
        failures = cache.prefetch_failures
        for source in sources:
            if source in failures:
                raise CacheError(f"a file could not be fetched: {failures[source]}", where=source)

    def release(self, held: Sequence[str]) -> None:
        """Release the files that `fetch` has returned."""
        with self._lock:
            if self._cache is not None:
                self._cache.release_files(held)

    def close(self) -> None:
        """Release everything and cancel running fetches, within a second."""
        with self._lock:
            cache, self._cache, self._is_closed = self._cache, None, True
        if cache is not None:
            cache.close()
        while self._left:
            self._left.pop().join(_CLOSE_SECONDS)

    def _open(self) -> FileCache:
        with self._lock:
            if self._is_closed:
                raise CacheError("the dataset was closed while its files were fetched")
            if self._cache is None:
                self._cache = FileCache.get_instance() if self._options is None else FileCache(**self._options)
            return self._cache


@contextmanager
def opened_in_place(
    config: SubDataset, options: CacheOptions, beat: Callable[[], None] | None = None
) -> Iterator[Dataset]:
    """Open a sub-dataset for a moment: a cached file is read where it is, and fetched only if that is not possible.

    Args:
        config: The config.
        options: Options of `FileCache`; `None`: those of the environment.
        beat: See `SubEpochFiles.fetch`.
    """
    with contextlib.closing(SubEpochFiles(options)) as files:
        config, _ = files.fetch(read_in_place(config), beat)
        dataset = open_part(config)
        try:
            yield dataset
        finally:
            dataset.finish_epoch(free_resources=True)


@contextmanager
def _tolerated(what: str) -> Iterator[None]:
    """Go on without what only saves time, on a full disk for example; if the cache is of no use, fetching says it."""
    try:
        yield
    except (OSError, HeadraceError) as error:
        _logger.info("%s: %s", what, error)


def _while_beating(
    dataset: SubDataset, beat: Callable[[], None], cache: FileCache, left: deque[threading.Thread]
) -> tuple[SubDataset, list[str]]:
    """Get cached files in a thread, and say meanwhile that the calling one is alive.

    If the beat raises, nothing is held, and the thread, which fetches the file that it is at to its end, is added to
    `left`.
    """
    held: list[str] = []
    results: list[SubDataset] = []
    errors: list[BaseException] = []
    mutex = threading.Lock()  # protects the next two: the last of the two, the thread or the caller, releases
    is_left = is_over = False

    def get(file: CachedFile) -> str:
        if is_left:
            raise CacheError("these files are not needed any more", where=file.filename)
        held.append(cache.get_file(file.filename))
        return held[-1]

    def run() -> None:
        nonlocal is_over
        try:
            results.append(replace_cached_files(dataset, get))
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            errors.append(error)
        with mutex:
            is_over = True
            if is_left or errors:
                release()

    def release() -> None:
        with contextlib.suppress(CacheError):  # it was closed, and holds nothing
            cache.release_files(held)

    thread = threading.Thread(target=run, name="headrace-fetch", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            beat()
            thread.join(_BEAT_SECONDS)
    except BaseException:
        with mutex:
            is_left = True
            left.append(thread)
            if is_over and not errors:
                release()
        raise
    if errors:
        raise errors[0]
    return results[0], held
