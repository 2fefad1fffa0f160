"""The sub-epochs that a worker has open: the one that is read, and the next ones, opened in the background.

Opening means: fetch the files, build the dataset, start its order. One background thread does that for the coming
sub-epochs, in their order, while the worker's own thread reads; so going on to the next one costs nothing. What is not
wanted any more is closed before anything else is fetched, so that its files can make room.

Invariants: an entry is opened by one thread at a time, and belongs to the reading thread once it is open; the lock is
held for a few lines only, never while user code runs, files are fetched or anything is waited for. An error of the
background is dropped: when that sub-epoch is asked for it is opened once more, since what was in the way (a full disk,
a network) may be gone, and it is the error of that second try that is raised. The background thread ends when it has
nothing to do: so a shelf without references is collected.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from headrace.engine import note_item
from headrace.errors import CacheError, ConfigError, HeadraceError, takes_note
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import CachedFile, replace_cached_files
from headrace.files.cache.options import FileCacheOptions

from ..base import Dataset
from ..parts import open_part
from ..wrap.runs import EpochParts
from .sub_dataset import SubDataset, SubEpochLayout, SubEpochSpec, cached_files_of, read_in_place

CacheOptions = dict[str, Any] | None

# How often a wait for files says that it is alive, so that it is not taken for a stall (fetching has limits of its
# own), and sees whether anybody waits for them: workers in threads have a second to end.
_BEAT_SECONDS = 0.25
_CANCEL_SECONDS = 1.0  # after the cache is closed, which ends what is being fetched
_MAX_LEFT = 8  # older ones are left to end by themselves
_logger = logging.getLogger("headrace.datasets")
_CLOSE_SECONDS = 2.0  # how long the end of the background's work is waited for
# The background begins so much later than it could: it would take the interpreter's lock from the first sequences of a
# sub-epoch, and the reader waits for these.
_HEAD_START_SECONDS = 0.02


class _Entry:
    """One sub-epoch on the shelf. All but the first is protected by the lock.

    Attributes:
        spec: What it is.
        opening: Set while a thread opens it, and once it is open; done when it is. `None` again after a failure.
        has_failed: Whether the background has tried.
    """

    __slots__ = ("has_failed", "opening", "spec")

    def __init__(self, spec: SubEpochSpec) -> None:
        self.spec = spec
        self.opening: Future[OpenSubEpoch] | None = None
        self.has_failed = False

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self.opening is not None and self.opening.done()


class Shelf:
    """Opens sub-epochs, keeps those that are wanted, and closes the others. One thread arranges and takes.

    Args:
        files: Where cached files come from.
        beats: Whether a long wait for files must be told, so that it is not taken for a stall.

    Attributes:
        layout: That of the sequences, as far as it is known.
    """

    def __init__(self, files: SubEpochFiles, *, beats: bool) -> None:
        self._files = files
        self._beats = beats
        self._lock = threading.Lock()  # protects what follows; no finalizer and no signal handler takes it
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._dropped: list[OpenSubEpoch] = []
        self.layout: SubEpochLayout | None = None
        self._is_preparing = False  # whether the background is at work
        self._thread: threading.Thread | None = None  # the last one of the background; the reading thread's own

    def arrange(self, specs: Sequence[SubEpochSpec], layout: SubEpochLayout | None) -> None:
        """Set which sub-epochs are wanted from now on: the one to be read, then the coming ones in their order.

        Args:
            specs: At least one.
            layout: What the sequences of each must be like, if it is known.
        """
        with self._lock:
            self.layout = layout or self.layout
            before = self._entries
            self._entries = {spec.key: before.get(spec.key) or _Entry(spec) for spec in specs}
            self._drop(entry for entry in before.values() if entry.spec.key not in self._entries)
            to_fetch = [entry.spec.dataset for entry in self._entries.values() if not entry.is_open]
            is_preparing = self._is_preparing
        if is_preparing or len(specs) == 1:
            self._close_dropped()  # the background may be waiting for just this room
        self._files.announce(to_fetch)
        self._wake()

    def take(self, spec: SubEpochSpec, is_wanted: Callable[[], bool]) -> OpenSubEpoch:
        """Return an open sub-epoch that was arranged for; if the background is building the dataset, wait for it.

        Args:
            spec: Which sub-epoch.
            is_wanted: Called some times a second while files are fetched: when it returns False, because the reader has
                gone to another sub-epoch, the fetch is given up.

        Raises:
            Exception: It cannot be opened; a note says which one it is.
        """

        def beat() -> None:
            note_item(f"(fetching files of sub-epoch {spec.epoch})", spec.epoch)
            if not is_wanted():
                raise CacheError("these files are not needed any more", where=spec.where)

        entry = self._entries[spec.key]
        while (opening := entry.opening) is not None or (ours := self._claim(entry)) is None:
            if opening is not None and opening.exception() is None:  # no limit to this wait: the engine has one
                return opening.result()
        self._close_dropped()
        opened = self._open(entry, ours, beat if self._beats else None)
        self._wake()
        return opened

    def close(self) -> None:
        """Close everything; a dataset that the background is building is closed as soon as it is built."""
        with self._lock:
            entries, self._entries = self._entries, {}
            self._drop(entries.values())
        self._close_dropped()
        self._files.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
            if thread.is_alive():
                _logger.warning(
                    "the thread that opens a sub-epoch is left running, because user code in it does not return"
                )

    # --- the background ---

    def _wake(self) -> None:
        """Have the background begin, if there is work for it, and it is not at work."""
        with self._lock:
            if self._is_preparing or (self._coming() is None and not self._dropped):
                return
            self._is_preparing = True
        run = contextvars.copy_context().run  # so that user code in the thread knows which worker it is in
        self._thread = threading.Thread(target=run, args=(self._prepare,), name="headrace-sub-epochs", daemon=True)
        self._thread.start()

    def _prepare(self) -> None:
        """Close what was dropped, and open what is coming: the work of the background thread."""
        time.sleep(_HEAD_START_SECONDS)
        try:
            while True:
                self._close_dropped()
                with self._lock:
                    entry = self._coming()
                    if entry is None and not self._dropped:
                        self._is_preparing = False
                        return
                if entry is not None:
                    self._open_ahead(entry)
        except BaseException:  # user code that ends its thread
            self._is_preparing = False
            raise

    def _coming(self) -> _Entry | None:
        """Return what the background should open; called with the lock.

        What is to be read now comes before all others, and its reader opens it.
        """
        entries = list(self._entries.values())
        if not entries or not entries[0].is_open:
            return None
        return next((entry for entry in entries[1:] if entry.opening is None and not entry.has_failed), None)

    def _is_next(self, entry: _Entry) -> bool:
        with self._lock:
            return self._coming() is entry

    def _open_ahead(self, entry: _Entry) -> None:
        try:
            if self._files.fetch_ahead(entry.spec.dataset, lambda: self._is_next(entry)):
                ours = self._claim(entry, is_ahead=True)
                if ours is not None:
                    self._open(entry, ours, None)
        except Exception as error:  # noqa: BLE001 - raised when this sub-epoch is asked for
            entry.has_failed = True
            _logger.info("not opened ahead of time: %s: %s", entry.spec.where, error)

    # --- in either thread ---

    def _claim(self, entry: _Entry, *, is_ahead: bool = False) -> Future[OpenSubEpoch] | None:
        """Make the calling thread the one that opens an entry, unless another does, or it is not its turn."""
        with self._lock:
            if entry.opening is not None or (is_ahead and self._coming() is not entry):
                return None
            entry.opening = Future()
            return entry.opening

    def _open(self, entry: _Entry, opening: Future[OpenSubEpoch], beat: Callable[[], None] | None) -> OpenSubEpoch:
        """Open an entry that the calling thread has claimed."""
        try:
            opened = self._build(entry.spec, beat)
        except BaseException as error:
            if isinstance(error, Exception):
                takes_note(error, f"while opening {entry.spec.where}")
            entry.opening = None
            opening.set_exception(error)
            raise
        with self._lock:
            opening.set_result(opened)
            if self._entries.get(entry.spec.key) is not entry:
                self._dropped.append(opened)
        return opened

    def _build(self, spec: SubEpochSpec, beat: Callable[[], None] | None) -> OpenSubEpoch:
        config, held = self._files.fetch(spec.dataset, beat)
        dataset: Dataset | None = None
        try:
            dataset = open_part(config)
            self._check_layout(dataset, spec)
            return OpenSubEpoch(spec, dataset, held)
        except BaseException:
            _close(dataset, spec)
            self._files.release(held)
            raise

    def _check_layout(self, dataset: Dataset, spec: SubEpochSpec) -> None:
        layout = SubEpochLayout.of(dataset.get_corpus(), f"files {spec.files} of sub-epoch {spec.epoch}")
        if layout is not None:
            with self._lock:
                expected = self.layout = self.layout or layout
            expected.check_same(layout)

    def _drop(self, entries: Iterable[_Entry]) -> None:
        """Have closed what is open of entries that are not on the shelf any more; called with the lock."""
        self._dropped += [entry.opening.result() for entry in entries if entry.opening and entry.opening.done()]

    def _close_dropped(self) -> None:
        while True:
            with self._lock:
                if not self._dropped:
                    return
                opened = self._dropped.pop()
            _close(opened.dataset, opened.spec)
            self._files.release(opened.held)


def _close(dataset: Dataset | None, spec: SubEpochSpec) -> None:
    try:
        if dataset is not None:
            dataset.finish_epoch(free_resources=True)
    except Exception:  # user code: its sequences were read, and the next sub-epoch does not depend on it
        _logger.warning("closing %s failed", spec.where, exc_info=True)


class OpenSubEpoch:
    """A sub-epoch whose dataset is open and whose order is known, or else started. Not thread-safe.

    Args:
        spec: What it is.
        dataset: Its dataset; from now on it is used here only.
        held: The cached files that it reads, to be released when it is closed.
    """

    def __init__(self, spec: SubEpochSpec, dataset: Dataset, held: Sequence[str]) -> None:
        self.spec, self.dataset, self.held = spec, dataset, held
        # A sequence has the same draws in whatever sub-epoch and on whatever rank its file comes to be read.
        dataset.seed_by_tag()
        corpus = dataset.get_corpus()
        corpus.answer_alone()
        self.reader = EpochParts(corpus, spec.full_epoch, f"sub-epoch {spec.epoch}", spec.epoch)


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
        held: list[str] = []

        def get(file: CachedFile) -> str:
            held.append(cache.get_file(file.filename) if beat is None else self._get(cache, file.filename, beat))
            return held[-1]

        if beat is not None:
            with _tolerated("files are fetched one at a time"):
                cache.prefetch(sources[::-1])  # two at a time: one from each end
        try:
            return replace_cached_files(dataset, get), held
        except BaseException:
            self.release(held)
            raise

    def _get(self, cache: FileCache, source: str, beat: Callable[[], None]) -> str:
        """Get a cached file in a thread, and say meanwhile that the calling one is alive.

        If the beat raises, the thread fetches the file to its end, and does not hold it.
        """
        getting: Future[str] = Future()

        def get() -> None:
            try:
                getting.set_result(cache.get_file(source))
            except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
                getting.set_exception(error)

        thread = threading.Thread(target=get, name="headrace-fetch", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                beat()
                thread.join(_BEAT_SECONDS)
        except BaseException:
            self._left.append(thread)
            getting.add_done_callback(lambda done: None if done.exception() else self.release([done.result()]))
            raise
        return getting.result()

    def fetch_ahead(self, dataset: SubDataset, goes_on: Callable[[], bool]) -> bool:
        """Copy the files of a config to the disk, where there is room, without holding them; tell whether they came.

        Args:
            dataset: The config.
            goes_on: Asked now and then whether anybody still wants this.

        Raises:
            CacheError: A file did not come. Nothing is tried as hard as by `fetch`.
        """
        sources = cached_files_of(dataset)
        if not sources:
            return True
        cache = self._open()
        cache.prefetch(sources)
        while not cache.wait_prefetched(_BEAT_SECONDS / 2):
            if not goes_on():
                return False
        failures = cache.prefetch_failures
        for source in sources:
            if source in failures:
                raise CacheError(f"a file could not be fetched: {failures[source]}", where=source)
        return True

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
            self._left.pop().join(_CANCEL_SECONDS)

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
