"""Open HDF5 files of a corpus, at most a fixed number at a time, and the two ways to read rows from them.

Rows that lie plainly in a file are read as bytes into a new array (see `shared/plain_files.py`): no HDF5 call, no lock
of HDF5. All others go through HDF5. Handles that have been open longest are closed first. Where the system allows fewer
open files, fewer are kept open. Not thread-safe. Plain descriptors may be inherited by a forked process; HDF5 handles
are opened again there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import TOO_MANY_OPEN, FileStamp

from ..shared.open_files import check_open_file, check_stamp, older_half
from ..shared.plain_files import PlainFiles
from .layout import hdf5_name, open_hdf5

MAX_OPEN_HDF5_FILES = 16  # each may hold one chunk cache for each data key
_MIN_CHUNK_CACHE_BYTES = 1 << 20  # HDF5's own default
_MAX_CHUNK_CACHE_BYTES = 64 << 20

_TIMES = None  # as a data key: the dataset `times`


class FileHandles(PlainFiles):
    """Readers of rows of the files of one corpus: by position, and through HDF5.

    Args:
        stamps: The files as they were when they were indexed.
        chunk_bytes: Size of the largest unpacked chunk in each file, 0 for none.
    """

    def __init__(self, stamps: Sequence[FileStamp], chunk_bytes: Sequence[int]) -> None:
        super().__init__(stamps)
        self._chunk_bytes = chunk_bytes
        self._hdf5_files: dict[int, h5py.File] = {}
        self._hdf5_pid = os.getpid()

    def read_hdf5(
        self, file_idx: int, data_key: str | None, start: int, stop: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Read rows start..stop of a data key (None: of `times`) through HDF5, in this machine's number format.

        Raises:
            SourceError: As for `read_array`, or a chunk cannot be unpacked.
        """
        if self._hdf5_pid != os.getpid():
            self._hdf5_files, self._hdf5_pid = {}, os.getpid()
        file = self._hdf5_files.get(file_idx)
        if file is None:
            file = self._open_hdf5(file_idx)
        name = "times" if data_key is _TIMES else hdf5_name(file, data_key)
        try:
            rows: NDArray[Any] = file[name][start:stop]
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            raise SourceError(
                f"cannot read frames {start}..{stop} of {name}: {error}",
                where=self._stamps[file_idx].path,
                fix="write or copy the file again",
            ) from error
        check_open_file(self._stamps[file_idx], file.id.get_vfd_handle())
        return rows.astype(dtype, copy=False)

    def _open_hdf5(self, file_idx: int) -> h5py.File:
        check_stamp(self._stamps[file_idx])
        if len(self._hdf5_files) >= MAX_OPEN_HDF5_FILES:
            self._hdf5_files.pop(next(iter(self._hdf5_files))).close()
        # Four chunks: neighbours in a file share one; with less than one it would be unpacked for each sequence.
        cache_bytes = min(max(4 * self._chunk_bytes[file_idx], _MIN_CHUNK_CACHE_BYTES), _MAX_CHUNK_CACHE_BYTES)
        while True:
            try:
                file = open_hdf5(self._stamps[file_idx].path, chunk_cache_bytes=cache_bytes)
            except SourceError as error:
                if getattr(error.__cause__, "errno", None) not in TOO_MANY_OPEN or not self.close_older_half():
                    raise
            else:
                self._hdf5_files[file_idx] = file
                return file

    def close_older_half(self) -> bool:
        """Close half of the handles of each kind, so that others find room, too; return whether there were any."""
        closed_plain = super().close_older_half()
        hdf5 = older_half(self._hdf5_files) if self._hdf5_pid == os.getpid() else []
        for file_idx in hdf5:
            self._hdf5_files.pop(file_idx).close()
        return closed_plain or bool(hdf5)

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        super().close()
        inherited = self._hdf5_pid != os.getpid()
        files, self._hdf5_files = self._hdf5_files, {}
        for file in () if inherited else files.values():
            file.close()
