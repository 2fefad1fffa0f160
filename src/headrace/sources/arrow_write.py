"""`ArrowWriter`: writes sequences as rows of an Arrow file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from .table_layout import import_arrow
from .table_writer import TableWriter

_COMPRESSIONS = ("zstd", "lz4")
_FORMS = ("file", "stream")
_GROUP_BYTES = 4 << 20  # the most that is in memory here; a reader maps batches of any size


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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        rows_per_group: int | None = None,
        compression: str | None = None,
        form: Literal["file", "stream"] = "file",
        tag_field: str = "tag",
    ) -> None:
        for name, value, valid in (("compression", compression, _COMPRESSIONS), ("form", form, _FORMS)):
            if value not in valid and (name == "form" or value is not None):
                raise ConfigError(f"unknown {name} {value!r}", where="ArrowWriter", fix=did_you_mean(str(value), valid))
        self._compression, self._form = compression, form
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
        ipc = import_arrow().ipc
        options = ipc.IpcWriteOptions(compression=self._compression)
        new = ipc.new_file if self._form == "file" else ipc.new_stream
        return new(path, schema, options=options)

    def _write_group(self, sink: Any, batch: Any) -> None:
        sink.write_batch(batch)
