"""`HDFWriter`: what it writes, what it refuses, and that it leaves a whole file or nothing."""

import gc
import os
import tracemalloc

import h5py
import numpy as np
import pytest

from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.sources import HDFSource, HDFWriter
from headrace.specs import DataSpec

SEQ = {"data": np.ones((3, 4), np.float32), "classes": np.arange(3, dtype=np.int32)}


def test_the_file_has_every_part_of_the_documented_layout(tmp_path):
    with HDFWriter(tmp_path / "corpus.hdf", labels={"classes": ["x", "y", "ü"]}) as writer:
        writer.append("a", SEQ)
        writer.append("bä", {"data": np.zeros((1, 4), np.float32), "classes": np.zeros(0, np.int32)})
        assert writer.num_seqs == 2
    with h5py.File(tmp_path / "corpus.hdf") as file:
        assert set(file) == {"inputs", "labels", "seqLengths", "seqTags", "targets"}
        assert set(file["targets"]) == {"data", "labels", "size"}
        assert dict(file.attrs) == {"numTimesteps": 4, "inputPattSize": 4, "numDims": 1, "numSeqs": 2, "numLabels": 0}
        assert file["inputs"].shape == (4, 4)
        assert file["inputs"].dtype == np.float32
        assert file["seqLengths"].dtype == np.int32
        assert file["seqLengths"][()].tolist() == [[3, 3], [1, 0]]
        assert [tag.decode() for tag in file["seqTags"][()]] == ["a", "bä"]
        assert file["targets/data/classes"][()].tolist() == [0, 1, 2]
        assert file["targets/size"].attrs["classes"].tolist() == [3, 1]
        assert [label.decode() for label in file["targets/labels/classes"][()]] == ["x", "y", "ü"]
        assert file["labels"].shape == (0,)


def test_uncompressed_data_lie_in_one_plain_run_however_many_blocks_they_took(tmp_path):
    rows = np.random.default_rng(0).random((40, 30_000, 1), dtype=np.float32)  # 4.8 MB: more than one block
    with HDFWriter(tmp_path / "corpus.hdf") as writer:
        for idx, part in enumerate(rows):
            writer.append(f"{idx}", {"data": part})
    with h5py.File(tmp_path / "corpus.hdf") as file:
        assert file["inputs"].id.get_offset() is not None
        assert file["inputs"].chunks is None
        assert file["inputs"][()].tobytes() == rows.tobytes()


@pytest.mark.parametrize("compression", ["gzip", "lzf"])
def test_compressed_data_are_smaller_and_in_chunks_of_about_256_kib(tmp_path, compression):
    with HDFWriter(tmp_path / "corpus.hdf", compression=compression) as writer:
        for idx in range(30):
            writer.append(f"{idx}", {"data": np.full((2000, 40), idx, np.float32), "short": np.array([idx])})
    with h5py.File(tmp_path / "corpus.hdf") as file:
        assert file["inputs"].compression == compression
        assert 200_000 <= np.prod(file["inputs"].chunks) * 4 <= 300_000
        assert file["inputs"].id.get_storage_size() < file["inputs"].nbytes / 10
        assert file["targets/data/short"].chunks == (30,)
    source = HDFSource(tmp_path / "corpus.hdf", index=None)
    for idx in (29, 0, 13):
        assert (source.read(idx, "data") == np.full((2000, 40), idx, np.float32)).all()


def test_memory_does_not_grow_with_what_is_appended(tmp_path):
    part = {"data": np.ones((1000, 50), np.float32), "classes": np.zeros(1000, np.int64)}
    tracemalloc.start()
    try:
        with HDFWriter(tmp_path / "corpus.hdf", compression="lzf") as writer:
            for idx in range(400):
                writer.append(f"{idx}", part)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert os.stat(tmp_path / "corpus.hdf").st_size > 0
    assert peak < 24 << 20  # 83 MB went through


def test_a_few_very_long_tags_do_not_pad_all_others(tmp_path):
    tags = [f"t{idx}" for idx in range(5000)] + ["long" * 5000]
    with HDFWriter(tmp_path / "corpus.hdf") as writer:
        for tag in tags:
            writer.append(tag, {"data": np.zeros(1)})
    assert os.stat(tmp_path / "corpus.hdf").st_size < 1_000_000
    assert HDFSource(tmp_path / "corpus.hdf", index=None).index.tags[:] == tags


def test_scalars_and_keys_without_time_become_one_frame(tmp_path):
    specs = {"data": DataSpec("float32", (2,), dim=2), "speaker": DataSpec("float32", (3,), dim=3, has_time=False)}
    specs["number"] = DataSpec("int32", (), sparse=True, dim=10, has_time=False)
    with HDFWriter(tmp_path / "corpus.hdf", specs=specs) as writer:
        writer.append("a", {"data": np.ones((5, 2), "f4"), "speaker": np.ones(3, "f4"), "number": np.int32(7)})
    source = HDFSource(tmp_path / "corpus.hdf", index=None)
    assert source.seq_lengths(0) == {"data": 5, "number": 1, "speaker": 1}
    assert source.read(0, "speaker").tolist() == [[1, 1, 1]]
    assert source.read(0, "number").tolist() == [7]


