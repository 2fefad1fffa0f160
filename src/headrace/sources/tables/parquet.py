"""Parquet files, whose rows `ParquetSource` reads as sequences and `ParquetWriter` writes.

A row group is the least that Parquet decodes, so one column of it is decoded when the first of its rows is asked for,
and kept. An order that walks through the file, or shuffles within windows of it, decodes each group once. A random
order over groups that do not fit into the cache decodes a group for almost every sequence: there Arrow is better, and
`headrace convert` makes it. Read `schema.py` for which columns become which arrays, `source.py` for how rows are read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from .schema import import_arrow
from .source import FileTableSource, TableFiles, one_array
from .writer import TableWriter


class _ParquetTables(TableFiles[Any]):
    """Parquet files; a piece is a row group."""

    slow_hint = (
        "most sequences come from another row group than those before, and each time one is decoded; "
        "convert it to an Arrow file (`headrace convert`), which needs no decoding, or use smaller row groups or "
        "a larger cache_bytes"
    )

    def _open(self, path: str, descriptor: int) -> Any:  # noqa: ARG002
        # The positions of a file object are not used (pread), so a forked process may go on with it.
        return import_arrow().parquet.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)

    def _schema_of(self, handle: Any) -> Any:
        return handle.schema_arrow

    def _release(self, handle: Any) -> None:
        handle.close()

    def num_pieces(self, table_idx: int) -> int:
        """Return the number of row groups."""
        return int(self.handle(table_idx).metadata.num_row_groups)

    def num_rows(self, table_idx: int, piece: int) -> int:
        """Return the number of rows of a row group."""
        return int(self.handle(table_idx).metadata.row_group(piece).num_rows)

    def _column_of(self, handle: Any, piece: int, name: str) -> Any:
        # One thread: workers share the cores already.
        table = handle.read_row_group(piece, columns=[name], use_threads=False)
        return one_array(table.column(name))

    def is_view(self, table_idx: int, array: Any) -> bool:  # noqa: ARG002
        """Not here: all is decoded."""
        return False


class ParquetSource(FileTableSource):
    """Random access to the rows of Parquet files. Needs `headrace[arrow]`.

    Columns become data keys by their types:

    - numbers and bools: one value without a time axis; a list of them: frames, `dtype[T]`; lists of lists: `dtype[T,
    D]`,
      with a free axis if D differs from row to row; an axis of a fixed-size list is never time;
    - texts and binaries: their bytes, `uint8[T]`; texts by a vocabulary, if fields say so;
    - a structure of `bytes` and `path`, as Hugging Face stores audio: samples, `float32[T, 1]`;
    - integers with at most one axis are class indices, with labels where the schema has them.

    Other columns (times, decimals, lists of texts, ...) are left out, and refused if they are named. Fields of
    structures are named "column.field". Files that `ParquetWriter` wrote come back as they were: data keys, dtypes,
    shapes, labels, tags.

    Args:
        files: One path, or several with the same columns.
        fields: Data key -> name of a column, or a dict `{"field": name, ...}` with "vocab" (of texts as in
            `parse_field`; of integers the number of classes or a list of labels) or "features", "sample_rate" and
            "channel" (of audio, as in `AudioSource`). Texts without "vocab" are labels, but UTF-8 bytes for a bare
            name as the data key "orth". If `None`, all columns that become arrays, texts as UTF-8 bytes.
        tag_field: Column with the tags, texts or whole numbers; they may repeat. If `None`, that of `ParquetWriter`,
            else they are "seq-0", "seq-1", ...
        nulls: `"refuse"`, or `"empty"`: a null list or text has no frames, and a null float is a NaN. Other nulls are
            always refused.
        root: Folder of recordings and images of which the file has only paths; they must not lead out of it.
        audio_root: Another name of `root`.
        cache_bytes: How much of decoded row groups to keep, in each process; one group of each column is always kept.
        index: `"auto"` keeps the index of a large corpus in the cache folder and finds it there the next time; `None`
            always gathers it, in memory; a path opens an index that was saved with the same options. Gathering
            decodes the columns in use once: Parquet says of no row how long it is.

    Raises:
        ConfigError: An option is wrong, or pyarrow is missing.
        SourceError: A file is missing, truncated, or has other columns than the first; or a row becomes no array.
    """

    _kind, _tables_class = "parquet/2", _ParquetTables


_COMPRESSIONS = ("snappy", "zstd", "gzip", "brotli", "lz4")
_GROUP_BYTES = 1 << 20  # decoded in about 10 ms: so long takes the first row of a group, in any order


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
        if compression is not None and compression not in _COMPRESSIONS:
            raise ConfigError(
                f"unknown compression {compression!r}",
                where="ParquetWriter",
                fix=did_you_mean(str(compression), _COMPRESSIONS),
            )
        self._compression = compression or "none"
        super().__init__(
            path,
            specs=specs,
            labels=labels,
            overwrite=overwrite,
            rows_per_group=rows_per_group,
            group_bytes=_GROUP_BYTES,
            tag_field=tag_field,
        )

    def _open_sink(self, path: str, schema: Any) -> Any:
        return import_arrow().parquet.ParquetWriter(
            path, schema, compression=self._compression, use_dictionary=False, write_page_checksum=True
        )

    def _write_group(self, sink: Any, batch: Any) -> None:
        sink.write_batch(batch, row_group_size=max(batch.num_rows, 1))
