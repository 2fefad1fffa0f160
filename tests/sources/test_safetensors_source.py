"""`SafetensorsSource` and `SafetensorsWriter`; the package safetensors is only needed to compare with it."""

import json
import os
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import ConfigError, SourceError
from headrace.sources import SafetensorsSource, SafetensorsWriter
from headrace.specs import DataSpec
from headrace.testing import check_source

SPECS = {
    "data": DataSpec("float32", (3,), dim=3),
    "classes": DataSpec("int64", (), sparse=True, dim=4),
    "small": DataSpec("uint8", (2, 2), dim=2),
    "number": DataSpec("float64", (), dim=1, has_time=False),
}
LABELS = {"classes": ["a", "b", "c", "d"]}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def seqs(tags=("b/2", "a", "c c")):
    rng = np.random.default_rng(0)
    for number, tag in enumerate(tags):
        yield (
            tag,
            {
                "data": rng.normal(size=(number, 3)).astype(np.float32),
                "classes": rng.integers(0, 4, 2 * number + 1),
                "small": rng.integers(0, 9, (number, 2, 2)).astype(np.uint8),
                "number": np.array(number + 0.5),
            },
        )


@pytest.fixture
def path(tmp_path):
    with SafetensorsWriter(tmp_path / "a.safetensors", specs=SPECS, labels=LABELS) as writer:
        for tag, arrays in seqs():
            writer.append(tag, arrays)
    return tmp_path / "a.safetensors"


def write_raw(path, tensors, body, tail=b""):
    header = json.dumps(tensors).encode() if isinstance(tensors, dict) else tensors
    path.write_bytes(len(header).to_bytes(8, "little") + header + body + tail)
    return path


def tensor(start, end, dtype="F32", shape=None):
    return {"dtype": dtype, "shape": shape or [(end - start) // 4], "data_offsets": [start, end]}


# --- what comes out ---


def test_what_was_written_is_read_back_with_its_order_layouts_and_labels(path):
    source = SafetensorsSource(path)
    assert list(source.index.tags) == ["b/2", "a", "c c"]
    assert (source.specs, source.labels) == (SPECS, LABELS)
    for number, (_, arrays) in enumerate(seqs()):
        for key, array in source.read_seq(number).items():
            np.testing.assert_array_equal(array, arrays[key], strict=True)
    assert source.has_fast_rows
    check_source(source)
    source.close()


@pytest.mark.extra
def test_the_library_reads_what_we_write(path):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    loaded = load_file(path)
    for tag, arrays in seqs():
        for key, array in arrays.items():
            np.testing.assert_array_equal(loaded[f"{tag}/{key}"], array, strict=True)


@pytest.mark.extra
def test_we_read_what_the_library_writes(tmp_path):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    arrays = [{"x": np.random.default_rng(i).normal(size=(i, 2)), "y": np.arange(i + 1) > 0} for i in range(3)]
    (tmp_path / "sub").mkdir()
    for number, seq in enumerate(arrays):
        save_file(seq, tmp_path / "sub" / f"{number}.safetensors")
    source = SafetensorsSource(tmp_path, layout="file")
    assert list(source.index.tags) == ["sub/0", "sub/1", "sub/2"]
    for number, seq in enumerate(arrays):
        for key, array in seq.items():
            np.testing.assert_array_equal(source.read(number, key), array, strict=True)
    check_source(source)
    source.close()


def test_several_files_are_one_corpus_and_a_tag_in_two_of_them_is_refused(tmp_path):
    for name, tags in (("a", ["1", "2"]), ("b", ["3"]), ("c", ["2"])):
        with SafetensorsWriter(tmp_path / f"{name}.safetensors") as writer:
            for tag in tags:
                writer.append(tag, {"data": np.full((2,), int(tag))})
    source = SafetensorsSource([tmp_path / "b.safetensors", tmp_path / "a.safetensors"], fields={"data": "data"})
    assert [source.read(i, "data")[0] for i in range(3)] == [3, 1, 2]
    check_source(source)
    source.close()
    with pytest.raises(SourceError, match=r"two files have the sequence '2'\n.*a\.safetensors, .*c\.safetensors"):
        SafetensorsSource(tmp_path)


def test_bfloat16_becomes_float32_exactly(tmp_path):
    values = np.array([1.0, -2.5, 3.140625, 1e30, 0.0, np.inf], np.float32)
    halves = (values.view(np.uint32) >> 16).astype("<u2")
    write_raw(tmp_path / "a.safetensors", {"s/data": tensor(0, 12, "BF16", [3, 2])}, halves.tobytes())
    source = SafetensorsSource(tmp_path / "a.safetensors")
    expected = (halves.astype(np.uint32) << 16).view(np.float32).reshape(3, 2)
    np.testing.assert_array_equal(source.read(0, "data"), expected, strict=True)
    check_source(source)
    source.close()


def test_fields_and_specs_say_what_the_file_does_not(tmp_path):
    body = np.arange(4, dtype="<i4").tobytes()
    write_raw(tmp_path / "a.safetensors", {"s/x": tensor(0, 16, "I32", [4])}, body)
    source = SafetensorsSource(tmp_path / "a.safetensors", fields={"classes": "x"}, labels={"classes": list("abcd")})
    assert source.specs == {"classes": DataSpec("int32", (), sparse=True, dim=4)}
    source.close()


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 100))
@examples(25)
def test_any_arrays_come_back_bit_by_bit(tmp_path_factory, lengths, seed):
    rng = np.random.default_rng(seed)
    dtypes = rng.choice(["float16", "float32", "float64", "int8", "uint16", "int32", "bool", "complex64"], 3)
    corpus = [{f"k{i}": rng.normal(size=(n, i + 1)).astype(d) for i, d in enumerate(dtypes)} for n in lengths]
    path = tmp_path_factory.mktemp("any") / "a.safetensors"
    with SafetensorsWriter(path) as writer:
        for number, arrays in enumerate(corpus):
            writer.append(f"s{number}", arrays)
    source = SafetensorsSource(path, index=None)
    for number, arrays in enumerate(corpus):
        for key, array in arrays.items():
            np.testing.assert_array_equal(source.read(number, key), array, strict=True)
    source.close()


