"""Tables for the tests of Parquet and Arrow: ways to write them, and sequences of all kinds."""

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from headrace.sources import ArrowSource, ArrowWriter, ParquetSource, ParquetWriter
from headrace.specs import DataSpec


def _write_parquet(path, table, rows):
    pa.parquet.write_table(table, path, row_group_size=rows)


def _write_arrow(new, compression=None):
    def write(path, table, rows):
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with new(str(path), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)

    return write


FORMS = {
    "parquet": (ParquetSource, _write_parquet),
    "arrow": (ArrowSource, _write_arrow(pa.ipc.new_file)),
    "arrow-zstd": (ArrowSource, _write_arrow(pa.ipc.new_file, "zstd")),
    "stream": (ArrowSource, _write_arrow(pa.ipc.new_stream)),
    "stream-lz4": (ArrowSource, _write_arrow(pa.ipc.new_stream, "lz4")),
}
WRITERS = {
    "parquet": (ParquetWriter, ParquetSource, {}),
    "parquet-plain": (ParquetWriter, ParquetSource, {"compression": None}),
    "arrow": (ArrowWriter, ArrowSource, {}),
    "stream-zstd": (ArrowWriter, ArrowSource, {"form": "stream", "compression": "zstd"}),
}

LIST = pa.list_(pa.list_(pa.float32()))
COLUMNS = {
    "frames": LIST,
    "classes": pa.large_list(pa.int32()),
    "label": pa.int64(),
    "text": pa.string(),
    "raw": pa.binary(),
    "vector": pa.list_(pa.float16(), 2),
    "ragged": pa.list_(pa.list_(pa.int8())),
    "ok": pa.bool_(),
    "flags": pa.list_(pa.bool_()),
    "when": pa.timestamp("s"),
    "inner": pa.struct([("x", pa.int8()), ("more", pa.list_(pa.uint8()))]),
}


def rows_of(num_rows=20):
    """Return rows of `COLUMNS`."""
    return [
        {
            "frames": [[float(i), 0.5, -1.0]] * (i % 4),
            "classes": list(range(i % 5)),
            "label": i % 3,
            "text": "hä" * (i % 3),
            "raw": b"\xff\x00" * i,
            "vector": [i / 2, 2.0],
            "ragged": [[1, 2, 3][: 1 + i % 2]] * (i % 3),
            "ok": bool(i % 2),
            "flags": [True, False] * (i % 2),
            "when": None,
            "inner": {"x": i, "more": [1] * i},
        }
        for i in range(num_rows)
    ]


def table_of(rows, columns=None, metadata=None):
    """Return an Arrow table of rows."""
    columns = COLUMNS if columns is None else columns
    return pa.Table.from_pylist(rows, pa.schema(list(columns.items()), metadata))


SPECS = {
    "data": DataSpec("float16", (4,), dim=4),
    "picture": DataSpec("uint8", (2, 3), dim=3),
    "free": DataSpec("float64", (None, 2), dim=2),
    "label": DataSpec("int64", (), sparse=True, dim=5, has_time=False),
    "vector": DataSpec("float32", (3,), dim=3, has_time=False),
    "flags": DataSpec("bool", (), dim=1),
    "no_time": DataSpec("int8", (None,), has_time=False),
    "deep": DataSpec("int16", (2, None, 3), dim=3),
    "bits": DataSpec("bool", (2,), dim=2, has_time=False),
}


def seq_of(i, rng):
    """Return a sequence of `SPECS`; every fourth has no frames."""
    frames, free = i % 4, (i % 3 if i % 4 else 0)
    return {
        "data": rng.standard_normal((frames, 4)).astype(np.float16),
        "picture": rng.integers(0, 255, (frames, 2, 3)).astype(np.uint8),
        "free": rng.random((frames, free, 2)),
        "label": np.array(i % 5),
        "vector": rng.random(3).astype(np.float32),
        "flags": rng.random(frames) > 0.5,
        "no_time": np.arange(i % 3, dtype=np.int8),
        "deep": rng.integers(0, 9, (frames, 2, free, 3)).astype(np.int16),
        "bits": rng.random(2) > 0.5,
    }
