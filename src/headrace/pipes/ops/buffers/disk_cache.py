"""An on-disk cache: a section of a graph whose results are kept in files.

    pipe.on_disk_cache(filepath_fn=...)   # maps each item to its files
        .map(download)                    # the section: runs for items whose files are missing
        .end_caching(mode="wb", ...)      # writes the files, yields their paths

Items whose files exist skip the section. A run of consecutive other items goes through the section as one epoch of it,
however many items there are, and however many results the section makes of each.

Invariants: a file appears whole or not at all. The process that makes a file holds a lock on another file beside it,
which the kernel releases when the process ends. A process that finds it locked waits, without holding locks itself, so
that two processes never wait for each other.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headrace.errors import CacheError, ConfigError
from headrace.files.locks import FileLock, describe_holders, lock_exclusive_nowait

from ...core.base import IterPipe, State, read
from ...core.checks import check_takes
from ...core.registry import functional_pipe, register_function
from ...core.walk import list_pipes
from ..files.check_hash import check_hash_type, hash_of
from ..files.local import check_write_mode, save_whole

_MAX_LOCKS = 100  # open lock files of one run of items: if the section drops items, their locks stay until its end
_ASK_AGAIN_SECONDS = 0.05  # between two attempts: the kernel does not tell when a lock is released


class _Run:
    """The items of one epoch, with the locks on the files that are being made."""

    def __init__(self, holder: OnDiskCacheHolder, items: Iterator[Any]) -> None:
        self.holder = holder
        self.items = items
        self.item: Any = None
        self.paths: list[str] = []
        self.locks: dict[str, FileLock] = {}
        self.num_seen = 0

    def advance(self) -> bool:
        """Go to the next item; return False at the end."""
        for self.item in self.items:
            self.num_seen += 1
            self.paths = self.holder.paths_of(self.item)
            return True
        return False

    def take(self) -> bool:
        """Lock the files of the item in order to make them; False if they exist, or another process makes them."""
        if self.holder.are_there(self.paths) or len(self.locks) >= _MAX_LOCKS:
            return False
        taken: dict[str, FileLock] = {}
        with contextlib.ExitStack() as unless_all_taken:
            unless_all_taken.callback(_release_all, taken)
            for path in self.paths:
                if path in self.locks or path in taken:
                    continue
                os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
                if (lock := lock_exclusive_nowait(_lock_path(path))) is None:
                    return False
                taken[path] = lock
            if self.holder.are_there(self.paths):  # made between the check and the lock
                return False
            unless_all_taken.pop_all()
        self.locks |= taken
        return True

    def release(self, path: str) -> None:
        """Unlock a file that was made."""
        if path in self.locks:
            _release_all({path: self.locks.pop(path)})

    def close(self) -> None:
        """Release all locks."""
        _release_all(self.locks)
        self.locks = {}


@functional_pipe("on_disk_cache")
class OnDiskCacheHolder(IterPipe[Any]):
    """Begin a section whose results are kept in files; `end_caching` ends it.

    Args:
        source_datapipe: The source.
        filepath_fn: Returns the path of the file that the section makes of an item, or a list of paths. `None`: the
            item is the path.
        hash_dict: Path -> expected hash in hexadecimal digits; files with another hash are made again.
        hash_type: `"sha256"` or `"md5"`.
        extra_check_fn: Gets the path of an existing file, and returns whether it is valid.

    Raises:
        ConfigError: The hash type is unknown.
        RuntimeError: `end_caching` was not called (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     words = IterableWrapper(["one", "two"]).on_disk_cache(filepath_fn=lambda word: f"{folder}/{word}.txt")
        ...     pairs = words.map(lambda word: (word, word.upper()))  # only where there is no file yet
        ...     files = pairs.end_caching(mode="w", filepath_fn=lambda word: f"{folder}/{word}.txt")
        ...     [Path(path).read_text() for path in files]
        ['ONE', 'TWO']
    """

    _not_shipped = ("_run",)
    _run: _Run | None = None

    def __init__(
        self,
        source_datapipe: IterPipe[Any],
        filepath_fn: Callable[[Any], Any] | None = None,
        hash_dict: Mapping[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> None:
        for function in (filepath_fn, extra_check_fn):
            if function is not None:
                check_takes(function, 1)
        self.source_datapipe = source_datapipe
        self.filepath_fn = filepath_fn
        self.hash_dict = hash_dict
        self.hash_type = check_hash_type(hash_type)
        self.extra_check_fn = extra_check_fn
        self._has_end = False

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        if run is None:
            raise RuntimeError("Please call `end_caching()` before iteration.")
        while True:
            yield run.item
            if not run.advance():
                run.item = None
                run.paths = []
                return
            if not run.take():
                return

    def paths_of(self, item: Any) -> list[str]:
        """Return the paths of the files of an item."""
        paths = item if self.filepath_fn is None else self.filepath_fn(item)
        return [os.fspath(path) for path in (paths if isinstance(paths, (list, tuple)) else [paths])]

    def are_there(self, paths: list[str]) -> bool:
        """Tell whether all files exist and are valid."""
        return all(os.path.exists(path) and self._is_good(path) for path in paths)

    def _is_good(self, path: str) -> bool:
        if self.hash_dict is not None:
            if path not in self.hash_dict:
                return False
            with open(path, "rb") as file:
                if hash_of(file, self.hash_type, rewind=False) != self.hash_dict[path].lower():
                    return False
        return self.extra_check_fn is None or bool(self.extra_check_fn(path))


class OnDiskCacheEnd(IterPipe[str]):
    """Ends a section whose results are kept in files, see `end_caching`."""

    def __init__(
        self, datapipe: IterPipe[Any], mode: str, filepath_fn: Callable[[Any], str] | None, options: Mapping[str, Any]
    ) -> None:
        self.datapipe = datapipe
        self.mode = check_write_mode(mode)
        self.filepath_fn = filepath_fn
        self.skip_read = bool(options["skip_read"])
        self.timeout = options["timeout"]

    def set_timeout(self, timeout: float) -> OnDiskCacheEnd:
        """Set how many seconds to wait for a file that another process makes."""
        self.timeout = timeout
        return self

    def __iter__(self) -> Iterator[str]:
        holder = _find_holder(self.datapipe, ended=True)
        run = _Run(holder, read(holder.source_datapipe))
        try:
            is_left = run.advance()
            while is_left:
                if holder.are_there(run.paths):
                    yield from run.paths
                    is_left = run.advance()
                    continue
                num_seen = run.num_seen
                self._wait_to_take(run)
                if holder.are_there(run.paths):
                    continue
                holder._run = run
                yield from self._make(run)
                holder._run = None
                is_left = run.paths != []
                if is_left and run.num_seen == num_seen:
                    raise RuntimeError(f"the section before {self!r} has not read its source to the end")
        finally:
            run.close()
            holder._run = None

    def _make(self, run: _Run) -> Iterator[str]:
        """Run the section for consecutive items, and write its results."""
        for name, data in read(self.datapipe):
            path = os.fspath(name if self.filepath_fn is None else self.filepath_fn(name))
            save_whole(path, _bytes_of(data, self.skip_read), self.mode)
            run.release(path)
            yield path
        run.close()

    def _wait_to_take(self, run: _Run) -> None:
        """Wait until the files of an item are locked by this process, or exist.

        Raises:
            CacheError: Another process holds their locks longer than the timeout.
        """
        deadline = time.monotonic() + self.timeout
        while not run.take() and not run.holder.are_there(run.paths):
            if time.monotonic() > deadline:
                who = [(path, name) for path in run.paths for name in describe_holders(_lock_path(path))]
                path, name = who[0] if who else (run.paths[0], "another process")
                raise CacheError(
                    f"waited {self.timeout} s for a file that {name} is making",
                    where=path,
                    fix="give end_caching a longer timeout, or end that process",
                )
            time.sleep(_ASK_AGAIN_SECONDS)

    def state(self) -> State | None:
        return None  # a section has no position; reading it again is cheap, because the files exist


def end_caching(
    datapipe: IterPipe[Any],
    mode: str = "wb",
    filepath_fn: Callable[[Any], str] | None = None,
    *,
    same_filepath_fn: bool = False,
    skip_read: bool = False,
    timeout: float = 300,
) -> OnDiskCacheEnd:
    """End the section that `on_disk_cache` began: write its results to files and yield their paths.

    Args:
        datapipe: The end of the section, whose items are (name, data): bytes, text, an open file, or an iterable of
            chunks of bytes or text.
        mode: `"w"` for text, `"wb"` for bytes.
        filepath_fn: Returns the path for a name; `None`: the name is the path. Check names that come from archives or
            other hosts here: they may point to any folder.
        same_filepath_fn: Use the `filepath_fn` of `on_disk_cache`.
        skip_read: The data are bytes or text already, not files or iterables.
        timeout: Seconds to wait for a file that another process makes.

    Raises:
        ConfigError: Both `filepath_fn` and `same_filepath_fn` were given, or the mode is unknown.
        RuntimeError: `on_disk_cache` was not called before.
        CacheError: Another process has not made its file within the timeout (while iterating).

    Examples:
        >>> from headrace.pipes.iter import IterableWrapper
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     words = IterableWrapper(["one"]).on_disk_cache(filepath_fn=lambda word: f"{folder}/{word}.txt")
        ...     pairs = words.map(lambda word: (word, word.upper()))  # only where there is no file yet
        ...     files = pairs.end_caching(mode="w", filepath_fn=lambda word: f"{folder}/{word}.txt")
        ...     [Path(path).name for path in files]
        ['one.txt']
    """
    holder = _find_holder(datapipe, ended=False)
    if same_filepath_fn:
        if filepath_fn is not None:
            raise ConfigError("`filepath_fn` is mutually exclusive with `same_filepath_fn`")
        filepath_fn = holder.filepath_fn
    if filepath_fn is not None:
        check_takes(filepath_fn, 1)
    end = OnDiskCacheEnd(datapipe, mode, filepath_fn, {"skip_read": skip_read, "timeout": timeout})
    holder._has_end = True
    return end


def _find_holder(datapipe: Any, *, ended: bool) -> OnDiskCacheHolder:
    """Return the pipe at which the section begins that a pipe ends."""
    pipes = list_pipes(datapipe)
    inner = {id(each) for end in pipes if isinstance(end, OnDiskCacheEnd) for each in list_pipes(end)}
    for pipe in reversed(pipes):
        if isinstance(pipe, OnDiskCacheHolder) and id(pipe) not in inner and pipe._has_end is ended:
            return pipe
    raise RuntimeError("Expected `OnDiskCacheHolder` existing in pipeline when `end_caching` is invoked")


def _bytes_of(data: Any, is_read: bool) -> Any:
    if is_read or hasattr(data, "read") or isinstance(data, (bytes, bytearray, memoryview, str)):
        return data
    pieces = list(data)
    return ("" if pieces and isinstance(pieces[0], str) else b"").join(pieces)


def _lock_path(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.headrace-lock")


def _release_all(locks: Mapping[str, FileLock]) -> None:
    for path, lock in locks.items():
        if lock.is_current:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(_lock_path(path))
        lock.close()


register_function(IterPipe, "end_caching", end_caching)
