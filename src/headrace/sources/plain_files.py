"""Bytes of the files of one corpus, at any place: at most a fixed number of files is open at a time.

Bytes come by `preadv`, not from a memory map: no position is shared, so descriptors may be inherited by a forked
process, and a file that is cut while it is read gives a `SourceError`, where a map would kill the process. Files that
have been open longest are closed first: for random orders this is as good as "least recently used", and a hit costs
one look-up. Where the system allows fewer open files, fewer are kept open. Not thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

MAX_OPEN_FILES = 64


class PlainFiles:
    """Reads bytes of files that must be what they were when they were indexed; they are compared when opened.

    Args:
        stamps: The files as they were then.
    """

    def __init__(self, stamps: Sequence[FileStamp]) -> None:
        self._stamps = stamps
        self._descriptors: dict[int, int] = {}

    def read(self, file_idx: int, position: int, num_bytes: int) -> bytes:
        """Return the bytes position..position + num_bytes of a file.

        Raises:
            SourceError: The file is gone, was changed since it was indexed, ends too early, or cannot be read.
        """
        array = np.empty(num_bytes, np.uint8)
        self.read_into(file_idx, position, array)
        return array.tobytes()

    def read_into(self, file_idx: int, position: int, array: NDArray[Any]) -> None:
        """Fill an array in C order with the bytes of a file from `position` on.

        Raises:
            SourceError: As for `read`.
        """
        if not array.nbytes:
            return
        descriptor = self._descriptors.get(file_idx)
        if descriptor is None:
            descriptor = self._open(file_idx)
        try:
            done = os.preadv(descriptor, (array,), position)  # type: ignore[arg-type] # an array is a buffer
            if done != array.nbytes:
                self._read_rest(file_idx, descriptor, position, array, done)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", where=self._stamps[file_idx].path) from error

    def _read_rest(self, file_idx: int, descriptor: int, position: int, array: NDArray[Any], done: int) -> None:
        """Go on after a short read: Linux gives at most 2 GiB at a time. If nothing more comes, the file is short."""
        rest = array.reshape(-1).view(np.uint8)
        while done < len(rest):
            step = os.preadv(descriptor, (rest[done:],), position + done)  # type: ignore[arg-type] # as above
            if not step:
                raise SourceError(
                    f"the file ends at byte {os.fstat(descriptor).st_size}, before the {len(rest)} bytes at {position}",
                    where=self._stamps[file_idx].path,
                    fix="the file was cut after it was indexed: restore it",
                )
            done += step

    def _open(self, file_idx: int) -> int:
        check_stamp(self._stamps[file_idx])
        if len(self._descriptors) >= MAX_OPEN_FILES:
            os.close(self._descriptors.pop(next(iter(self._descriptors))))
        while True:
            try:
                descriptor = os.open(self._stamps[file_idx].path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN or not self.close_older_half():
                    raise _cannot_open(self._stamps[file_idx], error) from error
            else:
                self._descriptors[file_idx] = descriptor
                return descriptor

    def close_older_half(self) -> bool:
        """Close half of the files, so that others find room, too; return whether there were any."""
        older = older_half(self._descriptors)
        for file_idx in older:
            os.close(self._descriptors.pop(file_idx))
        return bool(older)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def __del__(self) -> None:
        self.close()


def older_half(handles: dict[int, Any]) -> list[int]:
    """Return the keys of the half that was opened first."""
    return list(handles)[: (len(handles) + 1) // 2]


def check_stamp(stamp: FileStamp) -> None:
    """Refuse a file whose size or time is not what it was: the places of what it holds may have moved.

    Raises:
        SourceError: It changed, or is gone.
    """
    try:
        now = os.stat(stamp.path)
    except OSError as error:
        raise _cannot_open(stamp, error) from error
    if (now.st_size, now.st_mtime_ns) != (stamp.size, stamp.mtime_ns):
        raise SourceError(
            f"the file was changed since it was indexed: {stamp.size} bytes of time {stamp.mtime_ns} then, "
            f"{now.st_size} bytes of time {now.st_mtime_ns} now",
            where=stamp.path,
            fix="open the corpus again; make the index again if it was given",
        )


def _cannot_open(stamp: FileStamp, error: OSError) -> SourceError:
    fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "restore it, or its place"
    return SourceError(f"the file cannot be opened: {error.strerror}", where=stamp.path, fix=fix)