# --- what is refused ---


@pytest.mark.parametrize(
    ("tensors", "body", "what"),
    [
        ({"s/x": tensor(0, 8)}, b"1234", "end at byte 8 after the header, but the file at 4"),
        ({"s/x": tensor(0, 8)}, b"123456789", "but the file at 9"),
        ({"s/x": tensor(0, 8), "s/y": tensor(4, 12)}, b"123456789012", "'s/y' is at bytes 4..12, but 's/x' ends at 8"),
        ({"s/x": tensor(4, 8)}, b"12345678", "'s/x' is at bytes 4..8, but the header ends at 0"),
        ({"s/x": tensor(0, 8, shape=[3])}, b"12345678", r"F32\[3\] in 8 bytes"),
        ({"s/x": tensor(0, 8, shape=[-1, -2])}, b"12345678", "in 8 bytes"),
        ({"s/x": tensor(0, 8, "F8_E4M3")}, b"12345678", "dtype F8_E4M3"),
        ({"x": tensor(0, 8)}, b"12345678", "not called <tag>/<key>"),
        ({"s/x": {"dtype": "F32"}}, b"", "header cannot be read"),
        (b'{"s/x": 1', b"", "header cannot be read"),
        (b"\xff\xff", b"", "header cannot be read"),
        ({"__metadata__": {"headrace": "{}"}, "s/x": tensor(0, 8)}, b"12345678", "says of itself"),
        ({"__metadata__": {"headrace": "[" * 100_000}, "s/x": tensor(0, 8)}, b"12345678", "says of itself"),
        ({"s/x": tensor(0, 0, shape=[0, 2**62])}, b"", "in 0 bytes"),
        ({"s/x": tensor(0, 0, shape=[2**70, 0])}, b"", "in 0 bytes"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused(tmp_path, tensors, body, what):
    with pytest.raises(SourceError, match=what):
        SafetensorsSource(write_raw(tmp_path / "a.safetensors", tensors, body))


def test_a_name_that_is_there_twice_is_refused(tmp_path):
    one = json.dumps(tensor(0, 4))
    two = json.dumps(tensor(4, 8))
    header = f'{{"s/x": {one}, "s/x": {two}}}'.encode()
    with pytest.raises(SourceError, match="a name twice"):
        SafetensorsSource(write_raw(tmp_path / "a.safetensors", header, b"12345678"))


def test_a_torn_file_and_one_without_a_header_are_refused(path, tmp_path):
    os.truncate(path, os.path.getsize(path) - 1)
    with pytest.raises(SourceError, match="after the header"):
        SafetensorsSource(path)
    for content in (b"", b"\0" * 7, (10**9).to_bytes(8, "little") + b"{}"):
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"not a complete \.safetensors file"):
            SafetensorsSource(path)
    with pytest.raises(SourceError, match="cannot be looked at"):
        SafetensorsSource(tmp_path / "missing.safetensors")
    with pytest.raises(ConfigError, match="unknown layout"):
        SafetensorsSource(path, layout="tags")


def test_a_file_that_changes_after_it_was_indexed_is_refused(path):
    source = SafetensorsSource(path)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(SourceError, match="changed since it was indexed"):
        source.read(1, "data")
    source.close()


def test_a_file_appears_whole_or_not_at_all(tmp_path):
    writer = SafetensorsWriter(tmp_path / "a.safetensors")
    writer.append("a", {"data": np.zeros(2)})
    with pytest.raises(RuntimeError), writer:
        raise RuntimeError
    assert os.listdir(tmp_path) == []


def test_a_sequence_that_does_not_fit_is_refused_and_leaves_nothing(tmp_path):
    with SafetensorsWriter(tmp_path / "a.safetensors", labels={"data": ["x", "y"]}) as writer:
        writer.append("a", {"data": np.array([0, 1])})
        with pytest.raises(SourceError, match="was there before"):
            writer.append("a", {"data": np.array([0])})
        with pytest.raises(SourceError, match="there are 2 classes"):
            writer.append("b", {"data": np.array([2])})
        with pytest.raises(SourceError, match="data keys"):
            writer.append("b", {"other": np.array([1])})
        with pytest.raises(SourceError, match="not valid Unicode"):
            writer.append("\ud800", {"data": np.array([1])})
        writer.append("b", {"data": np.array([1])})
    with pytest.raises(ConfigError, match="exists"):
        SafetensorsWriter(tmp_path / "a.safetensors")
    with pytest.raises(ConfigError, match="cannot end a name"):
        SafetensorsWriter(tmp_path / "b.safetensors", specs={"a/b": DataSpec("float32")})
    with pytest.raises(ConfigError, match="dtype complex128"):
        SafetensorsWriter(tmp_path / "b.safetensors", specs={"a": DataSpec("complex128")})
    source = SafetensorsSource(tmp_path / "a.safetensors")
    assert list(source.index.tags) == ["a", "b"]
    assert source.specs["data"].dim == 2
    source.close()


def test_labels_that_no_reader_would_take_are_refused_before_anything_is_written(tmp_path):
    for dense in (np.zeros(3, np.float32), np.zeros((3, 2), np.float32)):
        with (
            pytest.raises(ConfigError, match="but 3 labels"),
            SafetensorsWriter(tmp_path / "a.safetensors", labels={"data": ["x", "y", "z"]}) as writer,
        ):
            writer.append("a", {"data": dense})
    with pytest.raises(ConfigError, match="has the dim 5, but 3 labels"):
        SafetensorsWriter(
            tmp_path / "a.safetensors",
            specs={"data": DataSpec("int32", sparse=True, dim=5)},
            labels={"data": ["x", "y", "z"]},
        )
    assert os.listdir(tmp_path) == []


def test_labels_of_an_empty_corpus_without_layouts_are_left_out(tmp_path):
    SafetensorsWriter(tmp_path / "a.safetensors", labels={"data": ["x"]}).close()
    source = SafetensorsSource(tmp_path / "a.safetensors")
    assert (len(source), source.labels) == (0, {})
    source.close()


def append_much(writer):
    for number in range(9):
        writer.append(str(number), {"x": np.zeros(50_000), "y": np.zeros(50_000, np.float32)})


def test_a_full_disk_ends_the_writer_and_leaves_nothing(tmp_path):
    writers = [SafetensorsWriter(tmp_path / f"{name}.safetensors") for name in "ab"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(SourceError, match="cannot write"):
            append_much(writers[0])
        # Each temporary file stays below the limit, the file does not.
        writers[1].append("0", {"x": np.zeros(120_000), "y": np.zeros(100_000, np.float32)})
        with pytest.raises(SourceError, match="cannot write"):
            writers[1].close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
