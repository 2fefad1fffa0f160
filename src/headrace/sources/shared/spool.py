"""`Spool`: data of a writer in an unnamed temporary file, until their offset in the target is known."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BUFFER_BYTES = 256 << 10
_BLOCK_BYTES = 4 << 20


class Spool:
    """Items of one dtype in a file without a name, which vanishes with its descriptor.

    Args:
        folder: Where; a file system that has room for it.
        dtype: Dtype of the items.

    Raises:
        OSError: The folder is missing or cannot be written to.
    """

    def __init__(self, folder: str, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.num_items = 0
        self._file = tempfile.TemporaryFile(dir=folder, buffering=_BUFFER_BYTES)  # noqa: SIM115

    def append(self, items: NDArray[Any] | bytes) -> None:
        """Add items of this dtype: an array in C order, or their bytes; OSError if the disk is full."""
        self.num_items += self._file.write(items) // self.dtype.itemsize

    def items(self, start: int, num_items: int) -> NDArray[Any]:
        """Read items back, `dtype[num_items]`."""
        self._file.flush()
        array: NDArray[Any] = np.empty(num_items, self.dtype)
        view, position = array.view(np.uint8).data, start * self.dtype.itemsize
        while view:
            step = os.preadv(self._file.fileno(), (view,), position)
            if not step:
                raise OSError(errno.EIO, "a temporary file became shorter")
            view, position = view[step:], position + step
        return array

    def blocks(self, frame_shape: tuple[int, ...], *, align: int = 1, max_items: int = 0) -> Iterator[NDArray[Any]]:
        """Give all items back as rows, `dtype[n, *frame_shape]`, some megabytes at a time.

        Args:
            frame_shape: Shape of a row.
            align: The number of rows of all blocks but the last is a multiple of this.
            max_items: Bound of the items in one block, if not 0.
        """
        row_items = int(np.prod(frame_shape, dtype=np.int64))
        if not self.num_items:
            return
        max_items = max_items or _BLOCK_BYTES // self.dtype.itemsize
        num_rows = max(max_items // (row_items * align), 1) * align
        for start in range(0, self.num_items, num_rows * row_items):
            yield self.items(start, min(num_rows * row_items, self.num_items - start)).reshape(-1, *frame_shape)

    def close(self) -> None:
        """Remove the file. Harmless when called twice."""
        with contextlib.suppress(OSError):  # it tries to flush its buffer, which is discarded anyway
            self._file.close()
