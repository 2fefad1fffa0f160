"""`HDFSource`: what a well-formed file gives, by both ways of reading."""

import subprocess
import sys

import h5py
import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources import HDFSource, HDFWriter
from headrace.sources.hdf import source as source_module
from headrace.specs import DataSpec

LENGTHS = [3, 0, 5, 1]
FEATURES = np.arange(9 * 4, dtype=np.float32).reshape(9, 4)
CLASSES = np.arange(9, dtype=np.int32)


def cut_into_seqs(rows, lengths=LENGTHS):
    return np.split(rows, np.cumsum(lengths)[:-1])


def assert_same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@pytest.fixture
def path(tmp_path, write_layout):
    labels = {"targets/labels/classes": [f"c{idx}" for idx in range(9)]}
    return write_layout(tmp_path / "corpus.hdf", labels, sizes={"classes": [9, 1]})


def test_sequences_tags_lengths_and_specs_are_those_of_the_file(path):
    source = HDFSource(path, index=None)
    assert len(source) == 4
    assert [source.tag(idx) for idx in range(4)] == ["a", "b", "c", "d"]
    assert list(source.specs) == ["data", "classes"]
    assert source.specs["data"] == DataSpec("float32", (4,), sparse=False, dim=4)
    assert source.specs["classes"] == DataSpec("int32", (), sparse=True, dim=9)
    assert source.labels == {"classes": [f"c{idx}" for idx in range(9)]}
    assert source.index.lengths("data").tolist() == LENGTHS
    for idx, (data, classes) in enumerate(zip(cut_into_seqs(FEATURES), cut_into_seqs(CLASSES), strict=True)):
        seq = source.read_seq(idx)
        assert list(seq) == ["data", "classes"]
        assert_same(seq["data"], data)
        assert_same(seq["classes"], classes)
        assert_same(source.read(idx, "data"), data)
        assert source.seq_lengths(idx) == {"data": LENGTHS[idx], "classes": LENGTHS[idx]}


DTYPES = ["bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "complex64"]
STORAGES = [
    {},
    {"chunks": True},
    {"compression": "gzip"},
    {"compression": "lzf", "shuffle": True},
    {"fletcher32": True},
]


@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_storage_gives_the_same_bits(tmp_path, dtype, byte_order):
    bits = np.random.default_rng(0).integers(0, 256, 9 * 3 * 16, dtype=np.uint8)
    if dtype == "bool":
        bits &= 1
    rows = np.nan_to_num(bits.view(dtype)[: 9 * 3].reshape(9, 3))
    stored = rows.astype(np.dtype(dtype).newbyteorder(byte_order))
    for number, storage in enumerate(STORAGES):
        path = tmp_path / f"{number}.hdf"
        with h5py.File(path, "w") as file:
            file.create_dataset("inputs", data=stored, **storage)
            file["seqLengths"] = np.array([LENGTHS, LENGTHS], np.int32).T
        source = HDFSource(path, index=None)
        assert source.specs["data"].dtype == dtype
        for idx, wanted in enumerate(cut_into_seqs(rows)):
            assert_same(source.read(idx, "data"), wanted)
            assert_same(source.read_slice(idx, "data", 0, LENGTHS[idx] // 2), wanted[: LENGTHS[idx] // 2])


def test_plain_data_are_read_without_hdf5_and_packed_data_through_it(tmp_path, monkeypatch, write_layout):
    plain = HDFSource(write_layout(tmp_path / "plain.hdf"), index=None)
    packed = HDFSource(write_layout(tmp_path / "packed.hdf", compression="gzip"), index=None)

    def refuse(*args, **kwargs):
        raise SourceError("HDF5 was opened")

    monkeypatch.setattr(source_module, "open_hdf5", refuse)
    assert_same(plain.read(2, "data"), FEATURES[3:8])
    assert_same(plain.read(2, "classes"), CLASSES[3:8])
    with pytest.raises(SourceError, match="HDF5 was opened"):
        packed.read(2, "data")


def test_rows_behind_a_user_block_and_links_inside_the_file_are_found(tmp_path):
    lengths = np.array([LENGTHS, LENGTHS], np.int32).T
    with h5py.File(tmp_path / "block.hdf", "w", userblock_size=1024) as file:
        file["inputs"], file["seqLengths"] = FEATURES, lengths
    with h5py.File(tmp_path / "linked.hdf", "w") as file:
        file["there/really"], file["there/table"] = FEATURES, lengths
        file["there/frames"] = h5py.SoftLink("./really")
        file["here"] = h5py.SoftLink("/there")
        file["inputs"] = h5py.SoftLink("here/frames")
        file["seqLengths"] = file["there/table"]  # a hard link
        file["targets"] = h5py.SoftLink("/nowhere")
    for name in ("block", "linked"):
        assert_same(HDFSource(tmp_path / f"{name}.hdf", index=None).read(2, "data"), FEATURES[3:8])


def test_data_that_were_declared_and_never_written_are_the_fill_value(tmp_path):
    with h5py.File(tmp_path / "unwritten.hdf", "w") as file:
        file.create_dataset("inputs", (9, 2), "f4", fillvalue=7)
        file["seqLengths"] = np.array([LENGTHS, LENGTHS], np.int32).T
    assert_same(HDFSource(tmp_path / "unwritten.hdf", index=None).read(0, "data"), np.full((3, 2), 7, np.float32))


def test_several_files_follow_one_another(tmp_path, write_layout):
    first = write_layout(tmp_path / "1.hdf")
    second = write_layout(tmp_path / "2.hdf", {"inputs": FEATURES + 100, "seqTags": np.array([b"e", b"f", b"g", b"h"])})
    source = HDFSource([first, str(second)], index=None)
    assert source.index.tags[:] == list("abcdefgh")
    assert source.files == (str(first), str(second))
    assert_same(source.read(4, "data"), FEATURES[:3] + 100)
    assert_same(source.read(2, "data"), FEATURES[3:8])


def test_an_empty_list_of_files_and_a_file_without_sequences_are_empty_corpora(tmp_path, write_layout):
    with HDFWriter(tmp_path / "empty.hdf"):
        pass
    assert len(HDFSource([], index=None)) == 0
    assert len(HDFSource(tmp_path / "empty.hdf", index=None)) == 0
    both = HDFSource([tmp_path / "empty.hdf", write_layout(tmp_path / "full.hdf")], index=None)
    assert_same(both.read(0, "data"), FEATURES[:3])


@pytest.mark.parametrize("storage", [{}, {"compression": "lzf"}])
def test_parent_and_forked_child_read_from_the_same_open_source(tmp_path, storage, write_layout):
    path = write_layout(tmp_path / "corpus.hdf", **storage)
    script = f"""
import os
from headrace.sources import HDFSource
source = HDFSource({str(path)!r}, index=None)
source.read(0, "data")
child = os.fork()
sums = [float(source.read(idx, "data").sum()) for idx in range(4) for _ in range(50)]
source.close()
if not child:
    os._exit(0 if sums[100] == {float(FEATURES[3:8].sum())} else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert sums[100] == {float(FEATURES[3:8].sum())}
"""
    subprocess.run([sys.executable, "-c", script], check=True)
