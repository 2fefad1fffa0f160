"""`HDFSource`: what a file may leave out or describe in its own way, and what is made of it."""

import h5py
import numpy as np
import pytest

from headrace.errors import OptionalNotImplementedError
from headrace.sources import HDFSource
from headrace.specs import DataSpec

LENGTHS = [3, 0, 5, 1]
FEATURES = np.arange(9 * 4, dtype=np.float32).reshape(9, 4)
CLASSES = np.arange(9, dtype=np.int32)


def assert_same(found, wanted):
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


def test_without_tags_the_sequences_are_numbered_through_the_corpus(tmp_path, write_layout):
    nameless = write_layout(tmp_path / "1.hdf", {"seqTags": None})
    named = write_layout(tmp_path / "2.hdf")
    assert HDFSource(nameless, index=None).index.tags[:] == ["seq-0", "seq-1", "seq-2", "seq-3"]
    tags = HDFSource([named, nameless], index=None).index.tags[:]
    assert tags == ["a", "b", "c", "d", "seq-4", "seq-5", "seq-6", "seq-7"]


@pytest.mark.parametrize("dtype", [h5py.string_dtype(), "S40"])
def test_tags_are_decoded_as_utf8_and_cut_at_the_first_nul(tmp_path, dtype, write_layout):
    raw = [b"two\nlines", "größe/ü".encode(), b"cut\0rest" if dtype == "S40" else b"cut", b""]
    path = write_layout(tmp_path / "corpus.hdf", {"seqTags": None})
    with h5py.File(path, "a") as file:
        file.create_dataset("seqTags", data=np.array(raw, dtype=dtype if dtype == "S40" else object), dtype=dtype)
    assert HDFSource(path, index=None).index.tags[:] == ["two\nlines", "größe/ü", "cut", ""]


def test_without_sizes_the_dims_follow_from_the_data_and_the_labels(tmp_path, write_layout):
    parts = {"targets/data/score": np.zeros(9, np.float32), "targets/data/pairs": np.zeros((9, 2, 6), np.int16)}
    parts["targets/labels/classes"] = [f"c{idx}" for idx in range(9)]
    parts["targets/data/bare"] = np.zeros(9, np.uint8)
    parts["seqLengths"] = np.array([LENGTHS] * 5, np.int32).T
    specs = HDFSource(write_layout(tmp_path / "corpus.hdf", parts), index=None).specs
    assert list(specs) == ["data", "bare", "classes", "pairs", "score"]
    assert {key: spec.dim for key, spec in specs.items()} == {
        "data": 4,
        "bare": None,
        "classes": 9,
        "pairs": 6,
        "score": 1,
    }
    assert {key for key, spec in specs.items() if spec.sparse} == {"bare", "classes"}


@pytest.mark.parametrize("size", [12, [12, 1], np.array([12, 1], np.int64)])
def test_a_size_may_be_a_dim_or_a_dim_and_a_number_of_axes(tmp_path, size, write_layout):
    specs = HDFSource(write_layout(tmp_path / "corpus.hdf", sizes={"classes": size}), index=None).specs
    assert specs["classes"].dim == 12


def test_sparse_input_takes_its_dim_from_the_attribute(tmp_path, write_layout):
    parts = {"inputs": CLASSES, "targets/data/classes": None}
    path = write_layout(tmp_path / "corpus.hdf", parts, attrs={"inputPattSize": 77})
    assert HDFSource(path, index=None).specs["data"] == DataSpec("int32", (), sparse=True, dim=77)


def test_the_attribute_does_not_change_the_dim_of_dense_input(tmp_path, write_layout):
    path = write_layout(tmp_path / "corpus.hdf", attrs={"inputPattSize": 77})
    assert HDFSource(path, index=None).specs["data"].dim == 4


def test_without_input_a_target_may_be_called_data(tmp_path, write_layout):
    parts = {"inputs": None, "targets/data/data": FEATURES}
    source = HDFSource(write_layout(tmp_path / "corpus.hdf", parts, chunks=True), index=None)
    assert list(source.specs) == ["classes", "data"]
    assert_same(source.read(2, "data"), FEATURES[3:8])


@pytest.mark.parametrize("num_columns", [1, 2])
def test_without_targets_a_spare_column_of_lengths_is_allowed_and_ignored(tmp_path, num_columns, write_layout):
    table = np.array([LENGTHS, [9, 9, 9, 9]], np.int32).T[:, :num_columns]
    parts = {"targets/data/classes": None, "seqLengths": table}
    source = HDFSource(write_layout(tmp_path / "corpus.hdf", parts), index=None)
    assert list(source.specs) == ["data"]
    assert source.index.lengths("data").tolist() == LENGTHS


def test_one_column_of_lengths_without_a_second_axis_counts_for_every_key(tmp_path, write_layout):
    source = HDFSource(write_layout(tmp_path / "corpus.hdf", {"seqLengths": np.array(LENGTHS)}), index=None)
    assert_same(source.read(2, "classes"), CLASSES[3:8])


def test_each_key_has_its_own_lengths(tmp_path, write_layout):
    table = np.array([LENGTHS, [1, 6, 0, 2]], np.int64).T
    source = HDFSource(write_layout(tmp_path / "corpus.hdf", {"seqLengths": table}), index=None)
    assert source.seq_lengths(1) == {"data": 0, "classes": 6}
    assert_same(source.read(1, "classes"), CLASSES[1:7])
    assert_same(source.read(2, "classes"), CLASSES[:0])


def test_a_size_of_a_key_without_data_and_without_frames_is_ignored(tmp_path, write_layout):
    table = np.array([LENGTHS, LENGTHS, [0, 0, 0, 0]], np.int32).T
    path = write_layout(tmp_path / "corpus.hdf", {"seqLengths": table}, sizes={"classes": [9, 1], "extra": [3, 1]})
    assert list(HDFSource(path, index=None).specs) == ["data", "classes"]


@pytest.mark.parametrize("storage", [{}, {"chunks": True}])
def test_times_are_read_where_there_are_some(tmp_path, storage, write_layout):
    times = np.arange(18.0).reshape(9, 2)
    timed = HDFSource(write_layout(tmp_path / "timed.hdf", {"times": times}, **storage), index=None)
    assert list(timed.specs) == ["data", "classes"]
    assert_same(timed.read_times(2), times[3:8])
    untimed = write_layout(tmp_path / "untimed.hdf")
    both = HDFSource([untimed, tmp_path / "timed.hdf"], index=None)
    with pytest.raises(OptionalNotImplementedError, match="no times"):
        both.read_times(0)
