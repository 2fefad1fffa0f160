"""`ParquetWriter`: writes sequences as rows of a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from .table_layout import import_arrow
from .table_writer import TableWriter

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
