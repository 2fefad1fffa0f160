"""`HDFWriter` writes sequences to an HDF5 file that RETURNN's `HDFDataset` and `HDFSource` read.

What is appended goes to unnamed temporary files beside the target, one a key (see `../shared/spool.py`); `close` joins
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
import io
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec

from ..shared.data_types import learn_spec
from ..shared.spool import Spool
from ..shared.writer import FileWriter
from .columns import WriteColumn
from .layout import INPUT_KEY


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
_MAX_LENGTH = 2**31 - 1  # seqLengths is int32 in the documented layout
_MAX_TAG_PADDING = 4  # tags of a fixed width may take so many times the bytes of the tags alone


class HDFWriter(FileWriter):
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
        super().__init__(path, overwrite=overwrite)
        self._compression = compression
        self._labels = {key: list(entries) for key, entries in (labels or {}).items()}
        for key, entries in self._labels.items():
            if any("\0" in entry for entry in entries):
                raise ConfigError(
                    f"a label of {key!r} has a NUL in it, where HDF5 would cut it", where=self.path, fix="remove it"
                )
        self._columns: list[WriteColumn] = []
        self._wanted = self._new_columns(specs) if specs else []
        self._open()

    def _begin(self) -> None:
        self._target = self._pend().temporary
        self._tags = self._new_spool(np.dtype(np.uint8))
        self._tag_lengths = self._new_spool(np.dtype(np.int32))
        self._lengths = self._new_spool(np.dtype(np.int32))
        self._adopt(self._wanted)

    def _checked(
        self, tag: str, data: Mapping[str, NDArray[Any]], where: str
    ) -> tuple[bytes, list[WriteColumn], list[NDArray[Any]]]:
        tag_bytes = _encode_tag(tag, self.path)
        columns = self._columns or self._new_columns({key: _spec_of(key, value, where) for key, value in data.items()})
        _check_keys(data, columns, where)
        arrays = [column.checked(data[column.data_key], where) for column in columns]
        longest = max(map(len, arrays))
        if longest > _MAX_LENGTH:
            raise SourceError(f"{longest} frames; the layout holds up to {_MAX_LENGTH}", where=where, fix="split it")
        return tag_bytes, columns, arrays

    def _put(self, checked: tuple[bytes, list[WriteColumn], list[NDArray[Any]]]) -> None:
        tag_bytes, columns, arrays = checked
        if not self._columns:
            self._adopt(columns)
        for column, array in zip(columns, arrays, strict=True):
            column.append(array)
        self._lengths.append(np.array([len(array) for array in arrays], np.int32))
        self._tag_lengths.append(np.array([len(tag_bytes)], np.int32))
        self._tags.append(np.frombuffer(tag_bytes, np.uint8))

    def _finish(self) -> None:
        with ForgivingFile(self._target) as sink:
            with h5py.File(sink, "w") as file:
                self._assemble(file, sink.check)
            sink.close()
            sink.check()

    def _new_spool(self, dtype: np.dtype[Any]) -> Spool:
        return self._opened.enter_context(contextlib.closing(Spool(os.path.dirname(self.path), dtype)))

    def _new_columns(self, specs: Mapping[str, DataSpec]) -> list[WriteColumn]:
        for data_key in specs:
            if not isinstance(data_key, str) or data_key in ("", ".", "..") or "/" in data_key or "\0" in data_key:
                raise ConfigError(
                    f"{data_key!r} cannot be the name of a data key in HDF5", where=self.path, fix="rename it"
                )
        unknown = sorted(set(self._labels) - set(specs))
        if specs and unknown:
            raise ConfigError(
                f"labels for {unknown}, but the keys are {sorted(specs)}", where=self.path, fix="rename them"
            )
        columns = []
        for data_key in sorted(specs, key=lambda key: (key != INPUT_KEY, key)):
            spec = specs[data_key]
            dim = spec.dim if spec.dim is not None else len(self._labels.get(data_key, ())) or None
            columns.append(WriteColumn(data_key, spec, dim))
        return columns

    def _adopt(self, columns: list[WriteColumn]) -> None:
        """Make these the columns of the file, from now on unchangeable."""
        for column in columns:
            column.spool = self._new_spool(column.dtype)
        self._columns = columns

    def _assemble(self, file: h5py.File, check: Callable[[], None]) -> None:
        """Write all parts of the documented layout; `check` raises soon after something could not be written."""
        inputs = [column for column in self._columns if column.data_key == INPUT_KEY]
        targets = [column for column in self._columns if column.data_key != INPUT_KEY]
        file.attrs["numTimesteps"] = inputs[0].num_frames if inputs else 0
        file.attrs["inputPattSize"] = inputs[0].final_dim() if inputs else 0
        file.attrs["numDims"] = 1
        file.attrs["numSeqs"] = self._num_seqs
        file.attrs["numLabels"] = len(self._labels.get(INPUT_KEY, ()))
        _write_labels(file, "labels", self._labels.get(INPUT_KEY, []))
        for column in inputs:
            self._write_rows(file, "inputs", column, check)
        if targets:
            size = file.create_group("targets/size")
            file.create_group("targets/labels")
            for column in targets:
                self._write_rows(file, f"targets/data/{column.data_key}", column, check)
                size.attrs[column.data_key] = [column.final_dim(), len(column.shape)]
                if column.data_key in self._labels:
                    _write_labels(file, f"targets/labels/{column.data_key}", self._labels[column.data_key])
        self._write_lengths(file, num_columns=len(self._columns), with_spare_column=not targets)
        self._write_tags(file, check)

    def _write_rows(self, file: h5py.File, name: str, column: WriteColumn, check: Callable[[], None]) -> None:
        shape = column.shape
        row_bytes = column.dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
        storage: dict[str, Any] = {}
        if self._compression is not None and shape[0] * row_bytes:
            num_rows = min(max(_CHUNK_BYTES // row_bytes, 1), shape[0])
            storage = {"chunks": (num_rows, *shape[1:]), "compression": self._compression, "shuffle": True}
        dataset = file.create_dataset(name, shape, column.dtype, **storage)
        if column.needs_note:
            dataset.attrs["sparse"] = column.is_sparse
            if column.dim is not None:
                dataset.attrs["dim"] = column.dim
        start = 0
        for rows in column.spool.blocks(shape[1:], align=storage["chunks"][0] if storage else 1):
            dataset[start : start + len(rows)] = rows
            start += len(rows)
            check()

    def _write_lengths(self, file: h5py.File, *, num_columns: int, with_spare_column: bool) -> None:
        """Write seqLengths; without targets the documented reader wants one more column, here a copy of the input's."""
        dataset = file.create_dataset("seqLengths", (self._num_seqs, num_columns + with_spare_column), np.int32)
        start = 0
        for rows in self._lengths.blocks((num_columns,)) if num_columns else ():
            dataset[start : start + len(rows), :num_columns] = rows
            if with_spare_column:
                dataset[start : start + len(rows), num_columns] = rows[:, 0]
            start += len(rows)

    def _write_tags(self, file: h5py.File, check: Callable[[], None]) -> None:
        """Write seqTags: of a fixed width, which is quicker, unless a few long tags would make that wasteful."""
        longest = max((int(block.max()) for block in self._tag_lengths.blocks(())), default=0)
        is_fixed = longest * self._num_seqs <= _MAX_TAG_PADDING * self._tags.num_items + 4096
        dtype = h5py.string_dtype("utf-8", max(longest, 1) if is_fixed else None)
        dataset = file.create_dataset("seqTags", (self._num_seqs,), dtype)
        start = position = 0
        for lengths in self._tag_lengths.blocks((), max_items=1 << 14):
            text = self._tags.items(position, int(lengths.sum())).tobytes()
            ends = np.cumsum(lengths)
            tags = [text[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
            dataset[start : start + len(tags)] = np.array(tags, dtype=dtype)
            start, position = start + len(tags), position + len(text)
            check()


def _check_keys(data: Mapping[str, NDArray[Any]], columns: Sequence[WriteColumn], where: str) -> None:
    names = {column.data_key for column in columns}
    if not data or data.keys() != names:
        raise SourceError(
            f"the keys are {sorted(data)}; those of this file are {sorted(names)}",
            where=where,
            fix="give every sequence the same keys (an array of 0 frames where there is nothing)",
        )


def _spec_of(data_key: str, value: NDArray[Any], where: str) -> DataSpec:
    """Derive the spec of a key from its first array; the number of classes is known only at the end."""
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise SourceError(
            f"the key {data_key!r} has dtype {array.dtype}", where=where, fix="give numbers; text as uint8 codes"
        )
    return learn_spec(array.dtype.newbyteorder("="), array.shape[1:], has_time=True)  # there is no key without time


def _encode_tag(tag: str, path: str) -> bytes:
    if "\0" in tag:
        raise SourceError(f"the tag {tag!r} has a NUL in it, where readers would cut it", where=path, fix="remove it")
    return tag.encode()


def _write_labels(file: h5py.File, name: str, labels: Sequence[str]) -> None:
    file.create_dataset(name, (len(labels),), h5py.string_dtype())[...] = np.array(labels, dtype=object)
