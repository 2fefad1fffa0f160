"""Bytes of the files of one corpus, at any position: at most a fixed number of files is open at a time.

A file is compared with its stamp when it is opened, see `open_files.py`.

Bytes come by `preadv`, not from a memory map: no position is shared, so descriptors may be inherited by a forked
process, and a file that is cut while it is read gives a `SourceError`, where a map would kill the process. Files that
have been open longest are closed first: for random orders this is as good as "least recently used", and a hit costs
one look-up. Where the system allows fewer open files, fewer are kept open. Not thread-safe.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, FileStamp

from .open_files import MAX_OPEN_FILES, REREAD, cannot_open, check_stamp, older_half

_BYTE = np.dtype(np.uint8)


class PlainFiles:
    """Reads bytes of files that must be what they were when they were indexed.

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
        return self.read_sized(file_idx, position, num_bytes, (num_bytes,), _BYTE).tobytes()

    def read_sized(
        self, file_idx: int, position: int, num_bytes: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Return an array of `num_bytes` that is stored in C order from `position` on, as a new one.

        Memory is allocated only if the file has that many bytes there: a damaged file or index may claim any size.

        Raises:
            SourceError: As for `read`.
        """
        try:
            if num_bytes <= 0:
                return np.empty(shape, dtype)
            descriptor = self._descriptors.get(file_idx) or self._open(file_idx)
            stamp = self._stamps[file_idx]
            if not 0 <= position <= stamp.size - num_bytes:
                raise _ends_before(stamp.path, stamp.size, position, num_bytes)
            array: NDArray[Any] = np.empty(shape, dtype)
            done = os.preadv(descriptor, (array,), position)  # type: ignore[arg-type] # an array is a buffer
            if done != num_bytes:
                self._read_rest(file_idx, descriptor, position, array, done)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", where=self._stamps[file_idx].path) from error
        except ValueError as error:  # sizes are negative, or NumPy cannot multiply them
            what = f"there is no array of the shape {shape}: {error}"
            raise SourceError(what, where=self._stamps[file_idx].path, fix=REREAD) from error
        return array

    def read_many(self, reads: Iterable[tuple[int, int, NDArray[Any]]]) -> None:
        """Fill arrays in C order, each given as file, position there, and array.

        Raises:
            SourceError: As for `read`; the content of the arrays is arbitrary then.
        """
        try:
            for file_idx, position, array in reads:
                num_bytes = array.nbytes
                if not num_bytes:
                    continue
                descriptor = self._descriptors.get(file_idx) or self._open(file_idx)
                done = os.preadv(descriptor, (array,), position)  # type: ignore[arg-type] # as above
                if done != num_bytes:
                    self._read_rest(file_idx, descriptor, position, array, done)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", where=self._stamps[file_idx].path) from error
        except OverflowError as error:  # a position beyond 64 bits
            stamp = self._stamps[file_idx]
            raise _ends_before(stamp.path, stamp.size, position, num_bytes) from error

    def _read_rest(self, file_idx: int, descriptor: int, position: int, array: NDArray[Any], done: int) -> None:
        """Go on after a short read: Linux gives at most 2 GiB at a time. If nothing more comes, the file is short."""
        rest = array.reshape(-1).view(np.uint8)
        while done < len(rest):
            step = os.preadv(descriptor, (rest[done:],), position + done)  # type: ignore[arg-type] # as above
            if not step:
                path, size = self._stamps[file_idx].path, os.fstat(descriptor).st_size
                raise _ends_before(path, size, position, len(rest))
            done += step

    def _open(self, file_idx: int) -> int:
        stamp = self._stamps[file_idx]
        check_stamp(stamp)
        if len(self._descriptors) >= MAX_OPEN_FILES:
            os.close(self._descriptors.pop(next(iter(self._descriptors))))
        while True:
            try:
                descriptor = self._descriptors[file_idx] = os.open(stamp.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN or not self.close_older_half():
                    raise cannot_open(stamp, error) from error
            else:
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
        if os is not None:  # at the end of the interpreter, which closes what is open
            while self._descriptors:
                os.close(self._descriptors.popitem()[1])


def _ends_before(path: str, size: int, position: int, num_bytes: int) -> SourceError:
    return SourceError(
        f"the file ends at byte {size}, before the {num_bytes} bytes at {position}",
        where=path,
        fix="the file was cut after it was indexed: restore it",
    )