@pytest.mark.parametrize(
    ("specs", "labels", "dim"),
    [
        ({"classes": DataSpec("int32", (), sparse=True, dim=50)}, None, 50),
        ({"classes": DataSpec("int32", (), sparse=True, dim=50)}, {"classes": ["x"] * 8}, 50),
        (None, {"classes": ["x"] * 8}, 8),
        (None, None, 7),
    ],
)
def test_the_dim_of_class_indices_is_that_of_the_spec_else_of_the_labels_else_the_largest_and_one(
    tmp_path, specs, labels, dim
):
    with HDFWriter(tmp_path / "corpus.hdf", specs=specs, labels=labels) as writer:
        writer.append("a", {"classes": np.array([1, 6, 2], np.int32)})
        writer.append("b", {"classes": np.array([], np.int32)})
    assert HDFSource(tmp_path / "corpus.hdf", index=None).specs["classes"].dim == dim


def test_specs_make_a_file_of_no_sequences_that_still_knows_its_keys(tmp_path):
    specs = {"data": DataSpec("float32", (None, 4), dim=4), "classes": DataSpec("int32", (), sparse=True, dim=5)}
    with HDFWriter(tmp_path / "corpus.hdf", specs=specs, compression="gzip"):
        pass
    source = HDFSource(tmp_path / "corpus.hdf", index=None)
    assert len(source) == 0
    assert source.specs["classes"] == specs["classes"]


def test_a_class_index_whose_dim_no_file_could_say_is_refused(tmp_path):
    with HDFWriter(tmp_path / "corpus.hdf") as writer:
        for wrong in (2**63 - 1, 2**64 - 1):
            with pytest.raises(SourceError, match=f"class index {wrong} of 'classes'"):
                writer.append("a", {"classes": np.array([wrong, 0], np.uint64), "data": np.ones(2)})
        writer.append("a", {"classes": np.array([2**63 - 2], np.uint64), "data": np.ones(2)})
    source = HDFSource(tmp_path / "corpus.hdf", index=None)
    assert source.specs["classes"].dim == 2**63 - 1
    assert source.read(0, "classes").tolist() == [2**63 - 2]


@pytest.mark.parametrize(
    ("tag", "message"), [(b"bytes", "not a str"), (7, "not a str"), ("a\0b", "NUL"), ("\ud800", "Unicode")]
)
def test_a_tag_that_cannot_be_stored_is_refused(tmp_path, tag, message):
    with HDFWriter(tmp_path / "corpus.hdf") as writer:
        with pytest.raises(SourceError, match=message):
            writer.append(tag, SEQ)
        assert writer.num_seqs == 0


@pytest.mark.parametrize("data_key", ["", ".", "..", "a/b", "a\0b", 3])
def test_a_key_that_hdf5_cannot_name_is_refused(tmp_path, data_key):
    with HDFWriter(tmp_path / "corpus.hdf") as writer, pytest.raises(ConfigError, match="cannot be the name"):
        writer.append("a", {data_key: np.ones(3)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compression": "zip"}, "unknown compression 'zip'"),
        ({"compression": 4}, "unknown compression 4"),
        ({"specs": {"data": DataSpec("U3")}}, "dtype U3"),
        ({"specs": {"data": DataSpec("longdouble")}}, "dtype longdouble"),
        ({"specs": {"data": DataSpec("float32")}, "labels": {"clases": ["x"]}}, "labels for"),
    ],
)
def test_a_wrong_option_is_refused_at_once_and_leaves_nothing(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        HDFWriter(tmp_path / "corpus.hdf", **options)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("small_disk")
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_disk_that_is_full_while_closing_leaves_nothing(tmp_path, compression):
    rng = np.random.default_rng(0)
    writer = HDFWriter(tmp_path / "corpus.hdf", compression=compression)
    for idx in range(9):  # each key fits below the limit, all of them together do not
        writer.append(f"{idx}", {key: rng.random(10_000) for key in ("data", "other", "third")})
    before = set(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else set()
    with pytest.raises(HeadraceError, match=r"corpus\.hdf"):
        writer.close()
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    if before:
        assert len(set(os.listdir("/proc/self/fd"))) < len(before)
    with HDFWriter(tmp_path / "corpus.hdf") as writer:
        writer.append("a", SEQ)
    assert HDFSource(tmp_path / "corpus.hdf", index=None).tag(0) == "a"


def test_a_label_with_a_nul_is_refused_and_nothing_is_left(tmp_path):
    with pytest.raises(ConfigError, match="NUL"):
        HDFWriter(tmp_path / "x.hdf", labels={"classes": ["a", "b\0c"]})
    assert not list(tmp_path.iterdir())
