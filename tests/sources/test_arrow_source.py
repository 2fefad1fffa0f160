"""What is special about Arrow: rows are views of a mapped file, unless it is compressed."""

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.testing import check_source

pa = pytest.importorskip("pyarrow")

from headrace.sources import ArrowSource, ArrowWriter  # noqa: E402 - after the check for pyarrow
from headrace.sources.tables import files as table_files  # noqa: E402 - after the check for pyarrow

pytestmark = pytest.mark.extra


def _write(path, **options):
    with ArrowWriter(path, rows_per_group=4, **options) as writer:
        for i in range(40):
            writer.append(f"s{i}", {"data": np.full((i % 7, 3), i, np.float32), "classes": np.arange(i % 3)})
    return path


def test_categories_that_grow_within_a_stream_are_read(tmp_path):
    batches = [pa.record_batch({"w": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", "a"])]
    with pa.ipc.new_stream(str(tmp_path / "t"), batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    source = ArrowSource(tmp_path / "t")
    assert [source.read(i, "w").tobytes() for i in range(4)] == [b"a", b"b", b"c", b"a"]
    check_source(source)
    source.close()


def test_offsets_that_lie_are_noticed(tmp_path):
    path = tmp_path / "t"
    with ArrowWriter(path) as writer:
        for length in (1, 2, 3, 4):
            writer.append("s", {"x": np.zeros(length, np.int64)})
    content = path.read_bytes()
    offsets = np.array([0, 1, 3, 6, 10], np.int32).tobytes()
    assert content.count(offsets) == 1
    for wrong in ([0, 1, 3, 60, 10], [0, 1, 3, 6, 1_000_000], [-8, 1, 3, 6, 10]):
        path.write_bytes(content.replace(offsets, np.array(wrong, np.int32).tobytes()))
        with pytest.raises(SourceError, match=r"damaged|cannot be read"):
            ArrowSource(path)


def _views(views):
    data = b"".join(
        np.int32(size).tobytes() + b"xxxx" + np.array([buffer, start], np.int32).tobytes()
        for size, buffer, start in views
    )
    buffers = [None, pa.py_buffer(data), pa.py_buffer(b"x" * 100)]
    return pa.Array.from_buffers(pa.string_view(), len(views), buffers)


def _list_views(starts, sizes):
    buffers = [None, *(pa.py_buffer(np.array(column, np.int32).tobytes()) for column in (starts, sizes))]
    items = [pa.array(np.arange(100, dtype=np.int32))]
    return pa.ListViewArray.from_buffers(pa.list_view(pa.int32()), len(starts), buffers, children=items)


@pytest.mark.parametrize("tag_field", ["id", "x"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: _views([(20, 0, 0), (20, 7, 0)]),
        lambda: _views([(20, 0, 0), (20, 0, 1 << 30)]),
        lambda: _views([(20, 0, 0), (20, 0, -5)]),
        lambda: _views([(20, 0, 0), (1 << 30, 0, 0)]),
        lambda: _list_views([0, 1 << 30], [3, 4]),
        lambda: _list_views([0, 99], [3, 50]),
        lambda: _list_views([0, 5], [3, -4]),
        lambda: pa.DictionaryArray.from_arrays(pa.array([0, 5_000_000], pa.int32()), pa.array([1, 2]), safe=False),
    ],
)
def test_values_that_point_outside_of_their_file_are_refused(tmp_path, make, tag_field):
    column = make()
    batch = pa.record_batch({"id": ["a", "b"], "x": column, "n": [1, 2]})
    with pa.ipc.new_file(str(tmp_path / "t"), batch.schema) as writer:
        writer.write_batch(batch)
    if tag_field == "x" and pa.types.is_list_view(column.type):
        pytest.skip("a list is not a tag")
    fields = {"x": {"field": "x", "vocab": "bytes"} if pa.types.is_string_view(column.type) else "x"}
    with pytest.raises(SourceError, match="damaged") as caught:
        ArrowSource(tmp_path / "t", fields=fields if tag_field == "id" else {"n": "n"}, tag_field=tag_field)
    assert str(tmp_path / "t") in str(caught.value.where)


def test_fixed_shape_tensors_keep_their_shape(tmp_path):
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), array)
    batch = pa.record_batch([array, lists], names=["x", "lists of tensors are left out"])
    with pa.ipc.new_file(str(tmp_path / "t"), batch.schema) as writer:
        writer.write_batch(batch)
    source = ArrowSource(tmp_path / "t")
    assert list(source.specs) == ["x"]
    np.testing.assert_array_equal(source.read(1, "x"), values[1])
    check_source(source)
    source.close()


def test_a_file_that_was_closed_for_others_and_rewritten_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, "MAX_OPEN_FILES", 2)
    paths = [tmp_path / f"{i}.arrow" for i in range(5)]
    for i, path in enumerate(paths):
        with ArrowWriter(path) as writer:
            writer.append(f"s{i}", {"data": np.full(1000, i, np.float32)})
    source = ArrowSource(paths, index=None)
    assert [int(source.read(i, "data")[0]) for i in range(5)] == list(range(5))
    data = bytearray(paths[0].read_bytes())
    data[len(data) // 2] ^= 1
    paths[0].write_bytes(data)
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(0, "data")
    assert int(source.read(4, "data")[0]) == 4
    source.close()
