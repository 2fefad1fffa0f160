"""The sub-epochs that a worker has open: the one that is read, and the next ones, opened in the background.

Opening means: fetch the files, build the dataset, start its order. One background thread does that for the coming
sub-epochs, in their order, while the worker's own thread reads; so going on to the next one costs nothing. What is not
wanted any more is closed before anything else is fetched, so that its files can make room.

Invariants: an entry is opened by one thread at a time, and belongs to the reading thread once it is open; the lock is
held for a few lines only, never while user code runs, files are fetched or anything is waited for. An error of the
background is dropped: when that sub-epoch is asked for it is opened once more, since what was in the way (a full disk,
a network) may be gone, and it is the error of that second try that is raised. The background thread holds the shelf
only while it works: a shelf without references is collected, and its thread ends.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.engine import note_item
from headrace.errors import CacheError, ConfigError, HeadraceError, takes_note
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import CachedFile, replace_cached_files
from headrace.files.cache.options import FileCacheOptions

from ..base import Dataset
from ..parts import open_part
from ..reading.reader import ReadRequest
from ..wrap.blockwise import FailedSeqs, Parts
from ..wrap.runs import BlockReader, ReadSeqs
from .sub_dataset import SubDataset, SubEpochLayout, SubEpochSpec, cached_files_of, read_in_place

CacheOptions = dict[str, Any] | None

# How often a wait for files says that it is alive, so that it is not taken for a stall (fetching has limits of its
# own), and sees whether anybody waits for them: workers in threads have a second to end.
_BEAT_SECONDS = 0.25
_CANCEL_SECONDS = 1.0  # after the cache is closed, which ends what is being fetched
_MAX_LEFT = 8  # older ones are left to end by themselves
_logger = logging.getLogger("headrace.datasets")
_WAIT_SECONDS = 1.0  # between two looks at what another thread is building: no limit, the engine has one
_CLOSE_SECONDS = 2.0  # how long the end of the background's work is waited for
# The background begins so much later than it could: it would take the interpreter's lock from the first sequences of a
# sub-epoch, and the reader waits for these.
_HEAD_START_SECONDS = 0.02


class _Entry:
    """One sub-epoch on the shelf. All but the first is protected by the lock.

    Attributes:
        spec: What it is.
        opener: Set while a thread opens it: told when that is done. It says who the opener is, too.
        is_fetching: Whether the opener is the background, and is still fetching files: then another may take over.
        opened: The result; None as long as there is none, and after a failure.
        is_wanted: Whether it is still on the shelf.
        has_failed: Whether the background has tried.
    """

    __slots__ = ("has_failed", "is_fetching", "is_wanted", "opened", "opener", "spec")

    def __init__(self, spec: SubEpochSpec) -> None:
        self.spec = spec
        self.opener: threading.Event | None = None
        self.is_fetching = False
        self.opened: OpenSubEpoch | None = None
        self.is_wanted = True
        self.has_failed = False


class Shelf:
    """Opens sub-epochs, keeps those that are wanted, and closes the others. One thread arranges and takes.

    Args:
        files: Where cached files come from.
        beats: Whether a long wait for files must be told, so that it is not taken for a stall.
    """

    def __init__(self, files: SubEpochFiles, *, beats: bool) -> None:
        self._files = files
        self._beats = beats
        self._lock = threading.Lock()  # protects what follows; no finalizer and no signal handler takes it
        self._entries: dict[tuple[int, int], _Entry] = {}
        self._dropped: list[OpenSubEpoch] = []
        self._layout: SubEpochLayout | None = None
        self._is_preparing = False
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True: there is work; False: the end
        self._thread: threading.Thread | None = None  # the reading thread's own

    def arrange(self, specs: Sequence[SubEpochSpec], layout: SubEpochLayout | None) -> None:
        """Set which sub-epochs are wanted from now on: the one to be read, then the coming ones in their order.

        Args:
            specs: At least one.
            layout: What the sequences of each must be like, if it is known.
        """
        with self._lock:
            self._layout = layout or self._layout
            before = self._entries
            kept = {spec.key: before[spec.key] if spec.key in before else _Entry(spec) for spec in specs}
            self._entries = kept
            for entry in before.values():
                if entry.spec.key not in kept:
                    self._drop(entry)
            to_fetch = [entry.spec.dataset for entry in kept.values() if entry.opened is None]
            is_preparing = self._is_preparing
        if is_preparing or len(specs) == 1:
            self._close_dropped()  # the background may be waiting for just this room
        self._files.announce(to_fetch)
        if len(specs) > 1 and (self._thread is None or not self._thread.is_alive()):  # user code may have ended it
            serve = contextvars.copy_context().run  # so that user code in the thread knows which worker it is in
            self._thread = threading.Thread(
                target=serve, args=(_serve, weakref.ref(self), self._wake), name="headrace-sub-epochs", daemon=True
            )
            self._thread.start()
        self._wake.put(True)

    def take(self, spec: SubEpochSpec, is_wanted: Callable[[], bool]) -> OpenSubEpoch:
        """Return an open sub-epoch that was arranged for.

        If the background is fetching its files, that is taken over; if it is building the dataset, it is waited for.

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

        while True:
            with self._lock:
                entry = self._entries[spec.key]
                if entry.opened is not None:
                    return entry.opened
                other = None if entry.is_fetching else entry.opener
                if other is None:
                    event = entry.opener = threading.Event()
                    entry.is_fetching = False
                    break
            other.wait(_WAIT_SECONDS)
        self._close_dropped()
        opened = self._open(entry, event, beat if self._beats else None)
        self._wake.put(True)
        return opened

    def layout(self) -> SubEpochLayout | None:
        """Return the layout of the sequences, as far as it is known."""
        with self._lock:
            return self._layout

    def close(self) -> None:
        """Close everything; a dataset that the background is building is closed as soon as it is built."""
        with self._lock:
            entries, self._entries = list(self._entries.values()), {}
            for entry in entries:
                self._drop(entry)
        self._wake.put(False)
        self._close_dropped()
        self._files.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_CLOSE_SECONDS)
            if thread.is_alive():
                _logger.warning(
                    "the thread that opens a sub-epoch is left running, because user code in it does not return"
                )

    def __del__(self) -> None:
        wake = getattr(self, "_wake", None)
        if wake is not None:
            wake.put(False)

    # --- the background ---

    def prepare(self) -> None:
        """Close what was dropped, and open what is coming: the work of the background thread."""
        with self._lock:
            self._is_preparing = True
        try:
            while (found := self._next_to_prepare()) is not None:
                self._prepare(*found)
        finally:
            with self._lock:
                self._is_preparing = False

    def _next_to_prepare(self) -> tuple[_Entry, threading.Event] | None:
        self._close_dropped()
        with self._lock:
            entries = list(self._entries.values())
            if not entries or entries[0].opened is None:
                return None  # what is to be read now comes before all others, and its reader opens it
            for entry in entries[1:]:
                if entry.opened is None and entry.opener is None and not entry.has_failed:
                    event = entry.opener = threading.Event()
                    entry.is_fetching = True
                    return entry, event
        return None

    def _prepare(self, entry: _Entry, event: threading.Event) -> None:
        def is_ours() -> bool:
            with self._lock:
                return entry.opener is event and entry.is_wanted

        try:
            self._files.fetch_ahead(entry.spec.dataset, is_ours)
        except Exception as error:  # noqa: BLE001 - raised when this sub-epoch is asked for
            self._give_up(entry, event, error)
            return
        with self._lock:
            if entry.opener is not event:
                return  # taken over
            entry.is_fetching = False
            if not entry.is_wanted or next(iter(self._entries.values())).opened is None:
                entry.opener = None  # not now: the reader fetches something else, and wakes us when it has it
                return
        try:
            self._open(entry, event, None)
        except Exception as error:  # noqa: BLE001 - raised when this sub-epoch is asked for
            self._give_up(entry, event, error)

    def _give_up(self, entry: _Entry, event: threading.Event, error: Exception) -> None:
        with self._lock:
            entry.has_failed = True
            if entry.opener is event:
                entry.opener, entry.is_fetching = None, False
        _logger.info("not opened ahead of time: %s: %s", entry.spec.where, error)

    # --- in either thread ---

    def _open(self, entry: _Entry, event: threading.Event, beat: Callable[[], None] | None) -> OpenSubEpoch:
        """Open an entry, whose opener the calling thread is."""
        opened: OpenSubEpoch | None = None
        try:
            opened = self._build(entry.spec, beat)
        except Exception as error:
            takes_note(error, f"while opening {entry.spec.where}")
            raise
        finally:
            with self._lock:
                entry.opener = None
                if entry.is_wanted:
                    entry.opened = opened
                elif opened is not None:
                    self._dropped.append(opened)
            event.set()
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
        layout = SubEpochLayout.of(dataset, f"files {spec.files} of sub-epoch {spec.epoch}")
        if layout is not None:
            with self._lock:
                expected = self._layout = self._layout or layout
            expected.check_same(layout)

    def _drop(self, entry: _Entry) -> None:
        """Forget an entry; called with the lock."""
        entry.is_wanted = False
        opened, entry.opened = entry.opened, None
        if opened is not None:
            self._dropped.append(opened)

    def _close_dropped(self) -> None:
        while True:
            with self._lock:
                if not self._dropped:
                    return
                opened = self._dropped.pop()
            _close(opened.dataset, opened.spec)
            self._files.release(opened.held)


