"""Open files of a corpus, at most a fixed number at a time, and the two ways to read rows from them.

Rows that lie plainly in a file are read by one `preadv` into a new array: no HDF5 call, no lock of HDF5, and a file
that is cut while it is being read gives a `SourceError`, where a memory map would kill the process. All others go
through HDF5. Handles that have been open longest are closed first: for random orders this is as good as "least
recently used", and a hit costs one look-up. Where the system allows fewer open files, fewer are kept open. Not
thread-safe. Descriptors may be inherited by a forked process (`preadv` has no file position); HDF5 handles are opened
anew there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

from .hdf_layout import hdf5_name, open_hdf5

MAX_OPEN_FILES = 64
MAX_OPEN_HDF5_FILES = 16  # each may hold one chunk cache for each data key
_MIN_CHUNK_CACHE_BYTES = 1 << 20  # HDF5's own default
_MAX_CHUNK_CACHE_BYTES = 64 << 20

_TIMES = None  # as a data key: the dataset `times`


class FileHandles:
    """Readers of rows of the files of one corpus.

    Args:
        stamps: The files as they were when they were indexed.
        chunk_bytes: Size of the largest unpacked chunk in each file, 0 for none.
    """

    def __init__(self, stamps: Sequence[FileStamp], chunk_bytes: Sequence[int]) -> None:
        self._stamps = stamps
        self._chunk_bytes = chunk_bytes
        self._descriptors: dict[int, int] = {}
        self._hdf5_files: dict[int, h5py.File] = {}
        self._hdf5_pid = os.getpid()

    def read_plain(self, file_idx: int, position: int, array: NDArray[Any]) -> None:
        """Fill an array (not empty, C order) with the bytes of a file from `position` on.

        Raises:
            SourceError: The file is gone, was changed since it was indexed, ends too early, or cannot be read.
        """
        descriptor = self._descriptors.get(file_idx)
        if descriptor is None:
            descriptor = self._open_plain(file_idx)
        try:
            done = os.preadv(descriptor, (array,), position)  # type: ignore[arg-type] # an array is a buffer
            if done != array.nbytes:
                self._read_rest(file_idx, descriptor, position, array, done)
        except OSError as error:
            raise SourceError(f"cannot read: {error.strerror}", where=self._stamps[file_idx].path) from error

    def _read_rest(self, file_idx: int, descriptor: int, position: int, array: NDArray[Any], done: int) -> None:
        """Go on after a short read: Linux gives at most 2 GiB at a time. If nothing more comes, the file is short."""
        rest = array.data.cast("B")
        while done < len(rest):
            step = os.preadv(descriptor, (rest[done:],), position + done)
            if not step:
                raise SourceError(
                    f"the file ends at byte {os.fstat(descriptor).st_size}, before the {len(rest)} bytes at {position}",
                    where=self._stamps[file_idx].path,
                    fix="the file was cut after it was indexed: restore it",
                )
            done += step

    def read_hdf5(
        self, file_idx: int, data_key: str | None, start: int, stop: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Read rows start..stop of a data key (None: of `times`) through HDF5, in this machine's number format.

        Raises:
            SourceError: As for `read_plain`, or a chunk cannot be unpacked.
        """
        if self._hdf5_pid != os.getpid():
            self._hdf5_files, self._hdf5_pid = {}, os.getpid()
        file = self._hdf5_files.get(file_idx)
        if file is None:
            file = self._open_hdf5(file_idx)
        name = "times" if data_key is _TIMES else hdf5_name(file, data_key)
        try:
            rows: NDArray[Any] = file[name][start:stop]
        except (OSError, RuntimeError, KeyError, ValueError) as error:
            raise SourceError(
                f"cannot read frames {start}..{stop} of {name}: {error}",
                where=self._stamps[file_idx].path,
                fix="write or copy the file again",
            ) from error
        return rows.astype(dtype, copy=False)

    def _open_plain(self, file_idx: int) -> int:
        _check_stamp(self._stamps[file_idx])
        if len(self._descriptors) >= MAX_OPEN_FILES:
            os.close(self._descriptors.pop(next(iter(self._descriptors))))
        while True:
            try:
                descriptor = os.open(self._stamps[file_idx].path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                if error.errno not in TOO_MANY_OPEN or not self._close_older_half():
                    raise _cannot_open(self._stamps[file_idx], error) from error
            else:
                self._descriptors[file_idx] = descriptor
                return descriptor

    def _open_hdf5(self, file_idx: int) -> h5py.File:
        _check_stamp(self._stamps[file_idx])
        if len(self._hdf5_files) >= MAX_OPEN_HDF5_FILES:
            self._hdf5_files.pop(next(iter(self._hdf5_files))).close()
        # Four chunks: neighbours in a file share one; with less than one it would be unpacked for each sequence.
        cache_bytes = min(max(4 * self._chunk_bytes[file_idx], _MIN_CHUNK_CACHE_BYTES), _MAX_CHUNK_CACHE_BYTES)
        while True:
            try:
                file = open_hdf5(self._stamps[file_idx].path, chunk_cache_bytes=cache_bytes)
            except SourceError as error:
                if getattr(error.__cause__, "errno", None) not in TOO_MANY_OPEN or not self._close_older_half():
                    raise
            else:
                self._hdf5_files[file_idx] = file
                return file

    def _close_older_half(self) -> bool:
        """Close half of the handles of each kind, so that others find room, too; return whether there were any."""
        plain = _older_half(self._descriptors)
        hdf5 = _older_half(self._hdf5_files) if self._hdf5_pid == os.getpid() else []
        for file_idx in plain:
            os.close(self._descriptors.pop(file_idx))
        for file_idx in hdf5:
            self._hdf5_files.pop(file_idx).close()
        return bool(plain or hdf5)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])
        inherited = self._hdf5_pid != os.getpid()
        files, self._hdf5_files = self._hdf5_files, {}
        for file in () if inherited else files.values():
            file.close()

    def __del__(self) -> None:
        self.close()


def _older_half(handles: dict[int, Any]) -> list[int]:
    return list(handles)[: (len(handles) + 1) // 2]


def _cannot_open(stamp: FileStamp, error: OSError) -> SourceError:
    fix = TOO_MANY_OPEN_FIX if error.errno in TOO_MANY_OPEN else "restore it, or its place"
    return SourceError(f"the file cannot be opened: {error.strerror}", where=stamp.path, fix=fix)


def _check_stamp(stamp: FileStamp) -> None:
    """Refuse a file whose size or time is not what it was: the positions of its frames may have moved."""
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
