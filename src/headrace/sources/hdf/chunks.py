"""Where the chunks of an HDF5 dataset lie in its file, so that rows of plain chunks are read as bytes.

RETURNN's writer appends to chunked datasets without compression. Most of their chunks lie one after the other, so that
the rows of a sequence are in one piece of the file. HDF5 takes several times as long to find them there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from ..shared.source import column_view

# HDF5 takes 3 to 17 us to tell where a chunk is, and some 50 us longer for a read: so this many reads pay for a list.
CHUNKS_PER_READ = 16
_MAX_CHUNKS = 1 << 16  # 1 MB of positions, at most a second; a larger dataset is read by HDF5


@dataclass(frozen=True, slots=True)
class PlainChunks:
    """The chunks of a dataset, each stored whole and as it is in memory, in the order of their indices.

    Attributes:
        frame_shape: Shape of one row of the dataset.
        chunks: Shape of one chunk.
        grid: Number of chunks along each axis but the first.
        width: Number of chunks that hold one row.
        row_bytes: Size of one row if a chunk holds whole rows and nothing else; else 0.
        positions: Position in the file of each chunk.
        runs: Number of the run of each chunk: chunks of a run lie one after the other.
    """

    frame_shape: tuple[int, ...]
    chunks: tuple[int, ...]
    grid: tuple[int, ...]
    width: int
    row_bytes: int
    positions: memoryview[int]
    runs: memoryview[int]

    def locate(self, start: int, stop: int) -> tuple[int, tuple[int, ...]] | None:
        """Return position and shape of what holds some rows (at least one); `None` if it is not in one piece."""
        block, skipped = divmod(start, self.chunks[0])
        end = (stop - 1) // self.chunks[0] + 1
        if self.runs[block * self.width] != self.runs[end * self.width - 1]:
            return None
        position = self.positions[block * self.width]
        if self.row_bytes:
            return position + skipped * self.row_bytes, (stop - start, *self.frame_shape)
        return position, (end - block, *self.grid, *self.chunks)

    def rows(self, stored: NDArray[Any], start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop, as a new array, of what was read of the shape that `locate` returned."""
        if self.row_bytes:
            return stored
        num_axes, skipped = len(self.chunks), start % self.chunks[0]
        axes = [axis for first in range(num_axes) for axis in (first, num_axes + first)]
        frames = stored.transpose(axes).reshape([stored.shape[axis] * size for axis, size in enumerate(self.chunks)])
        return frames[skipped : skipped + stop - start, *map(slice, self.frame_shape)].copy()


def num_chunks(dataset: h5py.Dataset) -> int:
    """Return how many chunks the rows of a dataset take; 0 if HDF5 has to read it."""
    native = dataset.dtype.newbyteorder("=")
    if not dataset.chunks or native.kind == "b" or dataset.id.get_create_plist().get_nfilters():
        return 0
    if not hasattr(dataset.id, "chunk_iter"):  # h5py may be built with an HDF5 that does not offer it
        return 0
    if dataset.file.userblock_size or not dataset.id.get_type().equal(h5py.h5t.py_create(native)):
        return 0
    number = math.prod(-(-size // of) for size, of in zip(dataset.shape, dataset.chunks, strict=True))
    return number if number <= _MAX_CHUNKS else 0


def find_chunks(dataset: h5py.Dataset) -> PlainChunks | None:
    """Return where the chunks of a dataset lie, for which `num_chunks` is not 0; `None` if some were never written."""
    chunks = dataset.chunks
    counts = tuple(-(-size // of) for size, of in zip(dataset.shape, chunks, strict=True))
    positions = np.full(counts, -1, np.int64)

    def note(chunk: Any) -> None:
        positions[tuple(start // of for start, of in zip(chunk.chunk_offset, chunks, strict=True))] = chunk.byte_offset

    dataset.id.chunk_iter(note)
    flat = positions.reshape(-1)
    if (flat < 0).any():
        return None
    chunk_bytes, frame_shape, grid = math.prod(chunks) * dataset.dtype.itemsize, dataset.shape[1:], counts[1:]
    runs = np.cumsum(np.diff(flat, prepend=flat[0]) != chunk_bytes)
    row_bytes = chunk_bytes // chunks[0] if chunks[1:] == frame_shape else 0
    return PlainChunks(frame_shape, chunks, grid, math.prod(grid), row_bytes, column_view(flat), column_view(runs))
