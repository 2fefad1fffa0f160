"""Sources whose arrays are plain bytes in files: what they read, and how; where the bytes are, the index says.

Columns of the index, for each data key k: `at:k`, where its bytes begin; `form:k`, where they are not just numbers in
C order (see `array_table.py`); `packed:k`, how many bytes a deflated array takes; `axisA:k`, the size of a free axis.
An array that is plain is read by one `pread` of exactly what was asked for.
"""

from __future__ import annotations

import math
import zlib
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.index import CorpusIndex
from headrace.specs import DataSpec

from .arguments import check_corpus_idx, check_data_key, slice_frames
from .array_table import BFLOAT16, DEFLATED, FORTRAN, SWAPPED
from .base import Source
from .npy_format import HEAD_BYTES, parse_npy
from .plain_files import PlainFiles


@dataclass(frozen=True, slots=True)
class _Column:
    """What the hot path needs of one key, worked out once. Columns are memory views: see `HDFSource`."""

    spec: DataSpec
    dtype: np.dtype[Any]
    lengths: memoryview[int]
    at: memoryview[int]
    forms: memoryview[int] | None
    packed: memoryview[int] | None
    axes: dict[int, memoryview[int]]


class PlainArraySource(Source):
    """Reads the arrays of an index. A sub-class opens the index, calls `_attach`, and says which file is meant."""

    def _attach(self, index: CorpusIndex, files: PlainFiles) -> None:
        """Work out everything that follows from the index."""
        self._index, self._files = index, files
        self.specs: dict[str, DataSpec] = {key: DataSpec.from_json(spec) for key, spec in index.meta["specs"].items()}
        self.labels: dict[str, Sequence[str]] = dict(index.meta["labels"])
        stored = [key for key in self.specs if key != index.meta.get("folder_key")]
        self._columns = {key: self._column(key) for key in stored}

    def _column(self, key: str) -> _Column:
        spec, index = self.specs[key], self._index
        about = index.meta["forms"].get(key, [False, False])
        dtype = np.dtype(spec.dtype)
        return _Column(
            spec,
            dtype,
            _view(index.lengths(key)),
            _view(index.locator(f"at:{key}")),
            _view(index.locator(f"form:{key}")) if about[0] else None,
            _view(index.locator(f"packed:{key}")) if about[1] else None,
            {a: _view(index.locator(f"axis{a}:{key}")) for a, size in enumerate(spec.shape) if size is None},
        )

    @abstractmethod
    def _file_of(self, corpus_idx: int, data_key: str) -> int:
        """Return the number of the file that holds an array."""

    @property
    def index(self) -> CorpusIndex:
        """Tags, lengths, and where each array is."""
        return self._index

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return one array, as a new one.

        Raises:
            IndexError: There is no such sequence.
            SourceError: There is no such key, or a file is gone, changed or damaged.
        """
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        column = self._columns.get(check_data_key(data_key, self.specs))
        if column is None:
            return np.array([int(self._index.locator("folder")[corpus_idx])], np.int32)
        return self._read(column, corpus_idx, data_key, 0, column.lengths[corpus_idx])

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return frames start..end of one array; of a plain one, nothing else is read."""
        check_corpus_idx(corpus_idx, self._index.num_seqs)
        column = self._columns.get(check_data_key(data_key, self.specs))
        if column is None or not column.spec.has_time:
            return slice_frames(self.read(corpus_idx, data_key), self.specs[data_key], start, end)
        length = column.lengths[corpus_idx]
        if not 0 <= start <= end <= length:
            raise IndexError(f"frames {start}..{end} of {data_key!r} in a sequence of {length} frames")
        return self._read(column, corpus_idx, data_key, start, end)

    @property
    def has_fast_rows(self) -> bool:
        """Yes, if all arrays are plain and no axis is free."""
        return all(column.forms is None and not column.axes for column in self._columns.values())

    def read_rows(self, corpus_indices: NDArray[np.int64], data_key: str, out: NDArray[Any]) -> None:
        """Read one data key of several sequences into one array; no byte is copied twice."""
        column = self._columns.get(check_data_key(data_key, self.specs))
        if column is None or column.forms is not None or column.axes:
            super().read_rows(corpus_indices, data_key, out)
            return
        lengths = [column.lengths[check_corpus_idx(idx, self._index.num_seqs)] for idx in corpus_indices.tolist()]
        ends = [0, *accumulate(lengths)]
        if ends[-1] != len(out) or min(lengths, default=0) < 0:
            raise IndexError(f"{ends[-1]} frames of {data_key!r} do not fit into {len(out)} rows")
        self._fill(column, corpus_indices, data_key, [out[a:b] for a, b in pairwise(ends)])

    def read_into(self, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]) -> None:
        """Read one data key of several sequences, each into an array of its own; no byte is copied twice."""
        column = self._columns.get(check_data_key(data_key, self.specs))
        if column is None or column.forms is not None or column.axes:
            super().read_into(corpus_indices, data_key, outs)
            return
        for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True):
            check_corpus_idx(corpus_idx, self._index.num_seqs)
            if len(out) != column.lengths[corpus_idx]:
                frames = column.lengths[corpus_idx]
                raise IndexError(f"{frames} frames of {data_key!r} do not fit into {len(out)} rows")
        self._fill(column, corpus_indices, data_key, outs)

    def _fill(
        self, column: _Column, corpus_indices: NDArray[np.int64], data_key: str, outs: Sequence[NDArray[Any]]
    ) -> None:
        """Read plain arrays, each to its place."""
        self._files.read_many(
            (self._file_of(corpus_idx, data_key), self._position(column, corpus_idx, data_key), out)
            for corpus_idx, out in zip(corpus_indices.tolist(), outs, strict=True)
            if out.size
        )

    def _position(self, column: _Column, corpus_idx: int, data_key: str) -> int:
        position = column.at[corpus_idx]
        if position < 0:
            raise self._index.damaged(f"it says that {data_key!r} of sequence {corpus_idx} is at byte {position}")
        return position

    def _read(self, column: _Column, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        if end < start:
            raise self._index.damaged(f"the length of {data_key!r} of sequence {corpus_idx} is {end}")
        free = column.axes
        frame_shape = tuple(free[a][corpus_idx] if size is None else size for a, size in enumerate(column.spec.shape))
        form = column.forms[corpus_idx] if column.forms is not None else 0
        if form:
            shape = (column.lengths[corpus_idx], *frame_shape) if column.spec.has_time else frame_shape
            whole = self._read_form(column, corpus_idx, data_key, shape, form)
            return np.asarray(whole[start:end] if column.spec.has_time else whole, order="C")
        shape = (end - start, *frame_shape) if column.spec.has_time else frame_shape
        position = self._position(column, corpus_idx, data_key) if end > start or not column.spec.has_time else 0
        position += start * math.prod(frame_shape) * column.dtype.itemsize
        return self._files.read_array(self._file_of(corpus_idx, data_key), position, shape, column.dtype)

    def _read_form(
        self, column: _Column, corpus_idx: int, data_key: str, shape: tuple[int, ...], form: int
    ) -> NDArray[Any]:
        """Return an array that is not stored as its numbers in C order."""
        has_no_packed = form & DEFLATED and column.packed is None
        if not 0 < form < 2 * BFLOAT16 or has_no_packed or (form & BFLOAT16 and column.dtype != np.float32):
            raise self._index.damaged(f"it says that {data_key!r} of sequence {corpus_idx} has the form {form}")
        stored = np.dtype(np.uint16) if form & BFLOAT16 else column.dtype
        file_idx, position = self._file_of(corpus_idx, data_key), self._position(column, corpus_idx, data_key)
        size = math.prod(shape)
        if form & DEFLATED:
            assert column.packed is not None
            packed = self._files.read(file_idx, position, column.packed[corpus_idx])
            where = f"{self._index.tags[corpus_idx]!r}, data key {data_key!r}"
            flat = _inflated(packed, size * stored.itemsize, where).view(stored)
        else:
            flat = self._files.read_array(file_idx, position, (size,), stored)
        if form & SWAPPED:
            flat.byteswap(inplace=True)
        if form & BFLOAT16:
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(shape, order="F" if form & FORTRAN else "C")

    def close(self) -> None:
        """Close all files; a later read opens them again."""
        self._files.close()


def _inflated(packed: bytes, num_bytes: int, where: str) -> NDArray[np.uint8]:
    """Return the numbers of a deflated `.npy`, without its header."""
    try:
        unpack = zlib.decompressobj(-zlib.MAX_WBITS)
        content = unpack.decompress(packed, num_bytes + HEAD_BYTES)
        begin = parse_npy(content[:HEAD_BYTES], where).num_bytes
    except zlib.error as error:
        raise SourceError(f"a compressed array is damaged: {error}", where=where, fix="restore the file") from error
    if len(content) != begin + num_bytes:
        raise SourceError(
            f"a compressed array has {len(content) - begin} bytes, not {num_bytes}", where=where, fix="restore the file"
        )
    return np.frombuffer(content, np.uint8, offset=begin).copy()


def _view(column: NDArray[Any]) -> memoryview[int]:
    native = column.dtype.newbyteorder("=")
    return memoryview(column.astype(native, copy=False).view(native))  # type: ignore[arg-type] # as in `HDFSource`
