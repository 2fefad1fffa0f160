"""`HDFWriter` writes sequences to an HDF5 file that RETURNN's `HDFDataset` and `HDFSource` read.

What is appended goes to unnamed temporary files beside the target, one a key (`Spool`); `close` joins
them, block by block, to the file. So memory stays small for any number of sequences, uncompressed data end up in one
plain run of bytes each (which is what makes reading them fast), and the target appears whole or not at all. The price
is room for the data twice while `close` works.

HDF5 does not survive a full disk: it keeps what it could not write, tries again while the file is being closed, and may
end the whole process there with a segmentation fault. So its writes go through a `ForgivingFile`. After the first error
it swallows what follows, HDF5 closes in peace, and the writer, which asks `check` before it believes in the file,
throws it away.
"""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec, takes_for_classes

from ..shared.data_types import as_array
from ..shared.writer import Writer
from .layout import INPUT_KEY

_SPOOL_BUFFER_BYTES = 256 << 10


class Spool:
    """Rows of one dtype and shape in a file without a name, which vanishes with its descriptor.

    Args:
        folder: Where; a file system that has room for it.
        dtype: Dtype of the rows.
        frame_shape: Shape of a row.

    Raises:
        OSError: The folder is missing or cannot be written to.
    """

    def __init__(self, folder: str, dtype: np.dtype[Any], frame_shape: tuple[int, ...] = ()) -> None:
        self.dtype, self.frame_shape = dtype, frame_shape
        self.row_bytes = math.prod(frame_shape) * dtype.itemsize
        self.num_rows = 0
        self._file = tempfile.TemporaryFile(dir=folder, buffering=_SPOOL_BUFFER_BYTES)  # noqa: SIM115

    def append(self, rows: NDArray[Any] | bytes) -> None:
        """Add rows: an array in C order, or bytes if they are bytes; OSError if the disk is full."""
        self._file.write(rows)
        self.num_rows += len(rows)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows back, `dtype[stop - start, *frame_shape]`."""
        array: NDArray[Any] = np.empty((stop - start, *self.frame_shape), self.dtype)
        self._file.seek(start * self.row_bytes)
        if self._file.readinto(array) != array.nbytes:  # type: ignore[attr-defined] # a buffered file has it
            raise OSError(errno.EIO, "a temporary file became shorter")
        return array

    def blocks(self, *, align: int = 1, max_bytes: int = 4 << 20) -> Iterator[tuple[int, NDArray[Any]]]:
        """Give all rows back, with the number of the first, some megabytes at a time.

        Args:
            align: The number of rows of all blocks but the last is a multiple of this.
            max_bytes: Bound of one block.
        """
        if self.row_bytes:
            num_rows = max(max_bytes // (self.row_bytes * align), 1) * align
            for start in range(0, self.num_rows, num_rows):
                yield start, self.rows(start, min(start + num_rows, self.num_rows))

    def close(self) -> None:
        """Remove the file. Harmless when called twice."""
        with contextlib.suppress(OSError):  # it tries to flush its buffer, which is discarded anyway
            self._file.close()


class ForgivingFile(io.FileIO):
    """A new or emptied raw file that remembers its first error instead of raising it, for h5py's Python file driver.

    Args:
        path: Where.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "w+b")
        self._error: OSError | None = None

    def check(self) -> None:
        """Raise the first OSError that was swallowed, if there is one."""
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of a buffer, or remember why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        try:
            while view and self._error is None:
                view = view[super().write(view) or 0 :]
        except OSError as error:
            self._error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or remember why not."""
        try:
            if self._error is None:
                return super().truncate(size)
        except OSError as error:
            self._error = error
        return size or 0

    def close(self) -> None:
        """Close the file; some file systems report only here that they could not write."""
        try:
            super().close()
        except OSError as error:
            self._error = self._error or error


_COMPRESSIONS = (None, "gzip", "lzf")
_CHUNK_BYTES = 256 << 10  # unpacking one takes about a millisecond, and the overhead of HDF5 per chunk no longer shows
_MAX_LENGTH = 2**31 - 1  # seqLengths is int32 in RETURNN's layout
_MAX_CLASS = 2**63 - 2  # the dim, one more, is an int64 in the file
_MAX_TAG_PADDING = 4  # tags of a fixed width may take this many times the bytes of the tags alone


class HDFWriter(Writer):
    """Writes one HDF5 file, sequence by sequence; a context manager, which aborts if its block fails.

    The layout knows no key without a time axis: such a value is stored as one frame. It takes integers with no axis but
    time for class indices, and nothing else; where a spec says otherwise, an attribute `sparse` of the data says so to
    `HDFSource`. Other programs do not look at it.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels, stored as they are.
        compression: None, `"gzip"` or `"lzf"` (faster, less small; both with the shuffle filter, in chunks of 256 KiB).
        overwrite: Whether an existing file may be replaced.

    Raises:
        ConfigError: An option is wrong, or the file exists.
        SourceError: The folder is missing or cannot be written to.
    """

    _needs_all_labels = False  # a class without a label may come after all others, such as a blank
    _learns_classes = True
    _least_class = None  # -1, for example, for what a loss shall ignore

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        compression: Literal["gzip", "lzf"] | None = None,
        overwrite: bool = False,
    ) -> None:
        if compression not in _COMPRESSIONS:
            raise ConfigError(
                f"unknown compression {compression!r}", where="HDFWriter", fix="use None, 'gzip' or 'lzf'"
            )
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite)
        self._compression = compression
        for key, entries in self.labels.items():
            if any("\0" in entry for entry in entries):
                raise ConfigError(
                    f"a label of {key!r} has a NUL in it, where HDF5 would cut it", where=self.path, fix="remove it"
                )
        self._frame_axes = {key: len(spec.shape) for key, spec in self._given.items() if not spec.has_time}
        self._columns: dict[str, Spool] = {}
        self._open()

    def _begin(self) -> None:
        self._target = self._pend().temporary
        self._tag_bytes = self._new_spool(np.dtype(np.uint8))
        self._tag_lengths = self._new_spool(np.dtype(np.int32))
        self._lengths: Spool | None = None

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        """Return the layouts with time: there is no key without."""
        for data_key in specs:
            if data_key in ("", ".", "..") or "/" in data_key or "\0" in data_key:
                raise ConfigError(
                    f"{data_key!r} cannot be the name of a data key in HDF5", where=self.path, fix="rename it"
                )
        in_order = sorted(specs, key=lambda key: (key != INPUT_KEY, key))
        return {key: replace(specs[key], has_time=True) for key in in_order}

    def _as_stored(self, data_key: str, value: Any, where: str) -> NDArray[Any]:
        is_array = type(value) is np.ndarray
        array = value if is_array else as_array(value, self.specs.get(data_key), f"{where}, data key {data_key!r}")
        return array[None] if array.ndim in (0, self._frame_axes.get(data_key)) else array

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:
        if "\0" in tag:
            raise SourceError(
                f"the tag {tag!r} has a NUL in it", where=self.path, fix="remove it: readers would cut it"
            )
        lengths = [len(array) for array in arrays.values()]
        if max(lengths) > _MAX_LENGTH:
            what = f"{max(lengths)} frames; the layout holds up to {_MAX_LENGTH}"
            raise SourceError(what, where=where, fix="split it")
        for key, array in arrays.items():
            column, spec = self._columns.get(key), self.specs[key]
            if column is not None and array.shape[1:] != column.frame_shape:
                raise SourceError(
                    f"a frame of {key!r} has the shape {array.shape[1:]}, and before it was {column.frame_shape}",
                    where=where,
                    fix="convert it: a file holds one frame shape for a key (images: size=[height, width])",
                )
            may_exceed = spec.sparse and spec.dim is None and array.dtype.itemsize == 8
            if may_exceed and int(array.max(initial=0)) > _MAX_CLASS:
                what = (
                    f"the class index {int(array.max())} of {key!r} is too large: the file cannot hold so many classes"
                )
                raise SourceError(what, where=where, fix="give signed numbers, or a second axis")
        if self._lengths is None:
            self._lengths = self._new_spool(np.dtype(np.int32), (len(lengths),))
        for key, array in arrays.items():
            if key not in self._columns:
                self._columns[key] = self._new_spool(array.dtype, array.shape[1:])
            self._columns[key].append(array)
        data = tag.encode()
        self._lengths.append(np.array([lengths], np.int32))
        self._tag_lengths.append(np.array([len(data)], np.int32))
        self._tag_bytes.append(data)

    def _finish(self) -> None:
        with ForgivingFile(self._target) as sink:
            with h5py.File(sink, "w") as file:
                self._assemble(file, sink.check)
            sink.close()
            sink.check()

    def _new_spool(self, dtype: np.dtype[Any], frame_shape: tuple[int, ...] = ()) -> Spool:
        return self._opened.enter_context(contextlib.closing(Spool(os.path.dirname(self.path), dtype, frame_shape)))

    def _assemble(self, file: h5py.File, check: Callable[[], None]) -> None:
        """Write all parts of the layout; `check` raises soon after something could not be written."""
        for key, spec in self.specs.items():  # also those of no sequence
            if key not in self._columns:
                self._columns[key] = self._new_spool(np.dtype(spec.dtype), tuple(size or 0 for size in spec.shape))
        inputs = self._columns.get(INPUT_KEY)
        file.attrs["numTimesteps"] = inputs.num_rows if inputs else 0
        file.attrs["inputPattSize"] = self._dim_of(INPUT_KEY) if inputs else 0
        file.attrs["numDims"] = 1
        file.attrs["numSeqs"] = self._num_seqs
        file.attrs["numLabels"] = len(self.labels.get(INPUT_KEY, ()))
        _write_labels(file, "labels", self.labels.get(INPUT_KEY, []))
        if inputs:
            self._write_rows(file, "inputs", INPUT_KEY, check)
        targets = [key for key in self.specs if key != INPUT_KEY]
        if targets:
            size = file.create_group("targets/size")
            file.create_group("targets/labels")
            for key in targets:
                self._write_rows(file, f"targets/data/{key}", key, check)
                size.attrs[key] = [self._dim_of(key), 1 + len(self._columns[key].frame_shape)]
                if key in self.labels:
                    _write_labels(file, f"targets/labels/{key}", self.labels[key])
        self._write_lengths(file, has_spare_column=not targets)
        self._write_tags(file, check)

    def _dim_of(self, data_key: str) -> int:
        """Return the number of classes or features; of class indices, if not known, one more than the largest seen."""
        frame_shape, spec = self._columns[data_key].frame_shape, self.specs[data_key]
        if frame_shape:
            return frame_shape[-1]
        if spec.dim is not None:
            return spec.dim
        return self._class_range(data_key)[1] + 1 if spec.sparse else 1

    def _write_rows(self, file: h5py.File, name: str, data_key: str, check: Callable[[], None]) -> None:
        column, spec = self._columns[data_key], self.specs[data_key]
        shape = column.num_rows, *column.frame_shape
        storage: dict[str, Any] = {}
        if self._compression is not None and column.num_rows and column.row_bytes:
            num_rows = min(max(_CHUNK_BYTES // column.row_bytes, 1), column.num_rows)
            storage = {"chunks": (num_rows, *shape[1:]), "compression": self._compression, "shuffle": True}
        dataset = file.create_dataset(name, shape, column.dtype, **storage)
        is_by_rule = spec.sparse == takes_for_classes(column.dtype, len(shape))
        if not is_by_rule or (spec.sparse and spec.dim is None and self._class_range(data_key)[0] < 0):
            dataset.attrs["sparse"] = spec.sparse
            if spec.dim is not None:
                dataset.attrs["dim"] = spec.dim
        for start, rows in column.blocks(align=storage["chunks"][0] if storage else 1):
            dataset[start : start + len(rows)] = rows
            check()

    def _write_lengths(self, file: h5py.File, *, has_spare_column: bool) -> None:
        """Write seqLengths; without targets RETURNN's reader expects one more column: a copy of the input's."""
        num_columns = len(self._columns)
        dataset = file.create_dataset("seqLengths", (self._num_seqs, num_columns + has_spare_column), np.int32)
        for start, rows in () if self._lengths is None else self._lengths.blocks():
            dataset[start : start + len(rows), :num_columns] = rows
            if has_spare_column:
                dataset[start : start + len(rows), num_columns] = rows[:, 0]

    def _write_tags(self, file: h5py.File, check: Callable[[], None]) -> None:
        """Write seqTags: of a fixed width, which is quicker, unless a few long tags would make that wasteful."""
        longest = max((int(lengths.max()) for _, lengths in self._tag_lengths.blocks()), default=0)
        is_fixed = longest * self._num_seqs <= _MAX_TAG_PADDING * self._tag_bytes.num_rows + 4096
        dtype = h5py.string_dtype("utf-8", max(longest, 1) if is_fixed else None)
        dataset = file.create_dataset("seqTags", (self._num_seqs,), dtype)
        position = 0
        for start, lengths in self._tag_lengths.blocks(max_bytes=1 << 16):
            ends = position + np.cumsum(lengths)
            text = self._tag_bytes.rows(position, int(ends[-1])).tobytes()
            bounds = zip((ends - lengths - position).tolist(), (ends - position).tolist(), strict=True)
            dataset[start : start + len(lengths)] = np.array([text[first:end] for first, end in bounds], dtype=dtype)
            position = int(ends[-1])
            check()


def _write_labels(file: h5py.File, name: str, labels: Sequence[str]) -> None:
    file.create_dataset(name, (len(labels),), h5py.string_dtype())[...] = np.array(labels, dtype=object)
