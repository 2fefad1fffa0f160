"""Bytes of the files of one corpus, at any position: at most a fixed number of files is open at a time.

Each read ends with a look at size and modification time of its file, so that a file that is rewritten in place, also
while it is open, gives a `SourceError` and no other numbers; of many reads at once, one look a file. The look comes
after the read: before the bytes of a file change, its time does. (By a mapping bytes may change before the time, and
what is written within the same tick of the file system's clock as the stamp is not seen.)

Bytes come by `preadv`, not from a memory map: no position is shared, so descriptors may be inherited by a forked
process, and a file that is cut while it is read gives a `SourceError`, where a map would kill the process. Files that
have been open longest are closed first: for random orders this is as good as "least recently used", and a hit costs
one look-up. Where the system allows fewer open files, fewer are kept open. Not thread-safe.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

MAX_OPEN_FILES = 64
_BYTE = np.dtype(np.uint8)
_REREAD = "open the corpus again; make the index again if it was given"


class _OpenFile(NamedTuple):
    """A descriptor, and what the file must be."""

    descriptor: int
    size: int
    mtime_ns: int


class PlainFiles:
    """Reads bytes of files that must be what they were when they were indexed.

    Args:
        stamps: The files as they were then.
    """

    def __init__(self, stamps: Sequence[FileStamp]) -> None:
        self._stamps = stamps
        self._files: dict[int, _OpenFile] = {}
        self._unconfirmed: set[int] = set()  # files that were read and not looked at since; within `read_many` only

    def read(self, file_idx: int, position: int, num_bytes: int) -> bytes:
        """Return the bytes position..position + num_bytes of a file.

        Raises:
            SourceError: The file is gone, was changed since it was indexed, ends too early, or cannot be read.
        """
        return self.read_array(file_idx, position, (num_bytes,), _BYTE).tobytes()

    def read_array(self, file_idx: int, position: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """Return an array that is stored in C order from `position` on, as a new one.

        Room is made for it only if the file has so many bytes there: what a damaged file or index says may be anything.

        Raises:
            SourceError: As for `read`.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        array = self.read_unconfirmed(file_idx, position, num_bytes, shape, dtype)
        self.confirm(file_idx)
        return array

    def read_unconfirmed(
        self, file_idx: int, position: int, num_bytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Return an array of so many bytes as `read_array` does, but for the last look at its file: see `confirm`."""
        if num_bytes <= 0:
            return self._array_without_items(file_idx, shape, dtype)
        descriptor, size, _ = self._files.get(file_idx) or self._open(file_idx)
        if not 0 <= position <= size - num_bytes:
            raise _ends_before(self._stamps[file_idx].path, size, position, num_bytes)
        try:
            array: NDArray[Any] = np.empty(shape, dtype)
            done = os.preadv(descriptor, (array,), position)  # type: ignore[arg-type] # an array is a buffer
            if done != num_bytes:
                self._read_rest(file_idx, descriptor, position, array, done)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", where=self._stamps[file_idx].path) from error
        except ValueError as error:
            raise self._no_array(file_idx, shape, error) from error
        return array

    def confirm(self, file_idx: int) -> None:
        """Look at a file after a read: before another one is read, which might close this one.

        Raises:
            SourceError: It is not what it was when it was indexed: what was read may be anything.
        """
        file = self._files.get(file_idx)
        if file is not None:  # otherwise nothing was read
            descriptor, size, mtime_ns = file
            now = os.fstat(descriptor)
            if now.st_mtime_ns != mtime_ns or now.st_size != size:
                raise _changed(self._stamps[file_idx], now)

    def _array_without_items(self, file_idx: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        try:
            return np.empty(shape, dtype)
        except ValueError as error:
            raise self._no_array(file_idx, shape, error) from error

    def _no_array(self, file_idx: int, shape: tuple[int, ...], error: ValueError) -> SourceError:
        """Return the error for sizes that are negative, or that NumPy cannot multiply."""
        path = self._stamps[file_idx].path
        return SourceError(f"there is no array of the shape {shape}: {error}", where=path, fix=_REREAD)

    def read_many(self, reads: Iterable[tuple[int, int, NDArray[Any]]]) -> None:
        """Fill arrays in C order, each given as file, position there, and array. Each file is looked at once.

        Raises:
            SourceError: As for `read`; the content of the arrays is arbitrary then.
        """
        try:
            for file_idx, position, array in reads:
                num_bytes = array.nbytes
                if not num_bytes:
                    continue
                descriptor = (self._files.get(file_idx) or self._open(file_idx)).descriptor
                self._unconfirmed.add(file_idx)
                done = os.preadv(descriptor, (array,), position)  # type: ignore[arg-type] # as above
                if done != num_bytes:
                    self._read_rest(file_idx, descriptor, position, array, done)
            for file_idx in self._unconfirmed:
                self.confirm(file_idx)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", where=self._stamps[file_idx].path) from error
        except OverflowError as error:  # a position beyond 64 bits
            stamp = self._stamps[file_idx]
            raise _ends_before(stamp.path, stamp.size, position, num_bytes) from error
        finally:
            self._unconfirmed.clear()

    def _read_rest(self, file_idx: int, descriptor: int, position: int, array: NDArray[Any], done: int) -> None:
        """Go on after a short read: Linux gives at most 2 GiB at a time. If nothing more comes, the file is short."""
        rest = array.reshape(-1).view(np.uint8)
        while done < len(rest):
            step = os.preadv(descriptor, (rest[done:],), position + done)  # type: ignore[arg-type] # as above
            if not step:
                path, size = self._stamps[file_idx].path, os.fstat(descriptor).st_size
                raise _ends_before(path, size, position, len(rest))
            done += step

    def _open(self, file_idx: int) -> _OpenFile:
        stamp = self._stamps[file_idx]
        check_stamp(stamp)
        if len(self._files) >= MAX_OPEN_FILES:
            self._drop(next(iter(self._files)))
        while True:
            try:
                descriptor = os.open(stamp.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN or not self.close_older_half():
                    raise _cannot_open(stamp, error) from error
            else:
                file = self._files[file_idx] = _OpenFile(descriptor, stamp.size, stamp.mtime_ns)
                return file

    def _drop(self, file_idx: int) -> None:
        """Close a file; if it was read and not looked at since, look at it now."""
        try:
            if file_idx in self._unconfirmed:
                self.confirm(file_idx)
        finally:
            self._unconfirmed.discard(file_idx)
            os.close(self._files.pop(file_idx).descriptor)

    def close_older_half(self) -> bool:
        """Close half of the files, so that others find room, too; return whether there were any."""
        older = older_half(self._files)
        for file_idx in older:
            self._drop(file_idx)
        return bool(older)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        while self._files:
            os.close(self._files.popitem()[1].descriptor)

    def __del__(self) -> None:
        try:
            self.close()
        except (AttributeError, TypeError):
            if os is not None:  # at the end of the interpreter the modules may be gone, and it closes what is open
                raise


def older_half(handles: dict[int, Any]) -> list[int]:
    """Return the keys of the half that was opened first."""
    return list(handles)[: (len(handles) + 1) // 2]


def check_stamp(stamp: FileStamp) -> None:
    """Refuse a file whose size or time is not what it was: what it holds may lie elsewhere.

    Raises:
        SourceError: It changed, or is gone.
    """
    try:
        now = os.stat(stamp.path)
    except (OSError, ValueError) as error:
        raise _cannot_open(stamp, error) from error
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise _changed(stamp, now)


def check_open_file(stamp: FileStamp, descriptor: int) -> None:
    """Refuse an open file whose size or time is not what it was, see `check_stamp`.

    Raises:
        SourceError: It changed.
    """
    now = os.fstat(descriptor)
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise _changed(stamp, now)


def _changed(stamp: FileStamp, now: os.stat_result) -> SourceError:
    return SourceError(
        f"the file was changed since it was indexed: {stamp.size} bytes of time {stamp.mtime_ns} then, "
        f"{now.st_size} bytes of time {now.st_mtime_ns} now",
        where=stamp.path,
        fix=_REREAD,
    )


def _ends_before(path: str, size: int, position: int, num_bytes: int) -> SourceError:
    return SourceError(
        f"the file ends at byte {size}, before the {num_bytes} bytes at {position}",
        where=path,
        fix="the file was cut after it was indexed: restore it",
    )


def _cannot_open(stamp: FileStamp, error: OSError | ValueError) -> SourceError:
    is_limit = isinstance(error, OSError) and error.errno in TOO_MANY_OPEN
    fix = TOO_MANY_OPEN_FIX if is_limit else "restore it, or its folder"
    what = getattr(error, "strerror", None) or error
    return SourceError(f"the file cannot be opened: {what}", where=stamp.path, fix=fix)