def _serve(shelf_ref: weakref.ref[Shelf], wake: queue.SimpleQueue[bool]) -> None:
    """Be the background thread."""
    while wake.get():
        time.sleep(_HEAD_START_SECONDS)
        with contextlib.suppress(queue.Empty):  # many short sub-epochs: one look is for all that has come meanwhile
            while True:
                if not wake.get_nowait():
                    return
        shelf = shelf_ref()
        if shelf is None:
            return
        shelf.prepare()
        del shelf


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
        self.spec = spec
        self.dataset = dataset
        self.held = held
        self._can_jump = dataset.supports_jumps
        self._position = 0  # the next one that a dataset without jumps gives
        # A sequence has the same draws in whatever sub-epoch and on whatever rank its file comes to be read.
        dataset.seed_by_tag()
        reader = dataset.make_reader()
        self._reader = BlockReader(reader)
        self._whole: ReadRequest | None = None  # where any sequence can be read
        if reader.is_sequential:  # read from its start, by its only owner
            dataset.init_seq_order(epoch=spec.full_epoch)
            self.num_seqs = dataset.known_num_seqs()
        else:
            order, counted = dataset.get_epoch_order(spec.full_epoch)
            self._whole = ReadRequest(spec.full_epoch, order, counted, 0)
            self.num_seqs = None if dataset.skips_failed else len(order)

    def read(self, start: int, stop: int, *, skips: bool) -> tuple[Parts, FailedSeqs, bool]:
        """Read sequences start..stop (exclusive; may exceed the sub-epoch); tell whether it ends there, or before.

        Up to a sequence that fails, or without it; what failed is returned as well.
        """
        if self.num_seqs is not None:
            stop = min(stop, self.num_seqs)
        if self._whole is not None:
            wanted = self._whole.part(start, max(start, stop))
            return *self._reader.read(wanted, self.spec.epoch, skips=skips), stop == self.num_seqs
        seqs = ReadSeqs(skips)
        if start < stop:
            self._go_to(start)
        has_more = True
        while has_more and self._position < stop:
            name = f"(sequence {self._position} of sub-epoch {self.spec.epoch})"
            has_more = seqs.read(self.dataset, self._position, epoch=self.spec.epoch, name=name)
            self._position += has_more
        if seqs.failed and not skips:
            return seqs.parts(), seqs.failed, False
        return seqs.parts(), seqs.failed, not has_more or stop == self.num_seqs

    def _go_to(self, position: int) -> None:
        """Make a position the next one, by reading those before it if there is no other way."""
        if position < self._position:
            self.dataset.init_seq_order(epoch=self.spec.full_epoch)
            self._position = 0
        if self._can_jump:
            self._position = position
        while self._position < position and self.dataset.is_less_than_num_seqs(self._position):
            note_item(f"(passing over sequence {self._position} of sub-epoch {self.spec.epoch})", self.spec.epoch)
            with contextlib.suppress(Exception):  # not wanted any more; its error was reported once
                self.dataset.load_seqs(self._position, self._position + 1)
            self._position += 1


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
