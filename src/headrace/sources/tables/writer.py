"""What `ParquetWriter` and `ArrowWriter` have in common: sequences become rows, a group of rows at a time.

A data key is a column: one number without a time axis, a fixed-size list for a shape without a time axis, and a list
(of fixed-size lists) for frames. What Arrow's types do not say (which keys are class indices, their number, labels) is
in the metadata of the schema, so that what was written is read back exactly. Rows are kept until there are enough of
them for a group, then written: memory is bounded by one group.
"""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, check_count, did_you_mean
from headrace.specs import DataSpec

from ..shared.writer import Writer
from .schema import METADATA_KEY, axes_of, import_arrow

_MAX_ITEMS = 2**31 - 1  # that offsets of 32 bits can tell apart


class TableWriter(Writer):
    """Writes one file of rows; sub-classes say of which format. For arguments, see `ParquetWriter`."""

    _number_kinds = "biuf"
    _compressions: tuple[str, ...]
    _group_bytes: int  # of a group, where no number of rows is given

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        rows_per_group: int | None = None,
        compression: str | None = "zstd",
        tag_field: str = "tag",
    ) -> None:
        if compression is not None:
            self._check_known("compression", compression, self._compressions)
        if rows_per_group is not None:
            check_count("rows_per_group", rows_per_group, minimum=1)
        super().__init__(path, specs=specs, labels=labels, overwrite=overwrite)
        self._disk_errors = (OSError, import_arrow().ArrowException)
        self._tag_field, self._rows_per_group, self._compression = tag_field, rows_per_group, compression
        self._row_tags: list[str] = []
        self._rows: dict[str, list[NDArray[Any]]] = {}
        self._num_bytes = 0
        self._sink: Any = None
        self._open()

    @abstractmethod
    def _open_sink(self, path: str, schema: Any) -> Any:
        """Open the writer of Arrow's that makes the file: it has `write_batch` and `close`."""

    def _check_known(self, name: str, value: Any, valid: Sequence[str]) -> None:
        if value not in valid:
            fix = did_you_mean(str(value), valid)
            raise ConfigError(f"unknown {name} {value!r}", where=type(self).__name__, fix=fix)

    def _begin(self) -> None:
        self._target = self._pend().temporary

    def _accept(self, specs: dict[str, DataSpec]) -> dict[str, DataSpec]:
        for key, spec in specs.items():
            where = f"{self.path}, data key {key!r}"
            if key == self._tag_field:
                raise ConfigError(
                    "a column of this name holds the tags", where=where, fix="give another tag_field, or rename the key"
                )
            if 0 in spec.shape:
                raise ConfigError(f"a column cannot hold frames of the shape {spec.shape}", where=where, fix="drop it")
        return specs

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:
        for key, array in arrays.items():
            _refuse_lossy(array, self.specs[key], f"{where}, data key {key!r}")
        self._row_tags.append(tag)
        for key, array in arrays.items():
            self._rows.setdefault(key, []).append(array.copy())
        self._num_bytes += len(tag) + sum(array.nbytes for array in arrays.values())
        limit = self._rows_per_group
        if (self._num_bytes >= self._group_bytes) if limit is None else (len(self._row_tags) >= limit):
            self._flush()

    def _finish(self) -> None:
        if self._row_tags or self._sink is None:
            self._flush()
        self._close_sink()

    def _close_sink(self) -> None:
        """Close it, once: a stream that is closed twice has two ends."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()

    def _flush(self) -> None:
        """Write the rows that are there as one group; with none, the file has none so far."""
        pa, specs, about = import_arrow(), self.specs, {**self._about(), "tag": self._tag_field}
        fields = [pa.field(self._tag_field, pa.string(), nullable=False)]
        fields += [pa.field(key, _types_of(spec)[0], nullable=False) for key, spec in specs.items()]
        schema = pa.schema(fields, {METADATA_KEY: json.dumps(about).encode()})
        if self._sink is None:
            self._sink = self._open_sink(str(self._target), schema)
            self._opened.callback(self._close_sink)
        if self._row_tags:
            arrays = [pa.array(self._row_tags, pa.string())]
            arrays += [_column_of(self._rows[key], spec) for key, spec in specs.items()]
            self._sink.write_batch(pa.record_batch(arrays, schema=schema))
        self._row_tags, self._rows, self._num_bytes = [], {}, 0


def _refuse_lossy(array: NDArray[Any], spec: DataSpec, where: str) -> None:
    """Refuse an array that would not be read back unchanged."""
    if array.size > _MAX_ITEMS:
        raise SourceError(f"{array.size} numbers; a row holds up to {_MAX_ITEMS}", where=where, fix="split it")
    if not array.size and array.shape != (0,) * array.ndim and None in spec.shape:
        sizes = [size for size, free in zip(array.shape[-len(spec.shape) :], spec.shape, strict=True) if free is None]
        if any(sizes):
            raise SourceError(
                f"an array without numbers keeps no shape: {array.shape} would come back with 0 on each free axis",
                where=where,
                fix="give it 0 on the free axes, too",
            )


def _types_of(spec: DataSpec) -> list[Any]:
    """Return the Arrow types of a column: of its values, of their items, and so on down to the numbers."""
    pa = import_arrow()
    types = [pa.from_numpy_dtype(np.dtype(spec.dtype))]
    for size in reversed(axes_of(spec)):
        items = pa.field("item", types[0], nullable=False)  # Parquet reads and writes these in less time
        types.insert(0, pa.list_(items) if size is None else pa.list_(items, size))
    return types


def _column_of(rows: Sequence[NDArray[Any]], spec: DataSpec) -> Any:
    """Join arrays to one Arrow array, a row for each."""
    pa = import_arrow()
    array, types = pa.array(np.concatenate([row.reshape(-1) for row in rows])), _types_of(spec)
    for depth, size in reversed(list(enumerate(axes_of(spec)))):
        if size is not None:
            array = pa.FixedSizeListArray.from_arrays(array, type=types[depth])
            continue
        # Each list of a row has the size of this axis, and there are as many as the axes before it say.
        counts = [int(np.prod(row.shape[:depth], dtype=np.int64)) for row in rows]
        sizes = np.repeat([row.shape[depth] for row in rows], counts)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        array = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), array, type=types[depth])
    return array


class ParquetWriter(TableWriter):
    """Writes one Parquet file, sequence by sequence; a context manager, which aborts if its block fails.

    A sequence is a row, a data key a column; the tags are a column, too. `ParquetSource` reads back what was written:
    data keys, dtypes, shapes, labels. Complex numbers and frames of no numbers cannot be held. Pages have checksums.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        overwrite: Whether an existing file may be replaced.
        rows_per_group: Rows in a row group; it is the least that a reader decodes, and the most that is in memory
            here. If `None`, as many as 1 MiB holds.
        compression: `"zstd"`, `"snappy"`, `"gzip"`, `"brotli"`, `"lz4"` or `None`.
        tag_field: Name of the column of the tags.

    Raises:
        ConfigError: An option is wrong, or the file exists, or pyarrow is missing.
        SourceError: The folder is missing or cannot be written to.
    """

    _compressions = ("snappy", "zstd", "gzip", "brotli", "lz4")
    _group_bytes = 1 << 20  # decoded in about 10 ms: so long takes the first row of a group, in any order

    def _open_sink(self, path: str, schema: Any) -> Any:
        return import_arrow().parquet.ParquetWriter(
            path, schema, compression=self._compression or "none", use_dictionary=False, write_page_checksum=True
        )


class ArrowWriter(TableWriter):
    """Writes one Arrow file (Feather), sequence by sequence; a context manager, which aborts if its block fails.

    A sequence is a row, a data key a column; the tags are a column, too. `ArrowSource` reads back what was written:
    data keys, dtypes, shapes, labels. Complex numbers and frames of no numbers cannot be held.

    Args:
        path: The file to make. Its folder must exist.
        specs: Data key -> layout. Without it, the first sequence says what the keys, dtypes and shapes are.
        labels: Data key -> class labels.
        overwrite: Whether an existing file may be replaced.
        rows_per_group: Rows in a record batch. If `None`, as many as 4 MiB hold.
        compression: `"zstd"`, `"lz4"`, or `None`, so that nothing has to be unpacked to be read.
        form: `"file"`, or `"stream"`, the form that Hugging Face's datasets have.
        tag_field: Name of the column of the tags.

    Raises:
        ConfigError: An option is wrong, or the file exists, or pyarrow is missing.
        SourceError: The folder is missing or cannot be written to.
    """

    _compressions = ("zstd", "lz4")
    _group_bytes = 4 << 20  # the most that is in memory here; a reader maps batches of any size

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        form: Literal["file", "stream"] = "file",
        **options: Any,
    ) -> None:
        self._check_known("form", form, ("file", "stream"))
        self._form = form
        super().__init__(path, compression=compression, **options)

    def _open_sink(self, path: str, schema: Any) -> Any:
        ipc = import_arrow().ipc
        options = ipc.IpcWriteOptions(compression=self._compression)
        new = ipc.new_file if self._form == "file" else ipc.new_stream
        return new(path, schema, options=options)
